package client

import (
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
	"testing"
	"time"

	"tidemark/errcode"
	"tidemark/indexer/scanport"
	"tidemark/internal/rpc"
	"tidemark/timestamp"
)

func saw(bucket string, number uint64) scanport.Seen {
	return scanport.Seen{Cluster: 1, Epoch: 2, Bucket: bucket, At: timestamp.Ref{Number: number}}
}

// teller is a manager whose answers are of the timestamps that it is given, and that notes what it is asked.
type teller struct {
	mu      sync.Mutex
	answers []scanport.Seen
	refuse  errcode.Code
	asked   []ScanRequest
}

func (p *teller) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	var req ScanRequest
	if err := json.Unmarshal(body, &req); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = append(p.asked, req)
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

// numbers are the timestamps that a request must not be older than, of each bucket.
func numbers(t *testing.T, req *ScanRequest) string {
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

// TestClientsGoOnFromWhatTheyHaveSeen: by name the bucket's token goes, by id all of them; an answer that comes late
// takes nothing back; what was read in part was seen as well.
func TestClientsGoOnFromWhatTheyHaveSeen(t *testing.T) {
	p := &teller{}
	srv := httptest.NewServer(p)
	defer srv.Close()
	cl := Open(Options{Servers: []string{srv.URL}, ViaManagers: true})
	silent(cl)
	defer cl.Close()
	ask := func(ref string, answer scanport.Seen, rows int, own string) string {
		t.Helper()
		p.answers = append(p.answers, answer)
		if rows < 0 {
			if _, err := cl.Count(t.Context(), ref, ScanRequest{Session: own}); err != nil {
				t.Fatal(err)
			}
		} else {
			got, err := cl.Scan(t.Context(), ref, ScanRequest{Session: own})
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
		return numbers(t, &p.asked[len(p.asked)-1])
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
		{"12", saw("w", 9), 0, "", "v 2, w 8"},
		{"w/i", saw("w", 9), 4, own.Token(), "w 3, w 9"},
		{"w2/i", saw("w2", 1), 4, "", ""},
	} {
		if got := ask(step.ref, step.answer, step.rows, step.own); got != step.want {
			t.Errorf("step %d, %s: asked with %q, want %q", i, step.ref, got, step.want)
		}
	}
	other := &Session{}
	if err := other.Take(cl.session.Token()); err != nil ||
		numbers(t, &ScanRequest{Session: other.Token()}) != "v 2, w 9, w2 1" {
		t.Errorf("%s, %v", other.Token(), err)
	}
	if err := other.Take("abc"); !errors.Is(err, scanport.ErrSession) {
		t.Error(err)
	}
	p.answers = []scanport.Seen{{Cluster: 8, Bucket: "w"}, saw("w", 1)}
	if _, err := cl.Count(t.Context(), "w/i", ScanRequest{}); err != nil ||
		numbers(t, &ScanRequest{Session: cl.session.Token()}) != "v 2, w 0, w2 1" {
		t.Errorf("another cluster: %v", err)
	}
	none := Open(Options{Servers: []string{srv.URL}, ViaManagers: true, Sessionless: true})
	silent(none)
	defer none.Close()
	p.answers = []scanport.Seen{saw("w", 1), saw("w", 1)}
	for range 2 {
		if _, err := none.Count(t.Context(), "w/i", ScanRequest{}); err != nil || p.asked[len(p.asked)-1].Session != "" {
			t.Errorf("sessionless: %+v, %v", p.asked[len(p.asked)-1], err)
		}
	}
}

// TestWritesAreShown: until an answer has shown them, whatever is asked for; a write that was lost is told once.
func TestWritesAreShown(t *testing.T) {
	p := &teller{}
	srv := httptest.NewServer(p)
	defer srv.Close()
	cl := Open(Options{Servers: []string{srv.URL}, ViaManagers: true, Sessionless: true})
	silent(cl)
	defer cl.Close()
	var s Session
	count := func(ref string, req ScanRequest, code errcode.Code) string {
		t.Helper()
		p.answers, p.refuse = []scanport.Seen{saw("w", 5)}, code
		_, err := s.Count(t.Context(), cl, ref, req)
		var refused *Error
		if (err != nil) != (code != "") || err != nil && (!errors.As(err, &refused) || refused.Code != code) {
			t.Fatalf("%v, want %q", err, code)
		}
		got := p.asked[len(p.asked)-1]
		vectors, err := json.Marshal(got.ScanVectors)
		if err != nil {
			t.Fatal(err)
		}
		return got.Consistency + string(vectors)
	}
	s.Wrote("w", Token{VBucket: 1, VBUUID: 1<<64 - 1, Seqno: 5}, Token{VBucket: 2, VBUUID: 8, Seqno: 3})
	s.Wrote("w", Token{VBucket: 1, VBUUID: 1<<64 - 1, Seqno: 4}, Token{VBucket: 2, VBUUID: 8, Seqno: 9})
	const both, none = `at_plus{"w":{"1":[5,"18446744073709551615"],"2":[9,"8"]}}`, `null`
	own := map[string]map[string][]json.RawMessage{"w": {"1": {[]byte("7"), []byte(`"9"`)},
		"3": {[]byte("1"), []byte(`"1"`)}}}
	for i, step := range []struct {
		ref  string
		req  ScanRequest
		code errcode.Code
		want string
	}{
		{"v/i", ScanRequest{}, "", none},
		{"w/i", ScanRequest{Timestamp: "1.0.1.2", Stability: "query"}, "", none},
		{"w/i", ScanRequest{}, errcode.UnknownIndex, both}, // which says nothing of them
		{"7", ScanRequest{Consistency: "any"}, errcode.TokenLost, both},
		{"w/i", ScanRequest{}, "", none},
	} {
		if got := count(step.ref, step.req, step.code); got != step.want {
			t.Errorf("step %d: %s, want %s", i, got, step.want)
		}
	}
	for _, req := range []ScanRequest{{}, {Consistency: "session"}} {
		s.Wrote("w", Token{VBucket: 1, VBUUID: 7, Seqno: 5})
		count("w/i", req, "")
		if got := count("w/i", ScanRequest{}, ""); got != none {
			t.Errorf("after %q: %s", req.Consistency, got)
		}
	}
	s.Wrote("w", Token{VBucket: 1, VBUUID: 7, Seqno: 5}, Token{VBucket: 3, VBUUID: 7, Seqno: 5})
	if got := count("w/i", ScanRequest{Consistency: "at_plus", ScanVectors: own}, errcode.UnknownIndex); got !=
		`at_plus{"w":{"1":[7,"9"],"3":[5,"7"]}}` || len(own["w"]) != 2 || string(own["w"]["3"][0]) != "1" {
		t.Errorf("%s, and the caller's own are %s", got, own)
	}
}

// TestWhatIsReadInPartWasSeen: an indexer tells with each message what was seen; who closes the scan then, or loses its
// indexers, has seen it.
func TestWhatIsReadInPartWasSeen(t *testing.T) {
	for name, end := range map[string]part{"closed": {ids: "ab", deaf: true, saw: "w"},
		"failed": {ids: "ab", tail: string(errcode.Damaged), saw: "w"}} {
		t.Run(name, func(t *testing.T) {
			s := newScripted(t, end)
			cl := New("127.0.0.1:1")
			defer cl.Close()
			silent(cl, s.addr)
			d := cl.direct
			d.dialer.NetDialContext, d.dialer.HandshakeTimeout = new(net.Dialer).DialContext, time.Minute
			d.routes["w/i"] = &way{route: &ScanRoute{Index: 1, ScanPorts: []string{s.addr}, Ticket: "t", TicketMS: 60_000},
				at: time.Now(), detour: time.Minute}
			rows, err := cl.Scan(t.Context(), "w/i", ScanRequest{})
			if err != nil {
				t.Fatal(err)
			}
			for n := 0; (name != "closed" || n < 2) && rows.Next(); n++ {
			}
			if err := rows.Close(); err != nil {
				t.Fatal(err)
			}
			if got := numbers(t, &ScanRequest{Session: cl.session.Token()}); got != "w 9" {
				t.Errorf("seen %q", got)
			}
		})
	}
}

// TestSessionsOfManyBuckets: however many there are, and whatever their names, what a session sends is taken.
func TestSessionsOfManyBuckets(t *testing.T) {
	for _, name := range []string{"b%d", strings.Repeat("a long name ", 8) + "%d"} {
		var s Session
		for i := range 2 * scanport.MaxSeen {
			seen := saw(fmt.Sprintf(name, i), uint64(i))
			s.saw(&seen, nil)
			s.saw(&seen, nil)
		}
		for i := range 2 * scanport.MaxSeen { // newer ones take the place of older ones
			seen := saw(fmt.Sprintf(name, i), 1<<40)
			s.saw(&seen, nil)
		}
		all, err := scanport.ParseSession(s.Token())
		if err != nil || len(all) < 256 || s.size != len(s.Token())+1 {
			t.Errorf("%d tokens of %d bytes, counted %d: %v", len(all), len(s.Token()), s.size, err)
		}
		var other Session
		if err := other.Take(s.Token()); err != nil {
			t.Error(err)
		}
	}
}

// TestWritesOutliveBadRequests: a request that means nothing of itself says nothing of what was written; one that does
// by writes to a bucket that was made anew with fewer vbuckets lets go of them, once.
func TestWritesOutliveBadRequests(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var req ScanRequest
		if err := json.NewDecoder(r.Body).Decode(&req); err != nil || req.Offset < 0 || req.ScanVectors["w"]["900"] != nil {
			rpc.WriteProblem(w, rpc.Refuse(errcode.BadRequest, "no"))
			return
		}
		fmt.Fprintln(w, `{"end":true,"rows":0,"timestamp":{"id":"1.0.1.2","hash":"2"}}`)
	}))
	defer srv.Close()
	cl := Open(Options{Servers: []string{srv.URL}, ViaManagers: true, Sessionless: true})
	silent(cl)
	defer cl.Close()
	for _, c := range []struct {
		vb   uint16
		req  ScanRequest
		kept bool
	}{
		{7, ScanRequest{Offset: -1}, true},
		{900, ScanRequest{Offset: -1}, true},
		{900, ScanRequest{}, false},
	} {
		var s Session
		s.Wrote("w", Token{VBucket: c.vb, VBUUID: 8, Seqno: 3})
		var refused *Error
		if _, err := s.Scan(t.Context(), cl, "w/i", c.req); !errors.As(err, &refused) || refused.Code != errcode.BadRequest {
			t.Errorf("%+v: %v", c, err)
		}
		if kept := len(s.pending("w")) > 0; kept != c.kept {
			t.Errorf("%+v: kept %v", c, kept)
		}
	}
}
