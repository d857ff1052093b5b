package feed

import (
	"fmt"
	"time"

	"tidemark/kv/mcbp"
)

// requestOpaque is set in the opaque of every request except stream requests, whose opaque is their StreamID.
const requestOpaque = 1 << 31

// keptRequests bounds the finished requests that a connection keeps for reuse.
const keptRequests = 64

// request is a request that waits for its answer.
type request struct {
	vbucket   uint16
	answer    chan answer // room for 1
	timeout   *time.Timer
	abandoned bool // no caller waits any more
	more      func(mcbp.Frame)
	open      *mcbp.StreamRequest           // of a stream request
	then      func(b *Block, f *mcbp.Frame) // of internal requests: takes the answer, under the lock
	// Of OpenStreams or FailoverLogs, until answered: the answer goes to index at of the batch.
	batch *batch
	at    int
}

// answer is the result of a request; it owns its frame.
type answer struct {
	frame mcbp.Frame
	err   error
}

// requests holds the requests of a connection; Conn.mu guards it.
type requests struct {
	pending map[uint32]*request // without an answer, by opaque; nil when the connection has ended
	spare   []*request          // free requests
	last    uint32              // of opaque
}

// opaque returns one for anything but a stream request.
func (q *requests) opaque() uint32 {
	q.last++
	return requestOpaque | q.last&(requestOpaque-1)
}

// take returns a request that is not in use; its timer is stopped.
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

// recycle keeps a request for reuse. Its answer has been taken and its timer is stopped.
func (q *requests) recycle(r *request) {
	r.open, r.more = nil, nil
	if len(q.spare) < keptRequests {
		q.spare = append(q.spare, r)
	}
}

// giveUp answers the rest of a batch with err. Later answers are dropped.
func (q *requests) giveUp(b *batch, err error) {
	for opaque, r := range q.pending {
		if r.batch == b {
			r.answered(nil, fmt.Errorf("vbucket %d: %w", r.vbucket, err))
			q.pending[opaque] = &request{vbucket: r.vbucket, abandoned: true} // does not keep the batch's memory alive
		}
	}
}

// fail answers all requests with err: the connection has ended.
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
