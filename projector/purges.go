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
	// purgePatience is how long streams wait for what KV says of its purge seqnos, over all tries of one question; those
	// that come while one is asked wait for that one, too. Meanwhile what KV sends of them is held, which fills the window
	// of their connection. It is long: without an answer copies that have such vbuckets take them anew, and KV is slow to
	// answer just when it has much to do.
	purgePatience = 10 * time.Second
	// purgePause is the pause between two tries; it doubles.
	purgePause = 50 * time.Millisecond
	// fewPurges is which part of a node's vbuckets is asked for one by one. An answer for all of a thousand costs the node
	// as much as those for each of them, and backfills that come one after the other ask a hundred times.
	fewPurges = 16
)

// purgeDesk asks a KV node up to where it has forgotten deletions, for streams from 0 whose first snapshot has begun.
// It is asked one question at a time: the streams that come meanwhile share the next one, so that a thousand vbuckets
// that begin together cost a few. Whoever asks goes on with his other streams.
type purgeDesk struct {
	p      *Projector
	bucket string
	ctx    context.Context // ends with the streams
	conn   func(ctx context.Context) (feed.Feed, error)

	mu      sync.Mutex // leaf
	waiting []purgeQuestion
	busy    bool

	told int // of so many vbuckets the last answer for all told; of run alone
}

func newPurgeDesk(ctx context.Context, p *Projector, bucket string,
	conn func(ctx context.Context) (feed.Feed, error)) *purgeDesk {
	return &purgeDesk{p: p, bucket: bucket, ctx: ctx, conn: conn}
}

type purgeQuestion struct {
	s  *stream
	to *purgeAnswers
}

// purgeAnswer is what KV says for a stream. Not known: it does not say.
type purgeAnswer struct {
	s     *stream
	purge uint64
	known bool
}

// purgeAnswers are those for one pump, at most one for each of its streams.
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

// ask has the question asked for a stream; the answer comes to where it says.
func (d *purgeDesk) ask(s *stream, to *purgeAnswers) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.waiting = append(d.waiting, purgeQuestion{s, to})
	if !d.busy {
		d.busy = d.p.tasks.Go(d.run) // else the projector ends
	}
}

// run asks until nobody waits.
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
		told := func(q purgeQuestion) bool { _, told := all[q.s.VBucket()]; return told }
		if err == nil && !slices.ContainsFunc(some, told) {
			err = errNoPurges
		}
		if d.ctx.Err() == nil {
			d.p.untold(d.bucket, err)
		}
		for _, q := range some {
			purge, known := all[q.s.VBucket()]
			q.to.put(purgeAnswer{q.s, purge, known})
		}
	}
}

// purges asks for streams' vbuckets, again and again as long as there is no answer and patience.
func (d *purgeDesk) purges(some []purgeQuestion) (all map[uint16]uint64, err error) {
	ctx, cancel := context.WithTimeout(d.ctx, cmp.Or(d.p.cfg.purgePatience, purgePatience))
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

func (d *purgeDesk) try(ctx context.Context, some []purgeQuestion) (map[uint16]uint64, error) {
	conn, err := d.conn(ctx)
	if err != nil {
		return nil, err
	}
	if len(some) > 1 && len(some)*fewPurges > d.told {
		all, err := conn.Purges(ctx, nil)
		d.told = len(all)
		return all, err
	}
	vbuckets := make([]uint16, len(some))
	for i, q := range some {
		vbuckets[i] = q.s.VBucket()
	}
	return conn.Purges(ctx, vbuckets)
}

// untold are the buckets of which KV does not tell its purge seqnos, and why.
type untold struct {
	mu  sync.Mutex // leaf
	all map[string]string
}

// note takes the outcome of asking, and reports whether it is another one than before.
func (u *untold) note(bucket string, err error) (turned bool) {
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

func (u *untold) of(bucket string) string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.all[bucket]
}

// untold notes whether KV tells its purge seqnos of a bucket, and logs where that turns.
func (p *Projector) untold(bucket string, err error) {
	switch {
	case !p.purges.note(bucket, err):
	case err != nil:
		p.log.Warn("KV does not tell its purge seqnos: a stream from 0 counts as if it lacked every deletion of its first "+
			"snapshot, and copies that hold less take their vbuckets anew", "bucket", bucket, "error", err)
	default:
		p.log.Info("KV tells its purge seqnos", "bucket", bucket)
	}
}

// heldBlock are a stream's events of a block that wait for an answer.
type heldBlock struct {
	block  *feed.Block
	events []int
}

// hold keeps an event of a stream that waits.
func (s *stream) hold(block *feed.Block, event int) {
	if n := len(s.held); n > 0 && s.held[n-1].block == block {
		s.held[n-1].events = append(s.held[n-1].events, event)
		return
	}
	block.Retain(1)
	s.held = append(s.held, heldBlock{block, []int{event}})
}

// release gives what is held to each, in order, and back to the connection.
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

// letGo drops what is held.
func (s *stream) letGo() { s.release(func(*feed.Event) {}) }
