package transfer

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fxamacker/cbor/v2"
	"github.com/hashicorp/go-hclog"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/internal/rpc"
)

// folder is an Export and a Sink in memory.
type folder struct {
	mu     sync.Mutex
	order  []string
	files  map[string][]byte
	closed bool
	broken error
}

func newFolder() *folder {
	f := &folder{files: map[string][]byte{}, order: []string{"empty", "small", "large"}}
	f.files["small"], f.files["empty"] = []byte("hello"), nil
	f.files["large"] = bytes.Repeat([]byte("0123456789abcdef"), 3*ChunkBytes/16+7)
	return f
}

func (f *folder) Files() (all []File) {
	for _, n := range f.order {
		all = append(all, File{Name: n, Size: int64(len(f.files[n]))})
	}
	return all
}
func (f *folder) About() []byte { return []byte("about") }
func (f *folder) ReadAt(name string, p []byte, at int64) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.broken != nil || f.closed {
		return 0, errors.Join(f.broken, io.ErrClosedPipe)
	}
	return copy(p, f.files[name][at:]), nil
}

func (f *folder) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	return nil
}

func (f *folder) isClosed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.closed
}
func (f *folder) Held(name string) int64 { return int64(len(f.files[name])) }
func (f *folder) Append(name string, at int64, p []byte) error {
	if at != f.Held(name) {
		return fmt.Errorf("at %d of %d", at, f.Held(name))
	}
	f.files[name] = append(f.files[name], p...)
	return nil
}

// link is a sender, with receivers whose answers a test may damage.
type link struct {
	t      *testing.T
	s      *Sender
	http   *httptest.Server
	src    []*folder
	damage func(q *Request, answer []byte) ([]byte, error) // nil: damages nothing
	now    time.Time
}

func newLink(t *testing.T) *link {
	l := &link{t: t, now: time.Unix(1e9, 0)}
	var made sync.WaitGroup
	t.Cleanup(made.Wait)
	l.s = &Sender{Now: func() time.Time { return l.now }, Log: hclog.NewNullLogger(),
		Spawn: func(f func(context.Context) error) { made.Go(func() { _ = f(t.Context()) }) },
		Pace:  func(context.Context, int) error { return nil },
		Open: func(_ context.Context, w *Want, _ func()) (Export, error) {
			if w.Index == 404 {
				return nil, rpc.Refuse(errcode.NotFound, "no such copy")
			}
			l.src = append(l.src, newFolder())
			return l.src[len(l.src)-1], nil
		}}
	l.http = httptest.NewServer(rpc.HandlerFunc(l.s.Serve))
	t.Cleanup(l.http.Close)
	return l
}

func (l *link) peer(ctx context.Context, q *Request) (io.ReadCloser, error) {
	body, err := cbor.Marshal(q)
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, l.http.URL, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", rpc.MediaCBOR)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, errors.Join(rpc.ReadProblem(resp), resp.Body.Close())
	}
	all, err := io.ReadAll(resp.Body)
	if err = errors.Join(err, resp.Body.Close()); err == nil && l.damage != nil {
		all, err = l.damage(q, all)
	}
	return io.NopCloser(bytes.NewReader(all)), err
}

func got(int) error { return nil }

func (l *link) receive(who string, sink *folder) (*Offer, error) {
	r := Receiver{Name: who, Peer: l.peer, Begin: func(*Offer) (Sink, error) { return sink, nil }, Got: got, pause: 1}
	o, _, err := r.Receive(l.t.Context(), &Want{})
	return o, err
}

func (f *folder) same(t *testing.T, want *folder) {
	t.Helper()
	for n, b := range want.files {
		if !bytes.Equal(f.files[n], b) {
			t.Errorf("file %s has %d bytes, want %d", n, len(f.files[n]), len(b))
		}
	}
}

// TestReceive checks that all files arrive, that a receiver continues where it was interrupted, and that the export
// is closed.
func TestReceive(t *testing.T) {
	l := newLink(t)
	half := &folder{files: map[string][]byte{"large": newFolder().files["large"][:ChunkBytes+100]}}
	for _, sink := range []*folder{{files: map[string][]byte{}}, half} {
		o, err := l.receive("r", sink)
		if err != nil || string(o.About) != "about" || o.Bytes() == 0 {
			t.Fatalf("%+v, %v", o, err)
		}
		sink.same(t, newFolder())
		if src := l.src[len(l.src)-1]; !src.isClosed() {
			t.Error("the export is kept")
		}
	}
}

// TestDamagedAnswers checks that an answer that is cut, is lost or has a changed byte is requested again, and that the
// receiver fails if this always happens.
func TestDamagedAnswers(t *testing.T) {
	l := newLink(t)
	n := 0
	l.damage = func(q *Request, b []byte) ([]byte, error) {
		n++
		switch {
		case q.Op != opRead || n%5 == 0:
		case n%5 == 1:
			b[len(b)-1]++
		case n%5 == 2:
			b[0]++
		case n%5 == 3:
			b = b[:len(b)-1]
		default:
			return nil, io.ErrUnexpectedEOF
		}
		return b, nil
	}
	sink := &folder{files: map[string][]byte{}}
	if _, err := l.receive("r", sink); err != nil {
		t.Fatal(err)
	}
	sink.same(t, newFolder())
	for i := range sumBytes + 5 {
		l.damage = func(q *Request, b []byte) ([]byte, error) {
			if q.Op == opRead {
				b[i] ^= 4
			}
			return b, nil
		}
		sink = &folder{files: map[string][]byte{}}
		if _, err := l.receive("r", sink); !errors.Is(err, errSum) || len(sink.files["small"]) > 0 {
			t.Fatalf("byte %d: %v", i, err)
		}
	}
	l.damage = func(q *Request, b []byte) ([]byte, error) {
		if q.Op == opOpen {
			b[7]++
		}
		return b, nil
	}
	if _, err := l.receive("r", sink); !errors.Is(err, errSum) {
		t.Errorf("the offer: %v", err)
	}
}

// TestOneAtATime checks that a second receiver is refused while another one reads, and that the same receiver may
// start again. A receiver that makes no requests any more loses its export.
func TestOneAtATime(t *testing.T) {
	l := newLink(t)
	ctx := t.Context()
	open := func(who string) error {
		b, err := l.peer(ctx, &Request{Format: Format, Op: opOpen, Receiver: who, Want: &Want{}})
		if err == nil {
			err = b.Close()
		}
		return err
	}
	if err := open("r"); err != nil {
		t.Fatal(err)
	}
	if _, err := l.receive("other", newFolder()); !errors.Is(err, ErrBusy) {
		t.Errorf("another one: %v, want ErrBusy", err)
	}
	if err := open("r"); err != nil || !l.src[0].isClosed() {
		t.Errorf("the same again: %v", err)
	}
	l.s.end(l.s.idle)
	if l.src[1].isClosed() {
		t.Error("it is released at once")
	}
	l.now = l.now.Add(idleAfter + 1)
	l.s.end(l.s.idle)
	if !l.src[1].isClosed() {
		t.Error("it is kept for ever")
	}
	if err := open("other"); err != nil {
		t.Errorf("another one then: %v", err)
	}
	l.now = l.now.Add(idleAfter + 1)
	if err := open("third"); err != nil || !l.src[2].isClosed() {
		t.Errorf("a third receiver, after idleAfter: %v", err)
	}
	run, stop := context.WithCancel(ctx)
	stop()
	if err := l.s.Run(run); err != nil || !l.src[3].isClosed() {
		t.Errorf("at the end: %v", err)
	}
}

// TestAbandonedExportIsReleased checks that an export whose receiver never comes for it, or is killed before it
// reads, blocks others only for a short time. An export that was read from stays reserved for longer, but not as long
// as without waiting receivers.
func TestAbandonedExportIsReleased(t *testing.T) {
	for name, c := range map[string]struct {
		taken, read bool
		keeps       time.Duration
	}{
		"made, and not taken":    {keeps: unreadAfter},
		"taken, and not read":    {taken: true, keeps: unreadAfter},
		"read, and not any more": {taken: true, read: true, keeps: stalledAfter},
	} {
		l := newLink(t)
		send := func(q Request) ([]byte, error) {
			q.Format, q.Receiver = Format, cmp.Or(q.Receiver, "r")
			b, err := l.s.answer(t.Context(), &q)
			return b, err
		}
		refused := func() bool {
			_, err := l.receive("other", newFolder())
			return errors.Is(err, ErrBusy)
		}
		ctx, cancel := context.WithCancel(t.Context())
		if cancel(); !c.taken { // the receiver is gone when the export is ready
			_, _ = l.s.answer(ctx, &Request{Format: Format, Op: opOpen, Receiver: "r", Want: &Want{}})
			<-l.s.cur.made
			l.s.cur.taken = false
		} else if _, err := send(Request{Op: opOpen, Want: &Want{}}); err != nil {
			t.Fatal(name, err)
		}
		if c.read {
			at := slices.IndexFunc(l.s.cur.files, func(f File) bool { return f.Size > 0 })
			if _, err := send(Request{Op: opRead, ID: l.s.cur.id, File: at, Bytes: 1}); err != nil {
				t.Fatal(name, err)
			}
		}
		l.now = l.now.Add(c.keeps)
		if !refused() {
			t.Errorf("%s: another one gets its place after %v", name, c.keeps)
		}
		if l.now = l.now.Add(1); refused() {
			t.Errorf("%s: another one is kept out after %v", name, c.keeps)
		}
	}
}

// TestRefused checks that requests for what does not exist, is invalid or cannot be read are refused and not retried
// forever.
func TestRefused(t *testing.T) {
	l := newLink(t)
	r := Receiver{Peer: l.peer, Got: got, pause: 1}
	var p *rpc.Problem
	if _, _, err := r.Receive(t.Context(), &Want{Index: 404}); !errors.As(err, &p) || p.Code != errcode.NotFound {
		t.Errorf("no copy: %v", err)
	}
	for text, q := range map[string]*Request{
		"format": {Format: Format + 1, Op: opRead}, "operation": {Format: Format, Op: "steal"},
		"no export": {Format: Format, Op: opRead, ID: "99", Bytes: 1},
	} {
		if _, err := l.peer(t.Context(), q); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%+v: %v", q, err)
		}
	}
	b, err := l.peer(t.Context(), &Request{Format: Format, Op: opOpen, Receiver: "r", Want: &Want{}})
	if err != nil {
		t.Fatal(err)
	}
	_ = b.Close()
	id := l.s.cur.id
	for _, q := range []Request{{File: 3, Bytes: 1}, {File: -1, Bytes: 1}, {File: 1, Bytes: 6},
		{File: 1, At: -1, Bytes: 1},
		{File: 2, Bytes: ChunkBytes + 1}, {File: 1}, {File: 1, At: 5, Bytes: 1},
		{File: 1, At: math.MaxInt64, Bytes: 1}} {
		q.Format, q.Op, q.Receiver, q.ID = Format, opRead, "r", id
		if _, err := l.peer(t.Context(), &q); !errors.As(err, &p) || p.Code != errcode.BadRequest {
			t.Errorf("%+v: %v", q, err)
		}
	}
	l.src[0].broken = errors.New("disk")
	if _, err := l.peer(t.Context(), &Request{Format: Format, Op: opRead, Receiver: "r", ID: id, File: 1,
		Bytes: 1}); err == nil {
		t.Error("a file that cannot be read")
	}
}

// TestReceiverGivesUpOnAHungPeer checks that a receiver gives up on a peer that does not answer.
func TestReceiverGivesUpOnAHungPeer(t *testing.T) {
	l := newLink(t)
	hangs := func(ctx context.Context, q *Request) (io.ReadCloser, error) {
		if q.Op != opOpen {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return l.peer(ctx, q)
	}
	sink := &folder{files: map[string][]byte{}}
	r := Receiver{Peer: hangs, Begin: func(*Offer) (Sink, error) { return sink, nil }, Got: got, pause: 1,
		timeout: time.Millisecond}
	if _, _, err := r.Receive(t.Context(), &Want{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
}

// TestBoundToItsReceiver checks that only the indexer that has opened an export can read or end it, and that no two
// exports have the same id, not even those of different processes.
func TestBoundToItsReceiver(t *testing.T) {
	ids := map[string]bool{}
	for range 3 {
		l := newLink(t)
		body, err := l.peer(t.Context(), &Request{Format: Format, Op: opOpen, Receiver: "r", Want: &Want{}})
		if err != nil {
			t.Fatal(err)
		}
		_ = body.Close()
		id := l.s.cur.id
		if ids[id] || len(id) < 20 {
			t.Errorf("id %q", id)
		}
		ids[id] = true
		var p *rpc.Problem
		if _, err := l.peer(t.Context(), &Request{Format: Format, Op: opRead, Receiver: "other", ID: id, File: 1,
			Bytes: 1}); !errors.As(err, &p) || p.Code != errcode.NotFound {
			t.Errorf("read by another one: %v", err)
		}
		if body, err = l.peer(t.Context(), &Request{Format: Format, Op: opEnd, Receiver: "other", ID: id}); err != nil {
			t.Fatal(err)
		}
		_ = body.Close()
		if l.src[0].isClosed() {
			t.Error("it was ended by another one")
		}
		if body, err = l.peer(t.Context(), &Request{Format: Format, Op: opRead, Receiver: "r", ID: id, File: 1,
			Bytes: 1}); err != nil {
			t.Fatalf("by its own: %v", err)
		}
		_ = body.Close()
	}
}

// TestStoppedReceiverClosesTheExport checks that a receiver may stop in the middle, and that the export is then closed.
func TestStoppedReceiverClosesTheExport(t *testing.T) {
	l := newLink(t)
	sink, enough := &folder{files: map[string][]byte{}}, errors.New("enough")
	r := Receiver{Peer: l.peer, Begin: func(*Offer) (Sink, error) { return sink, nil }, pause: 1,
		Got: func(int) error { return enough }}
	if _, _, err := r.Receive(t.Context(), &Want{}); !errors.Is(err, enough) || !l.src[0].isClosed() ||
		len(sink.files["large"]) > 0 {
		t.Errorf("%v", err)
	}
}

// TestReceiverWaitsForASlowExport checks that an export may take as long as it needs while its receiver keeps coming
// and sees progress. It is abandoned if the receiver does not come any more, and made again if he comes after all.
func TestReceiverWaitsForASlowExport(t *testing.T) {
	for name, c := range map[string]struct {
		away time.Duration // how long the receiver is away, once
		made int           // how often making the export starts
	}{
		"its receiver comes again":        {made: 1},
		"away for a while":                {away: idleAfter - time.Minute, made: 1},
		"away for longer than it is made": {away: 2 * idleAfter, made: 2},
	} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { madeForLong(t, c.away, c.made) }) })
	}
}

func madeForLong(t *testing.T, away time.Duration, made int) {
	const steps = 60 // of 40 s each
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	opened := 0
	s := &Sender{Now: time.Now, Log: hclog.NewNullLogger(),
		Spawn: func(f func(context.Context) error) { running.Go(func() { _ = f(ctx) }) },
		Open: func(ctx context.Context, _ *Want, step func()) (Export, error) {
			opened++
			for range steps {
				select {
				case <-time.After(40 * time.Second):
					step()
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			}
			return newFolder(), nil
		}}
	running.Go(func() { _ = s.Run(ctx) })
	r := Receiver{Name: "r", Got: got, Begin: func(*Offer) (Sink, error) { return nil, errors.New("offered") },
		Peer: func(ctx context.Context, q *Request) (io.ReadCloser, error) {
			q.Format = Format
			b, err := s.answer(ctx, q)
			if err != nil {
				return nil, err
			}
			frame(b)
			return io.NopCloser(bytes.NewReader(b)), nil
		}}
	last, moved := uint64(0), time.Now()
	for n := 0; ; n++ {
		_, _, err := r.Receive(ctx, &Want{})
		if !errors.Is(err, ErrBusy) {
			if err == nil || err.Error() != "offered" {
				t.Errorf("after %d requests: %v", n, err)
			}
			break
		}
		if busy := (*Busy)(nil); errors.As(err, &busy) && busy.Moved != last {
			last, moved = busy.Moved, time.Now()
		}
		if still := time.Since(moved); still > 5*time.Minute {
			t.Fatalf("nothing was seen to move for %v", still)
		}
		if n == 5 {
			time.Sleep(away)
		}
		time.Sleep(8 * time.Second)
	}
	if opened != made {
		t.Errorf("it was begun to be made %d times, want %d", opened, made)
	}
}

// TestReceiverReturnsForASlowExport checks that a receiver of an export that takes long to make gets a busy answer,
// and the export later. Meanwhile no other receiver gets one, nor does the same receiver for another copy. The error of
// an export that could not be made is returned once.
func TestReceiverReturnsForASlowExport(t *testing.T) {
	l := newLink(t)
	l.s.wait = time.Millisecond
	opened, open := make(chan struct{}, 9), make(chan error)
	l.s.Open = func(context.Context, *Want, func()) (Export, error) {
		opened <- struct{}{}
		if err := <-open; err != nil {
			return nil, err
		}
		l.src = append(l.src, newFolder())
		return l.src[len(l.src)-1], nil
	}
	sink := &folder{files: map[string][]byte{}}
	receive := func(who string, slice index.SliceID) error {
		r := Receiver{Name: who, Peer: l.peer, Begin: func(*Offer) (Sink, error) { return sink, nil }, Got: got, pause: 1}
		_, _, err := r.Receive(t.Context(), &Want{Slice: slice})
		return err
	}
	for range 2 { // after the error it is made again
		for _, w := range []struct {
			who   string
			slice index.SliceID
		}{{"r", 1}, {"other", 1}, {"r", 2}, {"r", 1}} {
			var busy *Busy
			if err := receive(w.who, w.slice); !errors.Is(err, ErrBusy) || !errors.As(err, &busy) || busy.Why == "" {
				t.Errorf("%+v: %v, want Busy", w, err)
			}
		}
		made := l.s.cur.made
		open <- rpc.Refuse(errcode.NotFound, "gone")
		<-made
		var p *rpc.Problem
		if err := receive("r", 1); !errors.As(err, &p) || p.Code != errcode.NotFound {
			t.Errorf("%v, want Open's error", err)
		}
	}
	if err := receive("r", 1); !errors.Is(err, ErrBusy) {
		t.Fatal(err)
	}
	made := l.s.cur.made
	open <- nil
	<-made
	if err := receive("other", 1); !errors.Is(err, ErrBusy) {
		t.Errorf("what is made for another one: %v", err)
	}
	if err := receive("r", 1); err != nil {
		t.Fatal(err)
	}
	sink.same(t, newFolder())
	if n := len(opened); n != 3 {
		t.Errorf("%d exports were begun, want 3", n)
	}
}

// TestSourceWhoseDiskHangs checks that an export whose disk hangs while it is made, or read, is reported after
// stalledAfter, and that every request is refused, with the name of the disk, until the disk goes on. The export
// keeps its place although its receiver ends it, before or after that is known, and only until the read has ended.
func TestSourceWhoseDiskHangs(t *testing.T) {
	for what, c := range map[string][2]bool{"made": {false, false}, "read": {true, false}, "ended early": {true, true}} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { sourceHangs(t, c[0], c[1]) })
		})
	}
}

// gated is an Export whose reads wait.
type gated struct {
	*folder
	wait func()
}

func (g gated) ReadAt(name string, p []byte, at int64) (int, error) {
	g.wait()
	return g.folder.ReadAt(name, p, at)
}

// stuck is an Export whose removal waits.
type stuck struct {
	*folder
	wait func()
}

func (x stuck) Close() error {
	x.wait()
	return x.folder.Close()
}

// TestRemovalThatHangs checks that an export whose removal hangs does not keep the next one, which hangs with the same
// disk, from being reported and given up.
func TestRemovalThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		defer running.Wait()
		defer cancel()
		goOn := make(chan struct{})
		free := sync.OnceFunc(func() { close(goOn) })
		defer free()
		var said atomic.Value
		said.Store("")
		made := 0
		s := &Sender{Now: time.Now, Log: hclog.NewNullLogger(), Pace: func(context.Context, int) error { return nil },
			Trouble: func(why string) { said.Store(why) },
			Spawn:   func(f func(context.Context) error) { running.Go(func() { _ = f(ctx) }) },
			Open: func(ctx context.Context, _ *Want, _ func()) (Export, error) {
				if made++; made > 1 {
					<-goOn
				}
				return stuck{newFolder(), func() { <-goOn }}, context.Cause(ctx)
			}}
		running.Go(func() { _ = s.Run(ctx) })
		ask := func(who string) error {
			_, err := s.answer(ctx, &Request{Format: Format, Op: opOpen, Receiver: who, Want: &Want{Slice: 7, Index: 5}})
			return err
		}
		if err := ask("r"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(idleAfter + idleAfter/8 + 1) // its receiver does not read it
		if err := ask("other"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(stalledAfter + idleAfter/8)
		if said := said.Load(); said == "" {
			t.Error("the disk hangs while the next export is made, and nothing is reported")
		}
		free()
		synctest.Wait()
		if err := ask("other"); err == nil || !strings.Contains(err.Error(), errHangs.Error()) {
			t.Errorf("who has waited for it is told: %v", err)
		}
	})
}

func sourceHangs(t *testing.T, reading, early bool) {
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	goOn := make(chan struct{})
	free := sync.OnceFunc(func() { close(goOn) })
	defer free()
	wait := func() { <-goOn }
	var reported atomic.Value
	reported.Store("")
	trouble := func() string { return reported.Load().(string) }
	s := &Sender{Now: time.Now, Log: hclog.NewNullLogger(), Pace: func(context.Context, int) error { return nil },
		Trouble: func(why string) { reported.Store(why) },
		Spawn:   func(f func(context.Context) error) { running.Go(func() { _ = f(ctx) }) },
		Open: func(ctx context.Context, _ *Want, step func()) (Export, error) {
			time.Sleep(stalledAfter)
			step()
			time.Sleep(stalledAfter)
			step()
			if !reading {
				wait()
			}
			return gated{newFolder(), wait}, context.Cause(ctx)
		}}
	running.Go(func() { _ = s.Run(ctx) })
	open := func(who string) (*Offer, error) {
		b, err := s.answer(ctx, &Request{Format: Format, Op: opOpen, Receiver: who, Want: &Want{Slice: 7, Index: 5}})
		if err != nil {
			return nil, err
		}
		o := &Offer{}
		if err := rpc.Unmarshal(b[sumBytes:], o); err != nil {
			t.Fatal(err)
		}
		return o, nil
	}
	made := func(who string) (o *Offer) {
		t.Helper()
		for range 100 {
			o, err := open(who)
			if err != nil {
				t.Fatal(err)
			}
			if o.Busy == "" {
				return o
			}
			time.Sleep(time.Second)
		}
		t.Fatal("it is not made")
		return nil
	}
	if reading {
		o := made("r")
		running.Go(func() {
			_, _ = s.answer(ctx, &Request{Format: Format, Op: opRead, Receiver: "r", ID: o.ID, File: 1, Bytes: 1})
		})
	} else {
		if o, err := open("r"); err != nil || o.Busy == "" {
			t.Fatalf("%+v, %v", o, err)
		}
		time.Sleep(2 * stalledAfter) // both steps are done, each in time
		if _, err := open("r"); err != nil {
			t.Fatal(err)
		}
	}
	again := make(chan error, 1)
	receiverEnds := func() {
		t.Helper()
		c, ended := s.cur, make(chan struct{})
		running.Go(func() {
			defer close(ended)
			_, _ = s.answer(ctx, &Request{Format: Format, Op: opEnd, Receiver: "r", ID: c.id})
		})
		for over := false; !over; runtime.Gosched() {
			select {
			case <-ended:
				over = true
			default:
			}
			if !s.present(c) {
				t.Fatal("an export that is being read does not keep its place")
			}
		}
		running.Go(func() {
			_, err := s.answer(ctx, &Request{Format: Format, Op: opRead, Receiver: "r", ID: c.id, File: 1, Bytes: 1})
			again <- err
		})
	}
	if early {
		synctest.Wait() // it is being read
		receiverEnds()
	}
	time.Sleep(stalledAfter - 2*offerWait)
	if o, err := open("other"); err != nil || o.Busy == "" || trouble() != "" {
		t.Fatalf("before it is known: %+v, %v, trouble %q", o, err, trouble())
	}
	time.Sleep(stalledAfter)
	if reading && !early {
		receiverEnds()
	}
	for _, who := range []string{"r", "other"} {
		_, err := open(who)
		if p := (*rpc.Problem)(nil); !errors.As(err, &p) || p.Code != errcode.Unavailable ||
			!strings.Contains(err.Error(), "disk hangs") || !strings.Contains(err.Error(), "slice 7 of index 5") {
			t.Errorf("while it hangs, %s gets: %v", who, err)
		}
	}
	if !strings.Contains(trouble(), "the disk hangs") {
		t.Errorf("trouble that is reported: %q", trouble())
	}
	free()
	synctest.Wait()
	if trouble() != "" {
		t.Errorf("it goes on, and still %q", trouble())
	}
	if reading {
		if s.cur != nil {
			t.Error("an export that was ended keeps its place when it is no longer read")
		}
		if err := <-again; err == nil || rpc.AsProblem(err).Code != errcode.NotFound {
			t.Errorf("an export that was ended is read once more: %v", err)
		}
	} else if _, err := open("r"); err == nil || !strings.Contains(err.Error(), errHangs.Error()) {
		t.Errorf("a receiver that has waited for it gets: %v", err)
	}
	made("other")
}
