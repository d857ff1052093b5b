// Package simulation runs the whole system in one thread, in virtual time, from one seed: the managers' real state
// machine, the real coordinator, ledger, stability and rollback deciders, and the real state of an indexer, over
// models of KV, of projectors, of a store, and of a network that delays, loses and reorders messages.
//
// A seed gives the same run every time. The invariants that docs/simulation.md lists are checked at every step, and
// after the faults have ended every index must equal the oracle: the definition applied to what KV holds. The package
// never starts a goroutine, reads a clock or opens a file.
package simulation

import (
	"cmp"
	"fmt"
	"slices"

	"tidemark/index"
	"tidemark/internal/testing/planted"
	"tidemark/keyversion"
	"tidemark/statecontext"
	"tidemark/timestamp"
	"tidemark/wire"
)

// Options configures a run.
type Options struct {
	Seed    int64
	Steps   int      // steps with faults, before everything heals; 0: 1500
	Without []string // rules that are switched off
	Faults  []string // the only faults of the run; empty: the seed draws them
	// of Faults, in percent of the highest rate that seeds draw; 0: 100; mostRate: faults and no writes
	Rate int
	Less string // the class of steps that are rare in this run, see classes
	// OneSequence draws all choices from one sequence, so that each depends on those before it. Planted bugs that
	// hardly any seed exposes need it where their known seeds were found this way.
	OneSequence bool
	Trace       bool // keep a line per event
	// With Patient, leaders wait for answers and streams without a limit.
	Patient bool
}

// Report counts what a run has done.
type Report struct {
	Steps, Exact, Promotions, Restores, Rollbacks, Ranges, Ahead, Scans, Leaders, Moves, Moved, Evicted, Filled, Sessions,
	Splits, Purges, Retakes int
	Merges, Alone int // of Splits: those into fewer slices, and of these the ones that no user requested
	// Together counts batches of copies whose positions equalled those of other copies; Kept counts how often a
	// copy's position was written to the node's common file.
	Together, Kept int
	Asked          int // requests for side streams, with askedSides
	Partly         int // side streams from which a projector left out a copy
	Stale          int // plans refused because the placement had changed since they were made
	// Cut counts windows that KV cut short, Busy stream requests that it put off, and Late periods in which it sent
	// nothing of a stream.
	Cut, Busy, Late int
}

// Add adds the counts of o to r.
func (r *Report) Add(o Report) {
	r.Steps, r.Exact, r.Promotions = r.Steps+o.Steps, r.Exact+o.Exact, r.Promotions+o.Promotions
	r.Restores, r.Rollbacks, r.Ranges = r.Restores+o.Restores, r.Rollbacks+o.Rollbacks, r.Ranges+o.Ranges
	r.Ahead, r.Scans, r.Leaders = r.Ahead+o.Ahead, r.Scans+o.Scans, r.Leaders+o.Leaders
	r.Moves, r.Moved, r.Evicted = r.Moves+o.Moves, r.Moved+o.Moved, r.Evicted+o.Evicted
	r.Filled, r.Sessions, r.Splits = r.Filled+o.Filled, r.Sessions+o.Sessions, r.Splits+o.Splits
	r.Purges, r.Retakes = r.Purges+o.Purges, r.Retakes+o.Retakes
	r.Asked, r.Merges, r.Alone = r.Asked+o.Asked, r.Merges+o.Merges, r.Alone+o.Alone
	r.Together, r.Kept, r.Partly = r.Together+o.Together, r.Kept+o.Kept, r.Partly+o.Partly
	r.Cut, r.Busy, r.Late = r.Cut+o.Cut, r.Busy+o.Busy, r.Late+o.Late
	r.Stale += o.Stale
}

// Sim is one run.
type Sim struct {
	Report Report
	Legend []string // with Options.Trace

	opt    Options
	nowMS  int64
	tickMS int64
	step   int
	err    string
	schedule
	world
	control
	claims
}

// schedule holds what the seed has drawn: the faults of this run and their rates.
type schedule struct {
	dice        choices
	off         rule // rules of the models in this package that are switched off
	trace       bool
	healing     bool
	mix         [kinds]bool
	events      []fault // those of mix that are events of their own
	rate        int
	starve      int
	less        class
	bound       int
	outstanding int
	heartbeat   bool
	patient     bool // the leader does not notice that an indexer lacks a stream
	most        int  // highest seqno of a vbucket
}

// world holds the models of KV, projectors and indexers, and the messages between them.
type world struct {
	kv       []*kvBucket
	branches map[uint64]*branch
	batches  uint64
	uuid     uint64
	proj     [projectors]*projector
	nodes    []*node
	connID   uint64
	sideID   uint64
	names    int
	late     []func()
	delayed  []delayed
}

// control holds the replicated state and its leaders.
type control struct {
	state     *statecontext.State
	time      stateTime
	raftIndex uint64
	term      uint64
	lead      *leader
	old       []*leader
	before    []*statecontext.State // the last few committed states, oldest first; only for leaders that lack some
}

// claims records what components have promised or shown; later steps are checked against it.
type claims struct {
	ends    map[endKey]bool
	owners  map[ownerKey]index.ProjectorID
	vectors map[refKey]timestamp.Vector
	lost    map[index.CopyID]bool // copies whose folder was lost in a crash
	stable  map[refKey]timestamp.Vector
	// owners of vbuckets under an incarnation in the leaders' ledgers; the key's node is the term
	ledger map[ownerKey]index.ProjectorID
	owed   map[owedKey]uint64    // see checkPaced
	obeyed map[string]wire.Fence // by component: the highest fence that it has obeyed, without the counter
	asking map[string]*session   // by bucket
	acked  map[string]ddlState   // indexes whose CREATE was acknowledged, by name; a name is used once
	newest index.ID              // the index created last
	wanted map[index.ID]uint16   // the number of slices that a user requested
}

// fault is a kind of fault.
type fault int

const (
	failovers fault = iota
	takeovers
	nodeCrashes
	projectorCrashes
	brokenConnections
	leaderChanges
	drops
	streamEnds
	ddl
	purges
	fullDisks
	tornFiles
	pauses
	moves
	epochs
	happening // the faults above are events of their own, those below affect another action
	lostProposals
	lostRequests
	lateRequests
	lostSlices
	tornCheckpoints
	flushes     // an event of its own, but chosen by the seed's number, not drawn: see swarm
	splits      // chosen by number, too; tried at every opportunity, because indexes are rarely ready
	sizes       // chosen by number: slices grow and shrink, and indexes split and merge without a user, see merges.go
	slowCopies  // chosen by number: a node writes its copies in any order, see lanes.go
	commonFiles // a node keeps in one file the positions of its copies, beyond what each copy has stored
	retakes     // an audit makes a copy take a vbucket again
	askedSides  // nodes request side streams as package indexer does, see asking.go
	partSides   // projectors leave requested copies out of side streams, see partly
	stalls      // an event of its own: a connection delivers nothing for a while; see swarm
	stalePlans  // moves begin some time after they were planned, and nodes are removed meanwhile, see planLate
	// KV's moods, see moods.go; chosen by the seed's number as well.
	cutWindows
	noStats
	oldPurges
	deepLosses
	busyStreams
	lateVBuckets
	kinds
)

var faultNames = [kinds]string{
	failovers: "failovers", takeovers: "takeovers", nodeCrashes: "nodeCrashes", projectorCrashes: "projectorCrashes",
	brokenConnections: "brokenConnections", leaderChanges: "leaderChanges", drops: "drops", streamEnds: "streamEnds",
	ddl: "ddl", purges: "purges", fullDisks: "fullDisks", tornFiles: "tornFiles", pauses: "pauses", moves: "moves",
	epochs: "epochs", lostProposals: "lostProposals", lostRequests: "lostRequests", lateRequests: "lateRequests",
	lostSlices: "lostSlices", tornCheckpoints: "tornCheckpoints", flushes: "flushes",
	splits: "splits", sizes: "sizes", slowCopies: "slowCopies", commonFiles: "commonFiles", retakes: "retakes",
	askedSides: "askedSides", partSides: "partSides", stalls: "stalls", stalePlans: "stalePlans",
	cutWindows: "cutWindows", noStats: "noStats", oldPurges: "oldPurges", deepLosses: "deepLosses",
	busyStreams: "busyStreams", lateVBuckets: "lateVBuckets",
}

const (
	stepMS  = 10 // a step takes up to twice as long
	tickMS  = 20
	maxLate = 200

	mostRate = 200
)

// New prepares a run. It returns an error for rules, faults and classes of steps that do not exist.
func New(o Options) (*Sim, error) {
	if o.Steps == 0 {
		o.Steps = 1500
	}
	own, product := split(o.Without)
	if err := planted.Switch(product...); err != nil {
		return nil, err
	}
	s := &Sim{opt: o, nowMS: 1_000_000, schedule: schedule{off: own, trace: o.Trace},
		world: world{branches: map[uint64]*branch{}}, control: control{state: statecontext.New()},
		claims: claims{ends: map[endKey]bool{}, owners: map[ownerKey]index.ProjectorID{},
			vectors: map[refKey]timestamp.Vector{}, lost: map[index.CopyID]bool{}, stable: map[refKey]timestamp.Vector{},
			ledger: map[ownerKey]index.ProjectorID{}, owed: map[owedKey]uint64{}, obeyed: map[string]wire.Fence{},
			acked: map[string]ddlState{}, asking: map[string]*session{}, wanted: map[index.ID]uint16{}}}
	if o.OneSequence {
		s.dice.oneSequence(o.Seed)
	}
	s.dice.begin(o.Seed, 0)
	s.swarm()
	if err := s.choose(o.Faults); err != nil {
		return nil, err
	}
	var known bool
	if s.less, known = classes[o.Less]; !known {
		return nil, fmt.Errorf("no kind of step %q", o.Less)
	}
	for i := range 1 + s.dice.plan.Intn(4)/3 {
		b := &kvBucket{name: fmt.Sprintf("b%d", i), uuid: fmt.Sprintf("uuid-b%d", i), early: s.mix[purges] && o.Seed%2 == 0}
		b.waits = b.early
		for v := range b.vb {
			b.vb[v] = vbucket{cur: s.newBranch(nil, 0, true), owner: v % projectors}
		}
		s.kv = append(s.kv, b)
	}
	many := 2 + s.dice.plan.Intn(3)
	if s.mix[stalePlans] {
		many = max(many, fewestNodes)
	}
	for i := range many {
		s.nodes = append(s.nodes, &node{num: i, id: -1, up: true, boot: 1,
			buckets: map[string]*hosted{}, stores: map[index.CopyID]*store{}, sides: s.newSides()})
	}
	for p := range s.proj {
		s.proj[p] = s.newProjector(p, 1)
	}
	s.elect()
	for _, b := range s.kv {
		s.commit(&statecontext.SetBucket{Name: b.name, UUID: b.uuid, VBuckets: vbuckets})
	}
	for _, n := range s.nodes {
		s.registerNode(n)
	}
	for p := range s.proj {
		s.registerProjector(p)
	}
	s.createIndex(s.kv[0])
	return s, nil
}

// swarm draws the seed's set of faults, its rates and its bounds.
func (s *Sim) swarm() {
	for len(s.events) == 0 {
		for k := range flushes {
			if s.mix[k] = s.dice.plan.Intn(3) == 0; s.mix[k] && k < happening {
				s.events = append(s.events, k)
			}
		}
	}
	s.rate = []int{10, 40, 100, 100}[s.dice.plan.Intn(4)]
	s.starve = s.dice.plan.Intn(16)
	s.bound = []int{0, 300, 800}[s.dice.plan.Intn(3)]
	s.outstanding = []int{1, 2, 4}[s.dice.plan.Intn(3)]
	s.heartbeat = s.dice.plan.Intn(4) == 0
	s.patient = s.dice.plan.Intn(3) == 0
	if s.mix[ddl] {
		s.events = append(s.events, ddl, ddl)
	}
	if s.mix[moves] {
		s.events = append(s.events, moves, moves, moves)
	}
	s.most = 200
	// by number, not drawn: the choices of other seeds stay what they were
	if s.mix[flushes] = s.opt.Seed%flushing == 1; s.mix[flushes] {
		s.events = append(s.events, flushes)
	}
	s.mix[splits] = s.opt.Seed%splitting == 2
	s.mix[sizes] = s.opt.Seed%sizing == 6
	s.mix[slowCopies] = s.opt.Seed%storing < 2
	s.mix[commonFiles] = keepsCommon(s.opt.Seed)
	s.mix[askedSides] = s.opt.Seed%asking < 2
	s.mix[partSides] = s.opt.Seed%parting < 3
	if s.mix[stalePlans] = s.opt.Seed%replacing == 7; s.mix[stalePlans] {
		s.mix[moves] = true
		s.events = append(s.events, moves, moves, moves)
	}
	s.mix[retakes] = s.opt.Seed%storing == 0 || s.opt.Seed%storing == 4
	if s.mix[stalls] = s.opt.Seed%stalling == 3; s.mix[stalls] {
		s.events = append(s.events, stalls)
	}
	s.drawMoods()
}

// stalling is the number of seeds of which one has connections that deliver nothing for a while.
const stalling = 4

// asking is the number of seeds of which two request side streams as package indexer does.
const asking = 7

// parting is the number of seeds in three of which projectors leave copies out of side streams.
const parting = 11

// storing is the number of seeds over which the variants of the store are spread.
const storing = 5

// replacing is the number of seeds in one of which plans of moves are carried out on another placement than they were
// made for. These seeds always have moves, and enough nodes that one may be removed.
const replacing = 8

func keepsCommon(seed int64) bool { return seed%storing == 1 || seed%storing == 4 }

// splitting is the number of seeds in one of which indexes are split and merged.
const splitting = 4

// sizing is the number of seeds in one of which, a subset of splitting's, indexes also split and merge without a
// user.
const sizing = 8

// flushing is the number of seeds in one of which buckets are flushed and scans with session consistency are checked.
const flushing = 4

// byItself reports whether a fault is an event of its own rather than affecting another action.
func (k fault) byItself() bool { return k < happening || k == flushes || k == stalls }

// choose replaces the seed's faults by the named ones.
func (s *Sim) choose(names []string) error {
	if len(names) == 0 {
		return nil
	}
	s.mix, s.events, s.rate = [kinds]bool{}, nil, cmp.Or(s.opt.Rate, 100)
	for _, name := range names {
		k := slices.Index(faultNames[:], name)
		if k < 0 {
			return fmt.Errorf("no fault %q; there are %v", name, faultNames)
		}
		if s.mix[k] = true; fault(k).byItself() {
			s.events = append(s.events, fault(k))
		}
	}
	if len(s.events) == 0 {
		s.rate = 0
	}
	return nil
}

// chance reports whether fault k strikes now, one time in n, if this seed has it. Requests are still lost while the
// last writes are made: no newer message repeats their content.
func (s *Sim) chance(k fault, n int) bool {
	on := !s.healing || k == lostRequests && s.step < s.opt.Steps+2*healWrites
	return s.mix[k] && on && s.dice.net.Intn(n) == 0
}

func (s *Sim) fail(form string, a ...any) {
	if s.err == "" {
		s.err = fmt.Sprintf(form, a...)
		s.ev("VIOLATION: %s", s.err)
	}
}

func (s *Sim) ev(form string, a ...any) {
	if s.trace {
		at := fmt.Sprintf("%5d %8.3fs ", s.step, float64(s.nowMS-1_000_000)/1000)
		s.Legend = append(s.Legend, at+fmt.Sprintf(form, a...))
	}
}

// delayed is a request that arrives long after its sender has given it up.
type delayed struct {
	atMS int64
	do   func()
}

// maxDelayMS is the longest delay of a request.
const maxDelayMS = 4000

func (s *Sim) delay(f func()) {
	if len(s.delayed) < maxLate {
		s.delayed = append(s.delayed, delayed{s.nowMS + int64(s.dice.net.Intn(maxDelayMS)), f})
	}
}

// later puts a message on the network.
func (s *Sim) later(f func()) {
	if len(s.late) < maxLate {
		s.late = append(s.late, f)
	}
}

func (s *Sim) bucket(name string) *kvBucket {
	for _, b := range s.kv {
		if b.name == name {
			return b
		}
	}
	return nil
}

// pass advances the time by ms.
func (s *Sim) pass(ms int64) {
	s.nowMS += ms
	if s.nowMS-s.tickMS >= tickMS {
		s.tickMS = s.nowMS
		s.tick()
	}
}

// class is a kind of step: the numbers from first to below end.
type class struct{ first, end int }

// classes are the kinds of steps, as act draws them, of which a run may have few.
var classes = map[string]class{
	"": {}, "pumps": {0, 14}, "deliveries": {14, 34}, "flushing": {34, 58},
	"sideSteps": {58, 66}, "leading": {66, 80}, "syncs": {80, 84}, fewWrites: {86, 100},
}

// fewWrites is the class of a run whose documents keep their values for long, so that a bug's effect is not
// overwritten before a copy is exact.
const fewWrites = "writes"

func (c class) has(x int) bool { return c.first <= x && x < c.end }

// act does one random action. There are no faults while everything heals.
func (s *Sim) act() {
	s.step++
	s.dice.begin(s.opt.Seed, s.step)
	s.pass(int64(s.dice.plan.Intn(2*stepMS) + 1))
	x := s.dice.plan.Intn(100)
	// One class of events is starved per seed.
	if !s.healing && (x/8 == s.starve || s.less.has(x)) && s.dice.plan.Intn(8) > 0 {
		x = 86 + s.dice.plan.Intn(10)
	}
	b, v := s.kv[s.dice.plan.Intn(len(s.kv))], s.dice.plan.Intn(vbuckets)
	p, n := s.dice.plan.Intn(projectors), s.nodes[s.dice.plan.Intn(len(s.nodes))]
	if s.dice.plan.Intn(3) == 0 {
		s.report(p, n)
	}
	if s.dice.plan.Intn(2) == 0 {
		s.network()
	}
	switch {
	case x < 66:
		s.moveData(x, b, v, p, n)
	case x < 80:
		s.leaders()
	case x < 84:
		s.sync(p, b, v)
	case x < 86:
		s.start(p, n)
	case s.healing:
		s.heal(b, v, n)
	case s.spared(x):
		s.write(b, v, b.vb[v].zombie != nil && s.dice.plan.Intn(3) == 0)
	default:
		s.fault(b, v, p, n)
	}
	s.regular(b, v, n)
}

// regular does the work that every step does, whatever else happens in it.
func (s *Sim) regular(b *kvBucket, v int, n *node) {
	if s.step%20 == 0 {
		s.cancelMove()
		s.replace(n)
	}
	if s.step%40 == 0 {
		s.scan()
	}
	if s.mix[splits] || s.mix[stalePlans] {
		s.lively()
	}
	if s.mix[splits] && !s.healing && s.step%10 == 7 {
		s.splitIndex(b)
	}
	if s.mix[flushes] && s.step%10 == 5 {
		s.session(b)
	}
	if s.mix[retakes] && !s.healing && s.dice.look.Intn(retakeEvery) == 0 {
		s.retake(b, v, n)
	}
}

// retakeEvery is the number of audits of which one finds wrong rows.
const retakeEvery = 100

// retake makes a copy take a vbucket again, as after an audit that has found wrong rows there.
func (s *Sim) retake(b *kvBucket, v int, n *node) {
	h := n.buckets[b.name]
	if !n.up || h == nil {
		return
	}
	for _, id := range sortedKeys(n.stores) {
		if st := n.stores[id]; st.open && st.bucket == b.name && s.dice.look.Intn(2) == 0 && h.st.Retake(id, v) {
			s.Report.Retakes++
			s.ev("n%d copy %d takes %s/%d anew", n.num, id, b.name, v)
			return
		}
	}
}

// moveData moves documents one stage on, between KV and the stores; x, below 66, chooses the stage.
func (s *Sim) moveData(x int, b *kvBucket, v, p int, n *node) {
	h := n.buckets[b.name]
	switch {
	case x < 14:
		for range 2 {
			s.pump(p, b, v)
		}
	case x < 34:
		for range 8 {
			s.deliver(s.dice.plan.Intn(projectors), s.dice.plan.Intn(len(s.nodes)), b, s.dice.plan.Intn(vbuckets))
		}
	case !n.up || h == nil:
	case x < 58:
		s.storeStep(n, h)
		s.checkQueues(n)
	default:
		for range 3 {
			s.sideStep(n, h)
		}
	}
}

// lively moves several documents a stage on, so that indexes are built in the time that a seed has.
func (s *Sim) lively() {
	for range livelier {
		b, n := s.kv[s.dice.load.Intn(len(s.kv))], s.nodes[s.dice.load.Intn(len(s.nodes))]
		s.moveData(s.dice.load.Intn(66), b, s.dice.load.Intn(vbuckets), s.dice.load.Intn(projectors), n)
	}
	s.leaders()
}

// livelier is the number of such moves at each step.
const livelier = 3

// spared reports whether a step that could be a fault is a write.
func (s *Sim) spared(x int) bool {
	if s.opt.OneSequence {
		return x < 93 || s.dice.plan.Intn(100) >= s.rate
	}
	return s.dice.plan.Intn(mostRate) >= s.rate
}

func (s *Sim) leaders() {
	if s.lead != nil {
		for range 3 {
			s.leaderStep(s.lead)
		}
	} else if s.dice.plan.Intn(4) == 0 {
		s.elect()
		s.Report.Leaders++
	}
	for _, l := range s.old {
		s.leaderStep(l)
	}
}

// network delivers one of the messages under way.
func (s *Sim) network() {
	for i := range s.delayed {
		if d := s.delayed[i]; d.atMS <= s.nowMS {
			s.delayed = slices.Delete(s.delayed, i, i+1)
			d.do()
			break
		}
	}
	for i := 0; i < 3 && len(s.late) > 0; i++ {
		k := 0
		if !s.healing {
			k = s.dice.net.Intn(len(s.late))
		}
		f := s.late[k]
		s.late = slices.Delete(s.late, k, k+1)
		f()
	}
}

func (s *Sim) report(p int, n *node) {
	if s.proj[p].up {
		s.reportProjector(p)
	}
	if n.up {
		s.reportNode(n)
	}
}

// start restarts what is down.
func (s *Sim) start(p int, n *node) {
	if !n.up {
		s.startNode(n)
	}
	if pr := s.proj[p]; !pr.up {
		pr.up = true
		s.ev("RESTART p%d", p)
	}
	if s.lead == nil {
		return
	}
	if n.up && !n.registered {
		s.replace(n)
		s.registerNode(n)
	}
	if pr := s.proj[p]; pr.up && !pr.authority.Registered {
		s.registerProjector(p)
	}
}

func (s *Sim) heal(b *kvBucket, v int, n *node) {
	if s.step < s.opt.Steps+healWrites && s.dice.plan.Intn(2) == 0 {
		s.write(b, v, false)
	}
	b.vb[v].zombie = nil
	n.full = false
	for p := range s.proj {
		if st := s.proj[p].stream(b, v); st != nil && st.drop[n.num] {
			s.resume(p, b, v, n)
		}
	}
}

// resume ends a drop of data.
func (s *Sim) resume(p int, b *kvBucket, v int, n *node) {
	st := s.proj[p].stream(b, v)
	first := uint64(0) // the first lost seqno that the node has not been notified of; 0: none
	if st.mute[n.num] {
		first = st.ks.cur + 1
	}
	st.drop[n.num], st.mute[n.num] = false, false
	for _, e := range st.down(n.num, st.topo).Resume(first, st.ks.cur) {
		if e.Kind != keyversion.StreamBegin || s.on(dropBegin) {
			s.emit(p, n.num, b, v, e, st.ks.cur)
		}
	}
	s.ev("p%d resumes %s/%d for n%d at %d", p, b.name, v, n.num, st.ks.cur)
}

// Run runs the simulation and returns the first violation, "" if there was none.
func (s *Sim) Run() string {
	for i := 0; i < s.opt.Steps && s.err == ""; i++ {
		s.act()
	}
	s.healing = true
	s.ev("HEALING")
	for i := 0; i < healSteps && s.err == ""; i++ {
		s.act()
		if i%50 == 0 && s.settled(func(*kvBucket) string { return "" }) == "" {
			break
		}
	}
	if s.err == "" {
		if why := s.settled(s.explain); why != "" {
			s.fail("stuck: %s", why)
		}
	}
	s.Report.Steps = s.step
	return s.err
}

const (
	healSteps  = 12000
	healWrites = 500 // the number of steps that write while everything heals
)
