package feed

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"tidemark/mcbp"
)

// Limits of OpenStreams.
const (
	// mostOpening is how many stream requests of one call are in flight at once: 72 KiB.
	mostOpening = 1024
	// eachAtOnce is the same for OpenEach.
	eachAtOnce = 64
)

// StreamAnswer is what became of one request of OpenStreams: the failover log, newest entry first, or the error, as of
// OpenStream.
type StreamAnswer struct {
	Log []mcbp.FailoverEntry
	Err error
}

// OpenEach is OpenStreams for an implementation that has nothing better than OpenStream.
func OpenEach(ctx context.Context, f Feed, reqs []StreamRequest) []StreamAnswer {
	answers := make([]StreamAnswer, len(reqs))
	var g errgroup.Group
	g.SetLimit(eachAtOnce)
	for i := range reqs {
		g.Go(func() error {
			answers[i].Log, answers[i].Err = f.OpenStream(ctx, reqs[i])
			return nil
		})
	}
	_ = g.Wait() // the answers have the errors
	return answers
}

// batch is stream requests that one caller waits for. What it waits with is one for all of them, and the reader wakes it
// once. Guarded by Conn.mu.
type batch struct {
	answers []StreamAnswer
	left    int           // not answered
	done    chan struct{} // closed when none is left
}

// answered takes a request's answer, under the lock.
func (r *request) answered(log []mcbp.FailoverEntry, err error) {
	b := r.batch
	r.batch, r.open = nil, nil
	b.answers[r.at] = StreamAnswer{Log: log, Err: err}
	if b.left--; b.left == 0 {
		close(b.done)
	}
}

// OpenStreams asks for many streams: the requests share system calls, and nobody is woken before the last answer has come. It
// gives each request's answer as OpenStream would. ErrTimeout: none of those that are missing came within
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
	b := &batch{answers: answers, left: len(reqs), done: make(chan struct{})}
	asked := make([]request, len(reqs))
	c.mu.Lock()
	for i := range reqs {
		asked[i] = request{vbucket: reqs[i].VBucket, batch: b, at: i}
		if err := c.askLocked(&asked[i], reqs[i]); err != nil {
			asked[i].answered(nil, fmt.Errorf("vbucket %d: %w", reqs[i].VBucket, err))
		}
	}
	c.mu.Unlock()
	poke(c.wake)
	if err := c.wait(ctx, b); err != nil {
		c.mu.Lock()
		for i := range asked {
			if r := &asked[i]; r.batch != nil {
				r.answered(nil, fmt.Errorf("vbucket %d: %w", r.vbucket, err))
				r.abandoned = true
			}
		}
		c.mu.Unlock()
	}
}

// askLocked sends a stream request of a batch, under the lock.
func (c *Conn) askLocked(r *request, req StreamRequest) error {
	if c.err != nil {
		return c.err
	}
	if req.ID == 0 {
		req.ID = c.newStreamID()
	}
	switch {
	case req.ID&requestOpaque != 0:
		return fmt.Errorf("feed: stream id %#x is not one of NewStreamID", req.ID)
	case c.pending[uint32(req.ID)] != nil:
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
	c.pending[uint32(req.ID)] = r
	c.sendLocked(mcbp.Frame{Header: mcbp.Request(mcbp.OpDCPStreamReq, req.VBucket, uint32(req.ID)), Extras: m.AppendExtras(extras[:0])})
	return nil
}

// wait waits for all answers of a batch; an error says why it waits no longer.
func (c *Conn) wait(ctx context.Context, b *batch) error {
	patience := time.NewTimer(c.conf.RequestTimeout)
	defer patience.Stop()
	for seen := len(b.answers); ; {
		select {
		case <-b.done:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("feed: %v to %s: %w", mcbp.OpDCPStreamReq, c.conf.Addr, context.Cause(ctx))
		case <-patience.C:
		}
		c.mu.Lock()
		left := b.left
		c.mu.Unlock()
		if left == seen {
			return fmt.Errorf("%w: %v to %s, %v", ErrTimeout, mcbp.OpDCPStreamReq, c.conf.Addr, c.conf.RequestTimeout)
		}
		seen = left
		patience.Reset(c.conf.RequestTimeout)
	}
}
