package stability

import "time"

// Pacer bounds how often promotions enter the Raft log, over all buckets together: one consolidated command per tick.
// A command larger than its share stretches the next tick in proportion.
type Pacer struct {
	Normal   time.Duration // least time between commands; 200 ms is 5 per second
	Hurried  time.Duration // the same while a scan waits for session consistency; 50 ms is 20 per second
	MaxBytes int           // of one command
	lastMS   int64
	stretch  int64
	sent     bool
}

// DefaultPacer is what the design asks for: 5 commands per second, 20 while a scan waits, 256 KiB each.
func DefaultPacer() Pacer {
	return Pacer{Normal: 200 * time.Millisecond, Hurried: 50 * time.Millisecond, MaxBytes: 256 << 10}
}

// Wait returns how long to wait at nowMS until a command may be proposed; 0 when it may be now.
func (p *Pacer) Wait(nowMS int64, hurry bool) time.Duration {
	if !p.sent || nowMS < p.lastMS { // the clock went back: do not stand still
		return 0
	}
	gap := p.Normal
	if hurry {
		gap = p.Hurried
	}
	due := p.lastMS + gap.Milliseconds()*p.stretch
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
