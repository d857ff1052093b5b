package router

import (
	"sync"
	"time"

	"tidemark/index"
)

// With smart throttling (RT-8) an endpoint is slow if, within the last SlowWindow, its full queues have held workers
// back, or have been dropping, for SlowAfter in total. While at most half of the endpoints are slow, their data is
// dropped. If more are slow, all are throttled instead, and for another slowHolds windows: at the pace of the
// slowest, the others would not look slow.
const (
	DefaultSlowWindow = 2 * time.Second
	DefaultSlowAfter  = 100 * time.Millisecond

	slowSlots = 20 // into which a window is divided
	slowHolds = 5
)

// pace records for how long an endpoint has held others up, over a sliding window. Times are relative to the judge's
// start.
type pace struct {
	slots [slowSlots]time.Duration // by slot number modulo slowSlots
	at    time.Duration            // counted up to here
	holds int                      // present number of waits and of lanes that are behind
	lanes int
}

// count advances the window to now.
func (p *pace) count(now, slot time.Duration) {
	if now-p.at > slowSlots*slot {
		p.at = now - slowSlots*slot // everything older is outside the window
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
	// The slot that begins now still holds the value of the window's first one.
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

// judge decides which endpoints are slow, over all maintenance topics of a router. Its lock is a leaf.
type judge struct {
	smart     bool
	slot      time.Duration
	slowAfter time.Duration
	start     time.Time

	mu       sync.Mutex
	nodes    map[index.NodeID]*pace
	majority time.Duration // until then all are throttled, because more than half were slow
}

func newJudge(smart bool, window, slowAfter time.Duration) *judge {
	return &judge{smart: smart, slot: window / slowSlots, slowAfter: slowAfter, start: time.Now(),
		nodes: make(map[index.NodeID]*pace), majority: -1}
}

func (j *judge) now() time.Duration { return time.Since(j.start) }

// join and leave count a node's lanes; a node without lanes is not an endpoint.
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

// hold and free mark the begin and end of what counts against a node.
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

// drops reports whether a node's full queue is to be dropped; if not, again is when to check again at the latest.
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
	if held := p.held(); held < j.slowAfter {
		return false, max(j.slowAfter-held, time.Millisecond)
	}
	if j.mostAt(now) {
		return false, j.slot
	}
	return true, 0
}

// mostAt reports whether more than half of the nodes are slow, or were recently.
func (j *judge) mostAt(now time.Duration) bool {
	slow := 0
	for _, p := range j.nodes {
		p.count(now, j.slot)
		if p.held() >= j.slowAfter {
			slow++
		}
	}
	if 2*slow > len(j.nodes) {
		j.majority = now + slowHolds*slowSlots*j.slot
	}
	return now <= j.majority
}

// resumes reports whether a node that has caught up is to be fed again: it was in time for a window, or all nodes are
// throttled to its pace. If not, again is when to check again.
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
	if p.held() < j.slowAfter || j.mostAt(now) {
		return true, 0
	}
	return false, j.slot
}
