package projector

import (
	"context"
	"time"

	"tidemark/wire"
)

// attendMost bounds the pause before a bucket is opened again that could not be.
const attendMost = 10 * time.Second

// attend opens the buckets that indexes are on before anything of them is asked for here, until ctx ends. A projector
// that streams nothing looks at its KV node like the others then: vbuckets may come to that node from one that hangs,
// which nobody else says.
func (p *Projector) attend(ctx context.Context) {
	type wait struct{ until, pause time.Duration }
	waits, began := map[string]wait{}, time.Now()
	tick := time.NewTicker(lookInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		todo := p.unattended()
		if len(todo) == 0 {
			clear(waits)
		}
		for _, b := range todo {
			at := waits[b.Name]
			if time.Since(began) < at.until {
				continue
			}
			if err := p.attendTo(ctx, &b); err != nil {
				p.log.Debug("a bucket of which nothing is streamed cannot be looked at; trying again", "bucket", b.Name, "error",
					err)
				at.pause = min(max(2*at.pause, lookInterval), attendMost)
				waits[b.Name] = wait{time.Since(began) + at.pause, at.pause}
			}
		}
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
