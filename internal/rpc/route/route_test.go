package route

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/internal/testing/pipenet"
)

// text answers with the result of f.
func text(f func(r *http.Request) string) rpc.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) error {
		_, _ = io.WriteString(w, f(r))
		return nil
	}
}

// body answers with the body.
func body(w http.ResponseWriter, r *http.Request) error {
	b, err := io.ReadAll(r.Body)
	if err == nil {
		_, _ = w.Write(b)
	}
	return err
}

// table has one route of each kind.
func table(t *testing.T) *Table {
	places := rpc.NewPlaces(1, "calls")
	if err := places.Enter("another"); err != nil {
		t.Fatal(err)
	}
	forbidden := Role{Name: "forbidden", Check: func(*http.Request) error { return errors.New("never permitted") }}
	named := Role{Name: "who says a name", Check: func(r *http.Request) error {
		if r.Header.Get("Name") == "" {
			return rpc.Refuse(errcode.Unauthenticated, "a name is needed")
		}
		return nil
	}, For: func(r *http.Request) string { return r.Header.Get("Name") }}
	return &Table{Lacks: "a test has no %s", Routes: []Route{
		{Method: "GET", Path: "/things/{id:[0-9]+}:count", Role: Anybody(), Limit: time.Minute, Handle: text(
			func(r *http.Request) string { return "count " + r.PathValue("id") })},
		{Method: "POST", Path: "/things/{id:[0-9]+}:count", Role: Anybody(), Limit: time.Minute, Body: 3, Handle: body},
		{Method: "GET", Path: "/things/{name}", Role: Anybody(), Limit: time.Minute, Handle: text(
			func(r *http.Request) string { return "thing " + r.PathValue("name") })},
		{Method: "PUT", Path: "/forbidden", Role: forbidden, Limit: time.Minute, Handle: body},
		{Method: "GET", Path: "/me", Role: named, Limit: time.Minute, Handle: text(
			func(r *http.Request) string { return rpc.Principal(r.Context()) })},
		{Method: "GET", Path: "/full", Role: Anybody(), Limit: time.Minute, Places: places, Handle: body},
		{Method: "GET", Path: "/late", Role: Anybody(), Limit: time.Millisecond, Handle: func(_ http.ResponseWriter,
			r *http.Request) error {
			<-r.Context().Done()
			return r.Context().Err()
		}},
		{Method: "GET", Path: "/stream", Role: Anybody(), Limit: time.Millisecond, Stream: true, Handle: text(
			func(r *http.Request) string {
				_, ends := r.Context().Deadline()
				return map[bool]string{true: "ends", false: "lasts"}[ends]
			})},
		{Path: "/below/{rest:.*}", Role: Anybody(), Limit: time.Minute, Handle: text(
			func(r *http.Request) string { return r.Method + " " + r.PathValue("rest") })},
		Alive(),
		Ready(func() []rpc.Reason { return []rpc.Reason{{Code: "disk", Detail: "it is full"}} }),
	}}
}

// TestTableAnswers checks that each refusal is a problem with its code, and that Allow lists the other methods.
func TestTableAnswers(t *testing.T) {
	h := table(t).Handler()
	for _, tc := range []struct {
		method, path, sent, name string
		status                   int
		want                     string // the body, or the code of the problem
	}{
		{method: "GET", path: "/things/7:count", status: 200, want: "count 7"},
		{method: "HEAD", path: "/things/7:count", status: 200, want: "count 7"}, // net/http sends only the header
		{method: "POST", path: "/things/7:count", sent: "abc", status: 200, want: "abc"},
		{method: "POST", path: "/things/7:count", sent: "abcd", status: 413, want: "BODY_TOO_LARGE"},
		{method: "PUT", path: "/things/7:count", status: 405, want: "METHOD_NOT_ALLOWED"},
		{method: "GET", path: "/things/a%2Fb%20c", status: 200, want: "thing a/b c"},
		{method: "GET", path: "/things/7%3Acount", status: 200, want: "thing 7:count"}, // an escaped colon begins no verb
		{method: "GET", path: "/things", status: 404, want: "NOT_FOUND"},
		{method: "GET", path: "//things/a", status: 404, want: "NOT_FOUND"},
		{method: "PUT", path: "/forbidden", status: 403, want: "FORBIDDEN"},
		{method: "GET", path: "/me", status: 401, want: "UNAUTHENTICATED"},
		{method: "GET", path: "/me", name: "ann", status: 200, want: "ann"},
		{method: "GET", path: "/full", status: 503, want: "BUSY"},
		{method: "GET", path: "/late", status: 504, want: "TIMEOUT"},
		{method: "GET", path: "/stream", status: 200, want: "lasts"},
		{method: "DELETE", path: "/below/a:b/c", status: 200, want: "DELETE a:b/c"},
		{method: "GET", path: "/healthz", status: 200, want: "{}\n"},
		{method: "GET", path: "/readyz", status: 503, want: "NOT_READY"},
	} {
		r := httptest.NewRequest(tc.method, tc.path, strings.NewReader(tc.sent))
		if tc.name != "" {
			r.Header.Set("Name", tc.name)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		got := w.Body.String()
		if w.Code >= 400 {
			var p rpc.Problem
			if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || w.Header().Get("Content-Type") != rpc.MediaProblem ||
				p.Status != w.Code || p.Detail == "" {
				t.Errorf("%s %s: no problem: %s %v", tc.method, tc.path, got, err)
			}
			got = string(p.Code)
		}
		if w.Code != tc.status || got != tc.want {
			t.Errorf("%s %s: %d %q, want %d %q", tc.method, tc.path, w.Code, got, tc.status, tc.want)
		}
		if allow := w.Header().Get("Allow"); (allow == "GET, HEAD, POST") != (tc.status == 405) {
			t.Errorf("%s %s: Allow is %q", tc.method, tc.path, allow)
		}
	}
}

// TestInvalidRoutesPanic checks that the construction of a port panics for routes that the router would silently
// ignore.
func TestInvalidRoutesPanic(t *testing.T) {
	for name, paths := range map[string][][2]string{
		"":                   {{"GET", "/a/{x}"}, {"POST", "/a/{x}"}, {"", "/a/{x}"}, {"GET", "/b/{x:[0-9]+}:y"}},
		"no slash":           {{"GET", "a"}},
		"no end":             {{"GET", "/a/{x"}},
		"no name":            {{"GET", "/a/{}"}},
		"no expression":      {{"GET", "/a/{x:}"}},
		"a bad expression":   {{"GET", "/a/{x:[}"}},
		"twice":              {{"GET", "/a"}, {"POST", "/a"}, {"GET", "/a"}},
		"twice, as HEAD":     {{"GET", "/a"}, {"HEAD", "/a"}},
		"below any method's": {{"", "/a"}, {"GET", "/a"}},
	} {
		func() {
			defer func() {
				if refused := recover(); (refused != nil) != (name != "") {
					t.Errorf("%q: %v", name, refused)
				} else {
					t.Log(refused)
				}
			}()
			m := NewMux()
			for _, p := range paths {
				m.Handle(p[0], p[1], http.NotFoundHandler())
			}
		}()
	}
}

// TestScrapes checks that hanging scrapes keep out only further ones, and are not kept out by other calls.
func TestScrapes(t *testing.T) {
	hang, under := make(chan struct{}), make(chan struct{}, scrapesAtOnce)
	others := rpc.NewPlaces(1, "calls")
	h := (&Table{Routes: []Route{
		Metrics(Anybody(), http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			under <- struct{}{}
			<-hang
		})),
		{Method: "GET", Path: "/other", Role: Anybody(), Limit: time.Minute, Places: others, Handle: text(
			func(*http.Request) string { return "" })},
	}}).Handler()
	get := func(path string) int {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		return w.Code
	}
	var all sync.WaitGroup
	if err := others.Enter(rpc.Anonymous); err != nil {
		t.Fatal(err)
	}
	for range scrapesAtOnce {
		all.Go(func() {
			if status := get("/metrics"); status != http.StatusOK {
				t.Errorf("a scrape beside full places of others: %d", status)
			}
		})
	}
	for range scrapesAtOnce {
		<-under
	}
	others.Leave(rpc.Anonymous)
	if one, other := get("/metrics"), get("/other"); one != http.StatusServiceUnavailable || other != http.StatusOK {
		t.Errorf("beside %d scrapes: one more %d, another call %d", scrapesAtOnce, one, other)
	}
	close(hang)
	all.Wait()
}

// TestOtherSites checks that requests sent by a page of another site are rejected on every port, for every role.
func TestOtherSites(t *testing.T) {
	r := httptest.NewRequest("POST", "/things/7:count", nil)
	r.Header.Set("Sec-Fetch-Site", "cross-site")
	w := httptest.NewRecorder()
	table(t).Handler().ServeHTTP(w, r)
	if w.Code != http.StatusForbidden || !strings.Contains(w.Body.String(), "another site") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// TestFail checks that a table's Fail answers errors of routes, and not those of the table itself.
func TestFail(t *testing.T) {
	own := table(t)
	own.Fail = func(w http.ResponseWriter, err error) { http.Error(w, err.Error(), http.StatusTeapot) }
	h := own.Handler()
	for path, want := range map[string]int{"/late": http.StatusTeapot, "/me": http.StatusTeapot,
		"/x": http.StatusNotFound} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		if w.Code != want {
			t.Errorf("%s: %d, want %d", path, w.Code, want)
		}
	}
}

// TestSlowBodies checks that a body that does not arrive is answered 408 after BodyTime; a call may take longer than
// that.
func TestSlowBodies(t *testing.T) { synctest.Test(t, slowBodies) }

func slowBodies(t *testing.T) {
	l := pipenet.Listen()
	s := &Server{Log: hclog.NewNullLogger(), Grace: time.Second, Handler: (&Table{Routes: []Route{
		{Method: "POST", Path: "/", Role: Anybody(), Body: 10, Limit: time.Hour, Handle: func(w http.ResponseWriter,
			r *http.Request) error {
			b, err := io.ReadAll(r.Body)
			if err != nil {
				return err
			}
			select {
			case <-time.After(3 * BodyTime):
			case <-r.Context().Done():
				return r.Context().Err()
			}
			_, _ = w.Write(b)
			return nil
		}}}}).Handler()}
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	for sent, want := range map[string]string{"abc": "408", "abcdefghij": "200"} {
		began := time.Now()
		c, err := l.Dial(t.Context(), "", "")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n"+sent); err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReader(c).ReadString('\n'); err != nil || !strings.Contains(line, want) {
			t.Errorf("%s: %q %v, want %s", sent, line, err, want)
		}
		if took := time.Since(began); want == "408" && took != BodyTime {
			t.Errorf("the server waited %s for a body that does not arrive", took)
		}
		_ = c.Close()
	}
	stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// TestBodyTimeBeginsWithCall checks that the time to receive a body begins with the call, not after the sender was
// authenticated.
func TestBodyTimeBeginsWithCall(t *testing.T) { synctest.Test(t, bodyTimeBeginsWithCall) }

func bodyTimeBeginsWithCall(t *testing.T) {
	l := pipenet.Listen()
	asks := Role{Name: "whom a slow one knows", Check: func(*http.Request) error { time.Sleep(BodyTime / 2); return nil }}
	s := &Server{Log: hclog.NewNullLogger(), Grace: time.Second, Handler: (&Table{Routes: []Route{
		{Method: "POST", Path: "/", Role: asks, Body: 10, Limit: time.Hour, Handle: body}}}).Handler()}
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	c, err := l.Dial(t.Context(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	began := time.Now()
	if _, err := io.WriteString(c, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc"); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	if took := time.Since(began); err != nil || !strings.Contains(line, "408") || took != BodyTime {
		t.Errorf("%q %v after %s, want 408 after %s", line, err, took, BodyTime)
	}
	stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// TestShutdownWithCut checks that a server with Cut ends its requests when its shutdown begins; those of another
// server have its grace.
func TestShutdownWithCut(t *testing.T) { synctest.Test(t, cut) }

func cut(t *testing.T) {
	for _, cuts := range []bool{false, true} {
		l, under := pipenet.Listen(), make(chan struct{})
		s := &Server{Log: hclog.NewNullLogger(), Grace: time.Minute, Cut: cuts, Handler: (&Table{Routes: []Route{
			{Method: "GET", Path: "/", Role: Anybody(), Limit: time.Hour, Handle: func(_ http.ResponseWriter,
				r *http.Request) error {
				close(under)
				select {
				case <-r.Context().Done():
					return rpc.Refuse(errcode.Unavailable, "cut")
				case <-time.After(30 * time.Second):
					return rpc.Refuse(errcode.Unavailable, "whole")
				}
			}}}}).Handler()}
		ctx, stop := context.WithCancel(context.Background())
		served := make(chan error, 1)
		go func() { served <- s.Serve(ctx, l) }()
		go func() { <-under; stop() }()
		c := &http.Client{Transport: &http.Transport{DialContext: l.Dial, DisableKeepAlives: true}}
		resp, err := c.Get("http://x/")
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if want := map[bool]string{true: "cut", false: "whole"}[cuts]; err != nil || !strings.Contains(string(b), want) {
			t.Errorf("cuts %v: %s %v", cuts, b, err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	}
}
