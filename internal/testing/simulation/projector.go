package simulation

import (
	"fmt"
	"slices"
	"strconv"

	"tidemark/index"
	"tidemark/ingest"
	"tidemark/keyversion"
	"tidemark/projector/core"
	"tidemark/timestamp"
	"tidemark/wire"
)

// This file models the projectors: maintenance streams, the events for the indexers, and the leader's requests.

const projectors = 2

// fedCopy is a copy that routers feed.
type fedCopy struct {
	id    index.CopyID
	index index.ID
	no    index.SliceID
	node  int
	spread
	before int // number of slices of the index that this one is to replace; 0: it replaces none
}

type projector struct {
	up        bool
	name      index.ProjectorID
	boot      int
	authority core.Authority
	defs      *wire.Definitions
	topo      map[string][]fedCopy // by bucket
	st        map[string]*core.Streams[*mainStream]
	conn      map[connKey]*conn
	sequence  uint64
	acked     wire.Acked[reported]
	reportTo  *leader
	awaited   uint64 // sequence of the report whose answer is awaited; 0: none
}

// reported holds what the leader has learned from a report, by bucket.
type reported map[string][]core.Known[*mainStream]

// mainStream is a maintenance stream.
type mainStream struct {
	core.Stream
	ks    dcp
	topo  []fedCopy
	drop  map[int]bool
	mute  map[int]bool // a subset of drop: the node gets DropData only with the BEGIN that ends the drop
	ended bool
}

// down returns the stream as node to receives it, with those of the copies that are on the node.
func (st *mainStream) down(to int, topo []fedCopy) *core.Downstream {
	d := st.Downstream()
	d.Copies = idsAt(topo, to)
	return &d
}

// Level returns the stream's progress.
func (st *mainStream) Level() core.Level {
	return core.Level{Complete: st.Complete, Lacks: st.Lacks, Ended: st.ended}
}

// connKey names a connection. Events of one vbucket to one node arrive in order; those of different vbuckets do not.
type connKey struct {
	node   int
	bucket string
	v      int
}

type conn struct {
	id      uint64
	queue   []message
	unacked []message // delivered, but not acknowledged to the router
	stallMS int64     // the time before which nothing arrives
}

// message is an event on its way to a node. before and topo are the stream's position and copies ahead of the event.
type message struct {
	e      keyversion.Event
	before uint64
	topo   []fedCopy
}

func (s *Sim) newProjector(p, boot int) *projector {
	pr := &projector{up: true, name: index.ProjectorID(fmt.Sprintf("p%d", p)), boot: boot, topo: map[string][]fedCopy{},
		st: map[string]*core.Streams[*mainStream]{}, conn: map[connKey]*conn{}}
	for _, b := range s.kv {
		pr.st[b.name] = core.NewStreams[*mainStream](vbuckets)
		for ni := range s.nodes {
			for v := range vbuckets {
				pr.conn[connKey{ni, b.name, v}] = &conn{id: s.nextConn()}
			}
		}
	}
	return pr
}

func (s *Sim) nextConn() uint64 { s.connID++; return s.connID }

// stream returns the running stream of a vbucket, nil if there is none.
func (pr *projector) stream(b *kvBucket, v int) *mainStream {
	if st := pr.st[b.name].Of(v); st != nil && !st.ended {
		return st
	}
	return nil
}

// bootID distinguishes the projector's process from its earlier ones.
func (pr *projector) bootID() string { return string(pr.name) + "-" + strconv.Itoa(pr.boot) }

// projAdmit checks a command's fence; asks is set for requests that only read.
func (s *Sim) projAdmit(p int, f wire.Fence, asks bool) error {
	pr := s.proj[p]
	next, err := pr.authority.Admit(pr.name, pr.bootID(), f, asks)
	if pr.authority = next; err == nil && !asks {
		s.checkObeyed(string(pr.name), f)
	}
	return err
}

func (s *Sim) registerProjector(p int) {
	pr := s.proj[p]
	boot := pr.bootID()
	s.commit(statecontextProjector(pr.name, boot))
	pr.authority = pr.authority.Register(s.lead.step.projectorRegistered(pr.name, boot))
	s.ev("p%d registered with term %d", p, s.lead.term)
}

func (s *Sim) projHello(p int, r *wire.HelloRequest) (*wire.ProjectorHello, error) {
	if err := s.projAdmit(p, r.Fence, false); err != nil {
		return nil, err
	}
	report, _ := s.projReport(p, nil)
	return &wire.ProjectorHello{Report: *report}, nil
}

// projReport returns a report of the whole state, or of its changes since known, and what the leader will have
// learned from it.
func (s *Sim) projReport(p int, known reported) (*wire.ProjectorReport, reported) {
	pr := s.proj[p]
	pr.sequence++
	r := &wire.ProjectorReport{ID: pr.name, BootID: pr.bootID(),
		ClusterID: pr.authority.Fence.ClusterID, Sequence: pr.sequence}
	r.Revision, _ = core.Revision(pr.defs, pr.authority.Fence)
	now := reported{}
	for _, b := range s.kv {
		w := wire.StreamStates{Bucket: b.name, BucketUUID: b.uuid, Full: known == nil, Dropping: s.dropping(pr, b),
			Hosted: s.hostedBy(p, b)}
		now[b.name] = pr.st[b.name].Report(&w, known[b.name])
		r.Buckets = append(r.Buckets, w)
	}
	return r, now
}

// hostedBy returns the vbuckets that p's KV node claims under its newest map. The node may not have learned of a
// failover.
func (s *Sim) hostedBy(p int, b *kvBucket) *wire.Hosted {
	h := &wire.Hosted{Node: string(s.proj[p].name)}
	for v := range vbuckets {
		k := b.hosted(p, v)
		if k == nil {
			continue
		}
		switch order := k.rev.Compare(h.Revision); {
		case order > 0:
			h.Revision, h.VBuckets = k.rev, []uint16{uint16(v)}
		case order == 0:
			h.VBuckets = append(h.VBuckets, uint16(v))
		}
	}
	return h
}

// dropping lists the nodes for which a projector drops data of a bucket.
func (s *Sim) dropping(pr *projector, b *kvBucket) (nodes []index.NodeID) {
	for _, n := range s.nodes {
		drops := slices.ContainsFunc(pr.st[b.name].Newest(), func(st *mainStream) bool { return !st.ended && st.drop[n.num] })
		if drops && n.id >= 0 {
			nodes = append(nodes, index.NodeID(n.id))
		}
	}
	return nodes
}

// reportProjector sends a report to the leader and delivers the answer. As in package projector, no other report is
// sent before the answer, unless the projector gives up waiting; the abandoned report may still arrive.
func (s *Sim) reportProjector(p int) {
	pr := s.proj[p]
	if !pr.authority.Registered || s.lead == nil {
		return
	}
	lead := s.lead
	if pr.awaited > 0 {
		if pr.reportTo == lead && s.dice.projector.Intn(3) > 0 {
			return
		}
		pr.acked.Lost()
	}
	if s.dice.projector.Intn(20) == 0 {
		pr.acked.Lost() // a full report is due
	}
	known, base := pr.acked.Known()
	r, now := s.projReport(p, known)
	r.Base, pr.reportTo, pr.awaited = base, lead, r.Sequence
	s.later(func() {
		if s.lead != lead {
			return
		}
		a := s.lead.step.projectorReport(r)
		s.observe(s.lead)
		if s.proj[p] != pr || pr.awaited != r.Sequence {
			return
		}
		pr.awaited = 0
		pr.acked.Answered(r.Sequence, now, a)
		pr.authority.Registered = pr.authority.Registered && a.Known
	})
}

func (s *Sim) projLogs(p int, r *wire.FailoverLogsRequest) (*wire.FailoverLogsReply, error) {
	if err := s.projAdmit(p, r.Fence, true); err != nil {
		return nil, err
	}
	b := s.bucket(r.Bucket)
	a := &wire.FailoverLogsReply{}
	for v := range vbuckets {
		if len(r.VBuckets) > 0 && !slices.Contains(r.VBuckets, uint16(v)) {
			continue
		}
		if k := b.hosted(p, v); k != nil {
			a.Logs = append(a.Logs, wire.VBucketHistory{VBucket: uint16(v), Log: k.fl, High: k.high(), Purge: k.purge,
				Revision: k.rev})
		}
	}
	return a, nil
}

func (s *Sim) projStart(p int, r *wire.StreamRequest) (*wire.StreamReply, error) {
	if err := s.projAdmit(p, r.Fence, false); err != nil {
		return nil, err
	}
	_, id, err := core.CheckRequest(r)
	if err != nil {
		s.fail("a request for streams: %v", err)
		return nil, err
	}
	a := &wire.StreamReply{TopicID: id}
	for i := range r.Buckets {
		w := &r.Buckets[i]
		o := wire.StreamOutcome{Bucket: w.Bucket}
		for k := range w.Restart.Len() {
			q := w.Restart.At(k)
			o.Results = append(o.Results, s.startStream(p, s.bucket(w.Bucket), r.Incarnation, &q))
		}
		a.Buckets = append(a.Buckets, o)
	}
	return a, nil
}

func (s *Sim) startStream(p int, b *kvBucket, inc index.Incarnation, q *wire.StreamStart) wire.StartResult {
	v := int(q.VBucket)
	pr := s.proj[p]
	k := b.hosted(p, v)
	if k == nil {
		return core.NotMine(q.VBucket)
	}
	at := s.at(k)
	claimed, ends := pr.st[b.name].Claim(inc, q, at)
	if claimed == nil {
		return ends
	}
	if q.Seqno == 0 && s.chance(purges, 2) {
		s.purge(b, v) // between KV's account of the vbucket and its consent
	}
	st := &mainStream{Stream: *claimed, ks: dcp{branch: k, cur: q.Seqno}, topo: pr.topo[b.name], drop: map[int]bool{},
		mute: map[int]bool{}}
	next, answer := s.ask(k, &st.Start)
	switch {
	case next == core.GiveUp:
		s.ev("p%d %s/%d %v ROLLBACK (start %d window %v branch %d, has %v purge %d)", p, b.name, v, inc, q.Seqno, q.Window,
			q.VBUUID, k.fl, k.purge)
		return st.Refused(answer, k.fl)
	case next == core.CloseAtKV:
		return st.FailedOver()
	case !pr.st[b.name].Install(st):
		return st.Overtaken()
	}
	s.beginStream(p, b, v, st)
	s.purgeLate(b, v, q.Seqno)
	return st.Began(at.High, st.Lacks)
}

// beginStream starts a stream to which KV has consented.
func (s *Sim) beginStream(p int, b *kvBucket, v int, st *mainStream) {
	k := st.ks.branch
	if err := st.BeginsOn(k.fl); err != nil {
		s.fail("p%d %s/%d %v: %v", p, b.name, v, st.Incarnation, err)
		return
	}
	st.Begun = true
	if st.From() == st.Want.Seqno {
		s.noteEnd(b, v, k, st.Complete)
	}
	s.ev("p%d BEGIN %s/%d %v from %d branch %d", p, b.name, v, st.Incarnation, st.Want.Seqno, k.fl.Newest())
	for to := range s.nodes {
		s.emit(p, to, b, v, st.down(to, st.topo).Begin(st.Want.Seqno), st.ks.cur)
	}
	s.sync(p, b, v)
}

func (s *Sim) projStop(p int, r *wire.StreamStop) error {
	if err := s.projAdmit(p, r.Fence, false); err != nil {
		return err
	}
	b := s.bucket(r.Bucket)
	for _, st := range s.proj[p].st[b.name].Stop(r.VBuckets, r.Incarnation) {
		s.endStream(p, b, int(st.VBucket()), true)
	}
	return nil
}

// endStream ends a stream. With say set, indexers get an END in the stream; the report contains the end in any case.
// A stream that ends before it has begun has no END.
func (s *Sim) endStream(p int, b *kvBucket, v int, say bool) {
	st := s.proj[p].stream(b, v)
	if st == nil {
		return
	}
	st.ended = true
	for to := range s.nodes {
		if say {
			s.emit(p, to, b, v, st.down(to, nil).End(st.Last), st.ks.cur)
		}
	}
	s.ev("p%d stream %s/%d %v ends (said %v)", p, b.name, v, st.Incarnation, say)
}

// projDefinitions takes a list over. Each worker records A of new copies, and the end of removed ones, between two
// mutations, and sends both in the stream.
func (s *Sim) projDefinitions(p int, d *wire.Definitions) (*wire.DefinitionsReply, error) {
	if err := s.projAdmit(p, d.Fence, false); err != nil {
		return nil, err
	}
	pr := s.proj[p]
	if err := core.TakeDefinitions(pr.defs, d); err != nil {
		return nil, err
	}
	pr.defs = d
	for _, b := range s.kv {
		pr.topo[b.name] = s.fed(d, b.name, nil)
		for v := range vbuckets {
			if st := pr.stream(b, v); st != nil {
				s.retopo(p, b, v, st)
			}
		}
	}
	return &wire.DefinitionsReply{Revision: d.Revision}, nil
}

// fed lists the copies of a bucket that routers feed, in ascending order.
func (s *Sim) fed(d *wire.Definitions, bucket string, only []index.CopyID) (all []fedCopy) {
	for _, x := range core.FedBy(d, bucket, only) {
		before := 0
		replaces := func(o index.Definition) bool { return o.ID == x.Index.Replaces }
		if first := slices.IndexFunc(d.Indexes, replaces); first >= 0 {
			before = int(d.Indexes[first].Partitions)
		}
		for _, c := range x.Topology.Copies {
			if core.Feeds(&c, only) {
				all = append(all, fedCopy{id: c.ID, index: x.Index.ID, no: c.Slice, node: s.nodeAt(c.Node),
					spread: spreadOf(x.Index), before: before})
			}
		}
	}
	slices.SortFunc(all, func(a, b fedCopy) int { return int(a.id) - int(b.id) })
	return all
}

// retopo sends each node the copies that leave and those that join. The topology of each message is what the stream
// fed ahead of it.
func (s *Sim) retopo(p int, b *kvBucket, v int, st *mainStream) {
	was, now := st.topo, s.proj[p].topo[b.name]
	for to := range s.nodes {
		st.topo = was
		for _, e := range st.down(to, now).Switch(idsAt(was, to), true, st.ks.cur) {
			if e.Kind == keyversion.Activate {
				s.ev("p%d activates copies %v %s/%d at A=%d", p, e.Copies, b.name, v, st.ks.cur)
			}
			s.emit(p, to, b, v, e, st.ks.cur)
			st.topo = slices.DeleteFunc(slices.Clone(was), func(c fedCopy) bool { return slices.Contains(e.Copies, c.id) })
		}
	}
	st.topo = now
}

func idsAt(l []fedCopy, node int) (ids []index.CopyID) {
	for _, c := range l {
		if c.node == node {
			ids = append(ids, c.id)
		}
	}
	return ids
}

// emit puts an event on its connection.
func (s *Sim) emit(p, to int, b *kvBucket, v int, e keyversion.Event, before uint64) {
	if !s.nodes[to].up || !s.proj[p].up {
		return
	}
	e.VBucket = uint16(v)
	c := s.proj[p].conn[connKey{to, b.name, v}]
	m := message{e: e, before: before}
	if st := s.proj[p].st[b.name].Of(v); st != nil {
		if m.topo = st.topo; st.mute[to] && e.Kind != keyversion.StreamBegin {
			return // DropData comes with that BEGIN
		}
	}
	if e.Kind == keyversion.Sync && !s.on(inOrder) {
		c.queue = slices.Insert(c.queue, s.dice.projector.Intn(len(c.queue)+1), m)
		return
	}
	c.queue = append(c.queue, m)
}

// sync sends up to where a stream is complete.
func (s *Sim) sync(p int, b *kvBucket, v int) {
	st := s.proj[p].stream(b, v)
	if st == nil {
		return
	}
	for to := range s.nodes {
		s.emit(p, to, b, v, st.down(to, nil).Sync(st.VBUUID, st.Complete), st.ks.cur)
	}
}

// pumpItem sends the next document of a window to all indexers that it concerns.
func (s *Sim) pumpItem(p int, b *kvBucket, v int, st *mainStream) {
	k := &st.ks
	it, before := k.items[0], k.cur
	k.items, k.cur = k.items[1:], it.seqno
	st.Place(k.window.End)
	for to := range s.nodes {
		if e, ok := s.statement(to, it, st.Window, st.topo); ok && !st.drop[to] {
			e.Incarnation = st.Incarnation
			for _, part := range s.parts(e) {
				s.emit(p, to, b, v, part, before)
			}
		}
	}
}

// pump processes one item of a maintenance stream.
func (s *Sim) pump(p int, b *kvBucket, v int) {
	st := s.proj[p].stream(b, v)
	if st == nil || s.silent(&st.ks, &st.Stream) {
		return
	}
	k := &st.ks
	if !k.mid {
		if k.cur >= k.branch.high() {
			if k.branch != b.vb[v].cur && k.branch != b.vb[v].zombie && !k.branch.mute && s.dice.projector.Intn(3) == 0 {
				s.endStream(p, b, v, true)
			}
			return
		}
		k.marker(k.cur + 1 + uint64(s.dice.projector.Intn(int(k.branch.high()-k.cur))))
		s.marked(p, b, v, st)
	} else if s.cut(k, &st.Stream) {
		s.marked(p, b, v, st)
	}
	if len(k.items) > 0 {
		s.pumpItem(p, b, v, st)
	}
	if len(k.items) == 0 {
		k.mid, k.cur = false, k.window.End
		st.Place(k.cur)
		s.noteEnd(b, v, k.branch, k.cur)
	}
	if st.Took(k.cur, !k.mid) {
		s.sync(p, b, v)
	}
}

// mark applies the marker of the window that KV has fixed, and requests KV's purge seqno where the stream needs it.
// It reports whether BEGIN is to be sent again.
func (s *Sim) mark(k *dcp, st *core.Stream) bool {
	what := st.Mark(k.window.End)
	if what == core.NeedsPurge {
		at := s.at(k.branch)
		what, st.Waits = st.Purged(at.Purge, at.PurgeKnown), false
	}
	return what == core.Begins
}

// marked applies a marker, and sends BEGIN again if the stream lacks more than the last BEGIN reported.
func (s *Sim) marked(p int, b *kvBucket, v int, st *mainStream) {
	k := &st.ks
	if !s.mark(k, &st.Stream) {
		return
	}
	s.ev("p%d BEGIN %s/%d %v again, purge %d", p, b.name, v, st.Incarnation, st.Lacks)
	for to := range s.nodes {
		if !st.drop[to] { // otherwise the BEGIN that ends the drop reports it
			s.emit(p, to, b, v, st.down(to, st.topo).Begin(st.Want.Seqno), k.cur)
		}
	}
	s.sync(p, b, v)
}

// statement returns a mutation's event for a node: for each copy on it, all keys of the document.
func (s *Sim) statement(to int, it item, w timestamp.Window, topo []fedCopy) (keyversion.Event, bool) {
	e := keyversion.Event{Kind: keyversion.UpsertDeletion, Seqno: it.seqno, Window: w, DocID: []byte{byte(it.doc)}}
	if it.value == 0 {
		e.Kind = keyversion.Delete
	}
	for _, c := range topo {
		if c.node != to {
			continue
		}
		x := c.spread
		if c.before > x.slices && !s.on(mergedSlices) {
			x.slices = c.before
		}
		key := keyOf(x.kind, it.value)
		st := keyversion.Statement{Index: c.index, Slice: c.no}
		switch here := x.sliceOf(it.doc, key) == c.no; {
		case key != 0 && here:
			st.Keys = [][]byte{{byte(key)}}
			e.Kind = keyversion.Insert
		case x.kind != 2 && x.sliceOf(it.doc, 0) != c.no:
			continue
		case x.kind == 2 && key != 0 && !s.on(upsertDeletion):
			continue
		}
		e.Statements = append(e.Statements, st)
	}
	return e, len(e.Statements) > 0
}

// breakConn breaks a connection: its events are lost, or sent again over the next connection.
func (s *Sim) breakConn(p int, key connKey, b *kvBucket) {
	pr := s.proj[p]
	c := pr.conn[key]
	old := c.id
	c.id = s.nextConn()
	again := append(c.unacked, c.queue...)
	c.queue, c.unacked = nil, nil
	n := s.nodes[key.node]
	if h := n.buckets[key.bucket]; n.up && h != nil {
		h.st.ConnectionLost(old)
		for _, id := range sortedKeys(h.sides) {
			if x := h.sides[id]; x.p == p && x.v == key.v {
				s.resumeSide(h, x)
			}
		}
	}
	st := pr.stream(b, key.v)
	if !pr.up || !n.up || st == nil {
		return
	}
	again = goingOn(again, st.Incarnation)
	if len(again) == 0 || st.drop[key.node] || s.dice.projector.Intn(2) == 0 {
		st.drop[key.node], st.mute[key.node] = false, false
		s.emit(p, key.node, b, key.v, st.down(key.node, st.topo).Begin(st.ks.cur), st.ks.cur)
		return
	}
	s.ev("p%d sends %d messages of %s/%d again to n%d", p, len(again), key.bucket, key.v, key.node)
	s.emit(p, key.node, b, key.v, st.down(key.node, again[0].topo).Begin(again[0].before), again[0].before)
	c.queue = append(c.queue, again...)
}

// goingOn returns the last messages, those that continue a stream.
func goingOn(all []message, stream index.Incarnation) []message {
	keep := len(all)
	for ; keep > 0; keep-- {
		e := &all[keep-1].e
		if e.Incarnation != stream || e.Kind == keyversion.StreamBegin || e.Kind == keyversion.DropData {
			break
		}
	}
	return all[keep:]
}

// resumeSide continues a side stream over the next connection after its own was lost, or gives the stream up.
func (s *Sim) resumeSide(h *hosted, x *side) {
	if s.dice.projector.Intn(2) == 0 {
		x.begun = false
		return
	}
	h.st.SideFailed(x.v, x.id) // the projector learns of it when it sends more
}

// breakAll breaks every connection between a projector and a node.
func (s *Sim) breakAll(p, to int) {
	for _, b := range s.kv {
		for v := range vbuckets {
			s.breakConn(p, connKey{to, b.name, v}, b)
		}
	}
	for _, b := range s.kv {
		n := s.nodes[to]
		h := n.buckets[b.name]
		if !n.up || h == nil {
			continue
		}
		for _, id := range sortedKeys(h.sides) {
			if x := h.sides[id]; x.p == p {
				delete(h.sides, id)
				h.st.SideFailed(x.v, x.id)
			}
		}
	}
}

// deliver delivers the next message of a connection to its node.
func (s *Sim) deliver(p, to int, b *kvBucket, v int) {
	pr := s.proj[p]
	c := pr.conn[connKey{to, b.name, v}]
	n := s.nodes[to]
	if len(c.unacked) > 0 && s.dice.projector.Intn(4) == 0 {
		c.unacked = acknowledged(c.unacked, 1+s.dice.projector.Intn(len(c.unacked)))
	}
	h := n.buckets[b.name]
	if s.stalled(c) {
		return
	}
	if len(c.queue) == 0 || !n.up || h == nil { // a node without the bucket accepts no connection for it
		return
	}
	m := c.queue[0]
	if s.bound > 0 && m.e.Kind.Data() && h.st.QueueBytes() > s.bound && s.on(bounded) {
		return
	}
	c.queue = c.queue[1:]
	c.unacked = append(c.unacked, m)
	src := ingest.Source{Projector: pr.name, Connection: c.id}
	verdict := h.st.Accept(src, &m.e)
	if s.trace {
		s.ev("n%d %v %s/%d %v seq %d from p%d: %v", to, m.e.Kind, b.name, v, m.e.Incarnation, m.e.Seqno, p, verdict)
	}
	s.checkOwner(to, b, &m.e, src, verdict)
}

// maxStallMS is the longest time in which a connection delivers nothing.
const maxStallMS = 2000

// stall stops a connection for a while, so that its node falls behind the others.
func (s *Sim) stall(p int, key connKey) {
	s.proj[p].conn[key].stallMS = s.nowMS + 1 + int64(s.dice.projector.Intn(maxStallMS))
	s.ev("connection p%d->n%d %s/%d stalls", p, key.node, key.bucket, key.v)
}

func (s *Sim) stalled(c *conn) bool { return c.stallMS > s.nowMS && !s.healing }

func (s *Sim) crashProjector(p int) {
	s.ev("CRASH p%d", p)
	boot := s.proj[p].boot
	for to := range s.nodes {
		s.proj[p].up = false
		s.breakAll(p, to)
	}
	s.proj[p] = s.newProjector(p, boot+1)
	s.proj[p].up = false
}
