package feed

import (
	"context"
	"fmt"
	"time"

	"tidemark/kv/mcbp"
)

// watchSteps is how many times within DeadAfter the watchdog looks.
const watchSteps = 4

// Intervals of noops that are asked for where Config.NoopInterval is refused: the protocol was documented with 20 s as
// the least, and engines since refuse what is no multiple of how often they look after their connections.
const (
	oldestNoopInterval = 20 * time.Second
	commonNoopInterval = 120 * time.Second
)

// negotiateNoops lets the node send noops, as often as it consents to, and waits accordingly.
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
			c.conf.Logger.Warn("the node refuses the interval of noops that was asked for: its silence is noticed later", "kv",
				c.conf.Addr,
				"asked", c.conf.NoopInterval, "granted", interval)
			step := c.watchStep()
			c.patience.Store(max(watchSteps, int64((2*seconds*time.Second+step-1)/step)))
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

// watchStep is how often the watchdog looks.
func (c *Conn) watchStep() time.Duration { return max(c.conf.DeadAfter/watchSteps, time.Millisecond) }

// watchLoop ends the connection when the node is silent for DeadAfter. Noops make a living node speak. It begins with
// them when it has granted a stream; as long as there is none it is asked.
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
			c.owes()
		}
		if now := c.arrived.Load(); now != seen {
			seen, silent = now, 0
			continue
		}
		patience := c.patience.Load()
		silent++
		if silent == patience/2 {
			c.probe()
		}
		if silent >= patience {
			c.fail(fmt.Errorf("%w: %s sent nothing, not even a noop, for %v", ErrDead, c.conf.Addr,
				time.Duration(silent)*c.watchStep()))
		}
	}
}

// probe makes a node without streams speak: whatever it answers, it lives.
func (c *Conn) probe() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.streams) == 0 {
		c.request(mcbp.Frame{Header: mcbp.Request(mcbp.OpNoop, 0, 0)}, nil)
	}
}
