package wire

import "tidemark/errcode"

// Problem is an error as sent over the network (RFC 9457). Code is for programs, Detail for people: what was wrong,
// what was expected, what to do.
type Problem struct {
	Type         string       `json:"type"`
	Title        string       `json:"title"`
	Status       int          `json:"status"`
	Code         errcode.Code `json:"code"`
	Detail       string       `json:"detail"`
	Leader       *Leader      `json:"leader,omitempty"`
	RetryAfterMS int64        `json:"retry_after_ms,omitempty"`
	CAS          uint64       `json:"modified_cas,omitempty"` // the current one, with CAS_MISMATCH
	RequestID    string       `json:"request_id,omitempty"`   // of the refused request, as in the logs
	Reasons      []Reason     `json:"reasons,omitempty"`      // of /readyz, or unstored, of a write
	Lost         []LostWrite  `json:"lost,omitempty"`         // with TOKEN_LOST: at most MaxLost
}

// MaxLost bounds the writes that a Problem names.
const MaxLost = 512

// LostWrite is a write in a consistency token that KV has lost, or whose vbucket the bucket does not have.
type LostWrite struct {
	VBucket uint16 `json:"vbucket"`
	VBUUID  uint64 `json:"vbuuid,string"`
	Seqno   uint64 `json:"seqno"`
}

// Reason is one of several obstacles: a code for programs, text for people.
type Reason struct {
	Code   string `json:"code"`
	Detail string `json:"detail"`
	More   int    `json:"more,omitempty"` // number of further reasons of this code that are not listed
}

// Error returns the code and the detail.
func (p *Problem) Error() string {
	if p.Detail == "" {
		return string(p.Code)
	}
	return string(p.Code) + ": " + p.Detail
}

// Temporary reports whether the same request may be sent again unchanged: nothing was done, or its Idempotency-Key
// ensures that it is done once.
func (p *Problem) Temporary() bool {
	info, ok := errcode.Lookup(p.Code)
	return ok && info.Retry
}

// Exit returns the exit code of the command line. For a code that this version does not know it is derived from the
// status.
func (p *Problem) Exit() int {
	if info, ok := errcode.Lookup(p.Code); ok {
		return info.Exit
	}
	switch p.Status {
	case 404, 410:
		return errcode.ExitNotFound
	case 409, 412, 422:
		return errcode.ExitConflict
	case 503, 429:
		return errcode.ExitUnavailable
	case 504:
		return errcode.ExitTimeout
	}
	return errcode.ExitFailed
}
