package core

import (
	"slices"

	"tidemark/index"
	"tidemark/liveness"
	"tidemark/streams"
	"tidemark/timestamp"
	"tidemark/wire"
)

// component is what projectors and indexers have in common.
type component struct {
	addr, boot string
	receiver   Receiver
	contact
	handing
}

// contact is what was heard of a component.
type contact struct {
	seenMS  int64
	refused bool           // nobody listened at its address, and nothing was heard of it since
	heard   bool           // in this term, under this boot id
	hello   bool           // has answered the hello under this boot id
	retry   liveness.Retry // of the hello
	unreachable
}

// unreachable is that a component answers neither a hello nor definitions: it is not there yet, hangs, or is at another
// address than it says.
type unreachable struct {
	sinceMS int64
	why     string // "": it answers, or was not asked yet
	told    bool   // to the log
}

const (
	// unreachableAfter is for how long a component may be heard that does not answer before that is told, in ms: most
	// often it has just begun, or is busy.
	unreachableAfter = 5000
	// maxUnreachable bounds what is kept of why, in bytes.
	maxUnreachable = 300
)

// lasts returns why a component does not answer, if that has lasted.
func (u *unreachable) lasts(nowMS int64) string {
	if u.why == "" || nowMS-u.sinceMS < unreachableAfter {
		return ""
	}
	return u.why
}

// owed reports whether a component is to be told something that it has not taken yet.
func (l *scene) owed(c *component) bool { return !c.hello || c.acked < l.now.revision }

// whyUnreachable returns why a component does not answer, if that has lasted and it is to be told something.
func (l *scene) whyUnreachable(c *component) string {
	if !l.owed(c) {
		return ""
	}
	return c.lasts(l.nowMS)
}

// unreached notes that a component has not answered, and tells the log when that lasts though it reports: nobody else
// would know why it is told nothing.
func (l *scene) unreached(c *component, err error) {
	if !l.owed(c) { // the answer alone was lost
		return
	}
	if c.why == "" {
		c.sinceMS = l.nowMS
	}
	c.why = wire.Cut(err.Error(), maxUnreachable)
	if c.lasts(l.nowMS) == "" || !c.heard || c.told {
		return
	}
	c.told = true
	l.log.Warn("a component reports, and does not answer at the address that it has given; nothing can be told to it",
		"addr", c.addr, "error", err)
}

// reached notes that a component has answered.
func (l *scene) reached(c *component) {
	if c.told {
		l.log.Info("a component answers at the address that it has given", "addr", c.addr)
	}
	c.unreachable = unreachable{}
}

// handing is which definitions a component has.
type handing struct {
	acked   uint64 // definitions revision that it works with
	pushed  uint64 // newest revision that it was handed
	push    liveness.Retry
	pushMS  int64  // when the newest push began
	refusal string // why it does not take them, and the log was told so; "": it does, or that will pass
}

// works notes a definitions revision that a component says it works with: before its hello it may speak of another
// epoch's. It reports whether that is news.
func (c *component) works(revision uint64) bool {
	if !c.hello || revision <= c.acked {
		return false
	}
	c.acked = revision
	return true
}

type projector struct {
	component
	id      index.ProjectorID
	reports wire.Newest
	// hosts are the buckets that the state knows of which its KV node has vbuckets: it stands at that KV cluster.
	hosts map[string]bool
	// syncing are the buckets of which a fresh report is on its way. Its answer is lost with the process that was asked,
	// and so is this.
	syncing map[BucketRef]bool
	// probeMS is before when it is not asked whether it lives.
	probeMS int64
	// running is what its hello told, until the streams were adopted.
	running  map[string]wire.StreamStates
	counters wire.ProjectorCounters
	faults   map[index.ID]wire.IndexFaults // as it told last
	// faultsOmitted counts the indexes with faults that these leave out.
	faultsOmitted int
	// evaluation is what it can evaluate, as it told last; nil: it has not, or does not know how to.
	evaluation *wire.Evaluation
	kv         []wire.KVTrouble // buckets about which it cannot ask its KV node
}

// hosting notes whether the projector's KV node has vbuckets of a bucket that the state knows.
func (p *projector) hosting(s *wire.StreamStates) {
	if s.BucketUUID == "" || len(s.Hosted.VBuckets) == 0 {
		delete(p.hosts, s.Bucket)
		return
	}
	if p.hosts == nil {
		p.hosts = map[string]bool{}
	}
	p.hosts[s.Bucket] = true
}

// take takes what a report says of the projector itself. It reports whether an index may move on by that.
func (p *projector) take(r *wire.ProjectorReport) bool {
	p.counters, p.kv = r.Counters, r.KV
	if r.FaultsToo {
		p.faultsOmitted = r.FaultsOmitted
		p.faults = make(map[index.ID]wire.IndexFaults, len(r.Faults))
		for _, f := range r.Faults {
			p.faults[f.Index] = f
		}
	}
	if r.Evaluation != nil {
		p.evaluation = r.Evaluation
	}
	return r.Evaluation != nil
}

type indexer struct {
	component
	node    index.NodeID
	uuid    string
	name    string
	health  string
	offline bool                // as the newest list of held timestamps says
	reports wire.ReportReceiver // what it said of buckets
	full    bool                // nothing is missing of what it said
	copies  map[index.CopyID]wire.CopyReport
	buckets map[string]*nodeBucket
	minimum map[string][]index.Incarnation // of its hello

	orphans     []wire.Orphan // as last reported
	orphanCount int
	faults      []wire.IndexFaults
	// faultsOmitted counts the indexes with faults that these leave out.
	faultsOmitted int
	differing     differing
	// differingOmitted counts the copies that differ and that these leave out.
	differingOmitted int
	drops            liveness.Retry // of orphans
}

// nodeBucket is how an indexer stands to a bucket; what it said of it is in indexer.reports.
type nodeBucket struct {
	acked   timestamp.Ref
	written timestamp.Ref // behind which nothing is under way, for copies that are being built either
	toldMS  int64         // when a stability timestamp was last sent
	toldRef timestamp.Ref
	based   bool // the first one that is told is told as a change

	judgedBy *streams.Ledger // that was told all streams which it accepts
	judgedAt uint64          // Ledger.Changes at that time
	judgedMS int64
	settled  bool // nothing that the ledger waits for

	absent absences
}

// absences are the vbuckets of a bucket for which an indexer is in recovery: no stream is accepted there, so that what
// it has received stands still until the next BEGIN, whatever KV does.
type absences struct {
	generation uint64
	marks      []bool
	count      int
}

// take takes over what is accepted; what is left out is as it was, and nothing was at first.
func (s *absences) take(a *wire.Accepted, generation uint64, vbuckets int) {
	if s.generation != generation || len(s.marks) != vbuckets {
		*s = absences{generation: generation, marks: make([]bool, vbuckets), count: vbuckets}
		for v := range s.marks {
			s.marks[v] = true
		}
	}
	for i, v := range a.VBuckets {
		if int(v) >= vbuckets || i >= len(a.Open) || s.marks[v] != a.Open[i] {
			continue
		}
		if s.marks[v] = !a.Open[i]; s.marks[v] {
			s.count++
		} else {
			s.count--
		}
	}
}

// vbuckets marks them; nil without any.
func (s *absences) vbuckets() []bool {
	if s.count == 0 {
		return nil
	}
	return s.marks
}

func (n *indexer) bucket(name string) *nodeBucket {
	nb := n.buckets[name]
	if nb == nil {
		nb = &nodeBucket{}
		n.buckets[name] = nb
	}
	return nb
}

// differing is what an indexer has told of its copies that differ from the KV data, by number.
type differing []wire.CopyDifference

// silent reports whether an indexer that has compared a copy and does not list it says that it is right: its list ends
// behind this one, or names all there are.
func (d differing) silent(id index.CopyID) bool {
	n := len(d)
	return (n < wire.MaxDifferingCopies || id < d[n-1].Copy) &&
		!slices.ContainsFunc(d, func(x wire.CopyDifference) bool { return x.Copy == id })
}
