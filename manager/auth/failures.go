package auth

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"sync"
	"time"
)

// failures counts tries that failed, or what else is bounded for each sender, each count by a hash of fixed size of
// whom it is for: names are as long as their sender likes. A count that has leaked away is forgotten.
type failures struct {
	salt [32]byte
	now  func() time.Time

	mu    sync.Mutex
	of    map[subject]*bucket
	swept time.Time
}

// subject is who is counted.
type subject [16]byte

// bucket counts failures; it leaks one in each pause.
type bucket struct {
	level float64
	pause time.Duration
	at    time.Time
}

// untold begins what of somebody's name under which he is counted nobody is told.
const untold = "\x00"

// sweepEvery is how often counts that have leaked away are looked for.
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

// take counts a try as failed before it is looked at, so that many at once are not looked at before the first one
// counts; it refuses somebody who has failed too often.
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
		who, _, _ = strings.Cut(who, untold)
		return fmt.Errorf("%w: %s; wait %s", ErrTooMany, strings.ToValidUTF8(fmt.Sprintf("%.200s", who), "?"), pause)
	}
	b.level++
	return nil
}

// sweep forgets, now and then, who has no failure left. f.mu is held.
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

// forgetOne lets one go, of a few the one that has failed least: somebody tries many names from many addresses.
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
