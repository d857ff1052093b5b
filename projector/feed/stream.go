package feed

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"tidemark/kv/mcbp"
	"tidemark/timestamp"
)

// Feed is a consumer of one bucket's changes on one node. Conn is the native one; package feed/gocb has another.
type Feed interface {
	// Addr returns the node's address, host:port.
	Addr() string
	// Held returns how many bytes have been received and not released.
	Held() int64
	// Next returns the next block of events.
	Next(ctx context.Context) (*Block, error)
	// NewStreamID returns an id for OpenStream.
	NewStreamID() StreamID
	// OpenStream opens a stream and returns its failover log, newest entry first.
	OpenStream(ctx context.Context, req StreamRequest) (timestamp.FailoverLog, error)
	// OpenStreams is OpenStream for many streams, cheaper than single calls: it returns an answer for each, in the order
	// of the requests.
	OpenStreams(ctx context.Context, reqs []StreamRequest) []StreamAnswer
	// CloseStream closes the vbucket's stream.
	CloseStream(ctx context.Context, vbucket uint16) error
	// HasStream queries whether the node still has the vbucket's stream.
	HasStream(ctx context.Context, vbucket uint16) (bool, error)
	// FailoverLog returns the vbucket's failover log, newest entry first.
	FailoverLog(ctx context.Context, vbucket uint16) (timestamp.FailoverLog, error)
	// FailoverLogs is FailoverLog for many vbuckets, cheaper than single calls: it returns an answer for each, in the
	// order of the vbuckets.
	FailoverLogs(ctx context.Context, vbuckets []uint16) []StreamAnswer
	// Branches returns the present branch of each of many vbuckets. known returns the branch that the caller expects, 0
	// for none, which may make the query cheaper.
	Branches(ctx context.Context, vbuckets []uint16, known func(vbucket uint16) uint64) []Branch
	// HighSeqnos returns the high seqnos of the node's active vbuckets.
	HighSeqnos(ctx context.Context) ([]mcbp.VBucketSeqno, error)
	// Purges returns the purge seqnos of those of the vbuckets that the node hosts and reports; nil requests all that it
	// hosts.
	Purges(ctx context.Context, vbuckets []uint16) (map[uint16]uint64, error)
	// ClusterConfig returns the node's present cluster map.
	ClusterConfig(ctx context.Context) (*mcbp.ClusterConfig, error)
	// Manifest returns the bucket's manifest of collections; ErrNotSupported if the node has none.
	Manifest(ctx context.Context) (*mcbp.Manifest, error)
	// Done is closed at the end of the connection; Err returns the reason.
	Done() <-chan struct{}
	Err() error
	// Close ends the connection and waits for its goroutines.
	Close() error
}

var _ Feed = (*Conn)(nil)

// StreamRequest is a request for a vbucket's changes.
type StreamRequest struct {
	VBucket uint16
	// ID identifies the stream in its events. Take it from NewStreamID before the call, so that events that arrive
	// before OpenStream returns can be assigned; with 0, OpenStream chooses one.
	ID StreamID
	// Flags always include StreamActiveOnly: the seqnos of a KV replica cannot be relied on.
	Flags mcbp.StreamFlags
	// Start is the last seqno that the consumer has, End the last one it wants (mcbp.EndOfTime: no end).
	Start, End uint64
	// VBUUID is the branch of Start; SnapStart and SnapEnd are the window that contains it.
	VBUUID             uint64
	SnapStart, SnapEnd uint64
}

// wire returns the request in the protocol's form.
func (r *StreamRequest) wire() mcbp.StreamRequest {
	return mcbp.StreamRequest{
		Flags: r.Flags | mcbp.StreamActiveOnly, Start: r.Start, End: r.End,
		VBUUID: r.VBUUID, SnapStart: r.SnapStart, SnapEnd: r.SnapEnd,
	}
}

// VBucketDetails holds a vbucket's statistics on one node.
type VBucketDetails struct {
	State      string // active, replica, pending, dead
	VBUUID     uint64
	HighSeqno  uint64
	PurgeSeqno uint64
	HasPurge   bool // the statistics contain PurgeSeqno
}

// NewStreamID returns an id that no stream of this connection has had.
func (c *Conn) NewStreamID() StreamID {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.newStreamID()
}

// newStreamID is NewStreamID under the lock. It would repeat ids after 2^31 streams on one connection, which is out
// of reach.
func (c *Conn) newStreamID() StreamID {
	c.lastID++
	return c.lastID & (requestOpaque - 1)
}

// OpenStream opens a stream at the node. On success it returns the failover log, and the stream's first event is a
// StreamBegin with the same log. Errors: *RollbackError, ErrNotMyVBucket (a *kvclient.StatusError holds the newer map
// if the node sent one), ErrStreamExists, ErrRange, ErrTemporary, ErrTimeout, and the end of the connection. If the
// call ends before the answer (ctx, ErrTimeout) and the node consents later, the stream is closed again.
func (c *Conn) OpenStream(ctx context.Context, req StreamRequest) (timestamp.FailoverLog, error) {
	if req.ID == 0 {
		req.ID = c.NewStreamID()
	}
	if req.ID&requestOpaque != 0 {
		return nil, fmt.Errorf("feed: stream id %#x is not one of NewStreamID", req.ID)
	}
	m := req.wire()
	c.mu.Lock()
	paused := c.pausedStream(req.VBucket)
	c.mu.Unlock()
	if paused {
		return nil, fmt.Errorf("vbucket %d: %w", req.VBucket, ErrStreamExists)
	}
	frame := mcbp.Frame{Header: mcbp.Request(mcbp.OpDCPStreamReq, req.VBucket, uint32(req.ID)),
		Extras: m.AppendExtras(nil)}
	f, err := c.callFor(ctx, frame, &m, nil)
	if err != nil {
		return nil, fmt.Errorf("vbucket %d: %w", req.VBucket, err)
	}
	if err := AnswerError(f, req.VBucket); err != nil {
		return nil, err
	}
	return mcbp.DecodeFailoverLog(f.Value)
}

// CloseStream closes the vbucket's stream. Its StreamEnd event follows (generated here if the node sends none).
// ErrNoStream: it has already ended, or never existed.
func (c *Conn) CloseStream(ctx context.Context, vbucket uint16) error {
	if c.closePaused(vbucket) {
		return nil
	}
	f, err := c.call(ctx, mcbp.Frame{Header: mcbp.Request(mcbp.OpDCPCloseStream, vbucket, 0)})
	if err != nil {
		return fmt.Errorf("vbucket %d: %w", vbucket, err)
	}
	return AnswerError(f, vbucket)
}

// HasStream queries whether the node still has the vbucket's stream: some engines do not report its end. The query is
// IdleRequest, which changes nothing at the node. Errors: those of OpenStream that are neither yes nor no.
func (c *Conn) HasStream(ctx context.Context, vbucket uint16) (bool, error) {
	_, err := c.OpenStream(ctx, IdleRequest(vbucket))
	if err == nil {
		_ = c.CloseStream(ctx, vbucket) // the node granted a stream on a branch that cannot exist
	}
	return StreamThere(err)
}

// IdleRequest returns a request for a stream that no node can grant: either the node has the vbucket's stream
// already, or it has no history of the requested branch, whose vbuuid exceeds the 48 bits that engines use.
func IdleRequest(vbucket uint16) StreamRequest {
	return StreamRequest{VBucket: vbucket, Start: 1, SnapStart: 1, SnapEnd: 1, End: mcbp.EndOfTime, VBUUID: math.MaxUint64}
}

// StreamThere interprets the answer to IdleRequest: whether the node still has the stream. It returns err if the
// answer is neither yes nor no.
func StreamThere(err error) (bool, error) {
	switch {
	case errors.Is(err, ErrStreamExists):
		return true, nil
	case err == nil, errors.Is(err, ErrRollback), errors.Is(err, ErrNotMyVBucket), errors.Is(err, ErrRange):
		return false, nil
	}
	return false, err
}

// FailoverLog returns the vbucket's failover log, newest entry first.
func (c *Conn) FailoverLog(ctx context.Context, vbucket uint16) (timestamp.FailoverLog, error) {
	f, err := c.call(ctx, mcbp.Frame{Header: mcbp.Request(mcbp.OpDCPFailoverLog, vbucket, 0)})
	if err != nil {
		return nil, fmt.Errorf("vbucket %d: %w", vbucket, err)
	}
	if err := AnswerError(f, vbucket); err != nil {
		return nil, err
	}
	log, err := mcbp.DecodeFailoverLog(f.Value)
	if err != nil {
		return nil, broken(vbucket, err)
	}
	return log, nil
}

// HighSeqnos returns the high seqnos of the node's active vbuckets.
func (c *Conn) HighSeqnos(ctx context.Context) ([]mcbp.VBucketSeqno, error) {
	f, err := c.call(ctx, mcbp.Frame{Header: mcbp.Request(mcbp.OpGetAllVBSeqnos, 0, 0),
		Extras: mcbp.AppendVBSeqnosRequest(nil, mcbp.VBucketActive)})
	if err != nil {
		return nil, err
	}
	if err := AnswerError(f, 0); err != nil {
		return nil, err
	}
	highs, err := mcbp.DecodeVBSeqnos(f.Value)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	return highs, nil
}

// ClusterConfig returns the node's present cluster map.
func (c *Conn) ClusterConfig(ctx context.Context) (*mcbp.ClusterConfig, error) {
	f, err := c.call(ctx, mcbp.Frame{Header: mcbp.Request(mcbp.OpGetClusterConfig, 0, 0)})
	return c.conf.MapOf(ctx, f, err)
}

// Manifest returns the bucket's manifest of collections. Errors: ErrNotSupported if the node has none.
func (c *Conn) Manifest(ctx context.Context) (*mcbp.Manifest, error) {
	if !c.collections {
		return nil, errNoCollections(c.conf.Addr)
	}
	f, err := c.call(ctx, mcbp.Frame{Header: mcbp.Request(mcbp.OpGetCollectionsManifest, 0, 0)})
	if err != nil {
		return nil, err
	}
	return ReadManifest(f)
}

func errNoCollections(addr string) error {
	return fmt.Errorf("%w: %s has no collections", ErrNotSupported, addr)
}

// ReadManifest parses the answer to GET_COLLECTIONS_MANIFEST.
func ReadManifest(f mcbp.Frame) (*mcbp.Manifest, error) {
	if err := AnswerError(f, 0); err != nil {
		return nil, err
	}
	m := new(mcbp.Manifest)
	if err := json.Unmarshal(f.Value, m); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	return m, nil
}

// Details returns the statistics of all vbuckets that the node has.
func (c *Conn) Details(ctx context.Context) (map[uint16]VBucketDetails, error) {
	return c.details(ctx, "vbucket-details")
}

// Purges returns purge seqnos; see the function Purges.
func (c *Conn) Purges(ctx context.Context, vbuckets []uint16) (map[uint16]uint64, error) {
	return Purges(vbuckets, func(group string) (map[uint16]VBucketDetails, error) { return c.details(ctx, group) })
}

// purgesAtOnce bounds the concurrent queries for single vbuckets.
const purgesAtOnce = 64

// Purges reads purge seqnos from the vbucket-seqno statistics, for all vbuckets in one query, or for named ones by a
// query each. An engine has these statistics in memory; vbucket-details is ten times as long, and the engine opens
// the vbucket's file for it.
func Purges(vbuckets []uint16, query func(group string) (map[uint16]VBucketDetails, error)) (map[uint16]uint64, error) {
	const group = "vbucket-seqno"
	if len(vbuckets) == 0 {
		all, err := query(group)
		return purgesOf(nil, all), err
	}
	var mu sync.Mutex
	var purges map[uint16]uint64
	var g errgroup.Group
	g.SetLimit(purgesAtOnce)
	for _, vb := range vbuckets {
		g.Go(func() error {
			one, err := query(group + " " + strconv.Itoa(int(vb)))
			if errors.Is(err, ErrNotMyVBucket) { // the vbucket has moved; the other answers count
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			purges = purgesOf(purges, one)
			return err
		})
	}
	err := g.Wait()
	return purges, err
}

// purgesOf adds the purge seqnos found in all.
func purgesOf(purges map[uint16]uint64, all map[uint16]VBucketDetails) map[uint16]uint64 {
	if purges == nil {
		purges = make(map[uint16]uint64, len(all))
	}
	for vb, d := range all {
		if d.HasPurge {
			purges[vb] = d.PurgeSeqno
		}
	}
	return purges
}

// BucketUUID reads the uuid of the connection's bucket from the node's statistics, which also works for a node
// without a cluster map. Errors: those of AnswerError and of the connection, and a missing uuid.
func (c *Conn) BucketUUID(ctx context.Context) (uuid string, err error) {
	err = c.stats(ctx, "uuid", func(key, value string) {
		if key == "uuid" {
			uuid = value
		}
	})
	if err == nil && uuid == "" {
		err = errors.New("the node did not report the bucket's uuid: no uuid in STAT uuid")
	}
	return uuid, err
}

func (c *Conn) details(ctx context.Context, group string) (map[uint16]VBucketDetails, error) {
	out := map[uint16]VBucketDetails{}
	var bad error
	err := c.stats(ctx, group, func(key, value string) { bad = cmp.Or(bad, AddDetail(out, key, value)) })
	if err != nil {
		return nil, err
	}
	return out, bad
}

// stats reads a group of statistics, and calls each for every one. Errors: those of AnswerError and of the
// connection.
func (c *Conn) stats(ctx context.Context, group string, each func(key, value string)) error {
	req := mcbp.Frame{Header: mcbp.Request(mcbp.OpStat, 0, 0), Key: []byte(group)}
	f, err := c.callMore(ctx, req, func(f mcbp.Frame) { each(string(f.Key), string(f.Value)) })
	if err != nil {
		return err
	}
	return AnswerError(f, 0)
}

// AddDetail parses one statistic of a node into out: vb_N (the state), vb_N:uuid, vb_N:high_seqno, vb_N:purge_seqno.
// Others are skipped.
func AddDetail(out map[uint16]VBucketDetails, key, value string) error {
	rest, ok := strings.CutPrefix(key, "vb_")
	if !ok {
		return nil
	}
	number, name, _ := strings.Cut(rest, ":")
	vb, err := strconv.ParseUint(number, 10, 16)
	if err != nil || vb >= mcbp.MaxVBuckets {
		return nil
	}
	d := out[uint16(vb)]
	switch name {
	case "":
		d.State = value
	case "uuid":
		d.VBUUID, err = strconv.ParseUint(value, 10, 64)
	case "high_seqno":
		d.HighSeqno, err = strconv.ParseUint(value, 10, 64)
	case "purge_seqno":
		d.PurgeSeqno, err = strconv.ParseUint(value, 10, 64)
		d.HasPurge = true
	default:
		return nil
	}
	if err != nil {
		return fmt.Errorf("%w: statistic %s is %.40q, want a number", ErrProtocol, key, value)
	}
	out[uint16(vb)] = d
	return nil
}

// call sends a request and returns its answer, whatever the status.
func (c *Conn) call(ctx context.Context, req mcbp.Frame) (mcbp.Frame, error) {
	return c.callMore(ctx, req, nil)
}

// callMore is call for requests with several answers: all but the last are passed to more, which the reader calls,
// and never after callMore has returned.
func (c *Conn) callMore(ctx context.Context, req mcbp.Frame, more func(mcbp.Frame)) (mcbp.Frame, error) {
	return c.callFor(ctx, req, nil, more)
}

// callFor sends a request and waits for the answer; open describes a stream request.
func (c *Conn) callFor(ctx context.Context, req mcbp.Frame, open *mcbp.StreamRequest,
	more func(mcbp.Frame)) (mcbp.Frame, error) {
	c.mu.Lock()
	if err := c.err; err != nil {
		c.mu.Unlock()
		return mcbp.Frame{}, err
	}
	if req.Op != mcbp.OpDCPStreamReq {
		req.Opaque = c.requests.opaque()
	}
	if c.requests.pending[req.Opaque] != nil {
		c.mu.Unlock()
		return mcbp.Frame{}, fmt.Errorf("feed: %v: the id %#x is in use", req.Op, req.Opaque)
	}
	r := c.requests.take()
	r.vbucket, r.open, r.more = req.VBucket(), open, more
	c.requests.pending[req.Opaque] = r
	c.sendLocked(req)
	c.mu.Unlock()
	poke(c.wake)
	r.timeout.Reset(c.conf.RequestTimeout)
	var err error
	select {
	case a := <-r.answer:
		r.timeout.Stop()
		c.mu.Lock()
		c.requests.recycle(r)
		c.mu.Unlock()
		return a.frame, a.err
	case <-ctx.Done():
		err = fmt.Errorf("feed: %v to %s: %w", req.Op, c.conf.Addr, context.Cause(ctx))
	case <-r.timeout.C:
		err = fmt.Errorf("%w: %v to %s, %v", ErrTimeout, req.Op, c.conf.Addr, c.conf.RequestTimeout)
	}
	r.timeout.Stop()
	defer c.checkUnanswered()
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case a := <-r.answer: // it came after all
		return a.frame, a.err
	default:
	}
	r.abandoned, r.more = true, nil
	return mcbp.Frame{}, err
}

// response passes an answer of the node to its request, and adds the event that follows from it to the block.
func (c *Conn) response(b *Block, f *mcbp.Frame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.requests.pending[f.Opaque]
	if r == nil {
		if f.Op == mcbp.OpDCPBufferAck || c.err != nil {
			return nil // some engines answer it; or the connection has ended
		}
		return fmt.Errorf("%w: %v has the opaque %#x, which no request has", ErrProtocol, f.Op, f.Opaque)
	}
	if f.Op == mcbp.OpStat && f.Status() == mcbp.StatusOK && len(f.Key) > 0 {
		if r.more != nil {
			r.more(*f)
		}
		return nil
	}
	if r.then != nil {
		delete(c.requests.pending, f.Opaque)
		r.then(b, f)
		return nil
	}
	var log timestamp.FailoverLog
	if f.Status() == mcbp.StatusOK {
		var err error
		if log, err = c.streamAnswer(b, f, r); err != nil {
			return err // it ends the connection, and with it all pending requests, including this one
		}
	}
	delete(c.requests.pending, f.Opaque)
	switch {
	case r.batch != nil:
		var err error
		if f.Status() != mcbp.StatusOK {
			err = AnswerError(f.Clone(), r.vbucket)
		}
		r.answered(log, err)
	case !r.abandoned:
		r.answer <- answer{frame: f.Clone()}
	}
	return nil
}

// streamAnswer applies the effect of a successful answer on the vbucket's stream, and returns the failover log of a
// new one.
func (c *Conn) streamAnswer(b *Block, f *mcbp.Frame, r *request) (timestamp.FailoverLog, error) {
	switch f.Op {
	case mcbp.OpDCPStreamReq:
		log, err := mcbp.DecodeFailoverLog(f.Value)
		if err != nil {
			return nil, fmt.Errorf("%w: vbucket %d: %w", ErrProtocol, r.vbucket, err)
		}
		c.streams[r.vbucket] = StreamID(f.Opaque)
		if r.abandoned {
			c.closeAbandoned(r.vbucket)
			return nil, nil
		}
		if p := c.pacer.Load(); p != nil && r.open != nil {
			p.begin(r.vbucket, StreamID(f.Opaque), *r.open, log)
		}
		e := b.next(StreamBegin, f)
		e.VBucket, e.Value = r.vbucket, f.Value
		return log, nil
	case mcbp.OpDCPFailoverLog:
		if r.batch == nil {
			return nil, nil // the caller decodes it
		}
		log, err := mcbp.DecodeFailoverLog(f.Value)
		if err != nil {
			return nil, broken(r.vbucket, err)
		}
		return log, nil
	case mcbp.OpDCPCloseStream:
		if c.endOnClose {
			return nil, nil
		}
		if id, ok := c.streams[r.vbucket]; ok {
			delete(c.streams, r.vbucket)
			e := b.next(StreamEnd, f)
			e.VBucket, e.Stream, e.EndReason = r.vbucket, id, mcbp.EndClosed
			if p := c.pacer.Load(); p != nil {
				p.admit(e, 0, 0)
			}
		}
	}
	return nil, nil
}

// closeAbandoned closes a stream whose caller no longer waits.
func (c *Conn) closeAbandoned(vbucket uint16) {
	c.request(mcbp.Frame{Header: mcbp.Request(mcbp.OpDCPCloseStream, vbucket, 0)}, nil)
}

// request sends an internal request, under the lock; then, unless nil, handles its answer.
func (c *Conn) request(req mcbp.Frame, then func(b *Block, f *mcbp.Frame)) {
	if c.err != nil {
		return
	}
	if req.Op != mcbp.OpDCPStreamReq {
		req.Opaque = c.requests.opaque()
	}
	c.requests.pending[req.Opaque] = &request{vbucket: req.VBucket(), abandoned: true, then: then}
	c.sendLocked(req)
	poke(c.wake)
}

// pausedStream reports whether a vbucket has a stream that the node does not have at the moment. The caller holds the
// lock.
func (c *Conn) pausedStream(vbucket uint16) bool {
	p := c.pacer.Load()
	if p == nil {
		return false
	}
	s := p.byVB[vbucket]
	return s != nil && s.state != flowing && s.state != leaving
}

// closePaused ends such a stream, after all of its events that the reader has admitted; it returns false if there is
// none.
func (c *Conn) closePaused(vbucket uint16) bool {
	p := c.pacer.Load()
	if p == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s, ok := p.close(vbucket)
	if ok {
		c.endPaused(s, mcbp.EndClosed)
	}
	return ok
}

// endPaused queues the StreamEnd of such a stream. The caller holds the lock.
func (c *Conn) endPaused(s *paced, reason mcbp.EndReason) {
	p := c.pacer.Load()
	end := Event{Kind: StreamEnd, VBucket: s.vb, Stream: s.id, EndReason: reason}
	if p.making {
		p.ends = append(p.ends, end)
		return
	}
	b := newBlock(c.released)
	b.Add(end, 0)
	c.queue = append(c.queue, b)
	poke(c.ready)
}

// ended unregisters a stream that the node has ended.
func (c *Conn) ended(vbucket uint16, id StreamID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.streams[vbucket] == id {
		delete(c.streams, vbucket)
	}
}
