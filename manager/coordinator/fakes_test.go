package coordinator

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"syscall"
	"time"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/internal/rpc"
	"tidemark/partition"
	"tidemark/timestamp"
	"tidemark/wire"
)

// fake is the part that both kinds of component share.
type fake struct {
	w    *world
	addr string
	boot string
	ctx  context.Context
	kill context.CancelFunc

	mu       sync.Mutex
	fence    wire.Fence
	down     bool
	hang     bool // definitions and hellos block
	stopped  bool // all calls block, and it reports nothing
	revision uint64
	defs     *wire.Definitions
	sequence uint64
	hellos   int
	slow     time.Duration // duration of a hello
	lists    int           // full definitions received
	changes  int           // changes of definitions received
	unknown  int           // reports to which the leader replied that it does not know the component
}

// enter precedes every call: a component that is down does not answer, and a fence that is too low is refused.
func (f *fake) enter(ctx context.Context, fence *wire.Fence, mayHang bool) error {
	select {
	case <-time.After(300 * time.Microsecond):
	case <-ctx.Done():
		return ctx.Err()
	}
	f.mu.Lock()
	down, hang, stopped := f.down, f.hang, f.stopped
	f.mu.Unlock()
	if stopped || hang && mayHang {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(5 * time.Second):
			return context.DeadlineExceeded
		}
	}
	if down {
		return fmt.Errorf("dial: %w", syscall.ECONNREFUSED)
	}
	if fence == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	next, err := f.fence.Admit(f.boot, *fence)
	if err != nil {
		return rpc.AsProblem(err)
	}
	f.fence = next
	return nil
}

func (f *fake) takeDefinitions(d *wire.Definitions) (*wire.DefinitionsReply, error) {
	if d.Revision < f.revision {
		return nil, rpc.Refuse(errcode.Fenced, "revision %d is below %d", d.Revision, f.revision)
	}
	f.revision, f.defs = d.Revision, d
	f.lists++
	return &wire.DefinitionsReply{Revision: d.Revision}, nil
}

// takeChange applies a change of definitions.
func (f *fake) takeChange(c *wire.DefinitionsChange) (*wire.DefinitionsReply, error) {
	d, err := c.Apply(f.defs)
	if err != nil {
		return &wire.DefinitionsReply{Missing: true}, nil
	}
	reply, err := f.takeDefinitions(d)
	if err == nil {
		f.lists--
		f.changes++
	}
	return reply, err
}

type fakeProjector struct {
	fake
	id      index.ProjectorID
	streams map[string]map[uint16]*fakeStream
	starts  int // streams started
	stops   int
	amend   func(*wire.ProjectorReport) // adds to each report; nil: nothing
	drops   []index.NodeID              // indexers for which it drops some data of every bucket
	foreign string                      // uuid of the buckets that it finds; "none": it finds none; "": KV's
	away    bool                        // its KV node hangs, and it reports so
	stuck   bool                        // it answers no SYNC
	syncs   int                         // SYNCs received
	hangs   bool                        // its KV node hangs, and it waits for the node
	refuses bool                        // it refuses to start streams
	sees    *wire.Hosted                // what its KV node had when it last looked
	cut     []index.NodeID              // indexers whose connections from it are closed
}

// queryKV simulates a request to its KV node.
func (p *fakeProjector) queryKV(ctx context.Context, bucket string) error {
	p.mu.Lock()
	away, hangs := p.away, p.hangs
	p.mu.Unlock()
	if hangs {
		select {
		case <-time.After(5 * time.Second):
		case <-ctx.Done():
		}
		return errors.New("no answer in time")
	}
	if away {
		return rpc.Refuse(errcode.KVUnavailable, "KV of bucket %q cannot be queried now", bucket)
	}
	return nil
}

type fakeStream struct {
	inc      index.Incarnation
	complete uint64
	log      timestamp.FailoverLog
	rev      timestamp.MapRevision
}

func (w *world) projector(id index.ProjectorID) *fakeProjector {
	p := &fakeProjector{id: id, streams: map[string]map[uint16]*fakeStream{}}
	p.fake = fake{w: w, addr: "http://" + string(id), boot: fmt.Sprint(id, "-", time.Now().UnixNano())}
	p.ctx, p.kill = context.WithCancel(w.ctx)
	w.mu.Lock()
	w.projectors[p.addr] = p
	w.mu.Unlock()
	w.running.Go(p.run)
	return p
}

func (p *fakeProjector) run() {
	register := func() bool {
		for p.ctx.Err() == nil {
			r, err := p.w.leader().RegisterProjector(p.ctx, &wire.RegisterProjector{Endpoint: wire.ProjectorEndpoint{ID: p.id,
				BootID: p.boot, Admin: p.addr}})
			if err == nil {
				p.mu.Lock()
				if p.fence.Less(r.Fence) {
					p.fence = r.Fence
				}
				p.mu.Unlock()
				return true
			}
			time.Sleep(50 * time.Millisecond)
		}
		return false
	}
	if !register() {
		return
	}
	for p.ctx.Err() == nil {
		time.Sleep(100 * time.Millisecond)
		reply, err := p.w.leader().HandleProjectorReport(p.ctx, p.report(""))
		if err == nil && !reply.Known {
			p.mu.Lock()
			p.unknown++
			p.mu.Unlock()
			if !register() {
				return
			}
		}
	}
}

// report returns the full state; complete seqnos follow KV.
func (p *fakeProjector) report(only string) *wire.ProjectorReport {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sequence++
	r := &wire.ProjectorReport{ID: p.id, BootID: p.boot, Sequence: p.sequence, Revision: p.revision}
	if p.amend != nil {
		p.amend(r)
	}
	for name, streams := range p.streams {
		if only != "" && name != only {
			continue
		}
		kv := p.w.kv[name]
		if kv == nil { // KV has closed the connections
			clear(streams)
			r.Buckets = append(r.Buckets, wire.StreamStates{Bucket: name, Full: true})
			continue
		}
		s := wire.StreamStates{Bucket: name, BucketUUID: kv.uuid, Full: true, Dropping: p.drops}
		if !p.away && !p.hangs {
			p.sees = &wire.Hosted{Node: kv.node(p.id), Revision: timestamp.MapRevision{Rev: kv.rev}}
			for v := range uint16(vbuckets) {
				if kv.hosts(v, p.id) {
					p.sees.VBuckets = append(p.sees.VBuckets, v)
				}
			}
		}
		if p.w.looks {
			s.Hosted = p.sees
		}
		for v := range uint16(vbuckets) {
			st := streams[v]
			if st == nil {
				continue
			}
			if kv.hosts(v, p.id) {
				st.complete = max(st.complete, kv.high[v])
			}
			s.Streams = append(s.Streams, wire.StreamState{VBucket: v, Incarnation: st.inc, Complete: st.complete, Log: st.log,
				Revision: st.rev})
		}
		r.Buckets = append(r.Buckets, s)
	}
	return r
}

func (p *fakeProjector) counts() (starts, stops int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.starts, p.stops
}

type projectorsOf struct{ w *world }

func (c projectorsOf) at(addr string) *fakeProjector {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	return c.w.projectors[addr]
}

func (c projectorsOf) Hello(ctx context.Context, addr string, req *wire.HelloRequest) (*wire.ProjectorHello, error) {
	p := c.at(addr)
	if err := p.enter(ctx, &req.Fence, true); err != nil {
		return nil, err
	}
	p.mu.Lock()
	p.hellos++
	slow := p.slow
	p.mu.Unlock()
	select {
	case <-time.After(slow):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return &wire.ProjectorHello{Report: *p.report("")}, nil
}

func (c projectorsOf) Definitions(ctx context.Context, addr string, req *wire.Definitions) (*wire.DefinitionsReply,
	error) {
	p := c.at(addr)
	if err := p.enter(ctx, &req.Fence, true); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.takeDefinitions(req)
}

func (c projectorsOf) Change(ctx context.Context, addr string, req *wire.DefinitionsChange) (*wire.DefinitionsReply,
	error) {
	p := c.at(addr)
	if err := p.enter(ctx, &req.Fence, true); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.takeChange(req)
}

func (c projectorsOf) Bucket(ctx context.Context, addr string, req *wire.BucketRequest) (*wire.BucketReply, error) {
	p := c.at(addr)
	if err := p.enter(ctx, nil, false); err != nil {
		return nil, err
	}
	if err := wire.MeantFor(req.Boot, p.boot); err != nil {
		return nil, rpc.AsProblem(err)
	}
	if err := p.queryKV(ctx, req.Bucket); err != nil {
		return nil, err
	}
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	kv := c.w.kv[req.Bucket]
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case req.Bucket == "wide":
		return nil, rpc.Refuse(errcode.TooManyVBuckets, "bucket %q has 8192 vbuckets", req.Bucket)
	case p.foreign != "" && p.foreign != "none":
		return &wire.BucketReply{Name: req.Bucket, UUID: p.foreign, VBuckets: vbuckets}, nil
	case kv == nil || p.foreign == "none":
		return nil, rpc.Refuse(errcode.BucketNotInKV, "no bucket %q", req.Bucket)
	}
	return &wire.BucketReply{Name: req.Bucket, UUID: kv.uuid, VBuckets: vbuckets}, nil
}

func (c projectorsOf) FailoverLogs(ctx context.Context, addr string,
	req *wire.FailoverLogsRequest) (*wire.FailoverLogsReply, error) {
	p := c.at(addr)
	if err := p.enter(ctx, &req.Fence, false); err != nil {
		return nil, err
	}
	if err := p.queryKV(ctx, req.Bucket); err != nil {
		return nil, err
	}
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	r := &wire.FailoverLogsReply{}
	kv := c.w.kv[req.Bucket]
	for v := range uint16(vbuckets) {
		if kv != nil && kv.hosts(v, p.id) && (len(req.VBuckets) == 0 || slices.Contains(req.VBuckets, v)) {
			r.Logs = append(r.Logs, wire.VBucketHistory{VBucket: v, Log: kv.logs[v], High: kv.high[v],
				Revision: timestamp.MapRevision{Rev: kv.rev}})
		}
	}
	return r, nil
}

func (c projectorsOf) Streams(ctx context.Context, addr string, req *wire.StreamRequest) (*wire.StreamReply, error) {
	p := c.at(addr)
	if err := p.enter(ctx, &req.Fence, false); err != nil {
		return nil, err
	}
	if err := p.queryKV(ctx, req.Buckets[0].Bucket); err != nil {
		return nil, err
	}
	c.w.goOn(req)
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refuses {
		return nil, rpc.Refuse(errcode.Unavailable, "projector %s has no room for another bucket", p.id)
	}
	want := &req.Buckets[0]
	r := wire.StreamOutcome{Bucket: want.Bucket}
	kv := c.w.kv[want.Bucket]
	for i := range want.Restart.Len() {
		s := want.Restart.At(i)
		res := wire.StartResult{VBucketHistory: wire.VBucketHistory{VBucket: s.VBucket}, Outcome: wire.StartNotMine}
		if kv != nil && kv.uuid == want.BucketUUID && kv.hosts(s.VBucket, p.id) {
			if p.streams[want.Bucket] == nil {
				p.streams[want.Bucket] = map[uint16]*fakeStream{}
			}
			p.starts++
			res.Outcome, res.Log, res.Revision = wire.StartBegun, kv.logs[s.VBucket], timestamp.MapRevision{Rev: kv.rev}
			p.streams[want.Bucket][s.VBucket] = &fakeStream{inc: req.Incarnation, complete: s.Seqno, log: res.Log,
				rev: res.Revision}
		}
		r.Results = append(r.Results, res)
	}
	return &wire.StreamReply{TopicID: 255, Buckets: []wire.StreamOutcome{r}}, nil
}

func (c projectorsOf) Stop(ctx context.Context, addr string, req *wire.StreamStop) error {
	p := c.at(addr)
	if err := p.enter(ctx, &req.Fence, false); err != nil {
		return err
	}
	_ = p.queryKV(ctx, req.Bucket) // its streams no longer count, whether KV is notified or not
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stops++
	for v, s := range p.streams[req.Bucket] {
		if s.inc.Compare(req.Incarnation) <= 0 && (len(req.VBuckets) == 0 || slices.Contains(req.VBuckets, v)) {
			delete(p.streams[req.Bucket], v)
		}
	}
	return nil
}

func (c projectorsOf) Sync(ctx context.Context, addr string, req *wire.SyncRequest) (*wire.ProjectorReport, error) {
	p := c.at(addr)
	if err := p.enter(ctx, nil, false); err != nil {
		return nil, err
	}
	p.mu.Lock()
	p.syncs++
	stuck := p.stuck
	p.mu.Unlock()
	if stuck {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return p.report(req.Bucket), nil
}

type fakeIndexer struct {
	fake
	name      string
	zone      string
	capacity  uint32
	node      index.NodeID
	stable    map[string]wire.BucketStability
	loaded    map[index.CopyID][]uint64 // high seqnos when the build began: the copy is whole at an S that covers them
	published int                       // stability messages received
	never     bool
	withholds bool          // it acknowledges nothing
	made      chan struct{} // signals a new stability timestamp, if prompt
	prompt    bool
	builds    bool     // writes to copies that are being built are pending
	side      uint64   // progress of its builds
	rollbacks []string // steps received
	faults    []wire.IndexFaults
	// faultsOmitted is the reported number of indexes that faults leaves out.
	faultsOmitted int
	differing     []wire.CopyDifference
	// differingOmitted is the reported number of copies that differing leaves out.
	differingOmitted int
	compared         func(index.CopyID) bool               // reports whether a copy was compared with KV; nil: none
	size             func(index.ID, partition.Copy) uint64 // bytes of a copy; nil: 0
	rate             func(index.ID, partition.Copy) uint64 // entries of a copy read per second; nil: 0
	orphans          []wire.Orphan
	drops            [][]wire.OrphanRef // orphans that it was sent to drop
}

func (w *world) indexer(name string) *fakeIndexer { return w.indexerIn(name, "", 0) }

func (w *world) indexerIn(name, zone string, capacity uint32) *fakeIndexer {
	n := &fakeIndexer{name: name, zone: zone, capacity: capacity, stable: map[string]wire.BucketStability{},
		loaded: map[index.CopyID][]uint64{}, made: make(chan struct{}, 1)}
	n.fake = fake{w: w, addr: "http://" + name, boot: fmt.Sprint(name, "-", time.Now().UnixNano())}
	n.ctx, n.kill = context.WithCancel(w.ctx)
	w.mu.Lock()
	w.indexers[n.addr] = n
	w.mu.Unlock()
	w.running.Go(n.run)
	return n
}

func (n *fakeIndexer) register() bool {
	for n.ctx.Err() == nil {
		r, err := n.w.leader().RegisterIndexer(n.ctx, &wire.RegisterIndexer{Endpoint: wire.Endpoint{UUID: "uuid-" + n.name,
			BootID: n.boot, Name: n.name, Zone: n.zone, Capacity: n.capacity,
			Admin: n.addr, Scan: n.name + ":1", Maintenance: n.name + ":2", Backfill: n.name + ":3", Catchup: n.name + ":4"}})
		if err == nil {
			n.mu.Lock()
			n.node = r.Node
			if n.fence.Less(r.Fence) {
				n.fence = r.Fence
			}
			n.mu.Unlock()
			return true
		}
		time.Sleep(50 * time.Millisecond)
	}
	return false
}

func (n *fakeIndexer) run() {
	if !n.register() {
		return
	}
	for n.ctx.Err() == nil {
		select {
		case <-time.After(100 * time.Millisecond):
		case <-n.made:
			time.Sleep(2 * time.Millisecond)
		}
		n.mu.Lock()
		stopped := n.stopped
		n.mu.Unlock()
		if stopped {
			continue
		}
		reply, err := n.w.leader().HandleIndexerReport(n.ctx, n.report())
		if err == nil && !reply.Known {
			n.mu.Lock()
			n.unknown++
			n.mu.Unlock()
			if !n.register() {
				return
			}
		}
	}
}

// report returns the full state: copies become ready with the first S after their index was loaded.
func (n *fakeIndexer) report() *wire.IndexerReport {
	accepted := n.accepted()
	high := map[string][]uint64{}
	n.w.mu.Lock()
	for name, kv := range n.w.kv {
		high[name] = slices.Clone(kv.high[:])
	}
	n.w.mu.Unlock()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.sequence++
	r := &wire.IndexerReport{Node: n.node, UUID: "uuid-" + n.name, BootID: n.boot, Sequence: n.sequence,
		Revision: n.revision,
		Orphans:  slices.Clone(n.orphans), OrphanCount: len(n.orphans), Faults: n.faults, FaultsOmitted: n.faultsOmitted,
		Differing: slices.Clone(n.differing), DifferingOmitted: n.differingOmitted}
	if n.defs == nil {
		return r
	}
	states := map[index.ID]*index.Definition{}
	for i := range n.defs.Indexes {
		states[n.defs.Indexes[i].ID] = &n.defs.Indexes[i]
	}
	for _, t := range n.defs.Topologies {
		d := states[t.Index]
		for _, c := range t.Copies {
			if c.Node != n.node || c.State == partition.Leaving ||
				!slices.ContainsFunc(n.defs.Buckets, func(b wire.Bucket) bool { return b.Name == d.Bucket }) {
				continue
			}
			s := n.stable[d.Bucket]
			rep := wire.CopyReport{Copy: c.ID, Index: t.Index, Total: 80}
			if d.State.Active() && c.State == partition.Allocated && !n.never {
				if n.loaded[c.ID] == nil && high[d.Bucket] != nil {
					n.loaded[c.ID] = high[d.Bucket]
				}
				if l := n.loaded[c.ID]; l != nil && s.Vector.Covers(timestamp.Vector{Seqnos: l}) {
					rep.Ready, rep.Held, rep.Done, rep.Items = true, s.Named(), 80, 7
				}
			}
			rep.Compared = n.compared != nil && n.compared(c.ID)
			if n.rate != nil {
				rep.ReadRate = n.rate(t.Index, c)
			}
			if n.size != nil {
				rep.Bytes = n.size(t.Index, c)
			}
			r.Copies = append(r.Copies, rep)
		}
	}
	for _, b := range n.defs.Buckets {
		br := wire.BucketReport{Heartbeat: wire.HWHeartbeat{Bucket: b.Name, LastStability: n.stable[b.Name].Hash,
			LastNumber: n.stable[b.Name].Number}, Generation: b.Generation,
			RollbackID: b.RollbackID, Accepted: accepted[b.Name]}
		if n.withholds || n.builds {
			br.Heartbeat.LastStability = 0
		}
		if slices.ContainsFunc(n.defs.Indexes, func(d index.Definition) bool {
			return d.Bucket == b.Name &&
				d.State == index.Backfill
		}) {
			br.Backfill = timestamp.New(vbuckets)
			for v := range br.Backfill.Seqnos {
				br.Backfill.Set(v, timestamp.Position{VBUUID: uint64(1000 + v), Seqno: n.side})
			}
		}
		if s := n.stable[b.Name]; s.Number > 0 && !n.withholds {
			br.Acks = []wire.Ack{{StabilityRef: s.Named(), Made: true}}
		}
		r.Buckets = append(r.Buckets, br)
	}
	r.Shorten()
	return r
}

// accepted returns the streams that the routers of all projectors would have begun here.
func (n *fakeIndexer) accepted() map[string]wire.Accepted {
	n.w.mu.Lock()
	all := make([]*fakeProjector, 0, 2)
	for _, p := range n.w.projectors {
		all = append(all, p)
	}
	n.w.mu.Unlock()
	type stream struct {
		inc  index.Incarnation
		from index.ProjectorID
		open bool
	}
	found := map[string]map[uint16]stream{}
	for _, p := range all {
		p.mu.Lock()
		for name, streams := range p.streams {
			if found[name] == nil {
				found[name] = map[uint16]stream{}
			}
			for v, s := range streams {
				found[name][v] = stream{s.inc, p.id, !slices.Contains(p.cut, n.node)}
			}
		}
		p.mu.Unlock()
	}
	out := map[string]wire.Accepted{}
	for name, streams := range found {
		var a wire.Accepted
		for _, v := range slices.Sorted(maps.Keys(streams)) {
			s := streams[v]
			a.VBuckets, a.Incarnations = append(a.VBuckets, v), append(a.Incarnations, s.inc)
			a.Projectors, a.Open = append(a.Projectors, s.from), append(a.Open, s.open)
		}
		out[name] = a
	}
	return out
}

type indexersOf struct{ w *world }

func (c indexersOf) at(addr string) *fakeIndexer {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	return c.w.indexers[addr]
}

func (c indexersOf) Hello(ctx context.Context, addr string, req *wire.HelloRequest) (*wire.IndexerHello, error) {
	n := c.at(addr)
	if err := n.enter(ctx, &req.Fence, true); err != nil {
		return nil, err
	}
	n.mu.Lock()
	n.hellos++
	n.mu.Unlock()
	return &wire.IndexerHello{Report: *n.report()}, nil
}

func (c indexersOf) Definitions(ctx context.Context, addr string, req *wire.Definitions) (*wire.DefinitionsReply,
	error) {
	n := c.at(addr)
	if err := n.enter(ctx, &req.Fence, true); err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.takeDefinitions(req)
}

func (c indexersOf) Change(ctx context.Context, addr string, req *wire.DefinitionsChange) (*wire.DefinitionsReply,
	error) {
	n := c.at(addr)
	if err := n.enter(ctx, &req.Fence, true); err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.takeChange(req)
}

func (c indexersOf) Poll(ctx context.Context, addr string, req *wire.PollRequest) (*wire.PollReply, error) {
	n := c.at(addr)
	if err := n.enter(ctx, &req.Fence, false); err != nil {
		return nil, err
	}
	c.w.goOn(req)
	n.mu.Lock()
	defer n.mu.Unlock()
	all := make([]wire.PollPosition, 0, len(req.VBuckets))
	for _, v := range req.VBuckets {
		p := wire.PollPosition{VBucket: v}
		if s := n.stable[req.Bucket]; s.Number > 0 {
			p.Participant, p.HW, p.Reach, p.Log = true, s.Vector.Seqnos[v], s.Vector.Seqnos[v], s.Logs[v]
		}
		all = append(all, p)
	}
	return wire.AnswerPoll(all), nil
}

func (c indexersOf) Stability(ctx context.Context, addr string, req *wire.StabilityRequest) error {
	n := c.at(addr)
	if err := n.enter(ctx, &req.Fence, false); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.published++
	for _, s := range req.Stabilities {
		if s.Hash != s.Vector.Hash() {
			c.w.t.Errorf("hash %x of %v", s.Hash, s.Vector)
		}
		if old := n.stable[s.Bucket]; s.Compare(old.Ref) >= 0 {
			n.stable[s.Bucket] = s
			if n.prompt && len(n.made) == 0 {
				n.made <- struct{}{}
			}
		}
	}
	return nil
}

func (c indexersOf) Rollback(ctx context.Context, addr string, req *wire.RollbackRequest) (*wire.RollbackReply, error) {
	n := c.at(addr)
	if err := n.enter(ctx, &req.Fence, false); err != nil {
		return nil, err
	}
	c.w.goOn(req)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.rollbacks = append(n.rollbacks, req.Step)
	s := n.stable[req.Bucket]
	if s.Number == 0 {
		return &wire.RollbackReply{RollbackID: req.RollbackID}, nil
	}
	back := s
	back.Vector = s.Vector.Clone()
	for v, at := range s.Vector.Seqnos {
		if up := s.Logs[v].Common(req.Logs[v]); at > up {
			back.Vector.Seqnos[v] = up
		}
	}
	if req.Step == "rollback" {
		n.stable[req.Bucket] = back
	}
	return &wire.RollbackReply{RollbackID: req.RollbackID, Restart: back.Vector.Seqnos}, nil
}

func (c indexersOf) DropOrphans(ctx context.Context, addr string, req *wire.DropOrphans) (*wire.DropOrphansReply,
	error) {
	n := c.at(addr)
	if err := n.enter(ctx, &req.Fence, true); err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.drops = append(n.drops, req.Copies)
	n.orphans = slices.DeleteFunc(n.orphans, func(o wire.Orphan) bool {
		return slices.Contains(req.Copies, wire.OrphanRef{Copy: o.Copy, Index: o.Index})
	})
	return &wire.DropOrphansReply{Dropped: req.Copies}, nil
}
