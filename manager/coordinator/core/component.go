package core

import (
	"errors"
	"slices"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/liveness"
	"tidemark/streams"
	"tidemark/timestamp"
	"tidemark/wire"
)

// component is the part that projectors and indexers have in common.
type component struct {
	addr, boot string
	receiver   Receiver
	contact
	pushState
}

// contact tracks the leader's contact with a component.
type contact struct {
	seenMS   int64
	refused  bool           // nothing listened at its address, and it has not reported since
	reported bool           // it has reported in this term, under this boot id
	hello    bool           // it has answered the hello under this boot id
	retry    liveness.Retry // of the hello
	// replaced: another process has received the hello. This component has ended, or has moved and is about to register.
	replaced bool
	unreachable
}

// unreachable tracks that a component answers neither hellos nor definitions: it is not up yet, hangs, or is not at
// the address that it registered.
type unreachable struct {
	sinceMS int64
	why     string // "": it answers, or was not asked yet
	logged  bool   // a warning that it does not answer has been logged
}

const (
	// unreachableAfter is how long, in ms, a component may report without answering before this is logged and shown:
	// most often it has just started, or is busy.
	unreachableAfter = 5000
	// maxUnreachable limits the length of why, in bytes.
	maxUnreachable = 300
)

// lasts returns why a component does not answer, "" until that has lasted for unreachableAfter.
func (u *unreachable) lasts(nowMS int64) string {
	if u.why == "" || nowMS-u.sinceMS < unreachableAfter {
		return ""
	}
	return u.why
}

// lacks reports whether the component lacks something that the leader has to send it: a hello or definitions.
func (l *scene) lacks(c *component) bool { return !c.hello || c.acked < l.now.revision }

// whyUnreachable returns why a component does not answer, if that has lasted and the leader has something to send it.
func (l *scene) whyUnreachable(c *component) string {
	if !l.lacks(c) {
		return ""
	}
	return c.lasts(l.nowMS)
}

// unreached records that a component has not answered. If that lasts although the component reports, it is logged:
// otherwise nothing would show why the component receives no commands.
func (l *scene) unreached(c *component, err error) {
	if !l.lacks(c) { // only the answer was lost
		return
	}
	if c.why == "" {
		c.sinceMS = l.nowMS
	}
	c.why = wire.Cut(err.Error(), maxUnreachable)
	if c.lasts(l.nowMS) == "" || !c.reported || c.logged {
		return
	}
	c.logged = true
	l.log.Warn("component sends reports but does not answer at its registered address; commands cannot reach it",
		"addr", c.addr, "error", err)
}

// takeHello takes the answer to a component's hello, and reports whether the component itself has answered. Another
// process at its address refuses the hello; one of an older version answers, under a boot id of its own. Neither is a
// sign of the component's life: nothing is sent to that process, and the leader sends the component another hello.
func (l *scene) takeHello(c *component, boot string, err error, what, id string) bool {
	if err == nil && boot == c.boot {
		c.retry.Succeeded(0)
		c.hello, c.replaced = true, false
		l.reached(c)
		return true
	}
	c.retry.Failed(l.nowMS)
	if err != nil && !isAnothers(err) {
		l.log.Debug("hello", what, id, "error", err)
		l.unreached(c, err)
		return false
	}
	l.unreached(c, errAnother)
	if !c.replaced {
		c.replaced = true
		l.log.Warn("another process answers for a component; waiting for the component to register", what, id, "addr", c.addr,
			"boot", c.boot)
	}
	return false
}

// isAnothers reports whether err is the refusal of another process than the one that the message was meant for.
func isAnothers(err error) bool {
	var p *wire.Problem
	return errors.As(err, &p) && p.Code == errcode.AnotherProcess
}

// errAnother is why a component is unreachable although a process answers at its address.
var errAnother = errors.New("another process answers at a component's address")

// reached records that a component has answered.
func (l *scene) reached(c *component) {
	if c.logged {
		l.log.Info("component answers at its registered address again", "addr", c.addr)
	}
	c.unreachable = unreachable{}
}

// pushState tracks which definitions a component has.
type pushState struct {
	acked   uint64 // definitions revision that it works with
	pushed  uint64 // newest revision that was sent to it
	push    liveness.Retry
	pushMS  int64  // when the newest push began
	refusal string // why it refuses definitions, as logged; "": it accepts them, or the refusal is temporary
}

// works records a definitions revision that a component reports to work with, and reports whether it is newer. Before
// the component's hello it is ignored: it may be a revision of another epoch.
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
	// hosts holds the known buckets of which its KV node has vbuckets: the node is part of that KV cluster.
	hosts map[string]bool
	// syncing holds the buckets for which a fresh report was requested. The answer is lost if the process ends, and this
	// field with it.
	syncing map[BucketRef]bool
	// probeMS is the earliest time of the next probe.
	probeMS int64
	// running holds the streams of its hello until they are adopted.
	running  map[string]wire.StreamStates
	counters wire.ProjectorCounters
	faults   map[index.ID]wire.IndexFaults // as last reported
	// faultsOmitted counts the indexes with faults that the last report left out.
	faultsOmitted int
	// evaluation is its last report of the indexes that it cannot evaluate; nil: it sent none, or is too old to.
	evaluation *wire.Evaluation
	kv         []wire.KVTrouble // buckets about which its KV node cannot be queried
	unreached  []wire.Unreached // data ports of indexers that it cannot reach
}

// hosting records whether the projector's KV node has vbuckets of a known bucket.
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

// take records what a report contains about the projector itself. It reports whether an index may move on because of
// it.
func (p *projector) take(r *wire.ProjectorReport) bool {
	p.counters, p.kv = r.Counters, r.KV
	p.unreached = r.Unreached[:min(len(r.Unreached), wire.MaxUnreached)]
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
	room    int64               // bytes that new copies may occupy; 0: not reported
	offline bool                // as in the newest list of held timestamps
	reports wire.ReportReceiver // what it has reported of buckets
	full    bool                // its reports are complete
	copies  map[index.CopyID]wire.CopyReport
	buckets map[string]*nodeBucket
	minimum map[string][]index.Incarnation // from its hello

	orphans     []wire.Orphan // as last reported
	orphanCount int
	faults      []wire.IndexFaults
	// faultsOmitted counts the indexes with faults that the last report left out.
	faultsOmitted int
	differing     differing
	// differingOmitted counts the differing copies that the last report left out.
	differingOmitted int
	drops            liveness.Retry // of orphans
}

// nodeBucket is an indexer's state for one bucket; its reports of the bucket are in indexer.reports.
type nodeBucket struct {
	acked        timestamp.Ref
	written      timestamp.Ref // no write at or below it is pending, not even for copies being built
	publishedMS  int64         // when a stability timestamp was last sent
	publishedRef timestamp.Ref
	based        bool // a base was sent, so that the first timestamp could be sent as a delta

	judgedBy *streams.Ledger // the ledger that has received all streams which the indexer accepts
	judgedAt uint64          // Ledger.Changes at that time
	judgedMS int64
	settled  bool // the ledger waits for nothing from it

	absent absences
}

// absences marks the vbuckets of a bucket for which an indexer is in recovery: it accepts no stream there, so its HW
// stands still until the next BEGIN, whatever KV does.
type absences struct {
	generation uint64
	marks      []bool
	count      int
}

// take applies a report of accepted streams. VBuckets that it leaves out keep their mark; all are marked at first.
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

// vbuckets returns the marks, nil if none is set. The caller must not modify them.
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

// differing lists an indexer's copies that differ from the KV data, ascending by number, as last reported.
type differing []wire.CopyDifference

// silent reports whether the list implies that a compared copy is right: it is not in the list, and the list is
// complete up to it (not full, or its last entry lies beyond).
func (d differing) silent(id index.CopyID) bool {
	n := len(d)
	return (n < wire.MaxDifferingCopies || id < d[n-1].Copy) &&
		!slices.ContainsFunc(d, func(x wire.CopyDifference) bool { return x.Copy == id })
}
