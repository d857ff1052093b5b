package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"

	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/manager/api/v1"
	"tidemark/wire"
)

// pager is a manager with rows 0 to 6. Its cursors are row numbers.
type pager struct {
	expire string // the cursor that has expired
	long   string // the row that does not fit into a cursor

	requests []v1.ScanRequest
}

func (p *pager) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	var req v1.ScanRequest
	if err := json.Unmarshal(body, &req); err != nil || !req.WantCursor || req.Limit == 0 {
		rpc.WriteProblem(w, rpc.Refuse(errcode.BadRequest, "no page"))
		return
	}
	p.requests = append(p.requests, req)
	if req.Cursor != "" && req.Cursor == p.expire && !req.Newer {
		rpc.WriteProblem(w, rpc.Refuse(errcode.CursorExpired, "send it with newer"))
		return
	}
	from, _ := strconv.Atoi(req.Cursor)
	to := min(7, from+req.Limit)
	for i := from; i < to; i++ {
		fmt.Fprintf(w, `{"key":[%d],"id":"d%d"}`+"\n", i, i)
	}
	end := v1.ScanEnd{End: true, Rows: uint64(to - from), ScanMore: v1.ScanMore{More: to < 7}}
	if cursor := strconv.Itoa(to); end.More && cursor != p.long {
		end.Cursor = cursor
	}
	_ = json.NewEncoder(w).Encode(end)
}

// pagesOf returns a client of p.
func pagesOf(t *testing.T, p *pager) *Client {
	t.Helper()
	srv := httptest.NewServer(p)
	t.Cleanup(srv.Close)
	c := Open(Options{Servers: []string{srv.URL}, ViaManagers: true})
	silent(c)
	t.Cleanup(c.Close)
	return c
}

// readPages reads pages to their end or error, and returns the ids, with | after each page, and the last cursor.
func readPages(pages iter.Seq2[Page, error]) (text, after string, err error) {
	var b strings.Builder
	for page, err := range pages {
		if err != nil {
			return b.String(), page.After, err
		}
		for _, row := range page.Rows {
			fmt.Fprintf(&b, "%s=%s ", row.ID, row.Key[0])
		}
		b.WriteString("|")
		after = page.After
	}
	return b.String(), after, nil
}

// TestPagesFollowTheirCursors: each page is requested after the one before, with the rest of the request unchanged,
// and a second iteration begins anew.
func TestPagesFollowTheirCursors(t *testing.T) {
	p := &pager{}
	c := pagesOf(t, p)
	pages := c.Pages(t.Context(), "w/i", v1.ScanRequest{Limit: 3, Reverse: true})
	for range 2 {
		text, after, err := readPages(pages)
		if want := "d0=0 d1=1 d2=2 |d3=3 d4=4 d5=5 |d6=6 |"; err != nil || text != want || after != "6" {
			t.Fatalf("%s, last behind %q, %v; want %s", text, after, err, want)
		}
	}
	for i, req := range p.requests {
		if want := []string{"", "3", "6"}[i%3]; req.Cursor != want || req.Limit != 3 || !req.Reverse || req.Newer {
			t.Errorf("request %d: %+v", i, req)
		}
	}
	for page, err := range pages { // breaking out ends the requests
		if err != nil || len(page.Rows) != 3 {
			t.Fatal(page, err)
		}
		break
	}
	if len(p.requests) != 7 {
		t.Errorf("%d requests, want 7", len(p.requests))
	}
	if text, _, err := readPages(c.Pages(t.Context(), "w/i", v1.ScanRequest{Limit: 7})); err != nil || text == "" ||
		strings.Count(text, "|") != 1 {
		t.Errorf("one page: %s, %v", text, err)
	}
}

// TestExpiredPagesReportWhereToContinue: the error of an expired state contains the place after the last page, and
// the request continues there in the newest state; only its first page is marked as newer.
func TestExpiredPagesReportWhereToContinue(t *testing.T) {
	p := &pager{expire: "4"}
	c := pagesOf(t, p)
	req := v1.ScanRequest{Limit: 2}
	text, after, err := readPages(c.Pages(t.Context(), "w/i", req))
	var problem *wire.Problem
	if !errors.As(err, &problem) || problem.Code != errcode.CursorExpired || after != "4" ||
		strings.Count(text, "|") != 2 {
		t.Fatalf("%s behind %q: %v", text, after, err)
	}
	req.Cursor, req.Newer = after, true
	p.requests = nil
	if text, _, err = readPages(c.Pages(t.Context(), "w/i", req)); err != nil || text != "d4=4 d5=5 |d6=6 |" {
		t.Fatalf("%s: %v", text, err)
	}
	if !p.requests[0].Newer || p.requests[1].Newer {
		t.Errorf("newer of the requests: %v, %v; want true only for the first", p.requests[0].Newer, p.requests[1].Newer)
	}
	p.long = "4"
	text, after, err = readPages(c.Pages(t.Context(), "w/i", v1.ScanRequest{Limit: 2}))
	if !errors.Is(err, ErrNoCursor) || after != "2" || strings.Count(text, "|") != 2 {
		t.Fatalf("a row that no cursor names: %s behind %q, %v", text, after, err)
	}
}

// TestPagesEndWithTheirContext: a page requested after the context's end is an error, not the end of the pages.
func TestPagesEndWithTheirContext(t *testing.T) {
	c := pagesOf(t, &pager{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var ids []string
	var last error
	for page, err := range c.Pages(ctx, "w/i", v1.ScanRequest{Limit: 3}) {
		for _, row := range page.Rows {
			ids = append(ids, row.ID)
		}
		last = err
		cancel()
	}
	if !errors.Is(last, context.Canceled) || !slices.Equal(ids, []string{"d0", "d1", "d2"}) {
		t.Errorf("%v, %v", ids, last)
	}
}
