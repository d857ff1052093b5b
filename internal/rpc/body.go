package rpc

import (
	"errors"
	"io"
	"net"
	"net/http"
	"time"

	"tidemark/errcode"
)

// Bound gives the body of a request its bounds before anybody reads it: the most bytes, and how long they may take to
// come in, from now on. Reading it fails with a *Problem: BODY_TOO_LARGE, BODY_TOO_SLOW, or BAD_REQUEST where it is cut
// off.
func Bound(w http.ResponseWriter, r *http.Request, most int64, within time.Duration) {
	if r.ContentLength != 0 { // net/http lifts this when the body has come
		// a recorder has none
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(within))
	}
	r.Body = &bounded{http.MaxBytesReader(w, r.Body, most), r.Method, r.URL.Path}
}

// bounded is a body with bounds, which refuses in its own words.
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
	case errors.As(err, &refused): // by bounds within these
	case errors.As(err, &large):
		refused = Refuse(errcode.BodyTooLarge, "the body has more than %d bytes, the most that %s takes", large.Limit, b.path)
	case errors.As(err, &late) && late.Timeout():
		refused = Refuse(errcode.BodyTooSlow, "the body of %s %s has not come in time", b.method, b.path)
	default:
		refused = Refuse(errcode.BadRequest, "reading the body: %v", err)
	}
	return n, refused
}
