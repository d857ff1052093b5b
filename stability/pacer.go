package stability

import "time"

// Pacer limits how often promotions enter the Raft log, over all buckets together: one consolidated command per tick.
// A command larger than its share extends the next tick in proportion.
type Pacer struct {
	Normal   time.Duration // minimum time between commands; 200 ms is 5 per second
	Hurried  time.Duration // the same while a scan waits for session consistency and indexers are behind
	Settled  time.Duration // the same while no indexer is behind: the next promotion follows as soon as the last was made
	MaxBytes int           // size of one command
	lastMS   int64
	stretch  int64
	sent     bool
}

// Urgency is how urgent the next promotion is.
type Urgency uint8

const (
	// Calm means that nothing waits.
	Calm Urgency = iota
	// Hurry means that a scan waits, or a build that lacks nothing else, and some indexer has not made the last
	// promotion.
	Hurry
	// HurrySettled means that something waits, and every indexer for which promotion waits has made the last one.
	HurrySettled
)

// DefaultPacer permits 5 commands per second, of 256 KiB each. While a scan waits the next one follows after 2 ms if
// every indexer has made the last one, else after 50 ms: promotions come as fast as the indexers make them, and no
// faster.
func DefaultPacer() Pacer {
	return Pacer{Normal: 200 * time.Millisecond, Hurried: 50 * time.Millisecond, Settled: 2 * time.Millisecond,
		MaxBytes: 256 << 10}
}

// Gap returns the minimum time between two promotions of a bucket with this urgency.
func (p *Pacer) Gap(u Urgency) time.Duration {
	switch u {
	case Hurry:
		return p.Hurried
	case HurrySettled:
		return p.Settled
	}
	return p.Normal
}

// Wait returns how long to wait at nowMS until a command may be proposed; 0 if it may be now. u is the urgency of the
// most urgent bucket.
func (p *Pacer) Wait(nowMS int64, u Urgency) time.Duration {
	if !p.sent || nowMS < p.lastMS { // the clock went back: do not block
		return 0
	}
	due := p.lastMS + p.Gap(u).Milliseconds()*p.stretch
	if due <= nowMS {
		return 0
	}
	return time.Duration(due-nowMS) * time.Millisecond
}

// Sent records that a command of this size was proposed at nowMS.
func (p *Pacer) Sent(nowMS int64, bytes int) {
	p.lastMS, p.sent = nowMS, true
	p.stretch = max(1, int64((bytes+p.MaxBytes-1)/p.MaxBytes))
}
