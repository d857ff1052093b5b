package rpc

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// Timeouts of every server.
const (
	headerTimeout = 5 * time.Second
	// requestTimeout is for receiving a whole request; net/http lifts it when that is done.
	requestTimeout = 60 * time.Second
	// AnswerTimeout is for sending a whole answer, from its first byte; streams set a deadline for each write instead.
	AnswerTimeout = 120 * time.Second
)

// BeginAnswer gives the client AnswerTimeout from now on to receive the answer: the server's own timeout counts from
// the request, and would cut the answer of a call that took longer. Write and WriteProblem call it.
func BeginAnswer(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(AnswerTimeout)) // a recorder has no deadline
}

// ErrTooLarge means that an answer exceeds the limit. A retry would have the same result.
var ErrTooLarge = errors.New("the answer is too large")

// ReadAnswer reads an answer of at most the given number of bytes. A larger one gives ErrTooLarge and no data: a part
// could be mistaken for the whole, or for an answer that was cut off.
func ReadAnswer(answer *http.Response, most int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(answer.Body, most+1))
	if err == nil && int64(len(b)) > most {
		err = fmt.Errorf("%w: it has more than %d bytes, the most that this version reads of it; is that an address of "+
			"tidemark, of the same version?", ErrTooLarge, most)
	}
	if err != nil {
		return nil, fmt.Errorf("%sreading the answer: %w", asked(answer.Request), err)
	}
	return b, nil
}

// asked returns a description of the request, for errors; "" for a response without one.
func asked(r *http.Request) string {
	if r == nil || r.URL == nil {
		return ""
	}
	return r.Method + " " + WithoutSecrets(r.URL.Redacted()) + ": "
}
