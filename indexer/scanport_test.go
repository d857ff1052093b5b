package indexer

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"tidemark/client"
	"tidemark/errcode"
	"tidemark/indexer/scanport"
	"tidemark/internal/rpc"
	"tidemark/manager/api/v1"
	"tidemark/manager/auth"
	"tidemark/statecontext"
	"tidemark/wire"
)

// desk is the part of a manager that clients of the scan port use: it issues and checks tickets, and answers scans
// with one row, byManager, when a client scans through the manager.
type desk struct {
	mu      sync.Mutex
	tickets *auth.Tickets
	port    func() string
	revoked bool
	lower   bool // no user may scan
	located int
}

// byManager is the row of a scan through the manager, countedByManager the count.
const (
	byManager        = "by-manager"
	countedByManager = 7777
)

func (d *desk) set(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f()
}

func (d *desk) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case strings.HasSuffix(r.URL.Path, ":locate"):
		d.located++
		ticket, err := d.tickets.Issue(&auth.Identity{Name: "alice", Role: statecontext.UserReads}, time.Hour)
		if err != nil {
			rpc.WriteProblem(w, err)
			return
		}
		rpc.Write(w, r, http.StatusOK, v1.ScanRoute{Index: 1, ScanPorts: []string{d.port()}, Ticket: ticket,
			TicketMS: time.Hour.Milliseconds()})
	case r.URL.Path == scanport.CheckPath:
		rpc.Message(func(_ context.Context, q *scanport.Check) (*scanport.Checked, error) {
			who, err := d.tickets.Open(q.Ticket)
			if err == nil && d.revoked {
				err = errors.New("revoked")
			}
			if err != nil {
				return nil, rpc.Refuse(errcode.Unauthenticated, "%v", err)
			}
			if d.lower {
				return nil, rpc.Refuse(errcode.Forbidden, "a scan needs role read")
			}
			return &scanport.Checked{Principal: who.Name}, nil
		}).ServeHTTP(w, r)
	case strings.HasSuffix(r.URL.Path, ":scan"):
		_, _ = w.Write([]byte(`{"key":[1],"id":"` + byManager + `"}` + "\n" + `{"end":true,"rows":1}` + "\n"))
	case strings.HasSuffix(r.URL.Path, ":count"):
		rpc.Write(w, r, http.StatusOK, v1.CountReply{Count: countedByManager})
	default:
		http.NotFound(w, r)
	}
}

// straightly repeats ask until it reports that the request went directly to the indexer: a client that waits long for
// its connection uses the manager for a while.
func straightly(t testing.TB, ask func() bool) {
	t.Helper()
	for deadline := time.Now().Add(testTimeout); !ask(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("for %s all went by way of the manager", testTimeout)
		}
	}
}

// rowsStraight is rowsOf directly from the indexer.
func rowsStraight(t *testing.T, c *client.Client, req v1.ScanRequest) (ids []string, err error) {
	t.Helper()
	straightly(t, func() bool {
		ids, err = rowsOf(t, c, req)
		return !slices.Equal(ids, []string{byManager})
	})
	return ids, err
}

func rowsOf(t *testing.T, c *client.Client, req v1.ScanRequest) (ids []string, err error) {
	t.Helper()
	rows, err := c.Scan(t.Context(), "1", req)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		ids = append(ids, rows.Row().ID)
	}
	return ids, rows.Err()
}

// TestScansGoStraightToTheIndexer checks scans with a manager's ticket over one connection, with the same errors as
// REST. A ticket that no manager issued is refused. When the indexer stops or comes back, scans continue, meanwhile
// through the managers.
func TestScansGoStraightToTheIndexer(t *testing.T) {
	w := newWorld(t)
	tickets, err := auth.NewTickets(w.manager.URL, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	d := &desk{tickets: tickets, port: func() string { return w.endpoint.Scan }}
	w.users = d
	w.write(testDoc{id: "a", value: 1}, testDoc{id: "b", value: 2})
	w.serve(10)
	c := client.New(w.manager.URL)
	defer c.Close()
	ids, err := rowsStraight(t, c, v1.ScanRequest{Consistency: "session"})
	if err != nil || strings.Join(ids, " ") != "a b" {
		t.Fatalf("%v %v", ids, err)
	}
	var n v1.CountReply
	straightly(t, func() bool {
		n, err = c.Count(t.Context(), "1", v1.ScanRequest{Consistency: "session"})
		return n.Count != countedByManager
	})
	if err != nil || n.Count != 2 {
		t.Fatalf("%+v %v", n, err)
	}
	var p *wire.Problem
	if _, err := rowsStraight(t, c, v1.ScanRequest{Consistency: "at_plus"}); !errors.As(err, &p) ||
		p.Code != "BAD_REQUEST" || p.Status != 400 {
		t.Errorf("at_plus without tokens: %v", err)
	}
	ids, err = rowsStraight(t, c, v1.ScanRequest{Limit: 1, Reverse: true})
	if err != nil || strings.Join(ids, " ") != "b" {
		t.Errorf("after a refusal: %v %v", ids, err)
	}
	for name, ticket := range map[string]string{"none": "", "nonsense": "x.y", "of another": foreign(t, w.manager.URL)} {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+w.endpoint.Scan+scanport.Path, nil)
		req.Header.Set(scanport.HeaderTicket, ticket)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if resp.Body.Close(); resp.StatusCode != http.StatusUnauthorized {
			t.Errorf("ticket %s: status %d", name, resp.StatusCode)
		}
	}
	w.stopIndexer()
	if ids, err := rowsOf(t, c, v1.ScanRequest{}); err != nil || strings.Join(ids, " ") != byManager {
		t.Errorf("without the indexer: %v %v", ids, err)
	}
}

func foreign(t *testing.T, issuer string) string {
	other, err := auth.NewTickets(issuer, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	ticket, err := other.Issue(&auth.Identity{Name: "eve", Role: statecontext.UserAdmin}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return ticket
}
