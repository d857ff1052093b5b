package consensus

import (
	"sync"
	"time"
)

// awakeFor is how long after something new the library's loops are left as they are.
const awakeFor = 200 * time.Millisecond

// stirs ends the rests of pipelines. The library asks each follower again and again within commitTimeout, as it does
// not tell its loops of a commit; where nothing is new they rest instead (pipeline.AppendEntries), until repeatPause
// is over or something stirs. What does: a proposal before it is handed to Raft, each entry that is applied here,
// which a follower is to hear is committed, a change of members, a barrier, handing leadership on, and the end of the
// node. What is not announced waits for a rest that is under way, for repeatPause at most.
type stirs struct {
	mu    sync.Mutex
	until time.Time     // before then nobody rests
	news  chan struct{} // closed, and replaced, when something stirs
}

func newStirs() *stirs { return &stirs{news: make(chan struct{})} }

// stir ends all rests, and lets none begin for a while.
func (s *stirs) stir() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.until = time.Now().Add(awakeFor)
	close(s.news)
	s.news = make(chan struct{})
}

// rest waits for so long, or until something stirs. It does not wait shortly after something has.
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
