package projector

import (
	"cmp"
	"errors"
	"slices"
	"sync"
	"time"

	"tidemark/projector/feed"
	"tidemark/wire"
)

// Bounds of what is kept of failures to ask KV.
const (
	// troubleKept is how long a failure counts when nobody tries again: a bucket that is streamed is looked at twice a
	// second, one that is not only when somebody asks.
	troubleKept = time.Minute
	maxTroubles = maxBuckets
	maxTrouble  = 512 // bytes of the error
)

// troubles are the failures to reach KV, or to be let in there, since which nothing has succeeded; one for each bucket.
type troubles struct {
	mu  sync.Mutex // leaf
	all map[string]*trouble
}

type trouble struct {
	err         string
	since, last time.Time
}

// note takes the outcome of asking KV about a bucket and reports whether that is news. That there is no such bucket is
// an answer, and no trouble.
func (t *troubles) note(bucket string, err error, now time.Time) (news bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	x := t.all[bucket]
	if err == nil || errors.Is(err, feed.ErrNoBucket) {
		delete(t.all, bucket)
		return x != nil
	}
	text := err.Error()
	text = text[:min(len(text), maxTrouble)]
	if x == nil {
		if len(t.all) >= maxTroubles {
			t.forget(now)
		}
		if len(t.all) >= maxTroubles {
			return false
		}
		if t.all == nil {
			t.all = map[string]*trouble{}
		}
		x = &trouble{since: now}
		t.all[bucket] = x
	}
	news = x.err != text
	x.err, x.last = text, now
	return news
}

// forget drops what counts no more.
func (t *troubles) forget(now time.Time) {
	for bucket, x := range t.all {
		if now.Sub(x.last) > troubleKept {
			delete(t.all, bucket)
		}
	}
}

// list returns what counts now, by bucket.
func (t *troubles) list(node string, now time.Time) (all []wire.KVTrouble) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forget(now)
	for bucket, x := range t.all {
		all = append(all, wire.KVTrouble{Bucket: bucket, Node: node, Error: x.err, SinceMS: x.since.UnixMilli()})
	}
	slices.SortFunc(all, func(a, b wire.KVTrouble) int { return cmp.Compare(a.Bucket, b.Bucket) })
	return all
}

// asked notes the outcome of asking KV about a bucket, tells the leader what is news, and logs where it turns.
func (p *Projector) asked(bucket string, err error) {
	was := len(p.troubles.list(p.cfg.KV, time.Now()))
	if !p.troubles.note(bucket, err, time.Now()) {
		return
	}
	p.notify()
	switch now := p.troubles.list(p.cfg.KV, time.Now()); {
	case len(now) > was:
		p.log.Warn("KV cannot be asked; it is tried again", "kv", p.cfg.KV, "bucket", bucket, "error", err)
	case len(now) < was:
		p.log.Info("KV can be asked again", "kv", p.cfg.KV, "bucket", bucket)
	}
}
