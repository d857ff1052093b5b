package client

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"tidemark/errcode"
	"tidemark/manager/api/v1"
)

// TestVerifyRetriesAreBounded: a verification that cannot begin fails with an error that names the server and the
// reason, long before the caller's deadline; one that waits for the end of another, or for a short while only, is
// retried.
func TestVerifyRetriesAreBounded(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	verify := func(url string) error {
		c := newClient(t, url)
		c.verifyRetryFor = time.Millisecond
		_, err := c.Verify(ctx, "b/n", v1.VerifyRequest{}, func(v1.VerifyLine) error { return nil })
		return err
	}
	for what, step := range map[string]struct {
		url  func() string
		want string
	}{
		"refused": {func() string { _, url := serve(t, refuse(503, errcode.Unavailable)); return url }, "because"},
		"cut":     {func() string { _, url := serve(t, cut); return url }, "EOF"},
	} {
		url := step.url()
		err := verify(url)
		if !errors.Is(err, ErrUnavailable) || ctx.Err() != nil || !strings.Contains(err.Error(), step.want) ||
			!strings.Contains(err.Error(), url) {
			t.Errorf("%s: %v, want the answer of %s", what, err, url)
		}
	}
	no, busy := refuse(503, errcode.Unavailable), refuse(503, errcode.Busy)
	s, url := serve(t, no, busy, no, busy, busy, busy, no, text(`{"end":{"differences":0}}`+"\n"))
	if err := verify(url); err != nil || len(s.requests()) != 8 {
		t.Errorf("behind another one: %v, %d requests", err, len(s.requests()))
	}
	_, url = serve(t, refuse(404, "UNKNOWN_INDEX"))
	if err := verify(url); err == nil || errors.Is(err, ErrUnavailable) {
		t.Errorf("of no index: %v", err)
	}
}

// TestCutVerificationIsRestarted: up to three attempts, unless it has reported a difference.
func TestCutVerificationIsRestarted(t *testing.T) {
	const progress, end = `{"progress":{"percent":7}}` + "\n", `{"end":{"differences":0}}` + "\n"
	const difference = `{"difference":{"kind":"missing_row","id":"a"}}` + "\n"
	const gone = `{"error":{"code":"UNAVAILABLE","detail":"it was cut off"}}` + "\n"
	const refused = `{"error":{"code":"DAMAGED","detail":"a stored key"}}` + "\n"
	half := text(progress) // without an end
	torn := func(w http.ResponseWriter, r *http.Request) {
		text(progress+end[:9])(w, r)
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
	for name, c := range map[string]struct {
		steps    []http.HandlerFunc
		requests int
		err      string
	}{
		"cut, then whole": {[]http.HandlerFunc{half, text(progress + gone), text(progress + end)}, 3, ""},
		"half a line":     {[]http.HandlerFunc{torn, text(progress + end[:9]), text(progress + end)}, 3, ""},
		"always cut":      {[]http.HandlerFunc{half}, verifyTries, "EOF"},
		"always reported": {[]http.HandlerFunc{text(gone)}, verifyTries, "it was cut off"},
		"found something": {[]http.HandlerFunc{text(difference + gone)}, 1, "it was cut off"},
		"refused":         {[]http.HandlerFunc{text(progress + refused)}, 1, "a stored key"},
	} {
		s, url := serve(t, c.steps...)
		_, err := newClient(t, url).Verify(t.Context(), "b/n", v1.VerifyRequest{}, func(v1.VerifyLine) error { return nil })
		if n := len(s.requests()); n != c.requests || (err == nil) != (c.err == "") ||
			err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %d requests, want %d; %v, want %q", name, n, c.requests, err, c.err)
		}
	}
}
