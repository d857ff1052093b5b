package transfer

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fxamacker/cbor/v2"
	"github.com/hashicorp/go-hclog"

	"tidemark/errcode"
	"tidemark/internal/rpc"
)

// Export is what a Sender sends. It is not used concurrently.
type Export interface {
	Files() []File
	About() []byte
	ReadAt(name string, p []byte, at int64) (int, error)
	Close() error
}

// Sender serves receivers. Its fields must be set before use.
type Sender struct {
	// Open makes an export of a matching copy, however long that takes, and calls step after each part of the work.
	// The receiver gets its error.
	Open func(ctx context.Context, w *Want, step func()) (Export, error)
	// Spawn runs long work in the background while Run runs.
	Spawn func(f func(ctx context.Context) error)
	// Pace waits until n more bytes may be sent.
	Pace func(ctx context.Context, n int) error
	Now  func() time.Time
	Log  hclog.Logger
	// Trouble is called with what is wrong with the disk of the export; with "" when the disk goes on. It may be nil.
	Trouble func(why string)

	wait  time.Duration // 0: offerWait; tests use a shorter one
	moved atomic.Uint64 // see Busy

	mu  sync.Mutex
	cur *sending
}

// sending is an export that is being sent or made.
type sending struct {
	id       string
	receiver string
	want     Want
	made     chan struct{} // closed when offer or err is set
	using    sync.Mutex    // held while the export is read or closed

	// guarded by using
	export Export // nil: being made, or ended
	files  []File

	// guarded by Sender.mu
	offer   []byte    // encoded Offer, once the export is made
	err     error     // why it could not be made
	taken   bool      // the receiver has got the offer
	begun   bool      // the receiver has read something
	lastUse time.Time // when it was last requested or read
	users   int       // readers, including the goroutine that makes it
	over    bool      // its receiver has ended it while it was read: the last reader releases it
	// since when the present piece of work on disk is under way: a step of making it, or a chunk that is read; zero: none
	disk time.Time
	hung bool // that took too long, and was reported
	// cancels making the export, until it is made
	giveUp context.CancelCauseFunc
}

// Run releases exports that are no longer requested or read, and the last one when ctx ends.
func (s *Sender) Run(ctx context.Context) error {
	tick := time.NewTicker(idleAfter / 8)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			s.end(func(*sending) bool { return true })
			return nil
		case <-tick.C:
			if c := s.take(s.idle); c != nil { // removing its files may hang with the disk, and the next export is watched here
				s.Spawn(func(context.Context) error {
					s.close(c)
					return nil
				})
			}
			s.abandon()
			s.watch()
		}
	}
}

func (s *Sender) idle(c *sending) bool { return s.unused(c, idleAfter) }

// replaceable reports whether an export may be replaced by another receiver's.
func (s *Sender) replaceable(c *sending) bool {
	if c.begun {
		return s.unused(c, stalledAfter)
	}
	return s.unused(c, unreadAfter)
}

func (s *Sender) unused(c *sending, since time.Duration) bool {
	return c.users == 0 && s.Now().Sub(c.lastUse) > since
}

// end releases the current export if which returns true for it.
func (s *Sender) end(which func(*sending) bool) {
	if c := s.take(which); c != nil {
		s.close(c)
	}
}

// finish records that the receiver of an export has ended it. It is released now, or with its last reader.
func (s *Sender) finish(q *Request) {
	s.mu.Lock()
	if c := s.cur; c != nil && c.is(q) {
		c.over = true
	}
	s.mu.Unlock()
	s.end((*sending).done)
}

// take takes its place from the current export if which returns true for it, and returns it; nil otherwise. The caller
// must close it.
func (s *Sender) take(which func(*sending) bool) *sending {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.cur
	if c == nil || !which(c) {
		return nil
	}
	s.cur = nil
	return c
}

var errAbandoned = errors.New("no indexer requested the export while it was being made")

// abandon cancels making an export that no receiver has requested for idleAfter. A waiting receiver repeats its
// request every few seconds.
func (s *Sender) abandon() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.cur; c != nil && c.giveUp != nil && s.Now().Sub(c.lastUse) > idleAfter {
		c.giveUp(errAbandoned)
	}
}

var errHangs = errors.New("the disk of an export hung while it was being made")

// hangs reports whether the disk of an export takes too long. The caller holds the lock.
func (s *Sender) hangs(c *sending) bool {
	return c != nil && !c.disk.IsZero() && s.Now().Sub(c.disk) > stalledAfter
}

// watch reports an export whose disk hangs, and gives it up if it is being made. It keeps its place until the disk
// goes on, because another export would meet the same disk; meanwhile requests are refused, see enter.
func (s *Sender) watch() {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.cur
	if c.reported() || !s.hangs(c) {
		return
	}
	c.hung = true
	if c.giveUp != nil {
		c.giveUp(errHangs)
	}
	s.Log.Error("the disk of a copy that is sent to another indexer hangs, or is far too slow: nothing is sent meanwhile",
		"index", c.want.Index, "slice", c.want.Slice, "for", stalledAfter)
	s.trouble(fmt.Sprintf("files of slice %d of index %s have not been read for %v: the disk hangs, or is far too slow",
		c.want.Slice, c.want.Index, stalledAfter))
}

func (c *sending) reported() bool { return c != nil && c.hung }

func (s *Sender) trouble(why string) {
	if s.Trouble != nil {
		s.Trouble(why)
	}
}

// onDisk records that a piece of work on the disk of an export begins, or has ended.
func (s *Sender) onDisk(c *sending, begins bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.hung {
		c.hung = false
		s.Log.Info("the disk of a copy that is sent goes on", "took", s.Now().Sub(c.disk))
		s.trouble("")
	}
	if c.disk = (time.Time{}); begins {
		c.disk = s.Now()
	}
}

func (s *Sender) close(c *sending) {
	c.using.Lock()
	defer c.using.Unlock()
	if c.export == nil {
		return
	}
	if err := c.export.Close(); err != nil {
		s.Log.Warn("export of a copy stays on disk until the next start", "error", err)
	}
	c.export = nil
}

// Serve serves a request.
func (s *Sender) Serve(w http.ResponseWriter, r *http.Request) error {
	var q Request
	if err := rpc.Read(r, &q); err != nil {
		return err
	}
	answer, err := s.answer(r.Context(), &q)
	if err != nil {
		return err
	}
	frame(answer)
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.Itoa(len(answer)))
	// give up a receiver that accepts no data; if the deadline cannot be set, the server's own limits apply
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(chunkTimeout))
	_, _ = w.Write(answer) // the receiver retries
	return nil
}

// answer returns the content of an answer, preceded by space for its checksum.
func (s *Sender) answer(ctx context.Context, q *Request) ([]byte, error) {
	if q.Format != Format {
		return nil, rpc.Refuse(errcode.UnsupportedFormat, "copies of format %d are requested, this version sends "+
			"%d", q.Format, Format)
	}
	switch {
	case q.Op == opOpen && q.Want != nil:
		return s.offer(ctx, q)
	case q.Op == opRead:
		return s.read(ctx, q)
	case q.Op == opEnd:
		s.finish(q)
		return make([]byte, sumBytes), nil
	}
	return nil, rpc.Refuse(errcode.BadRequest, "operation %q: want %s, %s or %s", q.Op, opOpen, opRead, opEnd)
}

// offer returns an offer of an export that is made for the receiver, unless another receiver's is in progress. While
// the export is being made, the receiver gets a busy answer after offerWait, so that it can try other peers and
// fill other copies.
func (s *Sender) offer(ctx context.Context, q *Request) ([]byte, error) {
	c, old, err := s.enter(q)
	if err != nil {
		return nil, err
	}
	if c == nil {
		return s.busy("it is sending another copy, and sends one at a time")
	}
	if old != nil {
		s.close(old)
	}
	wait := offerWait
	if s.wait > 0 {
		wait = s.wait
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-c.made:
	case <-t.C:
		return s.busy("the export is being made")
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.err != nil {
		if s.cur == c {
			s.cur = nil
		}
		return nil, c.err
	}
	c.taken, c.lastUse = true, s.Now()
	return append(make([]byte, sumBytes, sumBytes+len(c.offer)), c.offer...), nil
}

// busy returns the answer that there is no export for the receiver now.
func (s *Sender) busy(why string) ([]byte, error) {
	body, err := cbor.Marshal(&Offer{Busy: why, Moved: s.moved.Load()})
	return append(make([]byte, sumBytes, sumBytes+len(body)), body...), err
}

// enter returns the export for a request, and starts making it if necessary. It returns nil if another export is in
// progress, and an error if the disk hangs. The caller must close old, which was replaced.
func (s *Sender) enter(q *Request) (c, old *sending, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old = s.cur
	switch {
	case old == nil:
	case s.hangs(old):
		return nil, nil, rpc.Refuse(errcode.Unavailable, "this indexer's disk hangs, or is far too slow: files of slice "+
			"%d of index %s have been awaited for %v; it sends nothing until the disk goes on", old.want.Slice, old.want.Index,
			s.Now().Sub(old.disk).Round(time.Second))
	case old.receiver == q.Receiver && old.want == *q.Want && !old.taken:
		old.lastUse = s.Now()
		return old, nil, nil
	case old.err == nil && !(old.receiver == q.Receiver && old.taken && old.users == 0) && !s.replaceable(old):
		return nil, nil, nil
	}
	c = &sending{id: rand.Text(), receiver: q.Receiver, want: *q.Want, made: make(chan struct{}), lastUse: s.Now(),
		users: 1}
	s.cur = c
	s.Spawn(func(ctx context.Context) error {
		s.make(ctx, c)
		return nil
	})
	return c, old, nil
}

// make makes an export. If that fails, the next request gets the error.
func (s *Sender) make(ctx context.Context, c *sending) {
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	s.mu.Lock()
	c.giveUp = giveUp
	s.mu.Unlock()
	defer close(c.made)
	s.onDisk(c, true)
	e, err := s.Open(ctx, &c.want, func() {
		s.moved.Add(1)
		s.onDisk(c, true)
	})
	s.onDisk(c, false)
	if why := context.Cause(ctx); err != nil && (errors.Is(why, errAbandoned) || errors.Is(why, errHangs)) {
		err = rpc.Refuse(errcode.Unavailable, "%v", why) // the next request makes it again
	}
	var body []byte
	if err == nil {
		body, err = cbor.Marshal(&Offer{ID: c.id, Files: e.Files(), About: e.About()})
	}
	c.using.Lock()
	if err == nil && !s.present(c) { // the process is stopping
		err = rpc.Refuse(errcode.Unavailable, "this indexer is being stopped")
	}
	if err == nil {
		c.export, c.files = e, e.Files()
		s.moved.Add(1)
	}
	c.using.Unlock()
	if err != nil && e != nil {
		err = errors.Join(err, e.Close())
	}
	s.mu.Lock()
	c.offer, c.err, c.giveUp = body, err, nil
	s.mu.Unlock()
	s.used(c)
}

// done reports whether an export that its receiver has ended may be released. While a read is in progress it keeps its
// place: the disk may hang, and another export would meet the same disk. The caller holds the Sender's lock.
func (c *sending) done() bool { return c.over && c.users == 0 }

// is reports whether a request is for this export and comes from the receiver that opened it.
func (c *sending) is(q *Request) bool { return c.id == q.ID && c.receiver == q.Receiver }

func (s *Sender) present(c *sending) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cur == c
}

// used records that a reader has gone. The last one releases an export that is over.
func (s *Sender) used(c *sending) {
	s.mu.Lock()
	c.users--
	c.lastUse = s.Now()
	s.mu.Unlock()
	s.end(func(now *sending) bool { return now == c && c.done() })
}

// read returns a chunk.
func (s *Sender) read(ctx context.Context, q *Request) ([]byte, error) {
	s.mu.Lock()
	c := s.cur
	if c == nil || !c.is(q) || c.over {
		s.mu.Unlock()
		return nil, rpc.Refuse(errcode.NotFound, "there is no export %q for %q", q.ID, q.Receiver)
	}
	c.users++
	c.begun = true
	s.mu.Unlock()
	defer s.used(c)
	if q.Bytes < 1 || q.Bytes > ChunkBytes {
		return nil, rpc.Refuse(errcode.BadRequest, "%d bytes: want 1 to %d", q.Bytes, ChunkBytes)
	}
	if err := s.Pace(ctx, q.Bytes); err != nil {
		return nil, err
	}
	c.using.Lock()
	defer c.using.Unlock()
	if c.export == nil {
		return nil, rpc.Refuse(errcode.NotFound, "export %q has ended", q.ID)
	}
	if q.File < 0 || q.File >= len(c.files) || q.At < 0 || q.At > c.files[q.File].Size-int64(q.Bytes) {
		return nil, rpc.Refuse(errcode.BadRequest, "%d bytes at %d of file %d of %d", q.Bytes, q.At, q.File, len(c.files))
	}
	answer := make([]byte, sumBytes+q.Bytes)
	s.onDisk(c, true)
	defer s.onDisk(c, false)
	if n, err := c.export.ReadAt(c.files[q.File].Name, answer[sumBytes:], q.At); n < q.Bytes {
		return nil, errors.Join(io.ErrUnexpectedEOF, err)
	}
	s.moved.Add(uint64(q.Bytes))
	return answer, nil
}
