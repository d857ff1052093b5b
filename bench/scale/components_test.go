package scale

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/internal/rpc"
	"tidemark/managerclient"
	"tidemark/partition"
	"tidemark/timestamp"
	"tidemark/wire"
)

const (
	reportEvery   = 100 * time.Millisecond // as the product's
	reportSpacing = 5 * time.Millisecond
	fullEvery     = 300 // reports of an indexer; a projector reports everything every 5 s
	projectorFull = 5 * time.Second
)

// component is what both kinds have: a listener, a client of the managers, a fence.
type component struct {
	w        *world
	url      string
	listener net.Listener
	managers *managerclient.Client
	wake     chan struct{}
	boot     string

	mu       sync.Mutex
	fence    wire.Fence
	revision uint64
	defs     *wire.Definitions
	sequence uint64
}

// open makes it listen; id is that of the component.
func (c *component) open(w *world, id string) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listener of a component: %w", err)
	}
	c.w, c.url, c.listener, c.managers, c.wake = w, "http://"+l.Addr().String(), l, managerclient.New(w.managers, nil),
		make(chan struct{}, 1)
	c.boot = "boot-" + id
	return nil
}

// serve answers the leader until ctx ends.
func (c *component) serve(ctx context.Context, m *http.ServeMux) error {
	return rpc.Serve(ctx, rpc.NewServer(m), c.listener, time.Second)
}

func (c *component) admit(f wire.Fence) error {
	c.w.requests.Add(1)
	c.mu.Lock()
	defer c.mu.Unlock()
	next, err := c.fence.Admit(c.boot, f)
	if err != nil {
		return err
	}
	c.fence = next
	return nil
}

func (c *component) hello(req *wire.HelloRequest) error {
	if err := c.admit(req.Fence); err != nil {
		return err
	}
	c.managers.SetManagers(req.Managers)
	c.managers.SetLeader(req.Leader)
	return nil
}

func (c *component) definitions(_ context.Context, req *wire.Definitions) (*wire.DefinitionsReply, error) {
	if err := c.admit(req.Fence); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if req.Revision < c.revision {
		return nil, rpc.Refuse(errcode.Fenced, "revision %d is below %d", req.Revision, c.revision)
	}
	c.revision, c.defs = req.Revision, req
	return &wire.DefinitionsReply{Revision: req.Revision}, nil
}

// change applies definitions sent as a change; the list is nil if the change does not fit the present one.
func (c *component) change(ctx context.Context, req *wire.DefinitionsChange) (*wire.Definitions, *wire.DefinitionsReply,
	error) {
	c.mu.Lock()
	base := c.defs
	c.mu.Unlock()
	d, err := req.Apply(base)
	if err != nil {
		return nil, &wire.DefinitionsReply{Missing: true}, nil //nolint:nilerr // it is in the reply
	}
	reply, err := c.definitions(ctx, d)
	return d, reply, err
}

func (c *component) registered(r *wire.RegisterReply) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fence.Less(r.Fence) {
		c.fence = r.Fence
	}
}

func (c *component) nudge() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// report calls send now and then until ctx ends; send is false when the leader does not know us.
func (c *component) report(ctx context.Context, register func(context.Context) error,
	send func(context.Context) (bool, error)) error {
	tick := time.NewTicker(reportEvery)
	defer tick.Stop()
	for known := false; ctx.Err() == nil; {
		if !known {
			known = register(ctx) == nil
		}
		if known {
			was := known
			var err error
			if known, err = send(ctx); err != nil {
				known = was
				c.w.refused.Add(1)
			} else {
				c.w.reports.Add(1)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(reportSpacing):
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		case <-c.wake:
		}
	}
	return nil
}

// projector streams the vbuckets whose number leaves `number` when divided by the number of projectors.
type projector struct {
	component
	id         index.ProjectorID
	number, of int
	streams    []map[uint16]index.Incarnation // by bucket
	told       []map[uint16]told
	full       time.Time
	base       uint64
}

type told struct {
	inc      index.Incarnation
	complete uint64
}

func (w *world) projector(number, of int) (*projector, error) {
	p := &projector{id: index.ProjectorID(fmt.Sprintf("p%02d", number)), number: number, of: of}
	if err := p.open(w, string(p.id)); err != nil {
		return nil, err
	}
	for range w.buckets {
		p.streams = append(p.streams, map[uint16]index.Incarnation{})
	}
	return p, nil
}

// Run serves and reports until ctx ends.
func (p *projector) Run(ctx context.Context) error {
	m := http.NewServeMux()
	m.Handle("PUT /v1/hello", rpc.Message(func(_ context.Context, req *wire.HelloRequest) (*wire.ProjectorHello, error) {
		if err := p.hello(req); err != nil {
			return nil, err
		}
		r, _ := p.state("", nil)
		return &wire.ProjectorHello{Report: *r}, nil
	}))
	m.Handle("PUT /v1/definitions", rpc.Message(p.definitions))
	m.Handle("POST /v1/definitions:change", rpc.Message(func(ctx context.Context,
		req *wire.DefinitionsChange) (*wire.DefinitionsReply, error) {
		_, reply, err := p.change(ctx, req)
		return reply, err
	}))
	m.Handle("POST /v1/bucket", rpc.Message(p.bucket))
	m.Handle("POST /v1/failoverlogs", rpc.Message(p.logs))
	m.Handle("POST /v1/streams", rpc.Message(p.start))
	m.Handle("POST /v1/streams:stop", rpc.Message(func(_ context.Context, req *wire.StreamStop) (*wire.OK, error) {
		return &wire.OK{}, p.admit(req.Fence)
	}))
	m.Handle("POST /v1/sync", rpc.Message(func(_ context.Context, req *wire.SyncRequest) (*wire.ProjectorReport, error) {
		p.w.requests.Add(1)
		r, _ := p.state(req.Bucket, nil)
		return r, nil
	}))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- p.serve(ctx, m) }()
	err := p.report(ctx, p.register, p.send)
	cancel()
	p.managers.Close()
	if e := <-done; err == nil {
		err = e
	}
	return err
}

func (p *projector) register(ctx context.Context) error {
	r, err := p.managers.RegisterProjector(ctx, &wire.RegisterProjector{Endpoint: wire.ProjectorEndpoint{ID: p.id,
		BootID: p.boot, Admin: p.url}})
	if err == nil {
		p.registered(r)
		p.told = nil
	}
	return err
}

func (p *projector) send(ctx context.Context) (bool, error) {
	if time.Since(p.full) > projectorFull {
		p.told = nil
	}
	all := p.told == nil
	r, now := p.state("", p.told)
	if !all {
		r.Base = p.base
	}
	reply, err := p.managers.ReportProjector(ctx, r)
	if err == nil {
		p.base = r.Sequence
	}
	switch {
	case err != nil:
		p.told = nil
		return false, err
	case !reply.Known || reply.Full:
		p.told = nil
	default:
		if all {
			p.full = time.Now()
		}
		p.told = now
	}
	return reply.Known, nil
}

// state is what it streams, or what of it is news.
func (p *projector) state(only string, before []map[uint16]told) (*wire.ProjectorReport, []map[uint16]told) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sequence++
	r := &wire.ProjectorReport{ID: p.id, BootID: p.boot, ClusterID: p.fence.ClusterID,
		Sequence: p.sequence, Revision: p.revision}
	now := make([]map[uint16]told, len(p.streams))
	for i, streams := range p.streams {
		b := p.w.buckets[i]
		if only != "" && b.name != only {
			continue
		}
		s := wire.StreamStates{Bucket: b.name, BucketUUID: b.uuid, Full: before == nil}
		now[i] = make(map[uint16]told, len(streams))
		total := b.total()
		for v := p.number; v < len(b.branches); v += p.of {
			inc, runs := streams[uint16(v)]
			if !runs {
				continue
			}
			t := told{inc, b.high(v, total)}
			now[i][uint16(v)] = t
			var was told
			if before != nil {
				was = before[i][uint16(v)]
			}
			if was == t {
				continue
			}
			if was.inc == inc {
				s.Move(uint16(v), inc, t.complete)
				continue
			}
			s.Streams = append(s.Streams, wire.StreamState{VBucket: uint16(v), Incarnation: inc, Complete: t.complete,
				Log: b.branches[v], Revision: timestamp.MapRevision{Rev: 1}})
		}
		r.Buckets = append(r.Buckets, s)
	}
	return r, now
}

func (p *projector) bucket(_ context.Context, req *wire.BucketRequest) (*wire.BucketReply, error) {
	p.w.requests.Add(1)
	b := p.w.byName[req.Bucket]
	if b == nil {
		return nil, rpc.Refuse(errcode.BucketNotInKV, "no bucket %q", req.Bucket)
	}
	return &wire.BucketReply{Name: b.name, UUID: b.uuid, VBuckets: len(b.branches),
		Revision: timestamp.MapRevision{Rev: 1}}, nil
}

func (p *projector) logs(_ context.Context, req *wire.FailoverLogsRequest) (*wire.FailoverLogsReply, error) {
	if err := p.admit(req.Fence); err != nil {
		return nil, err
	}
	r := &wire.FailoverLogsReply{}
	b := p.w.byName[req.Bucket]
	if b == nil {
		return r, nil
	}
	total := b.total()
	wanted := map[uint16]bool{}
	for _, v := range req.VBuckets {
		wanted[v] = true
	}
	for v := p.number; v < len(b.branches); v += p.of {
		if len(wanted) == 0 || wanted[uint16(v)] {
			r.Logs = append(r.Logs, wire.VBucketHistory{VBucket: uint16(v), Log: b.branches[v], High: b.high(v, total),
				Revision: timestamp.MapRevision{Rev: 1}})
		}
	}
	return r, nil
}

func (p *projector) start(_ context.Context, req *wire.StreamRequest) (*wire.StreamReply, error) {
	if err := p.admit(req.Fence); err != nil {
		return nil, err
	}
	reply := &wire.StreamReply{TopicID: 255}
	for i := range req.Buckets {
		want := &req.Buckets[i]
		out := wire.StreamOutcome{Bucket: want.Bucket}
		b := p.w.byName[want.Bucket]
		for j := range want.Restart.Len() {
			s := want.Restart.At(j)
			res := wire.StartResult{VBucketHistory: wire.VBucketHistory{VBucket: s.VBucket}, Outcome: wire.StartNotMine}
			if b != nil && int(s.VBucket)%p.of == p.number && int(s.VBucket) < len(b.branches) {
				res.Outcome, res.Log, res.Revision = wire.StartBegun, b.branches[s.VBucket], timestamp.MapRevision{Rev: 1}
				p.w.reopened.Add(1)
				p.mu.Lock()
				for k := range p.w.buckets {
					if p.w.buckets[k] == b {
						p.streams[k][s.VBucket] = req.Incarnation
					}
				}
				p.mu.Unlock()
				b.begin(p.id, int(s.VBucket), req.Incarnation)
			}
			out.Results = append(out.Results, res)
		}
		reply.Buckets = append(reply.Buckets, out)
	}
	p.nudge()
	return reply, nil
}

// indexer hosts the copies that the definitions place on it, and holds each stability timestamp as soon as it
// receives it.
type indexer struct {
	component
	name string
	node index.NodeID
	full int

	told wire.ReportSender

	hosted map[string]*hosted // under mu
	heard  wire.StabilityBases
	held   uint64
}

// hosted is a bucket of which an indexer has copies.
type hosted struct {
	b        *kvBucket
	stable   wire.BucketStability
	acks     []wire.Ack
	version  uint64
	accepted wire.Accepted // of that version
	ids      []index.ID
	copies   []wire.CopyReport
}

func (w *world) indexer(number int) (*indexer, error) {
	n := &indexer{name: fmt.Sprintf("i%03d", number), hosted: map[string]*hosted{}, heard: wire.StabilityBases{}}
	return n, n.open(w, n.name)
}

// Run serves and reports until ctx ends.
func (n *indexer) Run(ctx context.Context) error {
	m := http.NewServeMux()
	m.Handle("PUT /v1/hello", rpc.Message(func(_ context.Context, req *wire.HelloRequest) (*wire.IndexerHello, error) {
		if err := n.hello(req); err != nil {
			return nil, err
		}
		number := n.next()
		r := n.state(func(string) bool { return false })
		r.Sequence = number
		r.Shorten()
		return &wire.IndexerHello{Report: *r}, nil
	}))
	m.Handle("PUT /v1/definitions", rpc.Message(func(ctx context.Context, req *wire.Definitions) (*wire.DefinitionsReply,
		error) {
		reply, err := n.definitions(ctx, req)
		if err == nil {
			n.place(req)
			n.nudge()
		}
		return reply, err
	}))
	m.Handle("POST /v1/definitions:change", rpc.Message(func(ctx context.Context,
		req *wire.DefinitionsChange) (*wire.DefinitionsReply, error) {
		d, reply, err := n.change(ctx, req)
		if err == nil && d != nil {
			n.place(d)
			n.nudge()
		}
		return reply, err
	}))
	m.Handle("POST /v1/poll", rpc.Message(n.poll))
	m.Handle("PUT /v1/stability", rpc.Message(n.stability))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- n.serve(ctx, m) }()
	err := n.report(ctx, n.register, n.send)
	cancel()
	n.managers.Close()
	if e := <-done; err == nil {
		err = e
	}
	return err
}

func (n *indexer) register(ctx context.Context) error {
	host := n.listener.Addr().String()
	r, err := n.managers.RegisterIndexer(ctx, &wire.RegisterIndexer{Endpoint: wire.Endpoint{UUID: "uuid-" + n.name,
		BootID: n.boot, Name: n.name,
		Admin: n.url, Scan: host, Maintenance: host, Backfill: host, Catchup: host}})
	if err == nil {
		n.registered(r)
		n.mu.Lock()
		n.node, n.full = r.Node, 0
		n.mu.Unlock()
	}
	return err
}

// place takes over which copies are here.
func (n *indexer) place(d *wire.Definitions) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, h := range n.hosted {
		h.copies, h.ids = nil, nil
	}
	for i, t := range d.Topologies {
		b := n.w.byName[d.Indexes[i].Bucket]
		for _, c := range t.Copies {
			if c.Node != n.node || c.State == partition.Leaving || b == nil {
				continue
			}
			h := n.hosted[b.name]
			if h == nil {
				h = &hosted{b: b}
				n.hosted[b.name] = h
			}
			r := wire.CopyReport{Copy: c.ID, Index: t.Index, Items: 1 << 20, Bytes: 1 << 30}
			if d.Indexes[i].State.Active() && c.State == partition.Allocated {
				r.Ready = true
			}
			h.copies = append(h.copies, r)
			if !slices.Contains(h.ids, t.Index) {
				h.ids = append(h.ids, t.Index)
			}
		}
	}
}

func (n *indexer) poll(_ context.Context, req *wire.PollRequest) (*wire.PollReply, error) {
	if err := n.admit(req.Fence); err != nil {
		return nil, err
	}
	all := make([]wire.PollPosition, 0, len(req.VBuckets))
	b := n.w.byName[req.Bucket]
	var total uint64
	if b != nil {
		total = b.total()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	h := n.hosted[req.Bucket]
	for _, v := range req.VBuckets {
		p := wire.PollPosition{VBucket: v}
		if h != nil && h.stable.Number > 0 {
			p.Participant, p.HW, p.Log = true, b.high(int(v), total), b.branches[v]
			p.Reach = p.HW
		}
		all = append(all, p)
	}
	return wire.AnswerPoll(all), nil
}

func (n *indexer) stability(_ context.Context, req *wire.StabilityRequest) (*wire.StabilityReply, error) {
	if err := n.admit(req.Fence); err != nil {
		return nil, err
	}
	n.w.stabilities.Add(int64(len(req.Stabilities) + len(req.Deltas)))
	n.mu.Lock()
	defer n.mu.Unlock()
	all, missing := n.heard.Decode(req)
	for _, s := range all {
		h := n.hosted[s.Bucket]
		if h == nil || s.Compare(h.stable.Ref) <= 0 {
			continue
		}
		h.stable = s
		h.acks = append(h.acks, wire.Ack{StabilityRef: s.Named(), Made: true})
		total := uint64(0)
		for _, seqno := range s.Vector.Seqnos {
			total += seqno
		}
		if age := h.b.age(total); age >= 0 {
			n.w.latency.add(age)
		}
	}
	n.nudge()
	return &wire.StabilityReply{Missing: missing}, nil
}

// state is everything; HW only of the buckets of which it is wanted.
func (n *indexer) state(wantsHW func(bucket string) bool) *wire.IndexerReport {
	n.mu.Lock()
	defer n.mu.Unlock()
	r := &wire.IndexerReport{Node: n.node, UUID: "uuid-" + n.name, BootID: n.boot, ClusterID: n.fence.ClusterID,
		Revision: n.revision}
	for name, h := range n.hosted {
		if s, version := h.b.present(h.version); s != nil {
			h.accept(s, version)
		}
		total := h.b.total()
		b := wire.BucketReport{Generation: max(h.stable.Generation, 1), RollbackID: h.stable.RollbackID,
			Acks:     append([]wire.Ack(nil), h.acks...),
			Accepted: h.accepted, Persistent: h.stable.Vector, Heartbeat: wire.HWHeartbeat{Bucket: name, IndexIDs: h.ids,
				LastStability:   h.stable.Hash,
				LastPersistence: h.stable.Hash, MutationQueue: total % (1 << 20), QueueLimit: 64 << 20}}
		if wantsHW(name) {
			b.Heartbeat.HW = h.b.hw(total)
		}
		for _, c := range h.copies {
			if c.Ready = c.Ready && h.stable.Number > 0; c.Ready {
				c.Held = h.stable.Named()
			}
			r.Copies = append(r.Copies, c)
		}
		r.Buckets = append(r.Buckets, b)
	}
	return r
}

// accept takes over which projector streams which vbucket.
func (h *hosted) accept(streams []stream, version uint64) {
	h.version, h.accepted = version, wire.Accepted{}
	for v, s := range streams {
		if s.projector != "" {
			h.accepted.VBuckets, h.accepted.Incarnations = append(h.accepted.VBuckets, uint16(v)),
				append(h.accepted.Incarnations, s.inc)
			h.accepted.Projectors, h.accepted.Open = append(h.accepted.Projectors, s.projector), append(h.accepted.Open, true)
		}
	}
}

// next is the number of the next report or hello.
func (n *indexer) next() uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.sequence++
	return n.sequence
}

func (n *indexer) send(ctx context.Context) (bool, error) {
	full, number := n.full <= 0, n.next()
	r := n.state(n.told.WantsHW)
	acks := make(map[string]int, len(r.Buckets))
	for i := range r.Buckets {
		acks[r.Buckets[i].Heartbeat.Bucket] = len(r.Buckets[i].Acks)
	}
	r.Sequence, r.HeldHash = number, n.held
	n.told.Make(r, full)
	reply, err := n.managers.ReportIndexer(ctx, r)
	if err != nil {
		n.told.Lost()
		return false, err
	}
	n.told.Answered(reply)
	if n.full--; full {
		n.full = fullEvery
	}
	if len(reply.HeldPacked) > 0 {
		if _, err := wire.UnpackHeld(reply.HeldPacked); err != nil {
			return false, err
		}
		n.held = reply.HeldHash
	}
	if !reply.Known || reply.Full {
		return reply.Known, nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for name, told := range acks {
		h := n.hosted[name]
		h.acks = append(h.acks[:0], h.acks[min(told, len(h.acks)):]...)
	}
	return true, nil
}
