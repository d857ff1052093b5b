package consensus

import (
	"sync"
	"time"
)

// awakeFor is how long after an event the library's loops do not pause.
const awakeFor = 200 * time.Millisecond

// activity ends the pauses of pipelines. The library sends to each follower again within commitTimeout, because it does
// not notify its loops of a commit. While nothing is new the loops pause instead (pipeline.AppendEntries), until
// repeatPause is over or an event occurs: a proposal about to be passed to Raft, an entry applied here, whose commit
// the followers must learn, a change of members, a barrier, a transfer of leadership, and the end of the node. An
// event that is not announced waits for a pause in progress, for repeatPause at most.
type activity struct {
	mu    sync.Mutex
	until time.Time     // until then no loop pauses
	event chan struct{} // closed and replaced at each event
}

func newActivity() *activity { return &activity{event: make(chan struct{})} }

// signal ends all pauses and prevents new ones for awakeFor.
func (a *activity) signal() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.until = time.Now().Add(awakeFor)
	close(a.event)
	a.event = make(chan struct{})
}

// pause blocks for d, or until the next event. It does not block for awakeFor after an event.
func (a *activity) pause(d time.Duration) {
	a.mu.Lock()
	awake, event := time.Now().Before(a.until), a.event
	a.mu.Unlock()
	if awake {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-event:
	case <-timer.C:
	}
}
