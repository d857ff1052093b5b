package router

import (
	"context"
	"errors"
	"fmt"
	"time"

	"tidemark/indexer/transport"
	"tidemark/keyversion"
)

// run connects and sends until the topic is closed or the lane is no longer needed. It never gives an endpoint up by
// itself (RT-5).
func (l *lane) run(ctx context.Context) error {
	defer l.finish()
	log := l.topic.router.cfg.Logger.With("topic", l.topic.cfg.Path, "bucket", l.topic.cfg.Bucket, "node", l.key.node,
		"connection", l.key.connection)
	pause := backoffMin
	for ctx.Err() == nil && !l.over() {
		worked, addr, err := l.connect(ctx)
		if ctx.Err() != nil {
			break
		}
		if err == nil {
			continue // it is no longer needed, or the address has changed
		}
		if worked {
			pause = backoffMin
			log.Info("connection to the indexer lost; reconnecting", "address", addr, "error", err)
			continue
		}
		log.Debug("cannot reach the indexer; trying again", "address", addr, "error", err, "pause", pause)
		l.unreachable(err)
		l.rest(ctx, pause, addr)
		pause = min(2*pause, backoffMax)
	}
	return nil
}

// rest waits before the next attempt, unless the address changes or the lane is no longer needed.
func (l *lane) rest(ctx context.Context, pause time.Duration, addr string) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		case <-l.wake:
		}
		l.mu.Lock()
		moved := l.link.addr != addr || l.need.idle
		l.mu.Unlock()
		if moved {
			return
		}
	}
}

// connect makes one connection and uses it until it ends. worked reports whether it was of use: the endpoint
// acknowledged something, or the connection stood for a while. err is nil if this side ended the connection.
func (l *lane) connect(ctx context.Context) (worked bool, addr string, err error) {
	connCtx, hangUp := context.WithCancel(ctx)
	defer hangUp()
	l.mu.Lock()
	epoch, addr := l.link.begin(hangUp)
	l.mu.Unlock()
	conn, err := l.dial(connCtx, addr, epoch)
	if err != nil {
		if connCtx.Err() != nil {
			err = nil
		}
		return false, addr, err
	}
	begun, before := time.Now(), l.begin()
	cut := context.AfterFunc(connCtx, func() { conn.Close() })
	err = l.feed(connCtx, conn, before)
	cut()
	conn.Close()
	worked = l.disconnected(epoch) || time.Since(begun) > backoffMax
	if connCtx.Err() != nil {
		err = nil
	}
	return worked, addr, err
}

// errNoAnswer is the cause of a failed attempt during which the endpoint neither accepted nor refused.
var errNoAnswer = fmt.Errorf("no answer within %v", dialTimeout)

func (l *lane) dial(ctx context.Context, addr string, epoch uint64) (Conn, error) {
	cfg, topic := &l.topic.router.cfg, &l.topic.cfg
	ctx, cancel := context.WithTimeoutCause(ctx, dialTimeout, errNoAnswer)
	defer cancel()
	conn, err := cfg.Dial(ctx, addr, keyversion.Hello{
		ClusterID: cfg.ClusterID(), Projector: cfg.Projector, BootID: cfg.BootID,
		Topic: topic.Path, Bucket: topic.Bucket, BucketUUID: topic.BucketUUID,
		Node: l.key.node, Connection: uint16(l.key.connection), Connections: uint16(cfg.Connections),
	}, func(number uint64) { l.acknowledged(epoch, number) })
	if errors.Is(err, errNoAnswer) { // the rest of the error is only what the end of the attempt interrupted
		return nil, fmt.Errorf("connect to %s: %w", addr, errNoAnswer)
	}
	return conn, err
}

// begin marks the lane as connected and returns the frames to send first: a StreamBegin of every vbucket, at the
// position that the endpoint has acknowledged. The queue follows, from its oldest batch on.
func (l *lane) begin() (frames [][]byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.link.state, l.link.failed = connected, ""
	l.topic.router.tries.connected(l.tryKey(), time.Now())
	l.stats.Connects++
	var enc keyversion.Encoder
	for _, s := range l.vbuckets {
		if s.ackedStream == nil || s.ackedStream.Ended {
			continue
		}
		ev := s.ackedStream.Begin(s.ackedSeqno)
		if enc.Events() == batchEvents || enc.Append(&ev) != nil {
			frames = append(frames, enc.Finish(0))
			enc.Reset(nil)
			_ = enc.Append(&ev) // it was sent before, so it fits
		}
	}
	if enc.Events() > 0 {
		frames = append(frames, enc.Finish(0))
	}
	l.broadcast()
	return frames
}

// feed sends until the connection ends.
func (l *lane) feed(ctx context.Context, conn Conn, first [][]byte) error {
	for _, f := range first {
		if err := conn.Send(f); err != nil {
			return err
		}
	}
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		f, pause := l.next(time.Now())
		if f != nil {
			if err := conn.Send(f); err != nil {
				return err
			}
			continue
		}
		if l.over() {
			return nil
		}
		timer.Reset(pause)
		select {
		case <-l.wake:
		case <-timer.C:
		case <-conn.Done():
			return fmt.Errorf("waiting for more to send: %w", conn.Err())
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// next returns the next frame to send, or how long to wait at most before the next check.
func (l *lane) next(now time.Time) (frame []byte, pause time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.out.allSent() {
		pause = l.prepare(now)
	}
	f := l.out.next()
	if f == nil {
		return nil, pause
	}
	l.due.lastSend = now
	return f.bytes, 0
}

// long is the pause if only a wake-up can change anything.
const long = time.Hour

// prepare seals the open frame when it is due, and resumes dropped vbuckets. All sealed frames have been sent.
func (l *lane) prepare(now time.Time) time.Duration {
	pause := long
	if (len(l.dropped) > 0 || l.slow.slow) && l.out.bytes <= l.bound()/2 {
		ready, again := l.slow.inTime()
		if ready {
			l.resume()
		} else {
			pause = again
		}
	}
	if l.due.calm.on {
		return min(pause, l.gather(now))
	}
	return min(pause, l.linger(now))
}

// linger adds pending Syncs to the open frame and seals it, each a few milliseconds after it became due. It returns
// the time until the next check.
func (l *lane) linger(now time.Time) time.Duration {
	pause := long
	if len(l.dirty) > 0 {
		if l.due.syncAt.IsZero() {
			l.due.syncAt = now.Add(syncTick)
		}
		due := l.due.syncAt.Sub(now)
		if due <= 0 {
			l.flushSyncs()
			l.due.syncAt, due = time.Time{}, syncTick
		}
		pause = min(pause, due)
	} else {
		l.due.syncAt = time.Time{}
	}
	if l.out.allSent() && l.out.open.enc.Events() > 0 {
		due := l.due.lastSend.Add(lingerTime).Sub(now)
		if due <= 0 {
			l.seal()
		}
		pause = min(pause, due)
	}
	return pause
}

// gather seals the open frame, with all pending Syncs in it, when it is urged or after Config.CalmLinger. It returns
// the time until the next check: the first event or Sync that gathers wakes the loop, and so does urge.
func (l *lane) gather(now time.Time) time.Duration {
	c := &l.due.calm
	empty := len(l.dirty) == 0 && l.out.open.enc.Events() == 0
	if empty {
		c.urged = false
	} else if c.until.IsZero() {
		c.until = now.Add(l.topic.router.cfg.CalmLinger)
	}
	if due := c.until.Sub(now); due > 0 && !c.urged {
		return due // even if empty: events that come until then need not wake the loop
	}
	if c.until = (time.Time{}); empty {
		return long
	}
	l.flushSyncs()
	if l.out.open.enc.Events() > 0 {
		l.seal()
	}
	c.urged = false
	if len(l.dirty) > 0 { // there was no room for all of them
		c.until = now.Add(syncTick)
		return syncTick
	}
	return 0
}

// disconnected ends a connection's epoch, and reports whether anything was acknowledged on it.
func (l *lane) disconnected(epoch uint64) (progress bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stats.Resent += uint64(l.out.rewind())
	return l.link.end(epoch)
}

// unreachable records that an attempt failed: from now on a full queue drops on a maintenance stream.
func (l *lane) unreachable(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.link.state, l.link.failed, l.link.hangUp = down, err.Error(), nil
	if !l.need.unwanted {
		after := unreachedAfter
		if l.topic.cfg.Class != keyversion.ClassMaintenance && errors.Is(err, transport.ErrRefused) {
			after = refusedAfter
		}
		l.topic.router.tries.failed(l.tryKey(), err, time.Now(), after)
	}
	l.stats.Failures++
	l.broadcast()
}

// over reports whether the lane is no longer needed; if so, it is removed from the topic.
func (l *lane) over() bool {
	l.mu.Lock()
	unneeded := l.need.over(l.empty(), l.link.state)
	l.mu.Unlock()
	return unneeded && l.topic.retire(l)
}

// finish ends the lane for good.
func (l *lane) finish() {
	l.mu.Lock()
	l.link.state = gone
	l.need.stop()
	l.broadcast()
	l.slow.leave()
	stats := l.stats
	l.mu.Unlock()
	l.topic.router.addTotal(l.topic.cfg, l.key.node, stats)
}
