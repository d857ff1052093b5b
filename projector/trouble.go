package projector

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"tidemark/projector/core"
	"tidemark/projector/feed"
	"tidemark/wire"
)

// Bounds of what is kept about failures to query KV.
const (
	// troubleKept is how long a failure counts if KV is not queried again: a bucket that is streamed is looked at twice a
	// second, another one only on request.
	troubleKept = time.Minute
	maxTroubles = core.MaxBuckets
	maxTrouble  = 512 // bytes of the error
	// A change within turnQuiet of the last log line about a bucket is logged once it has lasted for turnLasts, or
	// together with other changes when turnQuiet is over.
	turnQuiet = time.Minute
	turnLasts = 5 * time.Second
)

// turns rate-limits the log lines about a state that may flip between good and bad: changes that last get a line, the
// others are counted.
type turns struct {
	bad, logged bool
	since       time.Time // of bad
	loggedAt    time.Time // when the last line was logged
	n           int       // changes since then
}

// note records the present state, and reports whether to log it, with the number of changes since the last line. The
// first change after a quiet time is logged at once.
func (t *turns) note(bad bool, now time.Time) (n int, news bool) {
	if bad != t.bad {
		t.bad, t.since = bad, now
		t.n++
	}
	if t.n == 0 || now.Sub(t.loggedAt) < turnQuiet && (t.bad == t.logged || now.Sub(t.since) < turnLasts) {
		return 0, false
	}
	n = t.n
	t.logged, t.loggedAt, t.n = t.bad, now, 0
	return n, true
}

// rest reports whether the value holds nothing worth keeping.
func (t *turns) rest(now time.Time) bool {
	return !t.bad && !t.logged && t.n == 0 && now.Sub(t.loggedAt) >= turnQuiet
}

// troubles holds the failures to reach KV, or to be accepted by it, that no success has followed; one for each
// bucket.
type troubles struct {
	mu    sync.Mutex // leaf
	all   map[string]*trouble
	turns map[string]*turns // of each bucket, for the log
}

type trouble struct {
	err         string
	since, last time.Time
}

// note records the outcome of a query to KV about a bucket, and reports whether that is news. A missing bucket is an
// answer and not a failure.
func (t *troubles) note(bucket string, err error, now time.Time) (news bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	x := t.all[bucket]
	if err == nil || errors.Is(err, feed.ErrNoBucket) {
		delete(t.all, bucket)
		return x != nil
	}
	text := wire.Cut(err.Error(), maxTrouble)
	if x == nil {
		if len(t.all) >= maxTroubles {
			t.prune(now)
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

// prune drops failures that are older than troubleKept.
func (t *troubles) prune(now time.Time) {
	for bucket, x := range t.all {
		if now.Sub(x.last) > troubleKept {
			delete(t.all, bucket)
		}
	}
}

// closed drops a bucket that is no longer streamed, and reports whether that is news.
func (t *troubles) closed(bucket string) (news bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	news = t.all[bucket] != nil
	delete(t.all, bucket)
	delete(t.turns, bucket)
	return news
}

// list returns the present failures, by bucket.
func (t *troubles) list(node string, now time.Time) (all []wire.KVTrouble) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.prune(now)
	for bucket, x := range t.all {
		all = append(all, wire.KVTrouble{Bucket: bucket, Node: node, Error: x.err, SinceMS: x.since.UnixMilli()})
	}
	slices.SortFunc(all, func(a, b wire.KVTrouble) int { return cmp.Compare(a.Bucket, b.Bucket) })
	return all
}

// turn records whether KV cannot be queried about a bucket, and reports whether to log that, as turns.note does.
func (t *troubles) turn(bucket string, bad bool, now time.Time) (n int, news bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	x := t.turns[bucket]
	if x == nil {
		if !bad {
			return 0, false
		}
		if len(t.turns) >= maxTroubles {
			maps.DeleteFunc(t.turns, func(_ string, x *turns) bool { return x.rest(now) })
		}
		if len(t.turns) >= maxTroubles {
			return 0, false
		}
		if t.turns == nil {
			t.turns = map[string]*turns{}
		}
		x = &turns{}
		t.turns[bucket] = x
	}
	if n, news = x.note(bad, now); x.rest(now) {
		delete(t.turns, bucket)
	}
	return n, news
}

// queried records the outcome of a query to KV about a bucket, reports news to the leader, and logs what lasts.
func (p *Projector) queried(bucket string, err error) {
	now := time.Now()
	if p.troubles.note(bucket, err, now) {
		p.notify()
	}
	bad := err != nil && !errors.Is(err, feed.ErrNoBucket)
	n, news := p.troubles.turn(bucket, bad, now)
	switch {
	case !news:
	case bad:
		p.log.Warn("KV does not answer; trying again", "kv", p.cfg.KV, "bucket", bucket, "error", err, "turns", n)
	case n > 1:
		p.log.Warn("KV answers again, after answering intermittently", "kv", p.cfg.KV, "bucket", bucket, "turns", n)
	default:
		p.log.Info("KV answers again", "kv", p.cfg.KV, "bucket", bucket)
	}
}
