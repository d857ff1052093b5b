package gocb

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/couchbase/gocbcore/v10"
	"github.com/couchbase/gocbcore/v10/memd"

	"tidemark/kv/kvclient"
	"tidemark/kv/mcbp"
	"tidemark/projector/feed"
	"tidemark/timestamp"
)

// stream is one stream of a vbucket. gocbcore calls its methods; those for events from one goroutine.
type stream struct {
	c       *Conn
	vbucket uint16
	id      feed.StreamID
	node    int // position of the vbucket's owner when it was requested

	// Guarded by Conn.mu.
	abandoned bool // no longer wanted: events are dropped
}

// NewStreamID returns an id that no stream of this connection has had.
func (c *Conn) NewStreamID() feed.StreamID { return feed.StreamID(c.lastID.Add(1)) }

// OpenStream opens a stream at the node: see feed.Feed.
func (c *Conn) OpenStream(ctx context.Context, req feed.StreamRequest) (timestamp.FailoverLog, error) {
	if req.ID == 0 {
		req.ID = c.NewStreamID()
	}
	node, err := c.owned(ctx, req.VBucket)
	if err != nil {
		return nil, fmt.Errorf("vbucket %d: %w", req.VBucket, err)
	}
	s := &stream{c: c, vbucket: req.VBucket, id: req.ID, node: node}
	c.mu.Lock()
	have := c.streams[req.VBucket]
	if have == nil {
		c.streams[req.VBucket] = s
	}
	c.mu.Unlock()
	if have != nil {
		return nil, fmt.Errorf("vbucket %d: %w", req.VBucket, feed.ErrStreamExists)
	}
	var log timestamp.FailoverLog
	err = c.await(ctx, "a stream request", func(done func(error)) (gocbcore.PendingOp, error) {
		return c.agent.OpenStream(req.VBucket, memd.DcpStreamAddFlag(req.Flags|mcbp.StreamActiveOnly),
			gocbcore.VbUUID(req.VBUUID),
			gocbcore.SeqNo(req.Start), gocbcore.SeqNo(req.End), gocbcore.SeqNo(req.SnapStart), gocbcore.SeqNo(req.SnapEnd),
			s, gocbcore.OpenStreamOptions{}, func(entries []gocbcore.FailoverEntry, err error) {
				if err == nil {
					log = convert(entries)
					err = s.begin(log)
				}
				done(err)
			})
	})
	if err == nil {
		return log, nil
	}
	_, refused := statusOf(err)
	s.giveUp(!refused && !errors.As(err, new(gocbcore.DCPRollbackError)))
	return nil, c.convertError(mcbp.OpDCPStreamReq, req.VBucket, err)
}

// OpenStreams opens many streams: see feed.Feed.
func (c *Conn) OpenStreams(ctx context.Context, reqs []feed.StreamRequest) []feed.StreamAnswer {
	return feed.OpenEach(ctx, c, reqs)
}

// errMoved: gocbcore sent the request to another node than the configured one.
var errMoved = fmt.Errorf("%w: it has moved to another node meanwhile", feed.ErrNotMyVBucket)

// begin queues the stream's first event, made from the node's consent. gocbcore calls it before it reads on, so no
// other event of the stream can precede it.
func (s *stream) begin(log timestamp.FailoverLog) error {
	if snapshot, err := s.c.agent.ConfigSnapshot(); err == nil {
		if node, err := snapshot.VbucketToServer(s.vbucket, 0); err == nil && node != s.node {
			s.c.mu.Lock()
			s.abandoned = true // its events may come before the caller has the error
			s.c.mu.Unlock()
			return errMoved
		}
	}
	s.c.add(s, feed.Event{Kind: feed.StreamBegin, Value: mcbp.AppendFailoverLog(nil, log)}, 0, false)
	return nil
}

// giveUp drops a stream that was not opened. If the node has not answered, a close is sent in case it consents later:
// it follows the open request on the same connection. If the node has refused, no close may be sent: with a node that
// sends no end after a close, gocbcore would take the answer to the close for the end of the vbucket's next stream.
func (s *stream) giveUp(unanswered bool) {
	c := s.c
	c.mu.Lock()
	s.abandoned = true
	if c.streams[s.vbucket] == s {
		delete(c.streams, s.vbucket)
	}
	ended := c.err != nil
	c.room.Broadcast()
	c.mu.Unlock()
	if unanswered && !ended {
		_, _ = c.agent.CloseStream(s.vbucket, gocbcore.CloseStreamOptions{}, func(error) {}) // usually there is none
	}
}

// CloseStream closes the vbucket's stream; its StreamEnd event follows.
func (c *Conn) CloseStream(ctx context.Context, vbucket uint16) error {
	c.mu.Lock()
	have := c.streams[vbucket]
	c.mu.Unlock()
	if have == nil {
		return fmt.Errorf("vbucket %d: %w", vbucket, feed.ErrNoStream)
	}
	err := c.convertError(mcbp.OpDCPCloseStream, vbucket, c.await(ctx, "closing a stream",
		func(done func(error)) (gocbcore.PendingOp, error) {
			return c.agent.CloseStream(vbucket, gocbcore.CloseStreamOptions{}, func(err error) { done(err) })
		}))
	if err == nil || errors.Is(err, feed.ErrNoStream) { // the node may not have reported its end
		have.unregister() // its last events may still arrive
	}
	return err
}

// HasStream queries whether the node still has the vbucket's stream: see feed.Feed.
func (c *Conn) HasStream(ctx context.Context, vbucket uint16) (bool, error) {
	if _, err := c.owned(ctx, vbucket); err != nil {
		return feed.StreamThere(err)
	}
	req, ignored := feed.IdleRequest(vbucket), &stream{c: c, vbucket: vbucket, id: c.NewStreamID(), abandoned: true}
	err := c.await(ctx, "querying a stream", func(done func(error)) (gocbcore.PendingOp, error) {
		return c.agent.OpenStream(vbucket, memd.DcpStreamAddFlag(mcbp.StreamActiveOnly), gocbcore.VbUUID(req.VBUUID),
			gocbcore.SeqNo(req.Start), gocbcore.SeqNo(req.End),
			gocbcore.SeqNo(req.SnapStart), gocbcore.SeqNo(req.SnapEnd), ignored, gocbcore.OpenStreamOptions{},
			func(_ []gocbcore.FailoverEntry, err error) { done(err) })
	})
	return feed.StreamThere(c.convertError(mcbp.OpDCPStreamReq, vbucket, err))
}

// unregister unregisters the stream, so that another of its vbucket can be opened.
func (s *stream) unregister() {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if s.c.streams[s.vbucket] == s {
		delete(s.c.streams, s.vbucket)
	}
}

// FailoverLog returns the vbucket's failover log, newest entry first.
func (c *Conn) FailoverLog(ctx context.Context, vbucket uint16) (timestamp.FailoverLog, error) {
	if _, err := c.owned(ctx, vbucket); err != nil {
		return nil, fmt.Errorf("vbucket %d: %w", vbucket, err)
	}
	var log timestamp.FailoverLog
	err := c.await(ctx, "requesting a failover log", func(done func(error)) (gocbcore.PendingOp, error) {
		return c.agent.GetFailoverLog(vbucket, func(entries []gocbcore.FailoverEntry, err error) {
			if err == nil {
				log = convert(entries)
			}
			done(err)
		})
	})
	if err != nil {
		return nil, c.convertError(mcbp.OpDCPFailoverLog, vbucket, err)
	}
	return log, nil
}

// FailoverLogs returns the failover logs of many vbuckets.
func (c *Conn) FailoverLogs(ctx context.Context, vbuckets []uint16) []feed.StreamAnswer {
	return feed.LogEach(ctx, c, vbuckets)
}

// Branches queries, over the control connection, which takes many queries at once, the position of each vbucket on
// the branch that the caller expects. If no branch is expected, or the node does not know it, the failover log is
// read instead.
func (c *Conn) Branches(ctx context.Context, vbuckets []uint16, known func(uint16) uint64) []feed.Branch {
	ctx, cancel := context.WithTimeoutCause(ctx, c.conf.RequestTimeout, fmt.Errorf("%w: %v at %s", feed.ErrTimeout,
		mcbp.OpObserveSeqno, c.conf.Addr))
	defer cancel()
	type answer struct {
		at int
		is feed.Branch
	}
	answers := make([]feed.Branch, len(vbuckets))
	got := make(chan answer, len(vbuckets))
	sent := 0
	for i, vb := range vbuckets {
		expected := known(vb)
		if expected == 0 {
			continue
		}
		// The same encoding: eight bytes.
		req := mcbp.Frame{Header: mcbp.Request(mcbp.OpObserveSeqno, vb, 0), Value: mcbp.AppendRollback(nil, expected)}
		err := c.control.Start(ctx, req, func(f mcbp.Frame, err error) { got <- answer{i, observed(f, vb, err)} })
		if err != nil {
			answers[i].Err = err
			continue
		}
		sent++
	}
	for range sent {
		select {
		case a := <-got:
			answers[a.at] = a.is
		case <-ctx.Done():
			return slices.Repeat([]feed.Branch{{Err: fmt.Errorf("querying %s for branches: %w", c.conf.Addr,
				context.Cause(ctx))}},
				len(vbuckets))
		}
	}
	c.unknown(ctx, vbuckets, answers)
	return answers
}

// unknown reads the failover logs of the vbuckets without an answer.
func (c *Conn) unknown(ctx context.Context, vbuckets []uint16, answers []feed.Branch) {
	var at []int
	var rest []uint16
	for i, a := range answers {
		if a == (feed.Branch{}) {
			at, rest = append(at, i), append(rest, vbuckets[i])
		}
	}
	for i, a := range c.FailoverLogs(ctx, rest) {
		if answers[at[i]].Err = a.Err; len(a.Log) > 0 {
			answers[at[i]].VBUUID = a.Log[0].VBUUID
		}
	}
}

// observed parses an answer to OBSERVE_SEQNO; it returns nothing if the node does not know the branch.
func observed(f mcbp.Frame, vb uint16, err error) feed.Branch {
	if err != nil || f.Status() == mcbp.StatusKeyNotFound {
		return feed.Branch{Err: err}
	}
	if f.Status() != mcbp.StatusOK {
		return feed.Branch{Err: feed.AnswerError(f.Clone(), vb)}
	}
	o, err := mcbp.DecodeObserveSeqno(f.Value)
	if err != nil {
		return feed.Branch{Err: fmt.Errorf("%w: vbucket %d: %w", feed.ErrProtocol, vb, err)}
	}
	return feed.Branch{VBUUID: o.VBUUID}
}

func convert(entries []gocbcore.FailoverEntry) timestamp.FailoverLog {
	log := make(timestamp.FailoverLog, len(entries))
	for i, e := range entries {
		log[i] = timestamp.LogEntry{VBUUID: uint64(e.VbUUID), Seqno: uint64(e.SeqNo)}
	}
	return log
}

// statusOf returns the node's status in an error of gocbcore.
func statusOf(err error) (mcbp.Status, bool) {
	var kv *gocbcore.KeyValueError
	if errors.As(err, &kv) && kv.StatusCode != memd.StatusSuccess { // it wraps ends of connections, too
		return mcbp.Status(kv.StatusCode), true
	}
	return 0, false
}

// convertError converts an error of gocbcore into one of package feed.
func (c *Conn) convertError(op mcbp.Opcode, vbucket uint16, err error) error {
	if err == nil {
		return nil
	}
	answer := mcbp.Frame{Header: mcbp.Response(mcbp.Request(op, vbucket, 0), mcbp.StatusOK)}
	var rollback gocbcore.DCPRollbackError
	if errors.As(err, &rollback) {
		answer.Header = mcbp.Response(mcbp.Request(op, vbucket, 0), mcbp.StatusRollback)
		answer.Value = binary.BigEndian.AppendUint64(nil, uint64(rollback.SeqNo))
		return feed.AnswerError(answer, vbucket)
	}
	if status, ok := statusOf(err); ok {
		answer.Header = mcbp.Response(mcbp.Request(op, vbucket, 0), status)
		return feed.AnswerError(answer, vbucket)
	}
	for _, s := range []struct {
		of   error
		code mcbp.Status
	}{
		{gocbcore.ErrNotMyVBucket, mcbp.StatusNotMyVBucket}, {gocbcore.ErrTemporaryFailure, mcbp.StatusTemporary},
		{gocbcore.ErrDocumentExists, mcbp.StatusKeyExists}, {gocbcore.ErrDocumentNotFound, mcbp.StatusKeyNotFound},
		{gocbcore.ErrMemdRangeError, mcbp.StatusRange},
	} {
		if errors.Is(err, s.of) {
			answer.Header = mcbp.Response(mcbp.Request(op, vbucket, 0), s.code)
			return feed.AnswerError(answer, vbucket)
		}
	}
	if errors.Is(err, io.EOF) || errors.Is(err, gocbcore.ErrShutdown) || errors.Is(err, gocbcore.ErrSocketClosed) {
		err = fmt.Errorf("%w: %w", feed.ErrClosed, err)
	}
	return fmt.Errorf("vbucket %d: %w", vbucket, err)
}

// owned checks by the node's own map that the vbucket belongs to it, and returns the node's position in the map:
// gocbcore would send the request to the owner in gocbcore's map. The two maps must have the same revision: a node
// that has left the cluster would answer gocbcore with a map that does not contain it, and gocbcore, which closes its
// connection then, deadlocks.
func (c *Conn) owned(ctx context.Context, vbucket uint16) (node int, err error) {
	came, m := time.Now(), &c.nodeMap
	if err := m.lock(ctx); err != nil {
		return 0, err
	}
	defer m.unlock()
	if m.config == nil || time.Since(m.at) > mapAge || c.agentRev() != m.config.Rev {
		if err := m.renew(ctx, came, c.ClusterConfig); err != nil {
			return 0, err
		}
	}
	owner, self := m.config.Owner(vbucket), m.self(c.conf.Addr, c.conf.TLS != nil)
	if owner < 0 || owner != self {
		return 0, &kvclient.StatusError{Op: mcbp.OpDCPStreamReq, Status: mcbp.StatusNotMyVBucket, Config: m.config}
	}
	if rev := c.agentRev(); rev != m.config.Rev {
		return 0, c.staleError(rev)
	}
	m.stale = time.Time{}
	return owner, nil
}

// staleError returns the error for a request while gocbcore's map has another revision than the node's. After
// Config.DeadAfter it ends the connection, because nothing else would resolve that: see settled. The caller holds
// nodeMap's token.
func (c *Conn) staleError(rev int64) error {
	m := &c.nodeMap
	if m.stale.IsZero() {
		m.stale = time.Now()
	}
	if time.Since(m.stale) < c.conf.DeadAfter {
		return fmt.Errorf("%w: gocbcore's map is %d, the node's is %d: try again", feed.ErrTemporary, rev, m.config.Rev)
	}
	err := fmt.Errorf("%w: gocbcore has kept map %d for %v although the node's is %d", feed.ErrClosed, rev,
		c.conf.DeadAfter, m.config.Rev)
	c.fail(err)
	return err
}

// agentRev returns the revision of gocbcore's map; -1 if it has none.
func (c *Conn) agentRev() int64 {
	snapshot, err := c.agent.ConfigSnapshot()
	if err != nil {
		return -1
	}
	return snapshot.RevID()
}

// request sends a request over the control connection.
func (c *Conn) request(ctx context.Context, req mcbp.Frame) (mcbp.Frame, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.conf.RequestTimeout, fmt.Errorf("%w: %v at %s", feed.ErrTimeout, req.Op,
		c.conf.Addr))
	defer cancel()
	if err := c.Err(); err != nil {
		return mcbp.Frame{}, err
	}
	f, err := c.control.Do(ctx, req)
	if err != nil {
		return mcbp.Frame{}, err
	}
	return f, feed.AnswerError(f, req.VBucket())
}

// HighSeqnos returns the high seqnos of the node's active vbuckets.
func (c *Conn) HighSeqnos(ctx context.Context) ([]mcbp.VBucketSeqno, error) {
	f, err := c.request(ctx, mcbp.Frame{Header: mcbp.Request(mcbp.OpGetAllVBSeqnos, 0, 0),
		Extras: mcbp.AppendVBSeqnosRequest(nil, mcbp.VBucketActive)})
	if err != nil {
		return nil, err
	}
	return mcbp.DecodeVBSeqnos(f.Value)
}

// ClusterConfig returns the node's present cluster map.
func (c *Conn) ClusterConfig(ctx context.Context) (*mcbp.ClusterConfig, error) {
	f, err := c.request(ctx, mcbp.Frame{Header: mcbp.Request(mcbp.OpGetClusterConfig, 0, 0)})
	return c.conf.MapOf(ctx, f, err)
}

// Manifest returns the bucket's manifest of collections.
func (c *Conn) Manifest(ctx context.Context) (*mcbp.Manifest, error) {
	if !c.control.Granted(mcbp.FeatureCollections) {
		return nil, fmt.Errorf("%w: %s has no collections", feed.ErrNotSupported, c.conf.Addr)
	}
	f, err := c.request(ctx, mcbp.Frame{Header: mcbp.Request(mcbp.OpGetCollectionsManifest, 0, 0)})
	if err != nil {
		return nil, err
	}
	return feed.ReadManifest(f)
}

// Purges returns purge seqnos: see feed.Purges.
func (c *Conn) Purges(ctx context.Context, vbuckets []uint16) (map[uint16]uint64, error) {
	return feed.Purges(vbuckets, func(group string) (map[uint16]feed.VBucketDetails, error) {
		return c.details(ctx, group)
	})
}

func (c *Conn) details(ctx context.Context, group string) (map[uint16]feed.VBucketDetails, error) {
	ctx, cancel := context.WithTimeout(ctx, c.conf.RequestTimeout)
	defer cancel()
	if err := c.Err(); err != nil {
		return nil, err
	}
	out := map[uint16]feed.VBucketDetails{}
	var bad error
	err := c.control.Stat(ctx, group, func(key, value []byte) {
		if err := feed.AddDetail(out, string(key), string(value)); err != nil && bad == nil {
			bad = err
		}
	})
	if err != nil {
		return nil, err
	}
	return out, bad
}
