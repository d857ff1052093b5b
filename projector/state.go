package projector

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"tidemark/index"
	"tidemark/internal/version"
	"tidemark/keyversion"
	"tidemark/projector/core"
	"tidemark/projector/router"
	"tidemark/timestamp"
	"tidemark/wire"
)

// state returns the ProjectorState (PR-2). It only takes locks that are never held during a wait, so that blocked
// data does not block it.
func (p *Projector) state() *wire.ProjectorState {
	s := &wire.ProjectorState{ID: p.cfg.ID, BootID: p.bootID, Version: version.Full(), KV: []string{p.cfg.KV},
		Share: p.cfg.Share.String(), Cluster: p.clusterID(),
		Admin: p.url(), Counters: p.counters.all(),
		KVTroubles: p.troubles.list(p.cfg.KV, time.Now()),
		Buckets:    []wire.BucketState{}, Definitions: []wire.DefinitionState{}}
	s.Faults, s.FaultsOmitted = p.faults.list()
	p.mu.Lock()
	defs := p.defs.newest
	s.Fence = p.authority.Fence
	buckets := make([]*bucket, 0, len(p.buckets))
	for _, b := range p.buckets {
		buckets = append(buckets, b)
	}
	p.mu.Unlock()
	if defs != nil {
		s.Revision = defs.Revision
		for i := range defs.Indexes {
			if d := &defs.Indexes[i]; d.State.Active() {
				s.Definitions = append(s.Definitions, wire.DefinitionState{Index: d.ID, Name: d.Name, Bucket: d.Bucket,
					State: d.State})
			}
		}
	}
	for _, b := range buckets {
		s.Buckets = append(s.Buckets, b.state())
		s.Revision = min(s.Revision, s.Buckets[len(s.Buckets)-1].Revision)
	}
	slices.SortFunc(s.Buckets, func(a, b wire.BucketState) int { return cmp.Compare(a.Bucket, b.Bucket) })
	s.Topics = p.topics()
	return s
}

// state returns one bucket's part. The lock is held only to copy the list: the fields read from a stream are atomic,
// or were set before it was listed.
func (b *bucket) state() wire.BucketState {
	s := wire.BucketState{Bucket: b.name, BucketUUID: b.uuid, Revision: b.applied(), Activations: b.joins.activations(),
		PurgesUnknown: b.p.purges.of(b.name)}
	b.mu.Lock()
	streams, c := b.streams.Newest(), b.conn
	b.mu.Unlock()
	n := len(streams)
	s.VBuckets, s.VBUUIDs, s.Seqnos, s.Complete = make([]uint16, n), make([]uint64, n), make([]uint64, n),
		make([]uint64, n)
	s.Incarnations, s.Ended, s.Revisions = make([]index.Incarnation, n), make([]bool, n), make([]timestamp.MapRevision, n)
	for i, st := range streams {
		s.VBuckets[i], s.VBUUIDs[i] = st.VBucket(), st.Log.Newest()
		s.Seqnos[i], s.Complete[i] = max(st.seqno.Load(), st.Want.Seqno), st.complete.Load()
		s.Incarnations[i], s.Ended[i], s.Revisions[i] = st.Incarnation, st.ended.Load(), st.KV.Revision
	}
	if c != nil {
		s.Connected, s.HeldBytes, s.BufferBytes = c.alive(), c.feed.Held(), int64(c.window)
		for _, w := range c.workers {
			s.Workers = append(s.Workers, wire.QueueFill{Filled: len(w.blocks), Limit: cap(w.blocks)})
		}
	}
	return s
}

// running returns the number of running streams.
func (b *bucket) running() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.streams.Running()
}

// topics lists the open topics (RT-9).
func (p *Projector) topics() []wire.TopicState {
	p.mu.Lock()
	buckets := slices.Collect(maps.Values(p.buckets))
	p.mu.Unlock()
	sides := p.sides.all(func(core.SideKey) bool { return true })
	all := make([]wire.TopicState, 0, len(buckets)+len(sides))
	for _, b := range buckets {
		all = append(all, topicState(b.topic, keyversion.ClassMaintenance, 0, wire.MaintenanceTopic, b.name,
			b.plan.Load().ids, b.running()))
	}
	for _, s := range sides {
		if t := s.topic.Load(); t != nil {
			all = append(all, topicState(t, s.class, s.target.Node, s.key.Topic, s.key.Bucket, s.plan.ids, int(s.open.Load())))
		}
	}
	slices.SortFunc(all, func(a, b wire.TopicState) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Bucket, b.Bucket))
	})
	return all
}

func topicState(t *router.Topic, class keyversion.Class, node index.NodeID, path, bucket string, ids []index.ID,
	running int) wire.TopicState {
	s := wire.TopicState{Topic: path, TopicID: core.TopicID(class, node), Bucket: bucket, Indexes: ids, VBuckets: running,
		Endpoints: []wire.EndpointState{}}
	for _, l := range t.Lanes() {
		s.Endpoints = append(s.Endpoints, wire.EndpointState{Node: l.Node, Address: l.Address, Connection: l.Connection,
			State: l.State,
			Queue: wire.QueueFill{Filled: l.QueueBytes, Limit: l.LimitBytes}, Dropping: l.Dropping, Slow: l.Slow,
			Error: l.Error})
	}
	return s
}
