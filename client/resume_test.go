package client

import (
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"tidemark/collate"
	"tidemark/errcode"
	"tidemark/indexer/scanport"
	"tidemark/manager/api/v1"
	"tidemark/wire"
)

// part is what an indexer sends for one request before it is killed, stalls, or has sent the end.
type part struct {
	ids     string // of rows, a letter each: a message for each
	stalls  bool   // it sends nothing more
	tail    string // END, or the code of a failure; "": it is killed
	noPlace bool   // its messages have no place to continue after
	saw     string // a bucket; its places state that timestamp 9 was seen
	fails   string // a token, in a failure
}

// scripted is an indexer that answers each request with the next part, and records where each request resumes. A row's
// place is its letter.
type scripted struct {
	addr string
	over chan struct{}

	mu      sync.Mutex
	parts   []part
	resumes []string
}

func newScripted(t *testing.T, parts ...part) *scripted {
	s := &scripted{parts: parts, over: make(chan struct{})}
	up := websocket.Upgrader{Subprotocols: []string{scanport.Protocol}}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, err := up.Upgrade(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		for {
			_, message, err := conn.ReadMessage()
			if err != nil {
				return
			}
			req, err := scanport.ParseRequest(message)
			if err != nil || string(req.Body) != "{}" || req.Op != scanport.Scan {
				t.Errorf("%+v, %v", req, err)
				return
			}
			if !s.answer(conn, string(req.Resume)) {
				return
			}
		}
	}))
	t.Cleanup(srv.Close)
	t.Cleanup(func() { close(s.over) })
	s.addr = srv.Listener.Addr().String()
	return s
}

func (s *scripted) answer(conn *websocket.Conn, resume string) bool {
	s.mu.Lock()
	s.resumes = append(s.resumes, resume)
	if len(s.parts) == 0 {
		s.mu.Unlock()
		return false
	}
	p := s.parts[0]
	s.parts = s.parts[1:]
	s.mu.Unlock()
	head := scanport.AppendHead(nil, []bool{false})
	send := func(id, text string, tail byte) bool {
		m := slices.Clone(head)
		if id != "" {
			m = scanport.AppendRow(m, collate.AppendInt64(nil, 7), []byte(id))
		}
		return conn.WriteMessage(websocket.BinaryMessage, scanport.Finish(m, len(head), tail, []byte(text))) == nil
	}
	for _, id := range strings.Split(p.ids, "") {
		place := id
		switch {
		case p.noPlace:
			place = ""
		case p.saw != "":
			seen := saw(p.saw, 9)
			place = string(seen.AppendSeen(nil)) + id
		}
		if !send(id, place, scanport.More) {
			return false
		}
	}
	switch {
	case p.stalls:
		<-s.over
		return false
	case p.tail == "":
		return false
	case p.tail == "END":
		return send("", `{"end":true,"rows":9}`, scanport.End)
	}
	return send("", `{"code":"`+p.tail+`","detail":"no","session":"`+p.fails+`"}`, scanport.Failure)
}

// TestCutAnswerIsContinued: if an indexer is killed or stalls in the middle of its answer, another one continues
// after the last row; if that is impossible, the scan returns the reason.
func TestCutAnswerIsContinued(t *testing.T) {
	t.Parallel()
	end := func(ids string) part { return part{ids: ids, tail: "END"} }
	fails := func(code errcode.Code) part { return part{tail: string(code)} }
	for _, c := range []struct {
		name    string
		parts   [3][]part // of the first indexer, and of two others
		ids     string
		resumes [3]string // where the requests to each resume; *: from the beginning
		code    errcode.Code
		cut     bool
	}{
		{"one is killed", [3][]part{{{ids: "abc"}}, {end("de")}}, "abcde", [3]string{"*", "c", ""}, "", false},
		{"nothing is left to come", [3][]part{{{ids: "abc"}}, {end("")}}, "abc", [3]string{"*", "c", ""}, "", false},
		{"one after the other is killed", [3][]part{{{ids: "ab"}}, {{ids: "c"}, end("f")}, {{ids: "de"}}}, "abcdef",
			[3]string{"*", "b e", "c"}, "", false},
		{"the next one is killed before its first message", [3][]part{{{ids: "ab"}}, {}, {end("c")}}, "abc",
			[3]string{"*", "b", "b"}, "", false},
		{"the next does not know the index yet", [3][]part{{{ids: "ab"}}, {fails(errcode.IndexNotHosted)}, {end("c")}}, "abc",
			[3]string{"*", "b", "b"}, "", false},
		{"it comes back itself", [3][]part{{{ids: "ab"}, end("c")}, {}, {}}, "abc", [3]string{"* b", "b", "b"}, "", false},
		{"the timestamp is gone", [3][]part{{{ids: "ab"}}, {fails(errcode.SnapshotTooOld)}}, "ab", [3]string{"*", "b", ""},
			errcode.SnapshotTooOld, false},
		{"no indexer continues", [3][]part{{{ids: "ab"}}, {}, {}}, "ab", [3]string{"* b", "b", "b"}, "", true},
		{"no place is sent", [3][]part{{{ids: "ab", noPlace: true}}, {end("c")}}, "ab", [3]string{"*", "", ""}, "", true},
		{"one stalls", [3][]part{{{ids: "ab", stalls: true}}, {end("c")}}, "abc", [3]string{"*", "b", ""}, "", false},
		{"a failure is an end", [3][]part{{{ids: "ab", tail: string(errcode.Damaged)}}, {end("c")}}, "ab",
			[3]string{"*", "", ""}, errcode.Damaged, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var all [3]*scripted
			for i := range all {
				all[i] = newScripted(t, c.parts[i]...)
			}
			cl := New("127.0.0.1:1")
			defer cl.Close()
			silent(cl, all[0].addr)
			d := cl.direct
			d.dialer.NetDialContext, d.dialer.HandshakeTimeout = new(net.Dialer).DialContext, time.Minute
			only := &v1.ScanRoute{Index: 1, ScanPorts: []string{all[0].addr}, Ticket: "t", TicketMS: 60_000}
			d.routes["b/i"] = &routeState{route: only, at: time.Now(), detour: time.Minute}
			rows, err := cl.Scan(t.Context(), "b/i", v1.ScanRequest{})
			if err != nil {
				t.Fatal(err)
			}
			defer rows.Close()
			var ids string
			for first := true; rows.Next(); first = false {
				if ids += rows.Row().ID; first { // from here on there are others, in this order
					inOrder(d, all[1].addr, all[2].addr, all[0].addr)
				}
			}
			var p *wire.Problem
			switch err := rows.Err(); {
			case ids != c.ids:
				t.Errorf("rows %s, want %s: %v", ids, c.ids, err)
			case c.cut && !errors.Is(err, ErrCut), c.code != "" && (!errors.As(err, &p) || p.Code != c.code),
				c.code == "" && !c.cut && err != nil:
				t.Errorf("%v", err)
			}
			for i, s := range all {
				s.mu.Lock()
				resumes := s.resumes
				s.mu.Unlock()
				for k := range resumes {
					if resumes[k] == "" {
						resumes[k] = "*"
					}
				}
				if got := strings.Join(resumes, " "); got != c.resumes[i] {
					t.Errorf("indexer %d was to resume after %q, want %q", i, got, c.resumes[i])
				}
			}
		})
	}
}

// inOrder sets a route of several indexers that are tried in this order.
func inOrder(d *direct, addrs ...string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	w := d.routes["b/i"]
	route := *w.route
	route.ScanPorts = addrs
	w.route = &route
	d.first = func(int) int { return 0 }
}
