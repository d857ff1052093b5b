package api

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"tidemark/errcode"
	"tidemark/indexer/scanport"
	"tidemark/internal/rpc"
	"tidemark/manager/auth"
	"tidemark/statecontext"
)

// TestCheckTicket checks that a valid ticket is accepted for a user who may scan; for another user it is refused as
// FORBIDDEN, and an unknown one, one of another manager, or an expired one as UNAUTHENTICATED.
func TestCheckTicket(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	mine, err := auth.NewTickets("http://m1", func() time.Time { return now })
	if err != nil {
		t.Fatal(err)
	}
	other, err := auth.NewTickets("http://m1", func() time.Time { return now })
	if err != nil {
		t.Fatal(err)
	}
	issue := func(by *auth.Tickets, role statecontext.UserRole) string {
		ticket, err := by.Issue(&auth.Identity{Name: "ann", Role: role}, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		return ticket
	}
	reader := issue(mine, statecontext.UserReads)
	for _, c := range []struct {
		name, ticket string
		after        time.Duration
		want         errcode.Code // "": valid
	}{
		{"reads", reader, 0, ""},
		{"ddl includes reads", issue(mine, statecontext.UserDDL), 0, ""},
		{"no role", issue(mine, 0), 0, errcode.Forbidden},
		{"another's", issue(other, statecontext.UserAdmin), 0, errcode.Unauthenticated},
		{"nobody's", "x", 0, errcode.Unauthenticated},
		{"none", "", 0, errcode.Unauthenticated},
		{"just before its end", reader, time.Minute - time.Millisecond, ""},
		{"at its end", reader, time.Minute, errcode.Unauthenticated},
	} {
		now = time.Unix(1_000_000, 0).Add(c.after)
		body, err := json.Marshal(scanport.Check{Ticket: c.ticket})
		if err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, scanport.CheckPath, strings.NewReader(string(body)))
		r.Header.Set("Content-Type", rpc.MediaJSON)
		w := httptest.NewRecorder()
		got, who := errcode.Code(""), scanport.Checked{}
		if err := (components{access: New(Config{Tickets: mine}).access}).checkTicket(w, r); err != nil {
			got = rpc.AsProblem(err).Code
		} else if err := json.Unmarshal(w.Body.Bytes(), &who); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if got != c.want || (c.want == "") != (who.Principal == "ann") {
			t.Errorf("%s: %q of %q, want %q", c.name, got, who.Principal, c.want)
		}
	}
}
