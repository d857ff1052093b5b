package projector

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"tidemark/projector/feed"
	"tidemark/wire"
)

const (
	// purgeTime is how long streams wait for KV's purge seqnos, over all attempts of one query; streams that arrive
	// during a query wait for it as well. Meanwhile, what KV sends on them is held and fills their connection's window.
	// The time is long because without an answer the copies that hold such vbuckets rebuild them, and because KV is slow
	// to answer just when it is busy.
	purgeTime = 10 * time.Second
	// purgePause is the pause between two attempts; it doubles.
	purgePause = 50 * time.Millisecond
	// fewPurges is the divisor that decides between a query per vbucket, up to that fraction of the node's vbuckets, and
	// one for all: an answer for all of a thousand costs the node as much as a thousand single ones, and backfills that
	// start one after the other send a hundred queries.
	fewPurges = 16
)

// purgeDesk queries a KV node up to where it has purged deletions, for streams from 0 whose first snapshot has begun.
// It sends one query at a time: streams that arrive meanwhile share the next one, so that a thousand vbuckets that
// begin together cost a few queries. The caller continues with its other streams.
type purgeDesk struct {
	p      *Projector
	bucket string
	ctx    context.Context // ends with the streams
	conn   func(ctx context.Context) (feed.Feed, error)

	mu      sync.Mutex // leaf
	waiting []purgeQuery
	busy    bool

	total int // vbuckets in the last answer for all; used by run only
}

func newPurgeDesk(ctx context.Context, p *Projector, bucket string,
	conn func(ctx context.Context) (feed.Feed, error)) *purgeDesk {
	return &purgeDesk{p: p, bucket: bucket, ctx: ctx, conn: conn}
}

type purgeQuery struct {
	s  *stream
	to *purgeAnswers
}

// purgeAnswer is KV's purge seqno for a stream's vbucket; known is false if KV does not report it.
type purgeAnswer struct {
	s     *stream
	purge uint64
	known bool
}

// purgeAnswers collects the answers for one pump, at most one for each of its streams.
type purgeAnswers struct {
	mu    sync.Mutex // leaf
	all   []purgeAnswer
	ready chan struct{}
}

func newPurgeAnswers() *purgeAnswers { return &purgeAnswers{ready: make(chan struct{}, 1)} }

func (a *purgeAnswers) put(one purgeAnswer) {
	a.mu.Lock()
	a.all = append(a.all, one)
	a.mu.Unlock()
	select {
	case a.ready <- struct{}{}:
	default:
	}
}

func (a *purgeAnswers) take() []purgeAnswer {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := a.all
	a.all = nil
	return all
}

// query queues a query for a stream; the answer is put into to.
func (d *purgeDesk) query(s *stream, to *purgeAnswers) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.waiting = append(d.waiting, purgeQuery{s, to})
	if !d.busy {
		d.busy = d.p.tasks.Go(d.run) // else the projector is stopping
	}
}

// run sends queries until no stream waits.
func (d *purgeDesk) run() {
	for {
		d.mu.Lock()
		some := d.waiting
		d.waiting = nil
		d.busy = len(some) > 0
		d.mu.Unlock()
		if len(some) == 0 {
			return
		}
		all, err := d.purges(some)
		known := func(q purgeQuery) bool { _, known := all[q.s.VBucket()]; return known }
		if err == nil && !slices.ContainsFunc(some, known) {
			err = errNoPurges
		}
		if d.ctx.Err() == nil {
			d.p.notePurges(d.bucket, err)
		}
		for _, q := range some {
			purge, known := all[q.s.VBucket()]
			q.to.put(purgeAnswer{q.s, purge, known})
		}
	}
}

// purges queries the streams' vbuckets, and retries until KV answers or refuses, or purgeTime is over.
func (d *purgeDesk) purges(some []purgeQuery) (all map[uint16]uint64, err error) {
	ctx, cancel := context.WithTimeout(d.ctx, cmp.Or(d.p.cfg.purgeTime, purgeTime))
	defer cancel()
	for pause := purgePause; ; pause *= 2 {
		if all, err = d.try(ctx, some); err == nil || feed.Refused(err) {
			return all, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(pause):
		}
	}
}

func (d *purgeDesk) try(ctx context.Context, some []purgeQuery) (map[uint16]uint64, error) {
	conn, err := d.conn(ctx)
	if err != nil {
		return nil, err
	}
	if len(some) > 1 && len(some)*fewPurges > d.total {
		all, err := conn.Purges(ctx, nil)
		d.total = len(all)
		return all, err
	}
	vbuckets := make([]uint16, len(some))
	for i, q := range some {
		vbuckets[i] = q.s.VBucket()
	}
	return conn.Purges(ctx, vbuckets)
}

// purgeErrors holds the buckets for which KV does not report purge seqnos, and why.
type purgeErrors struct {
	mu  sync.Mutex // leaf
	all map[string]string
}

// note records the outcome of a query, and reports whether it differs from the previous one.
func (u *purgeErrors) note(bucket string, err error) (turned bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	_, was := u.all[bucket]
	if err == nil {
		delete(u.all, bucket)
		return was
	}
	if !was && len(u.all) >= maxTroubles {
		return false
	}
	if u.all == nil {
		u.all = map[string]string{}
	}
	u.all[bucket] = wire.Cut(err.Error(), maxTrouble)
	return !was
}

func (u *purgeErrors) of(bucket string) string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.all[bucket]
}

// notePurges records whether KV reports purge seqnos of a bucket, and logs changes.
func (p *Projector) notePurges(bucket string, err error) {
	switch {
	case !p.purges.note(bucket, err):
	case err != nil:
		p.log.Warn("KV does not report its purge seqnos: a stream from 0 is treated as if it lacked every deletion of its "+
			"first snapshot, and copies that hold less stream their vbuckets again from 0", "bucket", bucket, "error", err)
	default:
		p.log.Info("KV reports its purge seqnos", "bucket", bucket)
	}
}

// heldBlock holds a stream's events of one block until an answer arrives.
type heldBlock struct {
	block  *feed.Block
	events []int
}

// hold keeps an event of a waiting stream, and retains its block.
func (s *stream) hold(block *feed.Block, event int) {
	if n := len(s.held); n > 0 && s.held[n-1].block == block {
		s.held[n-1].events = append(s.held[n-1].events, event)
		return
	}
	block.Retain(1)
	s.held = append(s.held, heldBlock{block, []int{event}})
}

// release passes the held events to each, in order, and releases their blocks.
func (s *stream) release(each func(e *feed.Event)) {
	held := s.held
	s.held, s.Waits = nil, false
	for _, h := range held {
		for _, i := range h.events {
			each(&h.block.Events[i])
		}
		h.block.Release()
	}
}

// dropHeld releases the held events without processing them.
func (s *stream) dropHeld() { s.release(func(*feed.Event) {}) }
