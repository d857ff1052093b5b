package feed

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"tidemark/kv/mcbp"
	"tidemark/timestamp"
)

// Limits of OpenStreams.
const (
	// mostOpening bounds the stream requests of one call that are in flight at once: 72 KiB.
	mostOpening = 1024
	// eachAtOnce is the same bound for OpenEach.
	eachAtOnce = 64
)

// StreamAnswer is the outcome of one request of OpenStreams or FailoverLogs: the failover log, newest entry first, or
// the error that OpenStream or FailoverLog would return.
type StreamAnswer struct {
	Log timestamp.FailoverLog
	Err error
}

// OpenEach implements OpenStreams by concurrent calls of OpenStream.
func OpenEach(ctx context.Context, f Feed, reqs []StreamRequest) []StreamAnswer {
	return each(reqs, func(r StreamRequest) (timestamp.FailoverLog, error) { return f.OpenStream(ctx, r) })
}

// LogEach implements FailoverLogs by concurrent calls of FailoverLog.
func LogEach(ctx context.Context, f Feed, vbuckets []uint16) []StreamAnswer {
	return each(vbuckets, func(vb uint16) (timestamp.FailoverLog, error) { return f.FailoverLog(ctx, vb) })
}

func each[T any](requests []T, send func(T) (timestamp.FailoverLog, error)) []StreamAnswer {
	answers := make([]StreamAnswer, len(requests))
	var g errgroup.Group
	g.SetLimit(eachAtOnce)
	for i := range requests {
		g.Go(func() error {
			answers[i].Log, answers[i].Err = send(requests[i])
			return nil
		})
	}
	_ = g.Wait() // errors are in the answers
	return answers
}

// batch is a set of requests that one caller waits for, with one channel for all of them: the reader wakes the caller
// once. Conn.mu guards it.
type batch struct {
	answers []StreamAnswer
	left    int           // requests without an answer
	done    chan struct{} // closed when none is left
}

// answered records a request's answer. The caller holds the lock.
func (r *request) answered(log timestamp.FailoverLog, err error) {
	b := r.batch
	r.batch, r.open = nil, nil
	b.answers[r.at] = StreamAnswer{Log: log, Err: err}
	if b.left--; b.left == 0 {
		close(b.done)
	}
}

// OpenStreams opens many streams: the requests share system calls, and the caller is woken only by the last answer.
// It returns each request's answer as OpenStream would. ErrTimeout means that none of the missing answers came within
// Config.RequestTimeout.
func (c *Conn) OpenStreams(ctx context.Context, reqs []StreamRequest) []StreamAnswer {
	answers := make([]StreamAnswer, len(reqs))
	for from := 0; from < len(reqs); from += mostOpening {
		to := min(from+mostOpening, len(reqs))
		c.openBatch(ctx, reqs[from:to], answers[from:to])
	}
	return answers
}

func (c *Conn) openBatch(ctx context.Context, reqs []StreamRequest, answers []StreamAnswer) {
	c.sendAll(ctx, mcbp.OpDCPStreamReq, answers, func(i int, r *request) error {
		r.vbucket = reqs[i].VBucket
		return c.sendRequestLocked(r, reqs[i])
	})
}

// FailoverLogs reads the failover logs of many vbuckets in the way in which OpenStreams opens streams.
func (c *Conn) FailoverLogs(ctx context.Context, vbuckets []uint16) []StreamAnswer {
	answers := make([]StreamAnswer, len(vbuckets))
	for from := 0; from < len(vbuckets); from += mostOpening {
		part := vbuckets[from:min(from+mostOpening, len(vbuckets))]
		c.sendAll(ctx, mcbp.OpDCPFailoverLog, answers[from:from+len(part)], func(i int, r *request) error {
			r.vbucket = part[i]
			if c.err != nil {
				return c.err
			}
			f := mcbp.Frame{Header: mcbp.Request(mcbp.OpDCPFailoverLog, part[i], c.requests.opaque())}
			c.requests.pending[f.Opaque] = r
			c.sendLocked(f)
			return nil
		})
	}
	return answers
}

// Branch is the answer for one vbucket of Branches: the vbuuid, or the error that FailoverLog would return.
type Branch struct {
	VBUUID uint64
	Err    error
}

// Branches reads the failover logs, which are short.
func (c *Conn) Branches(ctx context.Context, vbuckets []uint16, _ func(uint16) uint64) []Branch {
	answers := make([]Branch, len(vbuckets))
	for i, a := range c.FailoverLogs(ctx, vbuckets) {
		if answers[i].Err = a.Err; len(a.Log) > 0 {
			answers[i].VBUUID = a.Log[0].VBUUID
		}
	}
	return answers
}

// sendAll sends a request for each of the answers, and waits for them. send sends the i-th one, under the lock.
func (c *Conn) sendAll(ctx context.Context, op mcbp.Opcode, answers []StreamAnswer,
	send func(i int, r *request) error) {
	if len(answers) == 0 {
		return
	}
	b := &batch{answers: answers, left: len(answers), done: make(chan struct{})}
	requests := make([]request, len(answers))
	c.mu.Lock()
	for i := range requests {
		requests[i] = request{batch: b, at: i}
		if err := send(i, &requests[i]); err != nil {
			requests[i].answered(nil, fmt.Errorf("vbucket %d: %w", requests[i].vbucket, err))
		}
	}
	c.mu.Unlock()
	poke(c.wake)
	if err := c.wait(ctx, op, b); err != nil {
		c.mu.Lock()
		c.requests.giveUp(b, err)
		c.mu.Unlock()
		c.checkUnanswered()
	}
}

// mostUnanswered bounds a connection's unanswered requests, including abandoned ones: the record of each is kept until
// its answer comes, however late, because a stream that begins then has to be closed.
const mostUnanswered = 16 * mostOpening

// checkUnanswered ends the connection if the node has too many unanswered requests after requests were abandoned. The
// node is not silent, otherwise the watchdog would have ended the connection.
func (c *Conn) checkUnanswered() {
	c.mu.Lock()
	n := len(c.requests.pending)
	c.mu.Unlock()
	if n > mostUnanswered {
		c.fail(fmt.Errorf("%w: %s has not answered %d requests", ErrDead, c.conf.Addr, n))
	}
}

// sendRequestLocked sends a stream request of a batch. The caller holds the lock.
func (c *Conn) sendRequestLocked(r *request, req StreamRequest) error {
	if c.err != nil {
		return c.err
	}
	if req.ID == 0 {
		req.ID = c.newStreamID()
	}
	switch {
	case req.ID&requestOpaque != 0:
		return fmt.Errorf("feed: stream id %#x is not one of NewStreamID", req.ID)
	case c.requests.pending[uint32(req.ID)] != nil:
		return fmt.Errorf("feed: %v: the id %#x is in use", mcbp.OpDCPStreamReq, req.ID)
	case c.pausedStream(req.VBucket):
		return ErrStreamExists
	}
	m := req.wire()
	if c.pacer.Load() != nil {
		r.open = &mcbp.StreamRequest{}
		*r.open = m
	}
	var extras [mcbp.StreamRequestSize]byte
	c.requests.pending[uint32(req.ID)] = r
	c.sendLocked(mcbp.Frame{Header: mcbp.Request(mcbp.OpDCPStreamReq, req.VBucket, uint32(req.ID)),
		Extras: m.AppendExtras(extras[:0])})
	return nil
}

// wait waits for all answers of a batch. It returns an error if it stops waiting before.
func (c *Conn) wait(ctx context.Context, op mcbp.Opcode, b *batch) error {
	timeout := time.NewTimer(c.conf.RequestTimeout)
	defer timeout.Stop()
	for seen := len(b.answers); ; {
		select {
		case <-b.done:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("feed: %v to %s: %w", op, c.conf.Addr, context.Cause(ctx))
		case <-timeout.C:
		}
		c.mu.Lock()
		left := b.left
		c.mu.Unlock()
		if left == seen {
			return fmt.Errorf("%w: %v to %s, %v", ErrTimeout, op, c.conf.Addr, c.conf.RequestTimeout)
		}
		seen = left
		timeout.Reset(c.conf.RequestTimeout)
	}
}
