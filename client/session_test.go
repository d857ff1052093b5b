package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tidemark/errcode"
	"tidemark/indexer/scanport"
	"tidemark/internal/rpc"
	"tidemark/manager/api/v1"
	"tidemark/timestamp"
	"tidemark/wire"
)

func saw(bucket string, number uint64) scanport.Seen {
	return scanport.Seen{Cluster: 1, Epoch: 2, Bucket: bucket, At: timestamp.Ref{Number: number}}
}

// sessionManager is a manager that answers from given timestamps, and records the requests.
type sessionManager struct {
	mu       sync.Mutex
	answers  []scanport.Seen
	refuse   errcode.Code
	requests []v1.ScanRequest
}

func (p *sessionManager) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		fmt.Fprint(w, `{"id":"12","bucket":"w"}`)
		return
	}
	body, _ := io.ReadAll(r.Body)
	var req v1.ScanRequest
	if err := json.Unmarshal(body, &req); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requests = append(p.requests, req)
	if p.refuse != "" {
		rpc.WriteProblem(w, rpc.Refuse(p.refuse, "no"))
		return
	}
	seen := p.answers[0]
	p.answers = p.answers[1:]
	w.Header().Set(scanport.HeaderSession, seen.Token())
	if strings.HasSuffix(r.URL.Path, ":count") {
		fmt.Fprintf(w, `{"count":3,"session":%q}`, seen.Token())
		return
	}
	for i := range 3 {
		fmt.Fprintf(w, `{"key":[%d],"id":"d%d"}`+"\n", i, i)
	}
	fmt.Fprintf(w, `{"end":true,"rows":3,"timestamp":{"id":"1.0.1.2","hash":"2"},"session":%q}`+"\n", seen.Token())
}

// numbers returns the least timestamps that a request requires, for each bucket.
func numbers(t *testing.T, req *v1.ScanRequest) string {
	t.Helper()
	all, err := scanport.ParseSession(req.Session)
	if err != nil {
		t.Error(err)
	}
	var text []string
	for _, s := range all {
		text = append(text, fmt.Sprint(s.Bucket, " ", s.At.Number))
	}
	slices.Sort(text)
	return strings.Join(text, ", ")
}

// TestClientsContinueFromSeenState: a request by name sends the bucket's token, one by id all of them; a late
// answer does not reset anything; what was read in part counts as seen.
func TestClientsContinueFromSeenState(t *testing.T) {
	p := &sessionManager{}
	srv := httptest.NewServer(p)
	defer srv.Close()
	cl := Open(Options{Servers: []string{srv.URL}, ViaManagers: true})
	silent(cl)
	defer cl.Close()
	request := func(ref string, answer scanport.Seen, rows int, own string) string {
		t.Helper()
		p.answers = append(p.answers, answer)
		if rows < 0 {
			if _, err := cl.Count(t.Context(), ref, v1.ScanRequest{Session: own}); err != nil {
				t.Fatal(err)
			}
		} else {
			got, err := cl.Scan(t.Context(), ref, v1.ScanRequest{Session: own})
			if err != nil {
				t.Fatal(err)
			}
			for range rows {
				got.Next()
			}
			if err := got.Close(); err != nil {
				t.Fatal(err)
			}
		}
		return numbers(t, &p.requests[len(p.requests)-1])
	}
	own := saw("w", 3)
	for i, step := range []struct {
		ref    string
		answer scanport.Seen
		rows   int // that are read, 4: to the end; -1: a count
		own    string
		want   string
	}{
		{"w/i", saw("w", 5), 4, "", ""},
		{"w/j", saw("w", 7), -1, "", "w 5"},
		{"w/i", saw("w", 6), 4, "", "w 7"},
		{"v/i", saw("v", 2), 4, "", ""},
		{"w.inventory.routes/i", saw("w", 8), 1, "", "w 7"},
		{"12", saw("w", 9), 0, "", "w 8"},
		{"w/i", saw("w", 9), 4, own.Token(), "w 3, w 9"},
		{"w2/i", saw("w2", 1), 4, "", ""},
	} {
		if got := request(step.ref, step.answer, step.rows, step.own); got != step.want {
			t.Errorf("step %d, %s: sent %q, want %q", i, step.ref, got, step.want)
		}
	}
	other := &Session{}
	if err := other.Take(cl.session.Token()); err != nil ||
		numbers(t, &v1.ScanRequest{Session: other.Token()}) != "v 2, w 9, w2 1" {
		t.Errorf("%s, %v", other.Token(), err)
	}
	if err := other.Take("abc"); !errors.Is(err, scanport.ErrSession) {
		t.Error(err)
	}
	p.answers = []scanport.Seen{{Cluster: 8, Bucket: "w"}, saw("w", 1)}
	if _, err := cl.Count(t.Context(), "w/i", v1.ScanRequest{}); err != nil ||
		numbers(t, &v1.ScanRequest{Session: cl.session.Token()}) != "v 2, w 0, w2 1" {
		t.Errorf("another cluster: %v", err)
	}
	none := Open(Options{Servers: []string{srv.URL}, ViaManagers: true, Sessionless: true})
	silent(none)
	defer none.Close()
	p.answers = []scanport.Seen{saw("w", 1), saw("w", 1)}
	for range 2 {
		_, err := none.Count(t.Context(), "w/i", v1.ScanRequest{})
		if last := p.requests[len(p.requests)-1]; err != nil || last.Session != "" {
			t.Errorf("sessionless: %+v, %v", last, err)
		}
	}
}

// TestWritesAreShown: until an answer has shown them, whatever the request; the loss of a write is returned once.
func TestWritesAreShown(t *testing.T) {
	p := &sessionManager{}
	srv := httptest.NewServer(p)
	defer srv.Close()
	cl := Open(Options{Servers: []string{srv.URL}, ViaManagers: true, Sessionless: true})
	silent(cl)
	defer cl.Close()
	var s Session
	count := func(ref string, req v1.ScanRequest, code errcode.Code) string {
		t.Helper()
		p.answers, p.refuse = []scanport.Seen{saw("w", 5)}, code
		_, err := s.Count(t.Context(), cl, ref, req)
		var refused *wire.Problem
		if (err != nil) != (code != "") || err != nil && (!errors.As(err, &refused) || refused.Code != code) {
			t.Fatalf("%v, want %q", err, code)
		}
		got := p.requests[len(p.requests)-1]
		vectors, err := json.Marshal(got.ScanVectors)
		if err != nil {
			t.Fatal(err)
		}
		return got.Consistency + string(vectors)
	}
	s.Wrote("w", v1.Token{VBucket: 1, VBUUID: 1<<64 - 1, Seqno: 5}, v1.Token{VBucket: 2, VBUUID: 8, Seqno: 3})
	s.Wrote("w", v1.Token{VBucket: 1, VBUUID: 1<<64 - 1, Seqno: 4}, v1.Token{VBucket: 2, VBUUID: 8, Seqno: 9})
	const both, none = `at_plus{"w":{"1":[5,"18446744073709551615"],"2":[9,"8"]}}`, `null`
	own := map[string]map[string][]json.RawMessage{"w": {"1": {[]byte("7"), []byte(`"9"`)},
		"3": {[]byte("1"), []byte(`"1"`)}}}
	for i, step := range []struct {
		ref  string
		req  v1.ScanRequest
		code errcode.Code
		want string
	}{
		{"v/i", v1.ScanRequest{}, "", none},
		{"w/i", v1.ScanRequest{Timestamp: "1.0.1.2", Stability: "query"}, "", none},
		{"w/i", v1.ScanRequest{}, errcode.UnknownIndex, both},              // which has no information about them
		{"7", v1.ScanRequest{Consistency: "any"}, errcode.TokenLost, both}, // the error does not name them
		{"w/i", v1.ScanRequest{}, "", both},
		{"w/i", v1.ScanRequest{}, "", none},
	} {
		if got := count(step.ref, step.req, step.code); got != step.want {
			t.Errorf("step %d: %s, want %s", i, got, step.want)
		}
	}
	for _, req := range []v1.ScanRequest{{}, {Consistency: "session"}} {
		s.Wrote("w", v1.Token{VBucket: 1, VBUUID: 7, Seqno: 5})
		count("w/i", req, "")
		if got := count("w/i", v1.ScanRequest{}, ""); got != none {
			t.Errorf("after %q: %s", req.Consistency, got)
		}
	}
	s.Wrote("w", v1.Token{VBucket: 1, VBUUID: 7, Seqno: 5}, v1.Token{VBucket: 3, VBUUID: 7, Seqno: 5})
	if got := count("w/i", v1.ScanRequest{Consistency: "at_plus", ScanVectors: own}, errcode.UnknownIndex); got !=
		`at_plus{"w":{"1":[7,"9",5,"7"],"3":[1,"1",5,"7"]}}` || len(own["w"]) != 2 || string(own["w"]["3"][0]) != "1" {
		t.Errorf("%s, and the caller's own are %s", got, own)
	}
}

// TestPartlyReadAnswersCountAsSeen: each message of an indexer states what was seen; a caller that closes the scan
// then, or loses its indexers, has seen it.
func TestPartlyReadAnswersCountAsSeen(t *testing.T) {
	twelve := saw("w", 12)
	newest := twelve.Token()
	for name, c := range map[string]struct {
		parts []part
		want  string
	}{
		"closed":                {[]part{{ids: "ab", stalls: true, saw: "w"}}, "w 9"},
		"failed":                {[]part{{ids: "ab", tail: string(errcode.Damaged), saw: "w"}}, "w 9"},
		"failed and reported":   {[]part{{ids: "ab", tail: string(errcode.Damaged), saw: "w", fails: newest}}, "w 12"},
		"at once, and reported": {[]part{{ids: "ab", tail: string(errcode.Damaged), noPlace: true, fails: newest}}, "w 12"},
		"continued":             {[]part{{ids: "ab", saw: "w"}, {tail: string(errcode.Damaged)}}, "w 9"},
		"continued, no place":   {[]part{{ids: "ab", saw: "w"}, {ids: "c", noPlace: true}}, "w 9"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScripted(t, c.parts...)
			cl := New("127.0.0.1:1")
			defer cl.Close()
			silent(cl, s.addr)
			d := cl.direct
			d.dialer.NetDialContext, d.dialer.HandshakeTimeout = new(net.Dialer).DialContext, time.Minute
			d.routes["w/i"] = &routeState{route: &v1.ScanRoute{Index: 1, ScanPorts: []string{s.addr}, Ticket: "t",
				TicketMS: 60_000}, at: time.Now(), detour: time.Minute}
			rows, err := cl.Scan(t.Context(), "w/i", v1.ScanRequest{})
			if err != nil {
				t.Fatal(err)
			}
			for n := 0; (name != "closed" || n < 2) && rows.Next(); n++ {
			}
			if err := rows.Close(); err != nil {
				t.Fatal(err)
			}
			if got := numbers(t, &v1.ScanRequest{Session: cl.session.Token()}); got != c.want {
				t.Errorf("seen %q, want %q", got, c.want)
			}
		})
	}
}

// TestLossIsRequestedUntilReported: an answer that is not read to its end may be of a state in which something was
// lost, without having reported it. The earlier state is sent with further requests until an answer was read to its
// end.
func TestLossIsRequestedUntilReported(t *testing.T) {
	at := func(rollback, number uint64) *scanport.Seen {
		seen := saw("w", number)
		seen.At.RollbackID = rollback
		return &seen
	}
	of := func(s *Session) string { return numbers(t, &v1.ScanRequest{Session: s.Token()}) }
	var s Session
	for _, step := range []struct {
		what string
		do   func()
		want string
	}{
		{"no position was given", func() { s.cut(at(1, 3)) }, "w 3"},
		{"nothing can be lost", func() { s.cut(at(1, 5)) }, "w 5"},
		{"a rollback", func() { s.cut(at(2, 4)) }, "w 4, w 5"},
		{"another one", func() { s.cut(at(3, 6)) }, "w 5, w 6"},
		{"an older answer", func() { s.ended(at(2, 4).Token(), nil, true) }, "w 5, w 6"},
		{"one at a named timestamp, which does not report losses", func() { s.ended(at(3, 6).Token(), nil, false) }, "w 5, w 6"},
		{"it is reported", func() { s.ended(at(3, 7).Token(), nil, true) }, "w 7"},
		{"and once more", func() { s.cut(at(4, 1)) }, "w 1, w 7"},
	} {
		if step.do(); of(&s) != step.want {
			t.Fatalf("%s: %q is sent with the next request, want %q", step.what, of(&s), step.want)
		}
	}
	if s.settle("w"); s.size != tokenSize(at(4, 1)) {
		t.Errorf("%d bytes are counted, want %d", s.size, tokenSize(at(4, 1)))
	}
}

// TestSessionsOfManyBuckets: whatever their number and names, nothing that was seen is dropped: a scan of one bucket
// too many is refused before any call, those of the others continue, and the tokens that a session sends and returns
// are accepted.
func TestSessionsOfManyBuckets(t *testing.T) {
	p := &sessionManager{}
	srv := httptest.NewServer(p)
	defer srv.Close()
	cl := Open(Options{Servers: []string{srv.URL}, ViaManagers: true, Sessionless: true})
	silent(cl)
	defer cl.Close()
	for _, name := range []string{"b%d", strings.Repeat("a long name ", 8) + "%d"} {
		var s Session
		count := func(i int, number uint64) error {
			bucket := fmt.Sprintf(name, i)
			p.answers = []scanport.Seen{saw(bucket, number)}
			_, err := s.Count(t.Context(), cl, Ref(bucket, "i"), v1.ScanRequest{})
			return err
		}
		n := 0
		var err error
		for ; n <= scanport.MaxSeen && err == nil; n++ {
			err = count(n, 1<<40)
		}
		if requests := len(p.requests); !errors.Is(err, ErrSessionFull) || n < 256 {
			t.Fatalf("%d buckets, %d requests: %v", n, requests, err)
		}
		n--
		if err := count(0, 1<<40+1); err != nil {
			t.Error(err)
		}
		all, err := scanport.ParseSession(s.Token())
		if err != nil || len(all) != n || s.size != len(s.Token())+1 {
			t.Errorf("%d tokens of %d bytes, counted %d: %v", len(all), len(s.Token()), s.size, err)
		}
		var other Session
		if err := other.Take(s.Token()); err != nil || len(other.seen) != n {
			t.Error(err)
		}
		further, newer := saw(strings.Repeat("another ", 12), 1), saw(fmt.Sprintf(name, 7), 1<<41)
		for _, token := range []string{further.Token() + "," + newer.Token()} {
			if err := other.Take(token); !errors.Is(err, ErrSessionFull) && len(other.seen) == scanport.MaxSeen {
				t.Errorf("%d buckets, and another one: %v", len(other.seen), err)
			}
		}
		if err := other.Take(newer.Token()); err != nil || other.seen[newer.Bucket] != newer {
			t.Errorf("%+v, %v", other.seen[newer.Bucket], err)
		}
	}
	var s Session
	for i := range scanport.MaxSeen + 1 {
		if err := s.Wrote(fmt.Sprint("b", i), v1.Token{VBucket: 1, VBUUID: 2, Seqno: 3}); errors.Is(err, ErrSessionFull) !=
			(i == scanport.MaxSeen) {
			t.Errorf("writes to %d buckets before: %v", i, err)
		}
	}
	many := make([]v1.Token, scanport.MaxTokens+1)
	for i := range many {
		many[i] = v1.Token{VBucket: uint16(i % 1024), VBUUID: uint64(i), Seqno: 1}
	}
	if err := s.Wrote("b0", many[:scanport.MaxTokens-1]...); err != nil {
		t.Error(err)
	}
	if err := s.Wrote("b0", many[7], many[scanport.MaxTokens]); !errors.Is(err, ErrSessionFull) {
		t.Error(err)
	}
}

// TestScansByIDSendTokensOfTheirBucket: a request for an index by id only contains what was seen and written of its
// bucket, because everything together may exceed the limit of a request.
func TestScansByIDSendTokensOfTheirBucket(t *testing.T) {
	p := &sessionManager{}
	lookups := 0
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			lookups++
			fmt.Fprint(w, `{"id":"12","bucket":"b3"}`)
			return
		}
		if r.ContentLength > rpc.MaxUserBody/10 {
			t.Errorf("%s has a body of %d bytes", r.URL.Path, r.ContentLength)
		}
		p.ServeHTTP(w, r)
	}))
	defer srv.Close()
	cl := Open(Options{Servers: []string{srv.URL}, ViaManagers: true, Sessionless: true})
	silent(cl)
	defer cl.Close()
	var s Session
	const buckets = 40
	for b := range buckets {
		for vb := range uint16(1024) {
			token := v1.Token{VBucket: vb, VBUUID: 1<<64 - 1, Seqno: 1<<63 + uint64(b)}
			if err := s.Wrote(fmt.Sprint("b", b), token); err != nil {
				t.Fatal(err)
			}
		}
		seen := saw(fmt.Sprint("b", b), uint64(b))
		s.cut(&seen)
	}
	for range 2 {
		p.answers = []scanport.Seen{saw("b3", 50)}
		if _, err := s.Count(t.Context(), cl, "12", v1.ScanRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(p.requests[0].ScanVectors["b3"]); n != 1024 || len(p.requests[0].ScanVectors) != 1 ||
		numbers(t, &p.requests[0]) != "b3 3" || numbers(t, &p.requests[1]) != "b3 50" || p.requests[1].ScanVectors != nil {
		t.Errorf("%d writes; seen %s, then %s with %d", n, numbers(t, &p.requests[0]), numbers(t, &p.requests[1]),
			len(p.requests[1].ScanVectors))
	}
	if lookups != 1 || len(s.wrote) != buckets-1 {
		t.Errorf("%d requests for the bucket, writes to %d buckets are left", lookups, len(s.wrote))
	}
}

// TestWritesOutliveErrors: an error removes the writes that it names, and no others; a write on another branch does
// not replace one.
func TestWritesOutliveErrors(t *testing.T) {
	var refusal *rpc.Problem
	var sent v1.ScanRequest
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent = v1.ScanRequest{}
		if err := json.NewDecoder(r.Body).Decode(&sent); err != nil || refusal != nil {
			rpc.WriteProblem(w, refusal)
			return
		}
		fmt.Fprintln(w, `{"end":true,"rows":0,"timestamp":{"id":"1.0.1.2","hash":"2"}}`)
	}))
	defer srv.Close()
	cl := Open(Options{Servers: []string{srv.URL}, ViaManagers: true, Sessionless: true})
	silent(cl)
	defer cl.Close()
	lost := func(t v1.Token) wire.LostWrite { return wire.LostWrite(t) }
	kept, old, newer := v1.Token{VBucket: 1, VBUUID: 8, Seqno: 3}, v1.Token{VBucket: 7, VBUUID: 8, Seqno: 9},
		v1.Token{VBucket: 7, VBUUID: 9, Seqno: 5}
	for name, c := range map[string]struct {
		code errcode.Code
		lost []wire.LostWrite
		want string
	}{
		"names none of them": {errcode.BadRequest, nil, "1/8:3 7/8:9 7/9:5"},
		"of another seqno": {errcode.TokenLost, []wire.LostWrite{{VBucket: 7, VBUUID: 8, Seqno: 8}},
			"1/8:3 7/8:9 7/9:5"},
		"one is lost":   {errcode.TokenLost, []wire.LostWrite{lost(old)}, "1/8:3 7/9:5"},
		"of no vbucket": {errcode.BadRequest, []wire.LostWrite{lost(old), lost(newer)}, "1/8:3"},
		"all":           {errcode.TokenLost, []wire.LostWrite{lost(old), lost(kept), lost(newer)}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var s Session
			if err := s.Wrote("w", newer, kept, old, v1.Token{VBucket: 1, VBUUID: 8, Seqno: 2}); err != nil {
				t.Fatal(err)
			}
			refusal = rpc.Refuse(c.code, "no")
			refusal.Lost = c.lost
			var refused *wire.Problem
			_, err := s.Scan(t.Context(), cl, "w/i", v1.ScanRequest{})
			if !errors.As(err, &refused) || refused.Code != c.code {
				t.Errorf("%v", err)
			}
			if n := len(sent.ScanVectors["w"]["7"]); n != 4 {
				t.Errorf("the tokens of two branches: %s", sent.ScanVectors)
			}
			var got []string
			for at, seqno := range s.pending("w")["w"] {
				got = append(got, fmt.Sprintf("%d/%d:%d", at.vbucket, at.vbuuid, seqno))
			}
			slices.Sort(got)
			if strings.Join(got, " ") != c.want {
				t.Errorf("kept are %v, want %q", got, c.want)
			}
		})
	}
}

// TestScanWithoutDeadlineIsNotRetriedForever: a scan without a deadline fails after a while, with the cause; one with
// a deadline, and other calls, continue until then.
func TestScanWithoutDeadlineIsNotRetriedForever(t *testing.T) {
	var requests atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests.Add(1)
		rpc.WriteProblem(w, rpc.Refuse(errcode.Timeout, "the session has already read timestamp 6"))
	}))
	defer srv.Close()
	cl := Open(Options{Servers: []string{srv.URL}, ViaManagers: true, RetryFor: time.Millisecond})
	silent(cl)
	defer cl.Close()
	_, scanned := cl.Scan(t.Context(), "w/i", v1.ScanRequest{})
	_, counted := cl.Count(t.Context(), "w/i", v1.ScanRequest{})
	for _, err := range []error{scanned, counted} {
		var p *wire.Problem
		if !errors.Is(err, ErrUnavailable) || !errors.As(err, &p) || p.Code != errcode.Timeout ||
			!strings.Contains(err.Error(), "no deadline") {
			t.Error(err)
		}
	}
	waits := func(what string, call func(context.Context) error) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		before := requests.Load()
		if what == "a deadline" {
			ctx, cancel = context.WithTimeout(t.Context(), time.Hour)
		}
		cl.Waiting = func(error) {
			if requests.Load() > before+3 {
				cancel()
			}
		}
		if err := call(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", what, err)
		}
	}
	waits("a deadline", func(ctx context.Context) error { _, err := cl.Count(ctx, "w/i", v1.ScanRequest{}); return err })
	waits("no scan", func(ctx context.Context) error { _, err := cl.Status(ctx); return err })
}
