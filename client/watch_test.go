package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"tidemark/errcode"
	"tidemark/wire"
)

const (
	snap5 = "retry: 1000\n\nid: 5@c.1\nevent: snapshot\ndata: " +
		"{\"reason\":\"start\",\"detail\":\"d\",\"cas\":5,\"cluster_id\":\"c\",\"indexes\":[{\"id\":\"1\",\"name\":\"n\",\"bucket\":\"b\",\"state\":\"pending\"}]}\n\n"
	alive9 = ": alive\nid: 9@c.1\n\n"
)

func change(cas int) string {
	return fmt.Sprintf("id: %d@c.1\nevent: change\ndata: "+
		"{\"cas\":%d,\"events\":[{\"cas\":%d,\"kind\":\"index\",\"name\":\"n\",\"was\":\"pending\"}]}\n\n", cas, cas, cas)
}

// stream answers with these events and ends, or stays silent if hang is set.
func stream(hang bool, events ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, strings.Join(events, ""))
		_ = http.NewResponseController(w).Flush()
		if hang {
			<-r.Context().Done()
		}
	}
}

// TestWatchResumesWithoutGaps: across ends, errors, retryLimit, silence and repetitions there is one gapless sequence.
func TestWatchResumesWithoutGaps(t *testing.T) {
	t.Parallel()
	const silence = 3 * time.Second // longer than a busy machine delays an event
	s, url := serve(t,
		refuse(503, errcode.Unavailable),
		stream(false, snap5, change(6), "event: wat\ndata: {}\n\n"),
		cut,
		stream(true, change(6), change(7), alive9), // 6 again; then silence
		refuse(429, "TOO_MANY_WATCHERS"),
		stream(false, "id: 9@c.1\nevent: end\ndata: {\"reason\":\"slow\",\"last_cas\":9}\n\n", change(100)),
		stream(true, strings.Replace(snap5, "5@c.1\nevent", "3@d.1\nevent", 1),
			strings.Replace(change(11), "11@c.1", "11@d.1", 1)))
	c := newClient(t, url)
	var seen []string
	w := &watching{client: c, kinds: "index", silence: silence}
	w.yield = func(e WatchEvent, err error) bool {
		if err != nil {
			t.Fatal(err)
		}
		seen = append(seen, fmt.Sprintf("%s %d %v %s", e.ID, e.CAS, e.Snapshot != nil, e.Reason))
		return e.CAS != 11
	}
	if err := w.run(t.Context()); !errors.Is(err, errStopped) {
		t.Fatal(err)
	}
	want := []string{"5@c.1 5 true start", "6@c.1 6 false ", "7@c.1 7 false ", "3@d.1 5 true start", "11@d.1 11 false "}
	if fmt.Sprint(seen) != fmt.Sprint(want) {
		t.Fatalf("%q", seen)
	}
	var positions []string
	for _, r := range s.requests() {
		positions = append(positions, r.URL.Query().Get("since"))
	}
	if got := strings.Join(positions, " "); got != "  6@c.1 6@c.1 9@c.1 9@c.1 9@c.1" {
		t.Fatalf("requested since %q", got)
	}
}

func TestWatchEnds(t *testing.T) {
	for name, tc := range map[string]struct {
		step http.HandlerFunc
		want error
	}{
		"bad request": {refuse(400, errcode.BadRequest), nil},
		"no stream":   {text("{}"), ErrAnswer},
		"bad data":    {stream(true, "event: change\ndata: {\n\n"), ErrAnswer},
		"unavailable": {refuse(503, errcode.Unavailable), ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			_, url := serve(t, tc.step)
			limit := time.Minute
			if errors.Is(tc.want, ErrUnavailable) { // it retries until then
				limit = 300 * time.Millisecond
			}
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			n := 0
			for _, err := range newClient(t, url).Watch(ctx, "", "index") {
				var p *wire.Problem
				if n++; n > 1 || err == nil || tc.want != nil && !errors.Is(err, tc.want) || tc.want == nil && !errors.As(err, &p) {
					t.Fatalf("%d: %v", n, err)
				}
			}
			if n != 1 {
				t.Fatal("ended without an error")
			}
		})
	}
	_, url := serve(t, stream(true))
	quiet, end := context.WithCancel(t.Context())
	w := &watching{client: newClient(t, url), id: "6@c.1", silence: time.Minute, opened: end}
	if err := w.run(quiet); !errors.Is(err, context.Canceled) || errors.Is(err, ErrUnavailable) {
		t.Errorf("a stream of which nothing has come: %v", err)
	}
	_, url = serve(t, stream(true, snap5, change(6)))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	n := 0
	for e, err := range newClient(t, url).Watch(ctx, "") {
		if n++; n == 1 && (e.Snapshot == nil || len(e.Snapshot.Indexes) != 1) || n == 3 && !errors.Is(err, context.Canceled) {
			t.Fatalf("%d: %+v, %v", n, e, err)
		}
		if n == 2 {
			cancel()
		}
	}
	if n != 3 {
		t.Fatalf("%d events", n)
	}
}

// inBubble opens connections whose other ends are served by goroutines of a bubble (testing/synctest), one for each
// request, with the number of its connection, from 1.
func inBubble(write func(ctx context.Context, n int, w io.Writer)) virtual {
	var n atomic.Int64
	return func(r *http.Request) (*http.Response, error) {
		if !strings.HasPrefix(r.URL.Path, "/v1/events") {
			return nil, errors.New("no such call")
		}
		body, w := io.Pipe()
		context.AfterFunc(r.Context(), func() { _ = body.CloseWithError(r.Context().Err()) })
		go func() {
			write(r.Context(), int(n.Add(1)), w)
			_ = w.Close()
		}()
		return answerOf("text/event-stream", body), nil
	}
}

// sleep waits for so long, or until the context ends.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// TestLongSnapshotIsNotSilence: a snapshot is one line, and is waited for while some of it arrives; a stream that
// stalls in the middle of a line is lost.
func TestLongSnapshotIsNotSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		head, rest, _ := strings.Cut(snap5, `"indexes"`)
		connections := 0
		c := newVirtual(t, inBubble(func(ctx context.Context, n int, w io.Writer) {
			connections = n
			fmt.Fprint(w, head)
			if n == 1 {
				<-ctx.Done()
				return
			}
			for range 40 { // five minutes
				sleep(ctx, watchSilence/2)
				fmt.Fprint(w, " ")
			}
			fmt.Fprint(w, `"indexes"`+rest)
			<-ctx.Done()
		}), "http://m")
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		for e, err := range c.Watch(ctx, "", "index") {
			if err != nil || e.Snapshot == nil || len(e.Snapshot.Indexes) != 1 {
				t.Fatalf("%+v, %v", e, err)
			}
			break
		}
		if connections != 2 {
			t.Errorf("%d connections, want the silent one and one more", connections)
		}
	})
}

// TestSlowLoopBodyKeepsTheStream: while the caller processes an event nothing is read, and the stream is not lost
// because of that.
func TestSlowLoopBodyKeepsTheStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		connections := 0
		c := newVirtual(t, inBubble(func(ctx context.Context, n int, w io.Writer) {
			connections = n
			fmt.Fprint(w, snap5)
			for cas := 6; ctx.Err() == nil; cas++ {
				fmt.Fprint(w, change(cas))
			}
		}), "http://m", "http://n")
		n := 0
		for e, err := range c.Watch(t.Context(), "", "index") {
			if err != nil {
				t.Fatalf("%+v, %v", e, err)
			}
			time.Sleep(4 * watchSilence)
			if n++; n == 3 {
				break
			}
		}
		if connections != 1 || c.next.Load() != 0 {
			t.Errorf("%d connections; other calls begin with server %d", connections, c.next.Load())
		}
	})
}

// TestStreamsThatEndAtOnceAreRetriedWithPauses: servers whose streams end as soon as they have begun are tried again
// after pauses that grow, unless something new arrived.
func TestStreamsThatEndAtOnceAreRetriedWithPauses(t *testing.T) {
	const servers = 2
	rare, often := servers*int(time.Minute/maxBackoff), servers*int(time.Minute/firstBackoff)
	for _, tc := range []struct {
		name        string
		of          func(n int) string // what the n-th connection sends
		least, most int                // connections in a minute
	}{
		{"first bytes", func(int) string { return "retry: 1000\n\n" }, rare, rare + 8*servers},
		{"one snapshot", func(int) string { return snap5 }, rare, rare + 8*servers},
		{"news", func(n int) string { return change(n) }, often - 2*servers, often + 2*servers},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var connections atomic.Int64
				c := newVirtual(t, inBubble(func(_ context.Context, n int, w io.Writer) {
					connections.Store(int64(n))
					fmt.Fprint(w, tc.of(n))
				}), "http://m", "http://n")
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				c.Waiting = func(error) {
					if int(connections.Load()) > tc.most {
						cancel()
					}
				}
				for _, err := range c.Watch(ctx, "", "index") {
					if err != nil && ctx.Err() == nil {
						t.Error(err)
					}
				}
				if n := int(connections.Load()); n < tc.least || n > tc.most {
					t.Errorf("%d connections, want %d to %d", n, tc.least, tc.most)
				}
			})
		})
	}
}

// TestPages: the list is read to its end.
func TestPages(t *testing.T) {
	s, url := serve(t, text(`{"cas":7,"indexes":[{"id":"1","state":"pending"},{"id":"2","state":"pending"}],"next":"2"}`),
		text(`{"cas":9,"indexes":[{"id":"5","state":"pending"}]}`))
	list, err := newClient(t, url).Indexes(t.Context(), "a b")
	if err != nil || list.CAS != 7 || len(list.Indexes) != 3 || list.Next != "" {
		t.Fatalf("%+v, %v", list, err)
	}
	if got := s.requests()[0].URL.RawQuery + " " + s.requests()[1].URL.RawQuery; got != "bucket=a+b after=2&bucket=a+b" {
		t.Fatal(got)
	}
	_, url = serve(t, text(`{"cas":7,"indexes":[{"id":"1","state":"pending"}],"next":"1"}`))
	if _, err := newClient(t, url).Indexes(t.Context(), ""); !errors.Is(err, ErrAnswer) {
		t.Fatal(err)
	}
}

// TestPagesOfStreams: the ledger is read to its end, and a false end is an error.
func TestPagesOfStreams(t *testing.T) {
	first := text(`{"streams":[{"bucket":"b","vbucket":0},{"bucket":"b","vbucket":1}],"next":"b/1"}`)
	s, url := serve(t, first, text(`{"streams":[{"bucket":"b","vbucket":2}]}`))
	list, err := newClient(t, url).Streams(t.Context(), "")
	if err != nil || len(list.Streams) != 3 || list.Next != "" {
		t.Fatalf("%+v, %v", list, err)
	}
	if got := s.requests()[1].URL.RawQuery; got != "after=b%2F1" {
		t.Fatal(got)
	}
	_, url = serve(t, first)
	if list, err = newClient(t, url).Streams(t.Context(), ""); !errors.Is(err, ErrAnswer) || len(list.Streams) != 0 {
		t.Fatalf("%+v, %v", list, err)
	}
}
