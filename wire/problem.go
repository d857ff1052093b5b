package wire

import "tidemark/errcode"

// Problem is an error as it crosses the network (RFC 9457). Code is for programs, Detail for people: what was wrong,
// what was expected, what to do.
type Problem struct {
	Type         string       `json:"type"`
	Title        string       `json:"title"`
	Status       int          `json:"status"`
	Code         errcode.Code `json:"code"`
	Detail       string       `json:"detail"`
	Leader       *Leader      `json:"leader,omitempty"`
	RetryAfterMS int64        `json:"retry_after_ms,omitempty"`
	CAS          uint64       `json:"modified_cas,omitempty"` // the present one, with CAS_MISMATCH
	RequestID    string       `json:"request_id,omitempty"`   // of the refused request, as logs have it
	Reasons      []Reason     `json:"reasons,omitempty"`      // of /readyz
	Lost         []LostWrite  `json:"lost,omitempty"`         // with TOKEN_LOST: at most MaxLost
}

// MaxLost bounds the writes that a Problem names.
const MaxLost = 512

// LostWrite is a write that was to be seen and is there no more, or is to no vbucket of the bucket.
type LostWrite struct {
	VBucket uint16 `json:"vbucket"`
	VBUUID  uint64 `json:"vbuuid,string"`
	Seqno   uint64 `json:"seqno"`
}

// Reason is one of several things that are in the way: a code for programs, words for people.
type Reason struct {
	Code   string `json:"code"`
	Detail string `json:"detail"`
	More   int    `json:"more,omitempty"` // it stands for so many of the code that are not listed
}

// Error gives code and detail.
func (p *Problem) Error() string {
	if p.Detail == "" {
		return string(p.Code)
	}
	return string(p.Code) + ": " + p.Detail
}

// Temporary reports whether the same request may be sent again as it is: nothing was done, or its Idempotency-Key makes
// sure that it is done once.
func (p *Problem) Temporary() bool {
	info, ok := errcode.Lookup(p.Code)
	return ok && info.Retry
}

// Exit returns the exit code of the command line; that of a code that this version does not know follows its status.
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
