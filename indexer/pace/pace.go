// Package pace lets things happen so often and no more, for whoever asks. It promises that everybody waits for what was
// let in before; it never drops anything.
package pace

import (
	"context"
	"sync"
	"time"
)

// Least is the shortest pause that is worth a timer.
const Least = 2 * time.Millisecond

// Pace lets so many things happen in a second, whoever does them, and, where it has a share, lets no more than that
// part of the time go into doing them.
type Pace struct {
	share float64 // of one processor; 0: as much as it takes
	now   func() time.Time

	mu   sync.Mutex
	rate int64         // 0 or less: no bound
	next time.Time     // when everything so far has had its time
	work time.Duration // that has not been waited for
}

// New lets rate things happen in a second, 0 or less: as many as come, and, unless share is 0, lets that part of one
// processor's time go into them.
func New(rate int64, share float64, now func() time.Time) *Pace {
	return &Pace{rate: rate, share: share, now: now}
}

// PerSecond is the rate.
func (p *Pace) PerSecond() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rate
}

// Due is when everything so far has had its time; zero when nothing was done.
func (p *Pace) Due() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.next
}

// Set changes the rate; who waits has waited by the old one.
func (p *Pace) Set(rate int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rate = rate
}

// Worked notes time that was spent: the next who waits lets it have its share.
func (p *Pace) Worked(d time.Duration) {
	if p.share == 0 || d <= 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.work += d
}

// Wait lets n things have their time.
func (p *Pace) Wait(ctx context.Context, n int) error {
	p.mu.Lock()
	now := p.now()
	if p.next.Before(now) {
		p.next = now
	}
	due := time.Duration(0)
	if p.rate > 0 {
		due = time.Duration(int64(n) * int64(time.Second) / p.rate)
	}
	if p.share > 0 {
		due = max(due, time.Duration(float64(p.work)/p.share)-p.work)
		p.work = 0
	}
	p.next = p.next.Add(due)
	pause := p.next.Sub(now)
	p.mu.Unlock()
	if pause < Least {
		return context.Cause(ctx)
	}
	return Sleep(ctx, pause)
}

// Sleep waits; an error says that ctx has ended first.
func Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
