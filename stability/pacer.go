package stability

import "time"

// Pacer bounds how often promotions enter the Raft log, over all buckets together: one consolidated command per tick.
// A command larger than its share stretches the next tick in proportion.
type Pacer struct {
	Normal   time.Duration // least time between commands; 200 ms is 5 per second
	Hurried  time.Duration // the same while a scan waits for session consistency and indexers are behind
	Settled  time.Duration // the same when no indexer is behind: the next promotion follows as soon as the last was made
	MaxBytes int           // of one command
	lastMS   int64
	stretch  int64
	sent     bool
}

// Urgency is who waits for the next promotion.
type Urgency uint8

const (
	// Calm says that nobody waits.
	Calm Urgency = iota
	// Hurry says that a scan waits, or a build that has everything else, and some indexer has not made the last promotion.
	Hurry
	// HurrySettled says that somebody waits, and that every indexer that is waited for has made the last promotion.
	HurrySettled
)

// DefaultPacer allows 5 commands per second, of 256 KiB each. While a scan waits the next one follows 5 ms after the
// last if every indexer has made that, else after 50 ms: promotions come as fast as the indexers make them, and no
// faster.
func DefaultPacer() Pacer {
	return Pacer{Normal: 200 * time.Millisecond, Hurried: 50 * time.Millisecond, Settled: 5 * time.Millisecond,
		MaxBytes: 256 << 10}
}

// Gap is the least time between two promotions of a bucket for which so much waits.
func (p *Pacer) Gap(u Urgency) time.Duration {
	switch u {
	case Hurry:
		return p.Hurried
	case HurrySettled:
		return p.Settled
	}
	return p.Normal
}

// Wait returns how long to wait at nowMS until a command may be proposed; 0 when it may be now. u is the urgency of the
// most urgent bucket.
func (p *Pacer) Wait(nowMS int64, u Urgency) time.Duration {
	if !p.sent || nowMS < p.lastMS { // the clock went back: do not stand still
		return 0
	}
	due := p.lastMS + p.Gap(u).Milliseconds()*p.stretch
	if due <= nowMS {
		return 0
	}
	return time.Duration(due-nowMS) * time.Millisecond
}

// Sent tells that a command of this many bytes was proposed at nowMS.
func (p *Pacer) Sent(nowMS int64, bytes int) {
	p.lastMS, p.sent = nowMS, true
	p.stretch = max(1, int64((bytes+p.MaxBytes-1)/p.MaxBytes))
}
