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
	// attendMost bounds the pause before a bucket is opened again that could not be.
	attendMost = 10 * time.Second
	// attendAtOnce bounds the buckets that KV is asked about at a time.
	attendAtOnce = 64
)

// attention is what there is to know of a bucket that is not open.
type attention struct {
	busy         bool // KV is being asked about it
	until, pause time.Duration
}

// attended is what has become of asking about a bucket.
type attended struct {
	bucket string
	err    error
}

// attendant asks about buckets.
type attendant struct {
	p        *Projector
	began    time.Time
	all      map[string]*attention
	busy     int // of them
	outcomes chan attended
	asking   sync.WaitGroup
}

// attend opens the buckets that indexes are on before anything of them is asked for here, until ctx ends. A projector
// that streams nothing looks at its KV node like the others then: vbuckets may come to that node from one that hangs,
// which nobody else says. Each is asked about by itself: where KV answers nothing about one, the others are opened.
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

// take takes an outcome over.
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

// ask asks about the buckets whose turn it is, and forgets those that need no attention any more.
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

// unattended are the buckets with indexes that are not open here.
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

// attendTo opens a bucket, if it is the one that KV has.
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
