package rpc

import (
	"errors"
	"io"
	"net"
	"net/http"
	"time"

	"tidemark/errcode"
)

// Bound limits a request's body before it is read: its size in bytes, and the time to receive it, from now on.
// Reading the body then fails with a *Problem: BODY_TOO_LARGE, BODY_TOO_SLOW, or BAD_REQUEST if it is cut off.
func Bound(w http.ResponseWriter, r *http.Request, most int64, within time.Duration) {
	if r.ContentLength != 0 { // net/http lifts this when the body has arrived
		// a recorder has no deadline
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(within))
	}
	r.Body = &bounded{http.MaxBytesReader(w, r.Body, most), r.Method, r.URL.Path}
}

// bounded is a limited body, whose errors are Problems.
type bounded struct {
	io.ReadCloser
	method, path string
}

// Read implements io.Reader.
func (b *bounded) Read(into []byte) (int, error) {
	n, err := b.ReadCloser.Read(into)
	if err == nil || err == io.EOF {
		return n, err
	}
	var refused *Problem
	var large *http.MaxBytesError
	var late net.Error
	switch {
	case errors.As(err, &refused): // from a Bound inside this one
	case errors.As(err, &large):
		refused = Refuse(errcode.BodyTooLarge, "the body has more than %d bytes, the limit of %s", large.Limit, b.path)
	case errors.As(err, &late) && late.Timeout():
		refused = Refuse(errcode.BodyTooSlow, "the body of %s %s did not arrive in time", b.method, b.path)
	default:
		refused = Refuse(errcode.BadRequest, "reading the body: %v", err)
	}
	return n, refused
}
