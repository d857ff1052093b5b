package api

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/indexer/scan"
	"tidemark/internal/rpc"
	"tidemark/statecontext"
	"tidemark/wire"
)

// TestOneWaitForAScan checks that, after an indexer that refuses at once, the next one is asked, but not after one
// that has waited in vain for as long as a scan waits: otherwise an impossible scan would take that long at each of
// them.
func TestOneWaitForAScan(t *testing.T) {
	for _, c := range []struct {
		waits time.Duration // of each indexer
		asked int64
	}{{0, 3}, {scan.DefaultWait / 2, 2}, {scan.DefaultWait, 1}} {
		var clock, asked atomic.Int64
		a := New(Config{})
		a.now = func() time.Time { return time.Unix(0, clock.Load()) }
		var addrs []string
		for range 3 {
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodGet { // a liveness check
					return
				}
				asked.Add(1)
				clock.Add(int64(c.waits))
				rpc.WriteProblem(w, rpc.Refuse(errcode.Unavailable, "no copy of slice 3 can be scanned"))
			}))
			defer s.Close()
			addrs = append(addrs, strings.TrimPrefix(s.URL, "http://"))
		}
		x := &statecontext.Index{Definition: index.Definition{ID: 7, Name: "i", Bucket: "b"}}
		_, err := a.scans.askOne(t.Context(), &question{index: x, action: scanAction}, addrs)
		if err == nil || !strings.Contains(err.Error(), "slice 3") || asked.Load() != c.asked {
			t.Errorf("each waits %s: %d were asked, want %d: %v", c.waits, asked.Load(), c.asked, err)
		}
		a.Close()
	}
}

// TestTextsOfRefusals checks that, if one indexer refuses and the others cannot be reached, the refusal is returned,
// whichever was asked last.
func TestTextsOfRefusals(t *testing.T) {
	a := New(Config{})
	defer a.Close()
	refuses := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		rpc.WriteProblem(w, rpc.Refuse(errcode.Unavailable, "copy 94 cannot be checked"))
	}))
	defer refuses.Close()
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	x := &statecontext.Index{Definition: index.Definition{ID: 7, Name: "i", Bucket: "b"}}
	there, away := strings.TrimPrefix(refuses.URL, "http://"), strings.TrimPrefix(gone.URL, "http://")
	for _, addrs := range [][]string{{there, away}, {away, there}} {
		_, err := a.scans.askOne(t.Context(), &question{index: x, action: verifyAction}, addrs)
		if err == nil || !strings.Contains(err.Error(), "copy 94") {
			t.Errorf("%v: %v", addrs, err)
		}
	}
	if _, err := a.scans.askOne(t.Context(), &question{index: x, action: verifyAction}, []string{away}); err == nil ||
		!strings.Contains(err.Error(), "can be reached") {
		t.Errorf("without indexers: %v", err)
	}
}

// TestSilentLeaderIsARetryableError checks that a call that needs the leader's log index, such as a scan of an
// unknown index, gets a retryable error if the leader is gone or hangs; an error of the leader is passed on.
func TestSilentLeaderIsARetryableError(t *testing.T) {
	a := New(Config{})
	defer a.Close()
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	released := make(chan struct{})
	hangs := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-released }))
	defer hangs.Close()
	defer close(released)
	busy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		rpc.WriteProblem(w, rpc.Refuse(errcode.Busy, "full"))
	}))
	defer busy.Close()
	for url, want := range map[string]errcode.Code{gone.URL: errcode.NoLeader, hangs.URL: errcode.NoLeader,
		busy.URL: errcode.Busy} {
		_, err := a.howFar(t.Context(), wire.Leader{ID: "m1", REST: url})
		if p := (*rpc.Problem)(nil); !errors.As(err, &p) || p.Code != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// TestCutAnswerIsReported checks that an answer that an indexer breaks off ends with an error line after whole lines;
// if a part of a long line was sent the connection is cut. A short answer that is cut is not sent.
func TestCutAnswerIsReported(t *testing.T) {
	long := `{"key":["` + strings.Repeat("x", 3*pieceOfAnswer) + `"],"id":"c"}` + "\n"
	const a, b = `{"key":[1],"id":"a"}` + "\n", `{"key":[2],"id":"b"}` + "\n"
	for name, c := range map[string]struct {
		sent, want string
		length     int
		whole, cut bool
	}{
		"whole":           {sent: a + b, want: a + b, whole: true},
		"long, whole":     {sent: a + long + b, want: a + long + b, whole: true},
		"at a line's end": {sent: a + b, want: a + b},
		"in a line":       {sent: a + b[:9], want: a},
		"behind a long":   {sent: long + a + b[:9], want: long + a},
		"in a long":       {sent: a + long[:2*pieceOfAnswer], want: a, cut: true},
		"nothing":         {},
		"short":           {sent: a, length: 2 * len(a)},
	} {
		t.Run(name, func(t *testing.T) {
			indexer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", scan.MediaType)
				if c.length > 0 {
					w.Header().Set("Content-Length", strconv.Itoa(c.length))
				}
				_, _ = io.WriteString(w, c.sent)
				_ = http.NewResponseController(w).Flush()
				if !c.whole {
					panic(http.ErrAbortHandler)
				}
			}))
			defer indexer.Close()
			manager := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				resp, err := http.Get(indexer.URL)
				if err == nil {
					defer resp.Body.Close()
					err = stream(r.Context(), w, resp)
				}
				if err != nil {
					rpc.WriteProblem(w, err)
				}
			}))
			defer manager.Close()
			resp, err := http.Get(manager.URL)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			got, err := io.ReadAll(resp.Body)
			rest, begins := strings.CutPrefix(string(got), c.want)
			switch reported := strings.Contains(rest, string(errcode.Unavailable)) && strings.HasSuffix(rest, "}\n"); {
			case c.length > 0:
				if err != nil || resp.StatusCode != http.StatusServiceUnavailable {
					t.Errorf("%d, %v, want 503", resp.StatusCode, err)
				}
			case !begins, (err != nil) != c.cut, c.whole && rest != "", !c.whole && !c.cut && !reported:
				t.Errorf("%d bytes, then %.200q, %v", len(got)-len(rest), rest, err)
			}
		})
	}
}
