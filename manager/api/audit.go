package api

import (
	"encoding/json"
	"io"
	"net/http"
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
	Remote    string `json:"remote"`         // the address that it came from
	From      string `json:"from,omitempty"` // the manager that has passed it on
	Method    string `json:"method"`
	Path      string `json:"path"`
	Status    int    `json:"status"`
	Outcome   string `json:"outcome"`          // OK, or the code of the problem
	Detail    string `json:"detail,omitempty"` // of a refusal
	TookMS    int64  `json:"took_ms"`
}

// audit writes the audit log.
type audit struct {
	to      io.Writer // nil: there is none
	manager string
	log     hclog.Logger
	failed  func()
}

// audits reports whether calls of a route are writes of users, or sessions.
func (rt *route) audits() bool {
	return rt.method != http.MethodGet && !rt.component() && (rt.leader || rt.role == RoleDDL || rt.role == RoleAdmin)
}

// note writes a line. What cannot be written is counted and told; a call does not fail for that.
func (a *audit) note(r *http.Request, x Audited) {
	if a.to == nil {
		return
	}
	x.Manager, x.RequestID, x.Remote, x.From = a.manager, rpc.RequestID(r.Context()), r.RemoteAddr,
		r.Header.Get(HeaderForwarded)
	x.Method, x.Path = r.Method, loggedPath(r)
	line, err := json.Marshal(&x)
	if err == nil {
		_, err = a.to.Write(append(line, '\n')) // as a whole: lines of several calls do not mix
	}
	if err != nil {
		a.failed()
		a.log.Error("the audit log cannot be written", "request_id", x.RequestID, "error", err)
	}
}
