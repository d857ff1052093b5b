package projector

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"tidemark/wire"
)

const (
	// openPauseMax bounds the pause before opening a bucket is tried again.
	openPauseMax = 10 * time.Second
	// openingAtOnce bounds the buckets that KV is queried about at the same time.
	openingAtOnce = 64
)

// openAttempt tracks the attempts to open a bucket.
type openAttempt struct {
	busy         bool // KV is being queried about it
	until, pause time.Duration
}

// openOutcome is the outcome of an attempt to open a bucket.
type openOutcome struct {
	bucket string
	err    error
}

// bucketOpener opens the buckets that have indexes and are not open.
type bucketOpener struct {
	p        *Projector
	began    time.Time
	all      map[string]*openAttempt
	busy     int // entries of all
	outcomes chan openOutcome
	attempts sync.WaitGroup
}

// openBuckets opens every bucket that has indexes, before any stream of it is requested, until ctx ends. This way a
// projector that streams nothing watches its KV node, too: vbuckets may move to that node from one that hangs, and no
// other component reports that. Buckets are opened independently: if KV does not answer for one of them, the others
// are still opened.
func (p *Projector) openBuckets(ctx context.Context) {
	t := &bucketOpener{p: p, began: time.Now(), all: map[string]*openAttempt{}, outcomes: make(chan openOutcome)}
	defer t.attempts.Wait()
	tick := time.NewTicker(lookInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case o := <-t.outcomes:
			t.take(o)
		case <-tick.C:
			t.start(ctx, p.unopened())
		}
	}
}

// take records an outcome.
func (t *bucketOpener) take(o openOutcome) {
	t.busy--
	at := t.all[o.bucket]
	if at.busy = false; o.err == nil {
		delete(t.all, o.bucket)
		return
	}
	t.p.log.Debug("bucket without streams cannot be inspected; trying again", "bucket", o.bucket, "error",
		o.err)
	at.pause = min(max(2*at.pause, lookInterval), openPauseMax)
	at.until = time.Since(t.began) + at.pause
}

// start starts attempts for the buckets that are due, and drops the state of those that are open or gone.
func (t *bucketOpener) start(ctx context.Context, todo []wire.Bucket) {
	maps.DeleteFunc(t.all, func(name string, at *openAttempt) bool {
		return !at.busy && !slices.ContainsFunc(todo, func(b wire.Bucket) bool { return b.Name == name })
	})
	for _, b := range todo {
		at := t.all[b.Name]
		if at == nil {
			at = &openAttempt{}
			t.all[b.Name] = at
		}
		if at.busy || time.Since(t.began) < at.until || t.busy == openingAtOnce {
			continue
		}
		at.busy = true
		t.busy++
		t.attempts.Go(func() {
			o := openOutcome{b.Name, t.p.openIndexed(ctx, &b)}
			select {
			case t.outcomes <- o:
			case <-ctx.Done():
			}
		})
	}
}

// unopened returns the buckets that have indexes and are not open here.
func (p *Projector) unopened() (all []wire.Bucket) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.defs.newest == nil {
		return nil
	}
	for _, b := range p.defs.newest.Buckets {
		if open := p.buckets[b.Name]; open == nil || open.uuid != b.UUID {
			all = append(all, b)
		}
	}
	if len(all) == 0 {
		return nil
	}
	indexed := map[string]bool{}
	for i := range p.defs.newest.Indexes {
		indexed[p.defs.newest.Indexes[i].Bucket] = true
	}
	wanted := all[:0]
	for _, b := range all {
		if indexed[b.Name] {
			wanted = append(wanted, b)
		}
	}
	return wanted
}

// openIndexed opens a bucket if KV has it under the same uuid.
func (p *Projector) openIndexed(ctx context.Context, b *wire.Bucket) error {
	info, err := p.bucketInfo(ctx, &wire.BucketRequest{Bucket: b.Name})
	if err != nil {
		return err
	}
	if info.UUID != b.UUID {
		return recreated(b.Name, info.UUID, b.UUID)
	}
	_, err = p.openBucket(b.Name, b.UUID, info.VBuckets)
	return err
}
