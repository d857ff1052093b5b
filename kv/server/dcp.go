package server

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"time"

	"tidemark/kv/mcbp"
	"tidemark/kv/store"
)

const (
	defaultNoopInterval = 20 * time.Second
	minNoopInterval     = 100 * time.Millisecond
	maxNoopInterval     = time.Hour
)

// dcpOpen makes the connection a producer. A second DCP_OPEN on the same connection ends it; another connection with
// the same user and name is closed.
func (c *conn) dcpOpen(ctx context.Context, f mcbp.Frame) error {
	c.srv.counters.DCPOpens.Add(1)
	if c.dcp != nil {
		return fmt.Errorf("%w: a second DCP_OPEN on one connection", mcbp.ErrMalformed)
	}
	open, err := mcbp.DecodeOpen(f.Extras)
	const known = mcbp.OpenProducer | mcbp.OpenXattrs | mcbp.OpenNoValue | mcbp.OpenDeleteTimes |
		mcbp.OpenDeletedUserXattrs
	switch {
	case err != nil, len(f.Key) == 0, len(f.Key) > mcbp.MaxConnectionName, open.Flags&^(known|mcbp.OpenNotifier) != 0:
		c.status(f.Header, mcbp.StatusInvalid, nil)
		return nil
	case open.Flags&mcbp.OpenProducer == 0 || open.Flags&mcbp.OpenNotifier != 0:
		c.status(f.Header, mcbp.StatusNotSupported, nil)
		return nil
	}
	p := newProducer(c, string(f.Key), open.Flags)
	c.dcp = p
	c.srv.claim(p)
	c.status(f.Header, mcbp.StatusOK, nil)
	if err := c.flush(); err != nil {
		return err
	}
	c.bucket.users.Add(1) // in addition to the connection's own goroutine
	c.group.Go(func() error {
		defer c.bucket.users.Done()
		p.run(ctx)
		return nil
	})
	return nil
}

func (c *conn) dcpRequest(f mcbp.Frame) error {
	switch f.Op {
	case mcbp.OpDCPControl:
		c.status(f.Header, c.dcp.control(string(f.Key), string(f.Value)), nil)
	case mcbp.OpDCPBufferAck:
		n, err := mcbp.DecodeBufferAck(f.Extras)
		if err != nil {
			return err
		}
		c.dcp.acknowledged(int64(n))
	case mcbp.OpDCPNoop:
		c.status(f.Header, mcbp.StatusOK, nil)
	case mcbp.OpDCPFailoverLog:
		v := c.bucket.Store.VBucket(f.VBucket())
		if v == nil {
			c.notMyVBucket(f.Header)
			return nil
		}
		state, h := v.History()
		if state != store.Active {
			c.notMyVBucket(f.Header)
			return nil
		}
		c.value(f.Header, failoverValue(h))
	case mcbp.OpDCPStreamReq:
		return c.streamRequest(f)
	case mcbp.OpDCPCloseStream:
		return c.closeStream(f)
	default:
		c.status(f.Header, mcbp.StatusNotSupported, nil)
	}
	return nil
}

func failoverValue(h store.History) []byte {
	return mcbp.AppendFailoverLog(nil, h.Failover)
}

// control changes one of the producer's settings.
func (p *producer) control(key, value string) mcbp.Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.c.moods().Has(OldControls) && !oldControl(key) || !p.set(key, value) {
		return mcbp.StatusInvalid
	}
	p.kick()
	return mcbp.StatusOK
}

// set reports whether the setting exists and accepts the value. The caller holds p.mu.
func (p *producer) set(key, value string) bool {
	switch key {
	case mcbp.ControlBufferSize:
		n, err := strconv.ParseUint(value, 10, 32)
		if err != nil || p.c.moods().Has(NoFlowControl) {
			return false
		}
		p.flow.window = int64(n)
	case mcbp.ControlNoopInterval:
		return p.setNoopInterval(value)
	case mcbp.ControlEnableNoop, mcbp.ControlEndOnClose, mcbp.ControlExpiryOpcode, mcbp.ControlForceCompress:
		on, err := strconv.ParseBool(value)
		return err == nil && p.setFlag(key, on)
	case mcbp.ControlMaxMarker:
		form, ok := map[string]markerForm{"1.0": markerV1, "2.0": markerV20, "2.2": markerV22}[value]
		if !ok {
			return false
		}
		p.marker.Store(int32(form))
	case mcbp.ControlPriority, mcbp.ControlCursorDrop, "supports_cursor_dropping_vulcan",
		"backfill_order", "connection_manager_interval", "v7_dcp_status_codes", "supports_hifi_MFU":
		// No effect here: there is only one priority, and no cursor to drop.
	default:
		return false
	}
	return true
}

func (p *producer) setNoopInterval(value string) bool {
	seconds, err := strconv.ParseFloat(value, 64)
	inRange := seconds >= minNoopInterval.Seconds() && seconds <= maxNoopInterval.Seconds() // false for NaN
	if err != nil || !inRange ||
		p.c.moods().Has(NoopIntervals) && math.Mod(seconds, defaultNoopInterval.Seconds()) != 0 {
		return false
	}
	p.noops.interval = time.Duration(seconds * float64(time.Second))
	return true
}

func (p *producer) setFlag(key string, on bool) bool {
	switch key {
	case mcbp.ControlEnableNoop:
		p.noops.on = on
	case mcbp.ControlEndOnClose:
		if p.c.moods().Has(NoCloseEnd) {
			return false
		}
		p.endOnClose = on
	case mcbp.ControlExpiryOpcode:
		p.expiryOpcode.Store(on)
	case mcbp.ControlForceCompress:
		if on && !p.c.features.snappy {
			return false
		}
		p.compress.Store(on)
	}
	return true
}

// oldControl reports whether engines of versions 4 and 5 know a key of DCP_CONTROL.
func oldControl(key string) bool {
	switch key {
	case mcbp.ControlBufferSize, mcbp.ControlEnableNoop, mcbp.ControlNoopInterval, mcbp.ControlPriority,
		mcbp.ControlCursorDrop:
		return true
	}
	return false
}

// streamRequest decides on a stream request and, if it is accepted, begins the stream after the answer.
func (c *conn) streamRequest(f mcbp.Frame) error {
	c.srv.counters.StreamRequests.Add(1)
	r, want, status := c.readStreamRequest(f)
	if status != mcbp.StatusOK {
		c.refused(f.Header, status)
		return nil
	}
	v := c.bucket.Store.VBucket(f.VBucket())
	if v == nil {
		c.notMyVBucket(f.Header)
		return nil
	}
	state, history := v.History()
	if state == store.Dead || state == store.Pending || state == store.Replica && r.Flags&mcbp.StreamActiveOnly != 0 {
		c.notMyVBucket(f.Header)
		return nil
	}
	shown, status := c.filterOf(want, v)
	if !c.features.collections {
		want.ids = []uint32{mcbp.DefaultCollection}
	}
	if status == mcbp.StatusOK {
		status = c.mayStream(want)
	}
	if status != mcbp.StatusOK {
		c.refused(f.Header, status)
		return nil
	}
	if r.Flags&(mcbp.StreamToLatest|mcbp.StreamDiskOnly) != 0 {
		r.End = history.High
	}
	outcome, seqno := history.Decide(store.StreamRequest{
		Start: r.Start, End: r.End, VBUUID: r.VBUUID, SnapStart: r.SnapStart, SnapEnd: r.SnapEnd,
		Strict: r.Flags&mcbp.StreamStrictVBUUID != 0, IgnorePurged: r.Flags&mcbp.StreamIgnorePurged != 0,
		ClientPurge: want.clientPurge, PurgeByWindow: c.moods().Has(PurgeByWindow),
	})
	switch {
	case outcome == store.OutOfRange:
		c.status(f.Header, mcbp.StatusRange, nil)
	case c.dcp.has(f.VBucket()), c.dcp.lingers(f.VBucket()):
		c.status(f.Header, mcbp.StatusKeyExists, nil)
	case outcome == store.Rollback:
		c.srv.counters.Rollbacks.Add(1)
		c.reply(f.Header, mcbp.Frame{
			Header: mcbp.Header{VBucketOrStatus: uint16(mcbp.StatusRollback)}, Value: mcbp.AppendRollback(nil, seqno),
		}, nil)
	default:
		return c.beginStream(f.Header, &stream{
			p: c.dcp, vb: v, id: f.VBucket(), opaque: f.Opaque, cursor: cursor{last: r.Start},
			grant: grant{start: r.Start, end: r.End, purged: history.Purge, life: history.Life, filter: shown,
				backfill: r.Start < history.High, noValue: r.Flags&mcbp.StreamNoValue != 0, activeOnly: state == store.Active,
				asked: want},
		}, history)
	}
	return nil
}

// mayStream returns whether the user may have a stream of what is selected, as a status.
func (c *conn) mayStream(want request) mcbp.Status {
	may := c.may()
	if may.Whole.HasAll(needsStream) {
		return mcbp.StatusOK
	}
	status := want.permitted(may, false)
	if status != mcbp.StatusOK && !c.features.collections {
		return mcbp.StatusNoAccess
	}
	return status
}

// readStreamRequest parses a stream request; a status other than OK refuses it whatever the vbucket's state is.
func (c *conn) readStreamRequest(f mcbp.Frame) (mcbp.StreamRequest, request, mcbp.Status) {
	const unsupported = mcbp.StreamTakeover | mcbp.StreamFromLatest
	r, err := mcbp.DecodeStreamRequest(f.Extras)
	if err != nil {
		return r, request{}, mcbp.StatusInvalid
	}
	want, status := c.readFilter(f.Value)
	if status == mcbp.StatusOK && (r.Flags&unsupported != 0 || c.dcp.needsNoop()) {
		status = mcbp.StatusNotSupported
	}
	return r, want, status
}

// beginStream accepts a stream: it sends the answer before any message of the stream.
func (c *conn) beginStream(h mcbp.Header, st *stream, history store.History) error {
	c.srv.counters.StreamsAccepted.Add(1)
	c.value(h, failoverValue(history))
	if err := c.flush(); err != nil {
		return err
	}
	c.dcp.begin(st)
	return nil
}

// refused answers a stream request that is refused; for errors about collections with the manifest's uid.
func (c *conn) refused(h mcbp.Header, status mcbp.Status) {
	switch status {
	case mcbp.StatusUnknownCollection, mcbp.StatusUnknownScope, mcbp.StatusManifestAhead:
		c.unknown(h, status)
	case mcbp.StatusNoAccess:
		c.deny(h, needsStream)
	default:
		c.status(h, status, nil)
	}
}

// closeStream ends a stream: after the answer no message of it follows, except STREAM_END if the consumer has enabled
// it.
func (c *conn) closeStream(f mcbp.Frame) error {
	if err := c.flush(); err != nil {
		return err
	}
	c.wmu.Lock() // waits until the producer is between two writes
	st := c.dcp.remove(f.VBucket())
	if st == nil {
		c.wmu.Unlock()
		c.status(f.Header, mcbp.StatusKeyNotFound, nil)
		return nil
	}
	out, err := mcbp.Append(nil, mcbp.Frame{Header: mcbp.Response(f.Header, mcbp.StatusOK)})
	if err == nil && c.dcp.wantsEnd() {
		before := len(out)
		out, err = appendStreamEnd(out, st, mcbp.EndClosed)
		c.dcp.sent(len(out)-before, 1)
	}
	if err == nil {
		err = c.write(out, c.srv.opts.DCPTimeout)
	}
	c.wmu.Unlock()
	st.release()
	return err
}
