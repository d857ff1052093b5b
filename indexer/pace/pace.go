// Package pace limits the rate of operations. Callers wait for everything that was admitted before them; nothing is
// dropped.
package pace

import (
	"context"
	"sync"
	"time"
)

// Least is the shortest pause that is worth a timer.
const Least = 2 * time.Millisecond

// Pace limits operations to a number of units per second, for all callers together, and, if it has a share, to that
// share of the time.
type Pace struct {
	share float64 // of one processor; 0: no limit
	now   func() time.Time

	mu   sync.Mutex
	rate int64         // units per second; 0 or less: no limit
	next time.Time     // when everything admitted so far is paid for
	work time.Duration // work time that has not been paid for
}

// New returns a Pace of rate units per second, without a limit if 0 or less, and, unless share is 0, limited to that
// share of one processor's time.
func New(rate int64, share float64, now func() time.Time) *Pace {
	return &Pace{rate: rate, share: share, now: now}
}

// PerSecond returns the rate.
func (p *Pace) PerSecond() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rate
}

// Due returns when everything so far is paid for; zero if nothing was done.
func (p *Pace) Due() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.next
}

// Set changes the rate. Callers that are waiting wait by the old one.
func (p *Pace) Set(rate int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rate = rate
}

// Worked adds work time; the next Wait pays for it according to the share.
func (p *Pace) Worked(d time.Duration) {
	if p.share == 0 || d <= 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.work += d
}

// Wait waits until n units are admitted.
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

// Sleep waits for d, or returns the cause of ctx's end.
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
