package indexer

import (
	"context"
	"sync"
	"time"
)

// leastPause is the shortest pause that is worth a timer.
const leastPause = 2 * time.Millisecond

// pace lets so many things happen in a second, whoever does them.
type pace struct {
	rate int64
	now  func() time.Time

	mu   sync.Mutex
	next time.Time // when everything so far has had its time
}

// wait lets n things have their time.
func (p *pace) wait(ctx context.Context, n int) error {
	p.mu.Lock()
	now := p.now()
	if p.next.Before(now) {
		p.next = now
	}
	p.next = p.next.Add(time.Duration(int64(n) * int64(time.Second) / p.rate))
	pause := p.next.Sub(now)
	p.mu.Unlock()
	if pause < leastPause {
		return context.Cause(ctx)
	}
	return sleep(ctx, pause)
}

// sleep waits; an error says that ctx has ended first.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
