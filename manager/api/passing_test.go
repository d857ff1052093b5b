package api

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/indexer/scan"
	"tidemark/indexer/scanport"
	"tidemark/internal/rpc"
	"tidemark/statecontext"
)

// indexerOf is an indexer with rows 0 to n-1 that sends pieces of some rows each, and is killed after some of them.
// The place of a row is its number.
type indexerOf struct {
	rows, piece int
	pad         string // appended to each row
	half        string // a partial line sent when it is killed
	blind       bool   // its pieces have no places, as with very long keys

	mu    sync.Mutex
	kills []int // rows of each answer before a kill; -1, or none left: no kill
	said  *rpc.Problem
	later *rpc.Problem // the answer from the second request on
	asked []string     // where each answer began
}

func (x *indexerOf) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet { // a liveness check
		return
	}
	from := 0
	resume, err := scanport.ParsePlace(r.Header.Get(scanport.HeaderResume))
	if err == nil && resume != nil {
		from, err = strconv.Atoi(string(resume))
	}
	if err != nil || r.Header.Get(scanport.HeaderPlaces) != "true" {
		rpc.WriteProblem(w, rpc.Refuse(errcode.BadRequest, "%v", err))
		return
	}
	x.mu.Lock()
	x.asked = append(x.asked, string(resume))
	kill, said := -1, x.said
	if said == nil && len(x.asked) > 1 {
		said = x.later
	}
	if len(x.kills) > 0 {
		kill, x.kills = x.kills[0], x.kills[1:]
	}
	x.mu.Unlock()
	if said != nil {
		rpc.WriteProblem(w, said)
		return
	}
	w.Header().Set("Content-Type", scan.MediaType)
	for i := from; i < x.rows; i++ {
		if i-from == kill {
			_, _ = io.WriteString(w, `{"key":[`+x.half)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
		_, _ = fmt.Fprintf(w, `{"key":[%q],"id":"%d"}`+"\n", x.pad, i)
		if (i+1)%x.piece != 0 {
			continue
		}
		place := base64.StdEncoding.EncodeToString([]byte(strconv.Itoa(i + 1)))
		if x.blind {
			place = ""
		}
		_, _ = fmt.Fprintf(w, `{"place":%q}`+"\n", place)
		_ = http.NewResponseController(w).Flush()
	}
	_, _ = fmt.Fprintf(w, `{"end":true,"rows":%d}`+"\n", x.rows)
}

// TestAnswerIsContinued checks that, whichever indexers are killed in the middle, the client gets each row once,
// in order, and the end; if no indexer can continue it gets an error after whole lines. It gets no places.
func TestAnswerIsContinued(t *testing.T) {
	long := strings.Repeat("x", mostHeld)
	for name, c := range map[string]struct {
		a, b  *indexerOf
		rows  int          // at the client; -1: none, and a problem instead
		code  errcode.Code // "": its end
		cut   bool
		asked string // where b's answers began
	}{
		"none is killed":          {a: &indexerOf{piece: 3}, rows: 20},
		"in the first piece":      {a: &indexerOf{piece: 3, kills: []int{2}}, b: &indexerOf{piece: 5}, rows: 20, asked: "[]"},
		"behind a piece":          {a: &indexerOf{piece: 3, kills: []int{6}}, b: &indexerOf{piece: 5}, rows: 20, asked: "[6]"},
		"in a piece":              {a: &indexerOf{piece: 3, kills: []int{8}}, b: &indexerOf{piece: 5}, rows: 20, asked: "[6]"},
		"before the end":          {a: &indexerOf{piece: 3, kills: []int{19}}, b: &indexerOf{piece: 5}, rows: 20, asked: "[18]"},
		"again and again":         {a: &indexerOf{piece: 3, kills: []int{4, 4, 4}}, b: &indexerOf{piece: 3, kills: []int{5, 5, 5}}, rows: 20, asked: "[3 9 15]"},
		"without progress":        {a: &indexerOf{piece: 9, kills: []int{10, 2, 2}}, b: &indexerOf{piece: 9, kills: []int{1, 1, 1}}, rows: 10, code: errcode.Unavailable, asked: "[9 9]"},
		"nothing ever comes":      {a: &indexerOf{piece: 9, kills: []int{0, 0, 0}}, b: &indexerOf{piece: 9, kills: []int{0, 0, 0}}, rows: -1, code: errcode.Unavailable, asked: "[ ]"},
		"the other one refuses":   {a: &indexerOf{piece: 3, kills: []int{8}}, b: &indexerOf{piece: 3, said: rpc.Refuse(errcode.SnapshotTooOld, "gone")}, rows: 8, code: errcode.SnapshotTooOld, asked: "[6]"},
		"the index is no more":    {a: &indexerOf{piece: 3, kills: []int{8}, later: rpc.Refuse(errcode.IndexNotHosted, "none")}, b: &indexerOf{piece: 3, said: rpc.Refuse(errcode.IndexNotHosted, "none")}, rows: 8, code: errcode.SnapshotTooOld, asked: "[6]"},
		"blind":                   {a: &indexerOf{piece: 3, kills: []int{8}, blind: true}, rows: 8, code: errcode.Unavailable, asked: "[]"},
		"rows that are too long":  {a: &indexerOf{piece: 9, pad: long, kills: []int{4}}, rows: 4, code: errcode.Unavailable, asked: "[]"},
		"in one that is":          {a: &indexerOf{piece: 9, half: long + long, kills: []int{4}}, rows: 4, cut: true, asked: "[]"},
		"long, and then a place":  {a: &indexerOf{piece: 2, pad: long, kills: []int{4}}, b: &indexerOf{piece: 5, pad: long}, rows: 20, asked: "[4]"},
		"one row, and not a line": {a: &indexerOf{piece: 1, kills: []int{1}}, b: &indexerOf{piece: 1}, rows: 20, asked: "[1]"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.b == nil {
				c.b = &indexerOf{piece: 4}
			}
			c.a.rows, c.b.rows = 20, 20
			first, second := httptest.NewServer(c.a), httptest.NewServer(c.b)
			defer first.Close()
			defer second.Close()
			api := New(Config{})
			defer api.Close()
			var addrs []string
			for _, s := range []*httptest.Server{first, second} {
				addrs = append(addrs, strings.TrimPrefix(s.URL, "http://"))
			}
			manager := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				q := &question{index: &statecontext.Index{Definition: index.Definition{ID: 7, Name: "i", Bucket: "b"}},
					action: scanAction, body: []byte("{}"), places: true}
				q.again = func() (*statecontext.Index, error) { return q.index, nil }
				resp, err := api.scans.askOne(r.Context(), q, addrs)
				if err == nil {
					err = api.scans.passRows(r.Context(), w, resp, q, func(*question) []string { return append([]string{}, addrs...) })
				}
				if err != nil {
					rpc.WriteProblem(w, err)
				}
			}))
			defer manager.Close()
			resp, err := http.Post(manager.URL, rpc.MediaJSON, strings.NewReader("{}"))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			got, err := io.ReadAll(resp.Body)
			if err != nil != c.cut {
				t.Fatalf("read %d bytes: %v", len(got), err)
			}
			if c.rows < 0 {
				if p := (&rpc.Problem{}); json.Unmarshal(got, p) != nil || p.Code != c.code || resp.StatusCode == http.StatusOK {
					t.Errorf("%d, %.200s", resp.StatusCode, got)
				}
			} else {
				checkRows(t, string(got), c.rows, c.code, c.cut)
			}
			if asked := fmt.Sprint(c.b.asked); c.asked != "" && asked != c.asked {
				t.Errorf("the other one was asked behind %s, want %s", asked, c.asked)
			}
		})
	}
}

// TestAnswerOfAReplacedIndex checks that, if nothing was sent when the indexer is lost, and a split has
// given the name to another index meanwhile, the answer is that index's.
func TestAnswerOfAReplacedIndex(t *testing.T) {
	lost := httptest.NewServer(&indexerOf{rows: 20, piece: 9, kills: []int{2, 2, 2, 2}})
	defer lost.Close()
	successor := &indexerOf{rows: 20, piece: 5}
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/v1/indexes/7:") {
			rpc.WriteProblem(w, rpc.Refuse(errcode.IndexNotHosted, "no index has id 7"))
			return
		}
		successor.ServeHTTP(w, r)
	}))
	defer other.Close()
	api := New(Config{})
	defer api.Close()
	made := func(id index.ID) *statecontext.Index {
		return &statecontext.Index{Definition: index.Definition{ID: id, Name: "i", Bucket: "b"}}
	}
	addrs := func(*question) []string {
		return []string{strings.TrimPrefix(lost.URL, "http://"), strings.TrimPrefix(other.URL, "http://")}
	}
	q := &question{index: made(7), action: scanAction, body: []byte("{}"), places: true,
		again: func() (*statecontext.Index, error) { return made(8), nil }}
	resp, err := api.scans.askOne(t.Context(), q, addrs(q))
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	if err := api.scans.passRows(t.Context(), w, resp, q, addrs); err != nil {
		t.Fatal(err)
	}
	checkRows(t, w.Body.String(), 20, "", false)
}

// TestAnswerOfAMovedIndex checks that moved copies are not reported as a missing index.
func TestAnswerOfAMovedIndex(t *testing.T) {
	for there, want := range map[bool]string{true: "has meanwhile moved to other " +
		"indexers", false: "was meanwhile " +
		"dropped or replaced"} {
		q := &question{index: &statecontext.Index{Definition: index.Definition{ID: 7, Name: "i", Bucket: "b"}},
			resume: "x", exists: func(context.Context) bool { return there }}
		err := q.replaced(t.Context(), rpc.Refuse(errcode.IndexNotHosted, "copy 3 of index 7 is not on this node"))
		var p *rpc.Problem
		if !errors.As(err, &p) || p.Code != errcode.SnapshotTooOld || !strings.Contains(p.Detail, want) {
			t.Errorf("still there %v: %v", there, err)
		}
	}
}

// checkRows checks lines: rows in order, and then the end, the error, or, if the answer was cut, possibly a partial
// line.
func checkRows(t *testing.T, got string, rows int, code errcode.Code, cut bool) {
	t.Helper()
	lines := strings.SplitAfter(got, "\n")
	for i, line := range lines[:min(rows, len(lines))] {
		if !strings.HasSuffix(line, fmt.Sprintf(`"id":"%d"}`+"\n", i)) {
			t.Fatalf("line %d ends with %.60q", i, line[max(0, len(line)-50):])
		}
	}
	rest := strings.Join(lines[min(rows, len(lines)):], "")
	switch {
	case cut:
	case code == "" && rest != fmt.Sprintf(`{"end":true,"rows":%d}`+"\n", rows),
		code != "" && (!strings.HasPrefix(rest, `{"error":`) || !strings.Contains(rest, string(code))):
		t.Errorf("%d rows, then %.300q", rows, rest)
	}
}

// TestIndexUnknownToIndexersIsRetried checks that indexers that do not know the index yet are asked again, by scans
// and by the sampling for a split.
func TestIndexUnknownToIndexersIsRetried(t *testing.T) {
	for code, again := range map[errcode.Code]bool{errcode.IndexNotReady: true, errcode.IndexNotHosted: true,
		errcode.UnknownIndex: false} {
		asked := 0
		indexer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodPost {
				return // a probe of the indexer, which a slow machine may send in addition
			}
			if asked++; asked <= 2 {
				rpc.WriteProblem(w, rpc.Refuse(code, "not yet"))
				return
			}
			_, _ = io.WriteString(w, `{"end":true}`)
		}))
		api := New(Config{})
		addrs := func(*statecontext.Index) []string { return []string{strings.TrimPrefix(indexer.URL, "http://")} }
		looked := 0
		x := &statecontext.Index{Definition: index.Definition{ID: 7, Name: "i", Bucket: "b"}}
		resp, err := api.scans.askReady(t.Context(), &question{index: x, action: scanAction, body: []byte("{}"),
			again: func() (*statecontext.Index, error) { looked++; return x, nil }}, addrs)
		var p *rpc.Problem
		switch {
		case again && (err != nil || resp.StatusCode != http.StatusOK || asked != 3 || looked != 2):
			t.Errorf("%s: %v, asked %d times, looked up %d times", code, err, asked, looked)
		case !again && (!errors.As(err, &p) || p.Code != code || asked != 1):
			t.Errorf("%s: %v, asked %d times", code, err, asked)
		}
		if err == nil {
			_ = resp.Body.Close()
		}
		indexer.Close()
		api.Close()
	}
}

// TestScanWaitsForReadinessFromTheNextLeader checks that a scan through a manager waits, for as long as scans wait,
// if an indexer learns only from the next leader that an index is ready, because the one that has decided it died at
// once.
func TestScanWaitsForReadinessFromTheNextLeader(t *testing.T) {
	for after, want := range map[time.Duration]int{scan.DefaultWait - time.Second: http.StatusOK,
		scan.DefaultWait + time.Second: http.StatusConflict} {
		began := time.Now()
		var passed atomic.Int64 // probes of the indexer may come in addition
		indexer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if time.Duration(passed.Add(int64(500*time.Millisecond))) < after {
				rpc.WriteProblem(w, rpc.Refuse(errcode.IndexNotReady, "not yet"))
				return
			}
			_, _ = io.WriteString(w, `{"end":true}`)
		}))
		api := New(Config{})
		api.scans.now = func() time.Time { return began.Add(time.Duration(passed.Load())) }
		x := &statecontext.Index{Definition: index.Definition{ID: 7, Name: "i", Bucket: "b"}}
		resp, err := api.scans.askReady(t.Context(), &question{index: x, action: scanAction, body: []byte("{}"),
			again: func() (*statecontext.Index, error) { return x, nil }},
			func(*statecontext.Index) []string { return []string{strings.TrimPrefix(indexer.URL, "http://")} })
		status := http.StatusOK
		if p := new(rpc.Problem); errors.As(err, &p) {
			status = p.Status
		} else if err != nil {
			t.Error(err)
		} else {
			_ = resp.Body.Close()
		}
		if status != want {
			t.Errorf("after %s: %d (%v), want %d", after, status, err, want)
		}
		indexer.Close()
		api.Close()
	}
}
