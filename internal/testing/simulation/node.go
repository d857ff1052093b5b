package simulation

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strconv"

	"tidemark/index"
	"tidemark/indexer/core"
	"tidemark/ingest"
	"tidemark/internal/testing/planted"
	"tidemark/keyversion"
	projects "tidemark/projector/core"
	"tidemark/wire"
)

// This file models the indexers: the real core of package indexer, driven by the leader's commands as the role drives
// it, and a store of maps that works late and in order.

type node struct {
	up, full, registered bool
	num                  int
	id                   int // -1 until it is registered
	boot                 int
	life                 int           // number of nodes removed before from its place
	who                  core.Identity // survives restarts
	lists                core.Lists
	stored               wire.Definitions // the list in the node's folder
	buckets              map[string]*hosted
	stores               map[index.CopyID]*store // in the node's folder
	sequence             uint64
	reports              wire.ReportSender
	awaited              uint64 // sequence of the report whose answer is awaited; 0: none
	reportTo             *leader
	sides                *core.Sides // with askedSides
}

// hosted is one bucket on one node.
type hosted struct {
	name  string
	st    *core.Bucket
	work  *core.Work
	backs []ingest.Restore // restores that come before any other work
	under []*underway      // oldest first
	sides map[uint64]*side // by a key of id and vbucket
}

// side is a side stream that a projector runs for a node.
type side struct {
	projects.Stream
	id     uint64
	p, v   int
	ks     dcp
	begun  bool               // BEGIN was sent
	on     bool               // KV reports the end of the snapshot in which the stream ends
	rest   []keyversion.Event // parts of the current item that are still to be sent
	copies []fedCopy
}

// pack encodes an event's document and its statements.
func pack(e *keyversion.Event) []byte {
	d := append([]byte(nil), e.DocID...)
	for _, st := range e.Statements {
		key := byte(0)
		if len(st.Keys) > 0 {
			key = st.Keys[0][0]
		}
		d = append(d, byte(st.Index), byte(st.Slice), key)
	}
	return d
}

func (s *Sim) admit(n *node, f wire.Fence) error {
	next, _, err := n.who.Admit(n.bootID(), f)
	if err == nil {
		n.who = next
		s.checkObeyed(n.uuid(), f)
	}
	return err
}

func (s *Sim) registerNode(n *node) {
	boot := n.bootID()
	r := s.commit(statecontextIndexer(n.num, n.uuid(), boot))
	n.id = int(r.Node)
	s.lead.step.indexerRegistered(r.Node, boot)
	n.registered = true
	s.ev("n%d registered as %d with term %d", n.num, n.id, s.lead.term)
}

// bootID distinguishes the node's process from its earlier ones.
func (n *node) bootID() string { return "n" + strconv.Itoa(n.num) + "-" + strconv.Itoa(n.boot) }

// uuid distinguishes the node from removed nodes that had its place.
func (n *node) uuid() string { return "u" + strconv.Itoa(n.num) + "-" + strconv.Itoa(n.life) }

func (s *Sim) nodeAt(id index.NodeID) int {
	for i, n := range s.nodes {
		if n.id == int(id) {
			return i
		}
	}
	return 0
}

func (s *Sim) nodeHello(n *node, r *wire.HelloRequest) (*wire.IndexerHello, error) {
	if err := s.admit(n, r.Fence); err != nil {
		return nil, err
	}
	h := &wire.IndexerHello{Report: *s.nodeReport(n)}
	n.sequence++
	h.Report.Sequence = n.sequence
	h.Report.Shorten()
	for _, name := range sortedKeys(n.buckets) {
		h.Minimum = append(h.Minimum, wire.MinimumIncarnations{Bucket: name, Incarnations: n.buckets[name].st.Minimum()})
	}
	return h, nil
}

func (s *Sim) nodeReport(n *node) *wire.IndexerReport {
	r := &wire.IndexerReport{Node: index.NodeID(max(n.id, 0)), UUID: n.uuid(),
		BootID: n.bootID(), ClusterID: n.who.Fence.ClusterID}
	r.Revision = n.lists.RevisionFor(n.who.Fence.Epoch)
	for _, name := range sortedKeys(n.buckets) {
		b, copies := n.buckets[name].st.Report(core.Asked{HW: true, Building: n.building, QueueLimit: uint64(s.bound)})
		s.sized(copies)
		r.Copies = append(r.Copies, copies...)
		r.Buckets = append(r.Buckets, b)
	}
	return r
}

// building reports whether the node's list says that an index is being built.
func (n *node) building(id index.ID) bool {
	builds := func(d index.Definition) bool { return d.ID == id && d.State == index.Backfill }
	return slices.ContainsFunc(n.lists.InForce.Indexes, builds)
}

// reportNode sends a report to the leader and delivers the answer. As in package indexer, the node sends no other
// report before the answer, unless it gives up waiting; the abandoned report may still arrive.
func (s *Sim) reportNode(n *node) {
	if !n.registered || s.lead == nil {
		return
	}
	lead, boot := s.lead, n.boot
	if n.awaited > 0 {
		if n.reportTo == lead && s.dice.node.Intn(3) > 0 {
			return
		}
		n.reports.Lost()
	}
	r := s.nodeReport(n)
	acks := r.LastAcks()
	n.sequence++
	r.Sequence = n.sequence
	n.reports.Make(r, s.dice.node.Intn(20) == 0)
	n.reportTo, n.awaited = lead, r.Sequence
	s.later(func() {
		if s.lead != lead {
			return
		}
		a := s.lead.step.indexerReport(r)
		s.observe(s.lead)
		if n.boot != boot || n.awaited != r.Sequence {
			return
		}
		n.awaited = 0
		if _, err := wire.UnpackHeld(a.HeldPacked); len(a.HeldPacked) > 0 && err != nil {
			s.fail("n%d: list of held timestamps: %v", n.num, err)
		}
		n.reports.Answered(a)
		n.registered = n.registered && a.Known
		for _, name := range sortedKeys(acks) {
			if h := n.buckets[name]; h != nil && a.Took() {
				h.st.DropAcks(acks[name])
			}
		}
	})
}

func (s *Sim) nodePoll(n *node, r *wire.PollRequest) (*wire.PollReply, error) {
	if err := s.admit(n, r.Fence); err != nil {
		return nil, err
	}
	h := n.buckets[r.Bucket]
	if h == nil {
		return core.Poll(nil, r), nil
	}
	a := core.Poll(h.st, r)
	all, err := a.Positions()
	s.ev("n%d polled for %s %v %v: %+v %v", n.num, r.Bucket, r.VBuckets, r.Incarnation, all, err)
	return a, err
}

func (s *Sim) nodeStability(n *node, r *wire.StabilityRequest) error {
	if err := s.admit(n, r.Fence); err != nil {
		return err
	}
	for i := range r.Stabilities {
		t := &r.Stabilities[i]
		s.checkPublished(t)
		if h := n.buckets[t.Bucket]; h != nil {
			took := h.st.Publish(t.Stability)
			s.ev("n%d gets S%d of %s %v rollback %d: %v", n.num, t.Number, t.Bucket, t.Vector.Seqnos, t.RollbackID, took)
		}
	}
	return nil
}

func (s *Sim) nodeRollback(n *node, r *wire.RollbackRequest) (*wire.RollbackReply, error) {
	if err := s.admit(n, r.Fence); err != nil {
		return nil, err
	}
	a := &wire.RollbackReply{RollbackID: r.RollbackID}
	h := n.buckets[r.Bucket]
	if h == nil {
		return a, nil
	}
	if r.Step == "prepare" {
		return h.st.Prepare(r, n.heldStates), nil
	}
	switch h.st.CarryOut(r) {
	case core.BackStale:
		a.Stale = true
	case core.BackOlder, core.BackWaits: // the answer would come when all is restored; the leader retries
		return nil, errNet
	case core.BackDone, core.BackNow:
	}
	return a, nil
}

// nodeDefinitions makes the node's buckets and copies equal to a list, as package indexer does.
func (s *Sim) nodeDefinitions(n *node, d *wire.Definitions) (*wire.DefinitionsReply, error) {
	if err := s.admit(n, d.Fence); err != nil {
		return nil, err
	}
	if planted.Off("revisions") { // the node forgets which revision it has obeyed
		n.lists.Obeyed = 0
		if d.Revision < n.lists.InForce.Revision {
			n.lists.InForce.Revision = 0
		}
	}
	judged, have := n.lists.Judge(d)
	switch {
	case judged == core.Older:
		return nil, wire.ErrFenced
	case n.id < 0:
		return nil, errNet
	case judged == core.Known:
		return &wire.DefinitionsReply{Revision: have}, nil
	}
	if n.lists.NothingNew(d) {
		return &wire.DefinitionsReply{Revision: d.Revision}, nil
	}
	if n.full {
		return nil, errNet
	}
	s.hostBuckets(n, d)
	want := core.Placed(d, index.NodeID(n.id))
	if !s.on(dropAfter) {
		for i := range d.Topologies {
			for id := range replaced(d.Topologies[i].Copies) {
				delete(want, id)
			}
		}
	}
	var named map[index.CopyID]core.Wanted
	if n.lists.Follows(d) {
		named = core.Placed(&n.lists.InForce, index.NodeID(n.id))
	}
	s.allocate(n, want)
	s.dropUnwanted(n, want, named)
	n.lists.Take(d)
	n.stored = *d
	return &wire.DefinitionsReply{Revision: d.Revision}, nil
}

// allocate creates the wanted copies that the node lacks.
func (s *Sim) allocate(n *node, want map[index.CopyID]core.Wanted) {
	for _, id := range sortedKeys(want) {
		w := want[id]
		st := n.stores[id]
		if st == nil {
			st = newStore(place{w.Bucket.Name, w.Bucket.UUID, w.Index.ID, w.Index.CreatedMS, w.Copy.Slice,
				spreadOf(w.Index)})
			if s.wantsFiles() {
				st.files = &files{}
			}
			n.stores[id] = st
			s.ev("n%d allocates copy %d of index %v slice %d", n.num, id, w.Index.ID, w.Copy.Slice)
		}
		if !st.open {
			s.add(n, id, st)
		}
	}
}

// dropUnwanted closes the copies that are not wanted, and drops those of them that the previous list named.
func (s *Sim) dropUnwanted(n *node, want, named map[index.CopyID]core.Wanted) {
	for _, id := range sortedKeys(n.stores) {
		st := n.stores[id]
		fate := core.FateOf(st.stored(id), want, named)
		if fate == core.Stays {
			continue
		}
		if st.open {
			n.buckets[st.bucket].remove(id)
			st.open = false
		}
		if fate == core.Goes {
			s.checkDrop(n, id)
			delete(n.stores, id)
			s.ev("n%d drops copy %d", n.num, id)
		}
	}
}

// stored returns the copy's description as its folder holds it.
func (st *store) stored(id index.CopyID) core.Stored {
	return core.Stored{Copy: id, Index: st.index, CreatedMS: st.created, BucketUUID: st.uuid, VBuckets: vbuckets}
}

// place is a copy that definitions place on a node.
type place struct {
	bucket  string
	uuid    string // of the bucket
	index   index.ID
	created int64 // of the index
	no      index.SliceID
	spread
}

func (s *Sim) hostBuckets(n *node, d *wire.Definitions) {
	for _, b := range d.Buckets {
		if h := n.buckets[b.Name]; h != nil {
			h.st.SetGeneration(b.Generation, b.RollbackID)
			continue
		}
		st, err := core.NewBucket(&b, vbuckets, pack)
		if err != nil {
			s.fail("%v", err)
			return
		}
		n.buckets[b.Name] = &hosted{name: b.Name, st: st, work: core.NewWork(st), sides: map[uint64]*side{}}
	}
}

func (s *Sim) add(n *node, id index.CopyID, st *store) {
	h := n.buckets[st.bucket]
	if h == nil {
		return
	}
	err := h.st.Add(ingest.Copy{ID: id, Index: st.index, Slice: st.no, Ready: st.ready,
		Positions: st.live.pos[:], Logs: st.live.logs[:]})
	if err != nil {
		s.fail("n%d copy %d: %v", n.num, id, err)
	}
	st.open = true
	s.deferred(h, id, st)
}

// storeStep does one piece of the store's work.
func (s *Sim) storeStep(n *node, h *hosted) {
	if n.full {
		return
	}
	if len(h.backs) == 0 {
		s.handOut(n, h)
	}
	if len(h.backs) > 0 {
		r := h.backs[0]
		h.backs = h.backs[1:]
		s.restore(n, h, r)
		h.restored()
	}
}

// restored notifies the work queue when no restore is left.
func (h *hosted) restored() {
	if len(h.backs) == 0 {
		h.work.Restored()
	}
}

// remove removes a copy.
func (h *hosted) remove(id index.CopyID) {
	h.dropBacks(id)
	h.work.Remove(id)
}

// dropBacks discards the restores of a copy and its batches in flight.
func (h *hosted) dropBacks(id index.CopyID) {
	h.dropUnder(id)
	if len(h.backs) > 0 {
		h.backs = slices.DeleteFunc(h.backs, func(r ingest.Restore) bool { return r.Copy == id })
		h.restored()
	}
}

// handOut does the work that core hands out next.
func (s *Sim) handOut(n *node, h *hosted) {
	if s.writesBefore(n, h) {
		return
	}
	l := core.Limits{Queue: math.MaxInt, Side: sideMost, Ahead: s.bound / 2}
	if !h.work.Waits() {
		l.All = s.dice.node.Intn(3) == 0
		if s.bound > 0 && h.st.QueueBytes() > s.bound && s.dice.node.Intn(3) == 0 {
			l.Queue = s.bound
		}
	}
	h.work.Look()
	step := h.work.Next(l)
	for _, a := range step.Acks {
		s.ev("n%d discards S%d of %s", n.num, a.Number, h.name)
		s.checkAcked(n, h, a.Ref)
	}
	h.backs = step.Restores
	switch t := step.Handed; {
	case t == nil:
		s.writeMore(n, h)
	case t.Batch == nil:
		h.work.Purged(t.Purge, s.dropTombstones(n, h, t.Purge))
	default:
		if t.Batch.Kind == ingest.Ahead {
			s.Report.Ahead++
		}
		s.writeOut(n, h, t)
	}
}

// sideMost is the limit of batches of side streams, in bytes.
const sideMost = 300

func (s *Sim) crashNode(n *node) {
	n.up, n.registered = false, false
	s.ev("CRASH n%d", n.num)
	for p := range s.proj {
		s.breakAll(p, n.num)
	}
	for _, id := range sortedKeys(n.stores) {
		n.stores[id].crash(s)
	}
	n.buckets = map[string]*hosted{}
	n.lists, n.who = core.Lists{}, n.who.Kept()
	maps.DeleteFunc(s.owners, func(k ownerKey, _ index.ProjectorID) bool { return k.node == n.num })
	if s.chance(lostSlices, 2) {
		for _, id := range sortedKeys(n.stores) {
			s.ev("n%d loses the folder of copy %d", n.num, id)
			s.lost[id] = true
			delete(n.stores, id)
			break
		}
	}
}

func (s *Sim) startNode(n *node) {
	n.up, n.full = true, false
	n.boot++
	n.reports, n.awaited, n.sequence = wire.ReportSender{}, 0, 0
	n.sides = s.newSides()
	s.ev("RESTART n%d", n.num)
	if n.stored.Revision > 0 {
		n.lists.Resume(&n.stored)
		s.hostBuckets(n, &n.stored)
		want := core.Placed(&n.stored, index.NodeID(n.id))
		for _, id := range sortedKeys(n.stores) {
			if _, ok := want[id]; ok {
				s.add(n, id, n.stores[id])
			}
		}
	}
	for p := range s.proj {
		s.breakAll(p, n.num) // routers connect again
	}
}

// reopen damages the files of one slice; the copy reopens with what was durable.
func (s *Sim) reopen(n *node) {
	for _, id := range sortedKeys(n.stores) {
		st := n.stores[id]
		if !st.open || s.dice.node.Intn(2) == 0 {
			continue
		}
		h := n.buckets[st.bucket]
		h.dropBacks(id) // its batches in flight are lost
		st.crash(s)
		st.open = true
		s.ev("n%d copy %d reopened at %+v", n.num, id, st.live.pos)
		if err := h.work.Reopened(id, st.live.pos[:], st.live.logs[:]); err != nil {
			s.fail("%v", err)
		}
		break
	}
}

// sideStep opens, feeds or ends one side stream.
func (s *Sim) sideStep(n *node, h *hosted) {
	s.fillStep(n, h)
	if !s.mix[askedSides] {
		for _, id := range h.st.Abandoned() {
			h.dropSide(id)
		}
	}
	if look := s.dice.node.Intn(3) == 0 || len(h.sides) == 0; look && s.mix[askedSides] {
		s.askSides(n, h)
	} else if look {
		for _, w := range h.st.Wants() {
			s.openSide(n, h, w)
		}
	} else {
		ids := sortedKeys(h.sides)
		id := ids[s.dice.node.Intn(len(ids))]
		s.feedSide(n, h, id, h.sides[id])
	}
}

// openSide requests a side stream from a random projector.
func (s *Sim) openSide(n *node, h *hosted, w ingest.Want) {
	p := s.dice.node.Intn(projectors)
	r := &core.SideRequest{Bucket: h.name, ID: s.sideID + 1, Build: w.Build, Revision: n.lists.InForce.Revision}
	r.Add(w)
	reply := s.serveRequest(n, h, p, s.message(n, h, r))
	if reply == nil {
		return
	}
	result := &reply.Buckets[0].Results[0]
	if result.Outcome != wire.StartBegun && result.Outcome != wire.StartRollback {
		return
	}
	s.sideID++
	h.st.OpenSide(w, s.sideID)
	if result.Outcome == wire.StartRollback {
		s.ev("n%d side %d %s/%d from %d is refused, purge %d", n.num, s.sideID, h.name, w.VBucket, w.From, result.Purge)
		h.st.SideRefused(w.VBucket, s.sideID, result.Purge)
	}
}

// offer returns a projector's answer for one vbucket of a request, and the stream if KV consents.
func (s *Sim) offer(h *hosted, p int, req *wire.StreamRequest, q *wire.StreamStart) (*side, wire.StartResult) {
	v, pr := int(q.VBucket), s.proj[p]
	k := s.bucket(h.name).hosted(p, v)
	switch {
	case k == nil:
		return nil, projects.NotMine(q.VBucket)
	case !projects.HasRevision(pr.defs, req.Side.Revision):
		return nil, projects.Failed(q.VBucket, "it works by an older list")
	}
	x := &side{p: p, v: v, id: req.Incarnation.Counter, ks: dcp{branch: k, cur: q.Seqno}}
	defs, only := projects.SideFeed(pr.defs, req.Side)
	for _, c := range s.fed(defs, h.name, only) {
		if c.node == s.nodeAt(req.Side.Node) {
			c.before = 0 // with mergedSlices off, side streams stay correct
			x.copies = append(x.copies, c)
		}
	}
	if len(x.copies) == 0 {
		return nil, projects.Failed(q.VBucket, "its list has none of these copies")
	}
	x.copies = s.partly(x.copies)
	x.Stream = *projects.NewStream(req.Incarnation, q, s.at(k))
	switch next, answer := s.ask(k, &x.Start); next {
	case projects.GiveUp:
		return nil, x.Refused(answer, k.fl)
	case projects.CloseAtKV:
		return nil, x.FailedOver()
	}
	if err := x.BeginsOn(k.fl); err != nil {
		s.fail("side stream %s of %s/%d: %v", req.Topic, h.name, v, err)
	}
	x.Begun = true
	return x, x.Began(k.high(), x.Lacks)
}

// partly sometimes leaves a copy out of a side stream, as a projector does that cannot evaluate the copy's index or
// whose definitions no longer contain it: BEGIN does not name the copy, and no event is for it.
func (s *Sim) partly(all []fedCopy) []fedCopy {
	if len(all) < 2 || !s.chance(partSides, 3) {
		return all
	}
	s.Report.Partly++
	i := s.dice.projector.Intn(len(all))
	s.ev("of a side stream copy %d is left out", all[i].id)
	return slices.Delete(all, i, i+1)
}

// startSide starts a side stream.
func (s *Sim) startSide(n *node, h *hosted, x *side) {
	s.ev("n%d side %d %s/%d %d->%d from p%d for %v", n.num, x.id, h.name, x.v, x.Want.Seqno, x.Want.End, x.p,
		idsAt(x.copies, n.num))
	x.on = x.id%4 > 0
	h.sides[x.id*vbuckets+uint64(x.v)] = x
	s.purgeLate(s.bucket(h.name), x.v, x.Want.Seqno)
}

// dropSide forgets the side streams of an id.
func (h *hosted) dropSide(id uint64) {
	maps.DeleteFunc(h.sides, func(_ uint64, x *side) bool { return x.id == id })
}

// feedWindow sends one item of a window, or ends the window. It returns false if the indexer did not accept the item.
func (s *Sim) feedWindow(n *node, x *side, send func(keyversion.Event) ingest.Verdict) bool {
	k, some := &x.ks, len(x.ks.items) > 0
	switch {
	case some && len(x.rest) == 0 && s.cut(k, &x.Stream):
		x.begun = !s.mark(k, &x.Stream)
	case some && x.Side(projects.KVDocument, k.items[0].seqno) == projects.SideTakes:
		return s.feedItem(n, x, send)
	default:
		k.mid, k.items, k.cur = false, nil, k.window.End
		ends := x.Done || !x.on && k.cur >= x.Want.End // the stream's END reports the position instead
		if !ends && x.Took(k.cur, true) && s.dice.node.Intn(2) == 0 {
			d := x.Downstream()
			send(d.Sync(x.VBUUID, x.Complete))
		}
	}
	return true
}

func (s *Sim) feedSide(n *node, h *hosted, key uint64, x *side) {
	k, id, d := &x.ks, x.id, x.Downstream()
	pr := s.proj[x.p]
	if !pr.up {
		h.st.SideFailed(x.v, id)
		delete(h.sides, key)
		return
	}
	if s.silent(k, &x.Stream) {
		return
	}
	src := ingest.Source{Projector: pr.name, Connection: pr.conn[connKey{n.num, h.name, x.v}].id}
	send := func(e keyversion.Event) ingest.Verdict {
		e.VBucket, e.Incarnation.Counter = uint16(x.v), id
		return h.st.AcceptSide(src, &e)
	}
	switch {
	case !x.begun:
		x.begun, x.rest = true, nil
		for _, c := range x.copies {
			d.Copies = append(d.Copies, c.id)
		}
		if send(d.Begin(k.cur)) != ingest.Taken {
			delete(h.sides, key)
		}
	case !k.mid && k.cur < x.Want.End && k.cur < k.branch.high():
		k.marker(k.cur + 1 + uint64(s.dice.node.Intn(int(k.branch.high()-k.cur))))
		x.begun = !s.mark(k, &x.Stream)
	case k.mid:
		if !s.feedWindow(n, x, send) {
			delete(h.sides, key)
		}
	case k.cur >= x.Want.End:
		// The projector requests KV's high seqno now; it also covers what an earlier stream left out that broke off.
		x.Side(projects.KVEnds, k.cur)
		d.Reach = x.Covered(k.branch.high())
		send(d.End(x.Last))
		delete(h.sides, key)
		s.ev("n%d side %d %s/%d ends, reach %d", n.num, id, h.name, x.v, d.Reach)
	case x.Side(projects.KVBreaks, k.cur) == projects.SideBreaks: // the branch is shorter than A: no more can come
		d.Broken = true
		send(d.End(x.Last))
		delete(h.sides, key)
	}
}

// feedItem sends the first document of a side stream, one part per call; owned is false if the indexer does not own
// it.
func (s *Sim) feedItem(n *node, x *side, send func(keyversion.Event) ingest.Verdict) (owned bool) {
	it := x.ks.items[0]
	if len(x.rest) == 0 {
		x.Place(it.seqno) // as with a finite stream of KV, only the end reports how far it was read
		if e, ok := s.statement(n.num, it, x.Window, x.copies); ok {
			x.rest = s.parts(e)
		}
	}
	owned = len(x.rest) == 0 || send(x.rest[0]) != ingest.NotOwner
	if len(x.rest) > 1 {
		x.rest = x.rest[1:]
		return owned
	}
	x.ks.items, x.ks.cur, x.rest = x.ks.items[1:], it.seqno, nil
	x.Took(it.seqno, false)
	return owned
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
