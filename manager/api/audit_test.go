package api

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"tidemark/statecontext"
)

// TestRefusalsPushNothingOut checks that only some of many refusals in a second have lines, that a later line has the
// number of the others, and that texts chosen by the sender are cut. All writes have lines.
func TestRefusalsPushNothingOut(t *testing.T) {
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
