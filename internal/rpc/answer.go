package rpc

import (
	"errors"
	"fmt"
	"io"
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

// ErrTooLarge means that an answer has more bytes than are read of it. Asked again it has them again.
var ErrTooLarge = errors.New("the answer is too large")

// ReadAnswer reads an answer of at most so many bytes. One that has more is an error, ErrTooLarge, and nothing of it: a
// part would be taken for the whole, or for one that is cut off.
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

// asked says what an answer is to; of one that is made up nothing.
func asked(r *http.Request) string {
	if r == nil || r.URL == nil {
		return ""
	}
	return r.Method + " " + WithoutSecrets(r.URL.Redacted()) + ": "
}
