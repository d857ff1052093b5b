package rpc

import (
	"errors"
	"io"
	"net"
	"net/http"

	"tidemark/errcode"
)

// capped is a body that has a cap.
type capped struct{ io.ReadCloser }

// Cap bounds the body of a request, before anybody reads it.
func Cap(w http.ResponseWriter, r *http.Request, limit int64) {
	r.Body = capped{http.MaxBytesReader(w, r.Body, limit)}
}

// ReadBody returns a body, of at most MaxControlBody bytes where Cap has not said another cap. The error is a *Problem.
func ReadBody(r *http.Request) ([]byte, error) {
	from := r.Body
	if _, ok := from.(capped); !ok {
		from = http.MaxBytesReader(nil, from, MaxControlBody)
	}
	body, err := io.ReadAll(from)
	if err != nil {
		return nil, BodyProblem(r, err)
	}
	return body, nil
}

// BodyProblem is the refusal of a request whose body could not be read.
func BodyProblem(r *http.Request, err error) *Problem {
	var large *http.MaxBytesError
	var late net.Error
	switch {
	case errors.As(err, &large):
		return Refuse(errcode.BodyTooLarge, "the body has more than %d bytes, the most that %s takes", large.Limit,
			r.URL.Path)
	case errors.As(err, &late) && late.Timeout():
		return Refuse(errcode.BodyTooSlow, "the body of %s %s has not come in time", r.Method, r.URL.Path)
	}
	return Refuse(errcode.BadRequest, "reading the body: %v", err)
}
