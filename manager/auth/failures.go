package auth

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"sync"
	"time"
)

// failures counts failed attempts, or other actions limited per sender. The keys are hashes of fixed size, because
// names are as long as their senders like. A count that has leaked to zero is forgotten.
type failures struct {
	salt [32]byte
	now  func() time.Time

	mu    sync.Mutex
	of    map[subject]*bucket
	swept time.Time
}

// subject is the hashed key of a count.
type subject [16]byte

// bucket is a leaky bucket: its level falls by one per pause.
type bucket struct {
	level float64
	pause time.Duration
	at    time.Time
}

// hiddenMark separates the part of a key that must not appear in an error returned to the client.
const hiddenMark = "\x00"

// sweepEvery is the interval at which counts that have leaked to zero are removed.
const sweepEvery = time.Minute

func newFailures(salt [32]byte, now func() time.Time) *failures {
	return &failures{salt: salt, now: now, of: map[subject]*bucket{}, swept: now()}
}

func (f *failures) subject(who string) subject {
	sum := sha256.New()
	_, _ = sum.Write(f.salt[:]) // a hash never fails
	_, _ = sum.Write([]byte(who))
	return subject(sum.Sum(nil)[:16])
}

func (b *bucket) leak(now time.Time) {
	b.level = max(b.level-max(now.Sub(b.at).Seconds(), 0)/b.pause.Seconds(), 0)
	b.at = now
}

// take counts an attempt as failed before it is verified, so that concurrent attempts cannot all be verified before
// the first one counts. It returns an error if the sender has failed too often.
func (f *failures) take(who string, burst float64, pause time.Duration) error {
	key := f.subject(who)
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	f.sweep(now)
	b := f.of[key]
	if b == nil {
		if len(f.of) >= maxCounted {
			f.forgetOne()
		}
		b = &bucket{at: now, pause: pause}
		f.of[key] = b
	}
	if b.leak(now); b.level > burst-1 {
		who, _, _ = strings.Cut(who, hiddenMark)
		return fmt.Errorf("%w: %s; wait %s", ErrTooMany, strings.ToValidUTF8(fmt.Sprintf("%.200s", who), "?"), pause)
	}
	b.level++
	return nil
}

// sweep removes counts that have leaked to zero, once per sweepEvery. The caller holds f.mu.
func (f *failures) sweep(now time.Time) {
	if now.Sub(f.swept) < sweepEvery {
		return
	}
	f.swept = now
	for key, b := range f.of {
		if b.leak(now); b.level <= 0 {
			delete(f.of, key)
		}
	}
}

// forgetOne removes the lowest of a few counts: the table is full, because many names are tried from many addresses.
func (f *failures) forgetOne() {
	var least subject
	looked := 0
	for key, b := range f.of {
		if looked == 0 || b.level < f.of[least].level {
			least = key
		}
		if looked++; looked == 16 {
			break
		}
	}
	delete(f.of, least)
}

// giveBack takes back what take has counted.
func (f *failures) giveBack(all ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, who := range all {
		key := f.subject(who)
		if b := f.of[key]; b != nil {
			if b.level--; b.level <= 0 {
				delete(f.of, key)
			}
		}
	}
}
