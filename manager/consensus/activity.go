package consensus

import (
	"sync"
	"time"
)

// awakeFor is how long after an event the library's loops do not pause.
const awakeFor = 200 * time.Millisecond

// stirs ends the pauses of pipelines. The library sends to each follower again within commitTimeout, because it does
// not notify its loops of a commit. While nothing is new the loops pause instead (pipeline.AppendEntries), until
// repeatPause is over or an event occurs: a proposal about to be passed to Raft, an entry applied here, whose commit
// the followers must learn, a change of members, a barrier, a transfer of leadership, and the end of the node. An
// event that is not announced waits for a pause in progress, for repeatPause at most.
type stirs struct {
	mu    sync.Mutex
	until time.Time     // until then no loop pauses
	news  chan struct{} // closed and replaced at each event
}

func newStirs() *stirs { return &stirs{news: make(chan struct{})} }

// stir ends all pauses and prevents new ones for awakeFor.
func (s *stirs) stir() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.until = time.Now().Add(awakeFor)
	close(s.news)
	s.news = make(chan struct{})
}

// rest pauses for d, or until the next event. It does not pause for awakeFor after an event.
func (s *stirs) rest(d time.Duration) {
	s.mu.Lock()
	awake, news := time.Now().Before(s.until), s.news
	s.mu.Unlock()
	if awake {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-news:
	case <-timer.C:
	}
}
