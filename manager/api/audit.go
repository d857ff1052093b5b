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

// Audited is a line of the audit log, in JSON: a write that this manager has answered, or a request that it has refused
// because of who sent it. None has a secret in it.
type Audited struct {
	Time      time.Time `json:"time"`    // when it was answered
	Manager   string    `json:"manager"` // by whom
	RequestID string    `json:"request_id"`
	// Principal is who sent it: a user, a certificate, or anonymous. Of a refusal it is absent: who he is was not shown,
	// or stands in Detail.
	Principal string `json:"principal,omitempty"`
	Remote    string `json:"remote"`         // the address that it came from: of one that was passed on, that manager's
	From      string `json:"from,omitempty"` // the manager that has passed it on, whose log has the sender's address
	Method    string `json:"method"`
	Path      string `json:"path"`
	Status    int    `json:"status"`
	Outcome   string `json:"outcome"`          // OK, PASSED_ON (the leader's log has more), or the code of the problem
	Detail    string `json:"detail,omitempty"` // of a refusal
	TookMS    int64  `json:"took_ms"`
}

// auditPassedOn is the outcome of a write that another manager has answered; auditOmitted that of the line for refusals
// that have none of their own.
const (
	auditPassedOn = "PASSED_ON"
	auditOmitted  = "OMITTED"
)

const (
	// auditText bounds what a sender chooses, in bytes.
	auditText = 200
	// auditRefusals is how many refusals have lines within a second: whoever shows nothing, or what is wrong, must not
	// push out the lines of others.
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
	omitted  int       // refusals that have no line, and have not been told of
}

// audits reports whether calls of a route are writes of users, or sessions.
func (rt *route) audits() bool {
	return rt.method != http.MethodGet && !rt.component() && (rt.leader || rt.role == RoleDDL || rt.role == RoleAdmin)
}

// note writes a line of a request, which another manager has passed on unless from is empty.
func (a *audit) note(r *http.Request, from string, x Audited) {
	if a.to == nil {
		return
	}
	x.RequestID, x.Remote, x.From = rpc.RequestID(r.Context()), r.RemoteAddr, cut(from)
	x.Method, x.Path, x.Detail = r.Method, cut(rpc.WithoutSecrets(r.URL.Path)), cut(x.Detail)
	a.write(x)
}

// cut bounds what a sender chooses.
func cut(text string) string {
	if len(text) <= auditText {
		return text
	}
	return strings.ToValidUTF8(text[:auditText], "") + "…"
}

// refused writes the line of a refusal, unless there were many in this second: how many is told by a line of the next.
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

// write writes a line. What cannot be written is counted and told; a call does not fail for that.
func (a *audit) write(x Audited) {
	x.Manager = a.manager
	line, err := json.Marshal(&x)
	if err == nil {
		_, err = a.to.Write(append(line, '\n')) // as a whole: lines of several calls do not mix
	}
	if err != nil {
		a.failed()
		a.log.Error("the audit log cannot be written", "request_id", x.RequestID, "error", err)
	}
}
