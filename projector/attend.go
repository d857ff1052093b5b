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
	// attendMost bounds the pause before opening a bucket is tried again.
	attendMost = 10 * time.Second
	// attendAtOnce bounds the buckets that KV is asked about at the same time.
	attendAtOnce = 64
)

// attention is the state of a bucket that is not open yet.
type attention struct {
	busy         bool // KV is being asked about it
	until, pause time.Duration
}

// attended is the outcome of an attempt to open a bucket.
type attended struct {
	bucket string
	err    error
}

// attendant opens the buckets that have indexes and are not open.
type attendant struct {
	p        *Projector
	began    time.Time
	all      map[string]*attention
	busy     int // entries of all
	outcomes chan attended
	asking   sync.WaitGroup
}

// attend opens every bucket that has indexes, before any stream of it is requested, until ctx ends. This way a
// projector that streams nothing watches its KV node, too: vbuckets may move to that node from one that hangs, and no
// other component reports that. Buckets are opened independently: if KV does not answer for one of them, the others
// are still opened.
func (p *Projector) attend(ctx context.Context) {
	t := &attendant{p: p, began: time.Now(), all: map[string]*attention{}, outcomes: make(chan attended)}
	defer t.asking.Wait()
	tick := time.NewTicker(lookInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case o := <-t.outcomes:
			t.take(o)
		case <-tick.C:
			t.ask(ctx, p.unattended())
		}
	}
}

// take records an outcome.
func (t *attendant) take(o attended) {
	t.busy--
	at := t.all[o.bucket]
	if at.busy = false; o.err == nil {
		delete(t.all, o.bucket)
		return
	}
	t.p.log.Debug("a bucket of which nothing is streamed cannot be looked at; trying again", "bucket", o.bucket, "error",
		o.err)
	at.pause = min(max(2*at.pause, lookInterval), attendMost)
	at.until = time.Since(t.began) + at.pause
}

// ask starts attempts for the buckets that are due, and drops the state of those that are open or gone.
func (t *attendant) ask(ctx context.Context, todo []wire.Bucket) {
	maps.DeleteFunc(t.all, func(name string, at *attention) bool {
		return !at.busy && !slices.ContainsFunc(todo, func(b wire.Bucket) bool { return b.Name == name })
	})
	for _, b := range todo {
		at := t.all[b.Name]
		if at == nil {
			at = &attention{}
			t.all[b.Name] = at
		}
		if at.busy || time.Since(t.began) < at.until || t.busy == attendAtOnce {
			continue
		}
		at.busy = true
		t.busy++
		t.asking.Go(func() {
			o := attended{b.Name, t.p.attendTo(ctx, &b)}
			select {
			case t.outcomes <- o:
			case <-ctx.Done():
			}
		})
	}
}

// unattended returns the buckets that have indexes and are not open here.
func (p *Projector) unattended() (all []wire.Bucket) {
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

// attendTo opens a bucket if KV has it under the same uuid.
func (p *Projector) attendTo(ctx context.Context, b *wire.Bucket) error {
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
