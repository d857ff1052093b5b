package v1

import (
	"tidemark/errcode"
	"tidemark/wire"
)

// Health is the answer of /healthz, and of /readyz when it is 200.
type Health struct {
	Status string `json:"status"` // ok, ready
	Node   string `json:"node"`
	Leader string `json:"leader,omitempty"`
	// NotReady holds the reasons why this manager is not ready, as far as it can tell by itself. Only in /healthz.
	NotReady []wire.Reason `json:"not_ready,omitempty"`
}

// ErrorList is the answer of GET /v1/errors.
type ErrorList struct {
	Errors []errcode.CodeInfo `json:"errors"`
}
