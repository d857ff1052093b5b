package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/statecontext"
)

// TestRefusalsDoNotDisplaceAuditLines checks that only some of many refusals in a second have lines, that a later
// line has the number of the others, and that texts chosen by the sender are cut. All writes have lines.
func TestRefusalsDoNotDisplaceAuditLines(t *testing.T) {
	var to bytes.Buffer
	a := audit{to: &to, manager: "m1", log: hclog.NewNullLogger(), failed: func() { t.Error("a line cannot be written") }}
	r := httptest.NewRequest(http.MethodGet, "/v1/"+strings.Repeat("ä", 5000), nil)
	second := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	for range 3 * auditRefusals {
		a.refused(r, strings.Repeat("m", 5000), Audited{Time: second, Detail: strings.Repeat("x", 5000)})
		a.note(r, "", Audited{Time: second, Outcome: outcomeOK})
	}
	a.refused(r, "", Audited{Time: second.Add(time.Second)})
	lines := bytes.Split(bytes.TrimSpace(to.Bytes()), []byte("\n"))
	if want := 4*auditRefusals + 2; len(lines) != want {
		t.Fatalf("%d lines, want %d", len(lines), want)
	}
	for _, line := range lines {
		var x Audited
		if err := json.Unmarshal(line, &x); err != nil || len(line) > 2000 || x.Manager != "m1" {
			t.Errorf("a line of %d bytes: %.300s: %v", len(line), line, err)
		}
	}
	omitted := string(lines[len(lines)-2])
	if !strings.Contains(omitted, "OMITTED") || !strings.Contains(omitted, "40 more") {
		t.Errorf("%s", omitted)
	}
}

// TestRefusalsDoNotFillTheLog checks that refused requests, which need no permission, cause a log line a minute for
// each code and host, with the number of those left out, and that each has its answer and its line in the audit log.
func TestRefusalsDoNotFillTheLog(t *testing.T) {
	var log, audited bytes.Buffer
	logger := hclog.New(&hclog.LoggerOptions{Output: &log})
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	a := over(&ground{cfg: Config{Logger: logger}, now: func() time.Time { return now }})
	a.audit = audit{to: &audited, manager: "m1", log: logger}
	refuse := func(remote string, code errcode.Code) {
		r := httptest.NewRequest(http.MethodGet, "/v1/indexes", nil)
		r.RemoteAddr = remote
		w := httptest.NewRecorder()
		if got := a.refuse(w, r, "GET /v1/indexes", rpc.Refuse(code, "no")); got != string(code) || w.Code/100 != 4 {
			t.Errorf("answer %d with code %s, want %s", w.Code, got, code)
		}
	}
	const times = 10
	for i := range times {
		refuse(fmt.Sprintf("10.0.0.1:%d", 1000+i), errcode.Unauthenticated)
		refuse(fmt.Sprintf("10.0.0.1:%d", 1000+i), errcode.Forbidden)
	}
	now = now.Add(time.Minute)
	refuse("10.0.0.1:2000", errcode.Unauthenticated)
	refuse("10.0.0.2:2000", errcode.Unauthenticated)
	lines := slices.Collect(strings.Lines(log.String()))
	if len(lines) != 4 {
		t.Fatalf("%d lines, want 4: %q", len(lines), lines)
	}
	for i, want := range []string{"UNAUTHENTICATED left_out=0", "FORBIDDEN left_out=0",
		fmt.Sprintf("UNAUTHENTICATED left_out=%d", times-1), "remote=10.0.0.2:2000"} {
		if !strings.Contains(lines[i], want) {
			t.Errorf("line %d is %q, want %q in it", i, lines[i], want)
		}
	}
	if n := strings.Count(audited.String(), "\n"); n != 2*times+2 {
		t.Errorf("%d lines in the audit log, want %d", n, 2*times+2)
	}
}

// TestAuditHasNoSecrets checks that of a token's secret given for its id a line has only the prefix that identifies
// it as one.
func TestAuditHasNoSecrets(t *testing.T) {
	var to bytes.Buffer
	a := audit{to: &to, manager: "m1", log: hclog.NewNullLogger()}
	a.note(httptest.NewRequest(http.MethodDelete, "/v1/tokens/"+statecontext.TokenPrefix+"secret", nil), "", Audited{})
	if line := to.String(); strings.Contains(line, "secret") ||
		!strings.Contains(line, "/v1/tokens/"+statecontext.TokenPrefix+"…") {
		t.Error(line)
	}
}

// TestFewOf checks that the texts left out are counted.
func TestFewOf(t *testing.T) {
	for n := range namedTroubles + 3 {
		few := fewOf(make([]string, n))
		if len(few) != min(n, namedTroubles+1) {
			t.Errorf("%d of %d", len(few), n)
		}
		if n == namedTroubles+2 && few[namedTroubles] != "and 2 more; see tidemark cluster status" {
			t.Errorf("%q", few)
		}
	}
}
