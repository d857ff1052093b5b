package feed

import (
	"context"
	"fmt"
	"time"

	"tidemark/kv/mcbp"
)

// watchSteps is how many times within DeadAfter the watchdog checks.
const watchSteps = 4

// Noop intervals to request if Config.NoopInterval is refused: the protocol was documented with a minimum of 20 s,
// and later engines refuse intervals that are no multiple of their connection manager's interval.
const (
	oldestNoopInterval = 20 * time.Second
	commonNoopInterval = 120 * time.Second
)

// negotiateNoops enables noops, at the requested interval or the next one that the node accepts, and adapts the
// watchdog.
func (c *Conn) negotiateNoops(ctx context.Context) error {
	if err := c.control(ctx, mcbp.ControlEnableNoop, "true"); Refused(err) {
		return unsupported(mcbp.ControlEnableNoop, "true", err)
	} else if err != nil {
		return err
	}
	for _, interval := range []time.Duration{c.conf.NoopInterval, oldestNoopInterval, commonNoopInterval} {
		seconds := (interval + time.Second - 1) / time.Second
		value := fmt.Sprint(int(seconds))
		err := c.control(ctx, mcbp.ControlNoopInterval, value)
		switch {
		case err == nil && interval != c.conf.NoopInterval:
			c.conf.Logger.Warn("node refuses the requested interval of noops: its silence is noticed later", "kv",
				c.conf.Addr,
				"requested", c.conf.NoopInterval, "granted", interval)
			step := c.watchStep()
			c.watchLimit.Store(max(watchSteps, int64((2*seconds*time.Second+step-1)/step)))
			return nil
		case err == nil:
			return nil
		case !Refused(err):
			return err
		case interval == commonNoopInterval:
			return unsupported(mcbp.ControlNoopInterval, value, err)
		}
	}
	return nil
}

// watchStep returns the interval of the watchdog's checks.
func (c *Conn) watchStep() time.Duration { return max(c.conf.DeadAfter/watchSteps, time.Millisecond) }

// watchLoop ends the connection when the node is silent for DeadAfter. Noops make a living node send something, but
// it only begins with them after it has granted a stream; before that it is probed.
func (c *Conn) watchLoop() error {
	tick := time.NewTicker(c.watchStep())
	defer tick.Stop()
	var seen uint64
	silent := int64(0)
	for {
		select {
		case <-c.done:
			return nil
		case <-tick.C:
		}
		if p := c.pacer.Load(); p != nil {
			c.mu.Lock()
			p.resume()
			p.overdue()
			c.mu.Unlock()
			c.checkUnanswered()
		}
		if now := c.arrived.Load(); now != seen {
			seen, silent = now, 0
			continue
		}
		limit := c.watchLimit.Load()
		silent++
		if silent == limit/2 {
			c.probe()
		}
		if silent >= limit {
			c.fail(fmt.Errorf("%w: %s sent nothing, not even a noop, for %v", ErrDead, c.conf.Addr,
				time.Duration(silent)*c.watchStep()))
		}
	}
}

// probe makes a node without streams send something: any answer shows that it is alive.
func (c *Conn) probe() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.streams) == 0 {
		c.request(mcbp.Frame{Header: mcbp.Request(mcbp.OpNoop, 0, 0)}, nil)
	}
}
