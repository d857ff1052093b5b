package rpc

import (
	"net/http"
	"time"
)

// Limits of time of every server.
const (
	headerTimeout = 5 * time.Second
	// requestTimeout is for a whole request to come in; net/http lifts it when that is done.
	requestTimeout = 60 * time.Second
	// AnswerTimeout is for a whole answer to go out, from its first byte; streams set a time for each write instead.
	AnswerTimeout = 120 * time.Second
)

// BeginAnswer returns the client AnswerTimeout from now on to take the answer: the server counts from the request, and
// would lose the answer of a call that took longer. Write and WriteProblem begin so.
func BeginAnswer(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(AnswerTimeout)) // a recorder has none
}
