package feed

import (
	"fmt"
	"time"

	"tidemark/kv/mcbp"
)

// requestOpaque is set in the opaque of every request that is no stream request,
// whose opaque is its StreamID.
const requestOpaque = 1 << 31

// keptRequests is how many requests whose answer has been taken a connection keeps for the next.
const keptRequests = 64

// request waits for its answer.
type request struct {
	vbucket   uint16
	answer    chan answer // room for 1
	timeout   *time.Timer
	abandoned bool // nobody waits any more
	more      func(mcbp.Frame)
	open      *mcbp.StreamRequest           // of a stream request
	then      func(b *Block, f *mcbp.Frame) // of our own requests: takes the answer, under the lock
	// of OpenStreams or FailoverLogs, until it is answered: takes the answer at index at
	batch *batch
	at    int
}

// answer is what a request gets; the frame is its own.
type answer struct {
	frame mcbp.Frame
	err   error
}

// requests are those of a connection; guarded by Conn.mu.
type requests struct {
	pending map[uint32]*request // that have no answer, by opaque; nil when the connection has ended
	spare   []*request          // whose answer has been taken
	last    uint32              // of opaque
}

// opaque makes one for a request that is no stream request.
func (q *requests) opaque() uint32 {
	q.last++
	return requestOpaque | q.last&(requestOpaque-1)
}

// take returns a request that nobody else knows; its timer does not run.
func (q *requests) take() *request {
	if n := len(q.spare); n > 0 {
		r := q.spare[n-1]
		q.spare = q.spare[:n-1]
		return r
	}
	r := &request{answer: make(chan answer, 1), timeout: time.NewTimer(time.Hour)}
	r.timeout.Stop()
	return r
}

// recycle takes a request back whose answer has been taken, and whose timer does not run.
func (q *requests) recycle(r *request) {
	r.open, r.more = nil, nil
	if len(q.spare) < keptRequests {
		q.spare = append(q.spare, r)
	}
}

// giveUp answers what is left of a batch with err. What comes of it later is for nobody.
func (q *requests) giveUp(b *batch, err error) {
	for opaque, r := range q.pending {
		if r.batch == b {
			r.answered(nil, fmt.Errorf("vbucket %d: %w", r.vbucket, err))
			q.pending[opaque] = &request{vbucket: r.vbucket, abandoned: true} // the others' memory does not stay with it
		}
	}
}

// fail answers all with err: the connection has ended.
func (q *requests) fail(err error) {
	for _, r := range q.pending {
		switch {
		case r.batch != nil:
			r.answered(nil, fmt.Errorf("vbucket %d: %w", r.vbucket, err))
		case !r.abandoned:
			r.answer <- answer{err: err} // has room
		}
	}
	q.pending = nil
}
