package router

import (
	"sync"
	"time"

	"tidemark/index"
)

// With smart throttling (RT-8) an endpoint is slow when, within the newest SlowWindow, its full queues have held
// workers back for SlowPatience altogether, or have been dropped that long. While at most half of the endpoints are
// slow, those are dropped; when more are, everybody is throttled, and for slowHolds windows after that: throttled to
// the pace of the slowest, the others do not look slow.
const (
	DefaultSlowWindow   = 2 * time.Second
	DefaultSlowPatience = 100 * time.Millisecond

	slowSlots = 20 // that a window is counted in
	slowHolds = 5
)

// pace is for how long an endpoint was held against others, over a sliding window. Times are since the judge's start.
type pace struct {
	slots [slowSlots]time.Duration // by number of the slot, modulo their count
	at    time.Duration            // counted up to here
	holds int                      // waits and lanes that are behind, now
	lanes int
}

// count brings the window up to now.
func (p *pace) count(now, slot time.Duration) {
	if now-p.at > slowSlots*slot {
		p.at = now - slowSlots*slot // all of what is older is out of the window
	}
	for p.at < now {
		n := p.at / slot
		end := min(now, (n+1)*slot)
		i := n % slowSlots
		if p.at == n*slot {
			p.slots[i] = 0
		}
		if p.holds > 0 {
			p.slots[i] += end - p.at
		}
		p.at = end
	}
	// The slot that begins now still has what the window's first one had.
	if now%slot == 0 {
		p.slots[now/slot%slowSlots] = 0
	}
}

func (p *pace) held() (sum time.Duration) {
	for _, d := range p.slots {
		sum += d
	}
	return sum
}

// judge says which endpoints are slow, over all maintenance topics of a router. Its lock is a leaf.
type judge struct {
	smart    bool
	slot     time.Duration
	patience time.Duration
	start    time.Time

	mu       sync.Mutex
	nodes    map[index.NodeID]*pace
	majority time.Duration // until then all are throttled, since more than half were slow
}

func newJudge(smart bool, window, patience time.Duration) *judge {
	return &judge{smart: smart, slot: window / slowSlots, patience: patience, start: time.Now(),
		nodes: make(map[index.NodeID]*pace), majority: -1}
}

func (j *judge) now() time.Duration { return time.Since(j.start) }

// join and leave count a node's lanes: nodes without one are no endpoints.
func (j *judge) join(node index.NodeID) {
	j.mu.Lock()
	defer j.mu.Unlock()
	p := j.nodes[node]
	if p == nil {
		p = &pace{at: j.now()}
		j.nodes[node] = p
	}
	p.lanes++
}

func (j *judge) leave(node index.NodeID) {
	j.mu.Lock()
	defer j.mu.Unlock()
	p := j.nodes[node]
	if p.lanes--; p.lanes == 0 {
		delete(j.nodes, node)
	}
}

// hold and free bracket what counts against a node.
func (j *judge) hold(node index.NodeID) { j.change(node, 1) }
func (j *judge) free(node index.NodeID) { j.change(node, -1) }

func (j *judge) change(node index.NodeID, by int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if p := j.nodes[node]; p != nil {
		p.count(j.now(), j.slot)
		p.holds += by
	}
}

// drops reports whether a node's full queue is to be dropped; if not, when to ask again at the latest.
func (j *judge) drops(node index.NodeID) (yes bool, again time.Duration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.dropsAt(node, j.now())
}

func (j *judge) dropsAt(node index.NodeID, now time.Duration) (bool, time.Duration) {
	p := j.nodes[node]
	if p == nil {
		return false, j.slot
	}
	p.count(now, j.slot)
	if held := p.held(); held < j.patience {
		return false, max(j.patience-held, time.Millisecond)
	}
	if j.mostAt(now) {
		return false, j.slot
	}
	return true, 0
}

// mostAt reports whether more than half of the nodes are slow, or were lately.
func (j *judge) mostAt(now time.Duration) bool {
	slow := 0
	for _, p := range j.nodes {
		p.count(now, j.slot)
		if p.held() >= j.patience {
			slow++
		}
	}
	if 2*slow > len(j.nodes) {
		j.majority = now + slowHolds*slowSlots*j.slot
	}
	return now <= j.majority
}

// resumes reports whether a node that has caught up is to be fed again: it was in time for a window, or everybody is
// throttled to its pace. If not, when to ask again.
func (j *judge) resumes(node index.NodeID) (yes bool, again time.Duration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.resumesAt(node, j.now())
}

func (j *judge) resumesAt(node index.NodeID, now time.Duration) (bool, time.Duration) {
	p := j.nodes[node]
	if p == nil {
		return true, 0
	}
	p.count(now, j.slot)
	if p.held() < j.patience || j.mostAt(now) {
		return true, 0
	}
	return false, j.slot
}
