package coordinator

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/internal/rpc"
	"tidemark/liveness"
	"tidemark/partition"
	"tidemark/stability"
	"tidemark/statecontext"
	"tidemark/streams"
	"tidemark/wire"
)

// bucket is what the loop keeps of one bucket.
type bucket struct {
	name, uuid string
	generation uint64
	ledger     *streams.Ledger
	stab       *stability.Bucket
	stable     wire.Stability // newest committed
	first      wire.Stability // newest committed when this leader began
	stableMS   int64          // when it was seen to be; 0: before this term
	wanted     bool           // it has an index that projectors evaluate
	due        bool           // something came in
	hosts      []index.NodeID // have a copy of one of its indexes, ascending
	fed        []index.NodeID // have an allocated copy of an index that projectors evaluate, ascending
	members    []index.NodeID // of fed, those that are not offline: as the ledger knows it
	waiters    []*waiter
	rolling    *rolling // while it is being rolled back
	auditMS    int64    // when the newest audit began
	suspect    bool     // a scan needs a branch that is not known here: an audit is due
	audit      *audit   // that is under way
	stuck      bool     // some vbucket has had no stream for long, and the log says so
	doubted    bool     // a projector has said that it is gone, or another one, and was not believed
	// dropping is, by projector, whom it does not send some of its data, as it told last; only those that drop anything.
	dropping map[index.ProjectorID][]index.NodeID
	leftOut  []index.NodeID            // whom the decider knows to be left out somewhere
	owned    map[index.ProjectorID]int // streams by owner, as of ownedAt
	ownedAt  uint64                    // Ledger.Changes
}

// reconcileBuckets makes the buckets known here those of the state.
func (l *leader) reconcileBuckets() {
	for name, b := range l.buckets.byName {
		s := l.now.state.Bucket(name)
		if s == nil || s.Gone || s.Generation != b.generation || s.UUID != b.uuid {
			b.fail(ErrBucketGone)
			delete(l.buckets.byName, name)
		}
	}
	for s := range l.now.state.Buckets() {
		if s.Gone || l.buckets.byName[s.Name] != nil {
			continue
		}
		b, err := l.newBucket(s)
		if err != nil {
			l.log.Error("bucket cannot be coordinated", "bucket", s.Name, "error", err)
			continue
		}
		l.buckets.byName[s.Name] = b
	}
	l.buckets.ordered = make([]*bucket, 0, len(l.buckets.byName))
	for _, b := range l.buckets.byName {
		l.buckets.ordered = append(l.buckets.ordered, b)
	}
	slices.SortFunc(l.buckets.ordered, func(a, b *bucket) int { return strings.Compare(a.name, b.name) })
	l.reconcileHosts()
	if l.active {
		for _, b := range l.buckets.ordered {
			l.adopt(b)
		}
	}
}

func (l *leader) newBucket(s *statecontext.Bucket) (*bucket, error) {
	b := &bucket{name: s.Name, uuid: s.UUID, generation: s.Generation, stable: published(s),
		dropping: map[index.ProjectorID][]index.NodeID{}}
	b.first = b.stable
	var err error
	if b.stab, err = stability.New(l.cfg.Settings.Stability, stampOf(b.stable)); err != nil {
		return nil, err
	}
	if b.ledger, err = streams.New(l.cfg.Settings.Streams, s.VBuckets, l.epoch, l.term); err != nil {
		return nil, err
	}
	b.stab.SetSource(l.sourceOf(s.Name))
	b.ledger.SetCommitted(streams.Committed{Vector: s.Stability.Vector, Logs: s.Stability.Logs,
		Revisions: s.Stability.Revisions})
	b.ledger.SetProjectors(l.nowMS, l.components.alive)
	return b, nil
}

// sourceOf tells what moves a bucket's stability timestamp: what was set of it, else the configuration.
func (l *leader) sourceOf(bucket string) stability.Source {
	source, err := stability.ParseSource(l.now.state.BucketSettings(bucket).StabilitySource)
	if err != nil { // nothing is set
		return l.cfg.Settings.Stability.Source
	}
	return source
}

// published is a bucket's committed stability timestamp as indexers get it.
func published(s *statecontext.Bucket) wire.Stability {
	return wire.Stability{Vector: s.Stability.Vector, Logs: s.Stability.Logs,
		StabilityRef: wire.StabilityRef{Bucket: s.Name,
			Generation: s.Generation, RollbackID: s.Stability.RollbackID, Number: s.Stability.Number,
			Hash: s.Stability.Vector.Hash()}}
}

func stampOf(s wire.Stability) stability.Stamp {
	return stability.Stamp{Vector: s.Vector, Logs: s.Logs, Ref: refOf(s.StabilityRef)}
}

func refOf(r wire.StabilityRef) stability.Ref {
	return stability.Ref{Generation: r.Generation, RollbackID: r.RollbackID, Number: r.Number}
}

// reconcileHosts finds out which buckets need streams and who takes part.
func (l *leader) reconcileHosts() {
	type set struct {
		hosts, fed [256]bool
		wanted     bool
	}
	sets := map[string]*set{}
	for name := range l.buckets.byName {
		sets[name] = &set{}
	}
	for x := range l.now.state.Indexes() {
		d := &x.Definition
		s, b := sets[d.Bucket], l.buckets.byName[d.Bucket]
		if s == nil || d.BucketUUID != b.uuid {
			continue
		}
		evaluated := d.State.Active()
		s.wanted = s.wanted || evaluated
		for _, c := range x.Topology.Copies {
			if c.State != partition.Leaving {
				s.hosts[c.Node] = true
			}
			if evaluated && c.State == partition.Allocated {
				s.fed[c.Node] = true
			}
		}
	}
	for name, b := range l.buckets.byName {
		s := sets[name]
		b.hosts, b.fed = nodesOf(&s.hosts), nodesOf(&s.fed)
		if b.wanted != s.wanted {
			b.wanted, b.due = s.wanted, true
			b.ledger.SetWanted(l.nowMS, s.wanted)
			l.owners(b)
		}
		l.setParticipants(b)
	}
}

func nodesOf(set *[256]bool) (nodes []index.NodeID) {
	for n, in := range set {
		if in {
			nodes = append(nodes, index.NodeID(n))
		}
	}
	return nodes
}

// setParticipants tells the ledger who takes part: fed indexers that are not offline.
func (l *leader) setParticipants(b *bucket) {
	var members []index.NodeID
	for _, node := range b.fed {
		if n := l.components.indexers[node]; n != nil && l.life(&n.component) != liveness.Offline {
			members = append(members, node)
		}
	}
	if slices.Equal(members, b.members) {
		return
	}
	for _, node := range b.members {
		if !slices.Contains(members, node) && slices.Contains(b.fed, node) {
			l.log.Warn("indexer is offline; the bucket goes on without it", "bucket", b.name, "node", node)
			l.held.dirty = true
		}
	}
	b.members = members
	b.ledger.SetIndexers(members)
}

// adopt takes over the running streams, once.
func (l *leader) adopt(b *bucket) {
	if b.ledger.Adopted() {
		return
	}
	running := map[index.ProjectorID]streams.Report{}
	for id, p := range l.components.projectors {
		if s, ok := p.running[b.name]; ok && (s.BucketUUID == "" || s.BucketUUID == b.uuid) {
			running[id] = streamReport(&s)
		}
	}
	minimum := map[index.NodeID][]index.Incarnation{}
	for node, n := range l.components.indexers {
		if incs, ok := n.minimum[b.name]; ok {
			minimum[node] = incs
		}
	}
	if s := l.now.state.Bucket(b.name); s != nil {
		b.ledger.SetRollback(l.nowMS, s.Rollback != nil)
	}
	b.ledger.Adopt(l.nowMS, running, minimum, l.unheard())
	b.due = true
	for id, p := range l.components.projectors {
		if s, ok := p.running[b.name]; ok {
			l.takeCompletes(b, id, &s)
		}
	}
	if sum := b.ledger.Summary(l.nowMS); b.wanted {
		l.log.Info("streams adopted", "bucket", b.name, "begun", sum.Begun, "lost", sum.Lost, "unknown", sum.Unknown)
	}
}

// unheard lists the live projectors that have not told this leader what they stream, ascending: they are unknown, not
// absent. One that is silent for Settings.OfflineAfter of this term is not alive, and none counts for longer than
// unheardMost.
func (l *leader) unheard() (ids []index.ProjectorID) {
	if l.nowMS-l.startedMS >= unheardMost {
		return nil
	}
	for _, id := range l.components.alive {
		if p := l.components.projectors[id]; p != nil && !p.hello {
			ids = append(ids, id)
		}
	}
	return ids
}

// unheardMost is how long a leader waits for what a projector streams that reports, but does not answer its hello.
const unheardMost = 30_000 // ms

// refreshBucket takes over what the state says of a bucket.
func (l *leader) refreshBucket(b *bucket, s *statecontext.Bucket) {
	if s == nil || s.Generation != b.generation {
		return // reconcileBuckets will come
	}
	if l.active {
		b.ledger.SetRollback(l.nowMS, s.Rollback != nil)
	}
	b.stab.SetSource(l.sourceOf(b.name))
	if s.Stability.Number == b.stable.Number && s.Stability.RollbackID == b.stable.RollbackID {
		return
	}
	b.stable, b.stableMS = published(s), l.nowMS
	if err := b.stab.Committed(stampOf(b.stable)); err != nil {
		l.log.Error("a committed stability timestamp does not fit", "bucket", b.name, "error", err)
	}
	b.ledger.SetCommitted(streams.Committed{Vector: s.Stability.Vector, Logs: s.Stability.Logs,
		Revisions: s.Stability.Revisions})
	l.owners(b)
	for _, node := range b.hosts {
		if n := l.components.indexers[node]; n != nil {
			l.publish(b, n)
		}
	}
	l.serve(b)
}

// owners hands changes of ownership from the ledger to the stability decider.
func (l *leader) owners(b *bucket) {
	for _, v := range b.ledger.Changed() {
		e := b.ledger.At(v)
		if e.State == streams.Begun {
			b.stab.Begin(v, stability.Stream{Projector: e.Owner, Incarnation: e.Incarnation, Log: e.Log, Revision: e.Revision})
		} else {
			b.stab.End(v, e.Incarnation)
		}
	}
}

// ownership counts the streams of each projector.
func (b *bucket) ownership() map[index.ProjectorID]int {
	if b.owned == nil || b.ownedAt != b.ledger.Changes() {
		b.owned, b.ownedAt = map[index.ProjectorID]int{}, b.ledger.Changes()
		for v := range b.ledger.Len() {
			if e := b.ledger.At(v); e.State == streams.Begun {
				b.owned[e.Owner]++
			}
		}
	}
	return b.owned
}

// stepBucket lets the ledger decide, and carries it out.
func (l *leader) stepBucket(b *bucket) {
	for _, a := range b.ledger.Step(l.nowMS) {
		l.execute(b, a)
	}
	l.owners(b)
	if d, bad := b.ledger.Diverged(); bad {
		l.beginRollback(b, d)
	}
	l.stepRollback(b)
}

// execute sends what the ledger wants done. Who does not answer does not count: the ledger's patience sees to it.
func (l *leader) execute(b *bucket, a streams.Action) {
	l.log.Debug("streams", "bucket", b.name, "action", a.Kind, "incarnation", a.Incarnation, "vbuckets",
		len(a.VBuckets)+len(a.Starts))
	ref := bucketRef{name: b.name, generation: b.generation}
	for _, node := range a.Nodes {
		if n := l.components.indexers[node]; n != nil {
			l.poll(ref, n, a)
		}
	}
	for _, id := range a.Projectors {
		p := l.components.projectors[id]
		if p == nil {
			continue
		}
		switch a.Kind {
		case streams.FetchLogs:
			l.fetchLogs(ref, p, a)
		case streams.StartStreams:
			l.startStreams(ref, b.uuid, p, a)
		case streams.StopStreams:
			p.commands.put(task{do: func(ctx context.Context) {
				_, err := fenced(ctx, p.fences, func(f wire.Fence) (struct{}, error) {
					return struct{}{}, l.cfg.Projectors.Stop(ctx, p.addr, &wire.StreamStop{Fence: f, Topic: wire.MaintenanceTopic,
						Bucket:   ref.name,
						VBuckets: a.VBuckets, Incarnation: a.Incarnation})
				})
				if err != nil {
					l.log.Debug("stop of streams", "projector", p.id, "error", err) // its next report renews it
				}
			}})
		}
	}
}

// bucketRef names a bucket to an answer that may come after it was re-created.
type bucketRef struct {
	name       string
	generation uint64
}

func (r bucketRef) find(l *leader) *bucket {
	if b := l.buckets.byName[r.name]; b != nil && b.generation == r.generation {
		return b
	}
	return nil
}

func (l *leader) poll(ref bucketRef, n *indexer, a streams.Action) {
	n.commands.put(task{key: "poll/" + ref.name, do: func(ctx context.Context) {
		ctx = l.traced(ctx, ref.name)
		all, err := fenced(ctx, n.fences, func(f wire.Fence) ([]wire.PollPosition, error) {
			req := &wire.PollRequest{Fence: f, Bucket: ref.name, VBuckets: a.VBuckets, Incarnation: a.Incarnation, Brief: true}
			reply, err := l.cfg.Indexers.Poll(ctx, n.addr, req)
			if err != nil {
				return nil, err
			}
			return req.Take(reply)
		})
		if err != nil {
			l.log.Debug("poll", "indexer", n.name, "error", err)
			return
		}
		positions := make([]streams.Position, len(all))
		for i, p := range all {
			positions[i] = streams.Position(p)
		}
		_ = l.post(ctx, answer(func(l *leader) {
			if b := ref.find(l); b != nil {
				b.ledger.Positions(n.node, a.Incarnation, positions)
				b.due = true
			}
		}))
	}})
}

func (l *leader) fetchLogs(ref bucketRef, p *projector, a streams.Action) {
	p.questions.put(task{key: "logs/" + ref.name, do: func(ctx context.Context) {
		ctx = l.traced(ctx, ref.name)
		reply, err := fenced(ctx, p.fences, func(f wire.Fence) (*wire.FailoverLogsReply, error) {
			return l.cfg.Projectors.FailoverLogs(ctx, p.addr, &wire.FailoverLogsRequest{Fence: f, Bucket: ref.name,
				VBuckets: a.VBuckets})
		})
		if err != nil {
			l.log.Debug("failover logs", "projector", p.id, "error", err)
			reply = &wire.FailoverLogsReply{} // it hosts nothing that can be started now
		}
		logs := logsOf(reply)
		_ = l.post(ctx, answer(func(l *leader) {
			if b := ref.find(l); b != nil {
				b.ledger.Logs(p.id, a.Incarnation, logs)
				b.due = true
			}
		}))
	}})
}

func (l *leader) startStreams(ref bucketRef, uuid string, p *projector, a streams.Action) {
	want := wire.StreamBucket{Bucket: ref.name, BucketUUID: uuid}
	for _, s := range a.Starts {
		want.Restart.Add(wire.StreamStart{VBucket: s.VBucket, VBUUID: s.VBUUID, Seqno: s.Seqno, Window: s.Window,
			Branch: s.Branch, Previous: s.Previous})
	}
	req := wire.StreamRequest{Topic: wire.MaintenanceTopic, Incarnation: a.Incarnation, Buckets: []wire.StreamBucket{want}}
	p.commands.put(task{do: func(ctx context.Context) {
		ctx = l.traced(ctx, ref.name)
		reply, err := fenced(ctx, p.fences, func(f wire.Fence) (*wire.StreamReply, error) {
			r := req
			r.Fence = f
			return l.cfg.Projectors.Streams(ctx, p.addr, &r)
		})
		if err != nil || len(reply.Buckets) != 1 {
			l.log.Debug("start of streams", "projector", p.id, "error", err)
			return // the outcome is unknown: its report or patience tells
		}
		results := make([]streams.Started, len(reply.Buckets[0].Results))
		for i, r := range reply.Buckets[0].Results {
			results[i] = streams.Started{VBucket: r.VBucket, Outcome: outcome(r.Outcome), Log: r.Log, Purge: r.Purge,
				Revision: r.Revision,
				Detail:   r.Detail}
		}
		_ = l.post(ctx, answer(func(l *leader) {
			if b := ref.find(l); b != nil {
				b.ledger.Started(l.nowMS, p.id, a.Incarnation, results)
				b.due = true
			}
		}))
	}})
}

func outcome(o wire.StartOutcome) streams.Outcome {
	switch o {
	case wire.StartBegun:
		return streams.Streams
	case wire.StartNotMine:
		return streams.NotMine
	case wire.StartRollback:
		return streams.RolledKV
	case wire.StartStale:
		return streams.Stale
	}
	return streams.Failed
}

// answer is what a lane hands back to the loop.
type answer func(l *leader)

func (a answer) apply(l *leader) { a(l) }

// goneAfter is how many checks in a row must not find a bucket before its indexes go to error.
const goneAfter = 3

// checkBuckets asks a projector, now and then, whether the known buckets are still what they were.
func (l *leader) checkBuckets() {
	if !l.active || l.nowMS-l.periodic.checkMS < l.cfg.Settings.BucketCheck.Milliseconds() ||
		len(l.components.alive) == 0 {
		return
	}
	l.periodic.checkMS = l.nowMS
	p := l.components.projectors[l.components.alive[int(l.nowMS/1000)%len(l.components.alive)]]
	if p == nil {
		return
	}
	for _, b := range l.buckets.ordered {
		name, uuid := b.name, b.uuid
		p.checks.put(task{key: "bucket/" + name, do: func(ctx context.Context) {
			reply, err := l.cfg.Projectors.Bucket(ctx, p.addr, &wire.BucketRequest{Bucket: name})
			_ = l.post(ctx, answer(func(l *leader) { l.bucketChecked(p.id, name, uuid, reply, err) }))
		}})
	}
}

// bucketChecked takes a projector's answer. What one says against a bucket is not believed while others stream it: its
// KV node may have left the KV cluster, its user may have lost the right, it may have been pointed at another cluster.
// A bucket that is deleted loses all its streams, and the projectors do not begin them again on another one of its
// name.
func (l *leader) bucketChecked(id index.ProjectorID, name, uuid string, reply *wire.BucketReply, err error) {
	b := l.buckets.byName[name]
	if b == nil || b.uuid != uuid {
		return
	}
	var p *rpc.Problem
	unknown := errors.As(err, &p) && p.Status == http.StatusNotFound && p.Code == errcode.BucketNotInKV
	sum := b.ledger.Summary(l.nowMS)
	if begun := sum.Begun + sum.Unknown; begun > 0 && (unknown || err == nil && reply.UUID != uuid) {
		delete(l.buckets.missing, name)
		if !b.doubted {
			b.doubted = true
			l.log.Warn("a projector says that the bucket is gone or another one, while it is being streamed: not believed; "+
				"check its KV node, user and address",
				"bucket", name, "projector", id, "streams", begun, "error", err)
		}
		return
	}
	switch {
	case err == nil && reply.UUID == uuid:
		delete(l.buckets.missing, name)
	case err == nil:
		l.log.Warn("bucket was re-created", "bucket", name, "uuid", reply.UUID, "was", uuid)
		l.propose("bucket/"+name, &statecontext.SetBucket{Name: name, UUID: reply.UUID, VBuckets: reply.VBuckets}, nil)
	case unknown:
		if l.buckets.missing[name]++; l.buckets.missing[name] >= goneAfter {
			l.log.Warn("bucket is gone", "bucket", name, "uuid", uuid)
			l.propose("bucket/"+name, &statecontext.BucketGone{Name: name, UUID: uuid}, nil)
		}
	}
}
