package api

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"tidemark/internal/rpc"
)

// Audited is a line of the audit log, in JSON: a write that this manager has answered, or a request that it has
// refused because of its sender. It contains no secrets.
type Audited struct {
	Time      time.Time `json:"time"`    // of the answer
	Manager   string    `json:"manager"` // that answered
	RequestID string    `json:"request_id"`
	// Principal is the sender: a user, a certificate, or anonymous. It is absent from a refusal: the sender was not
	// authenticated, or is named in Detail.
	Principal string `json:"principal,omitempty"`
	Remote    string `json:"remote"`         // the sender's address; of a forwarded request, the forwarding manager's
	From      string `json:"from,omitempty"` // the manager that forwarded it, whose log has the sender's address
	Method    string `json:"method"`
	Path      string `json:"path"`
	Status    int    `json:"status"`
	Outcome   string `json:"outcome"`          // OK, PASSED_ON (the leader's log has more), or the problem's code
	Detail    string `json:"detail,omitempty"` // of a refusal
	TookMS    int64  `json:"took_ms"`
}

// auditPassedOn is the outcome of a write that another manager has answered; auditOmitted is that of a line that
// counts refusals without lines of their own.
const (
	auditPassedOn = "PASSED_ON"
	auditOmitted  = "OMITTED"
)

const (
	// auditText limits texts chosen by the sender, in bytes.
	auditText = 200
	// auditRefusals limits the lines for refusals per second: unauthenticated senders must not push out other lines.
	auditRefusals = 20
)

// audit writes the audit log.
type audit struct {
	to      io.Writer // nil: there is none
	manager string
	log     hclog.Logger
	failed  func()

	mu       sync.Mutex
	second   time.Time // of the newest refusal
	refusals int       // in that second
	omitted  int       // refusals without a line, not counted in one yet
}

// audits reports whether calls of a route are audited: writes of users, and sessions.
func (rt *route) audits() bool {
	return rt.method != http.MethodGet && !rt.component() && (rt.leader || rt.role == RoleDDL || rt.role == RoleAdmin)
}

// note writes a line for a request; from is the manager that has forwarded it, or "".
func (a *audit) note(r *http.Request, from string, x Audited) {
	if a.to == nil {
		return
	}
	x.RequestID, x.Remote, x.From = rpc.RequestID(r.Context()), r.RemoteAddr, cut(from)
	x.Method, x.Path, x.Detail = r.Method, cut(rpc.WithoutSecrets(r.URL.Path)), cut(x.Detail)
	a.write(x)
}

// cut limits a text chosen by the sender.
func cut(text string) string {
	if len(text) <= auditText {
		return text
	}
	return strings.ToValidUTF8(text[:auditText], "") + "…"
}

// refused writes the line of a refusal, unless there were too many in this second: the next second's first line
// counts those.
func (a *audit) refused(r *http.Request, from string, x Audited) {
	a.mu.Lock()
	omitted := 0
	if second := x.Time.Truncate(time.Second); !second.Equal(a.second) {
		omitted, a.omitted = a.omitted, 0
		a.second, a.refusals = second, 0
	}
	a.refusals++
	has := a.refusals <= auditRefusals
	if !has {
		a.omitted++
	}
	a.mu.Unlock()
	if omitted > 0 && a.to != nil {
		a.write(Audited{Time: x.Time, Outcome: auditOmitted, Detail: fmt.Sprintf("%d more requests were refused before this "+
			"second", omitted)})
	}
	if has {
		a.note(r, from, x)
	}
}

// write writes a line. A failure is counted and logged; it does not fail the call.
func (a *audit) write(x Audited) {
	x.Manager = a.manager
	line, err := json.Marshal(&x)
	if err == nil {
		_, err = a.to.Write(append(line, '\n')) // in one call, so that lines of concurrent calls do not mix
	}
	if err != nil {
		a.failed()
		a.log.Error("the audit log cannot be written", "request_id", x.RequestID, "error", err)
	}
}
