package rpc

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"tidemark/errcode"
)

func readAll(r *http.Request) error {
	_, err := io.ReadAll(r.Body)
	return err
}

// TestBound checks that readers get the code of a body's error, also through another Bound around it, a form, and a
// client that forwards the body.
func TestBound(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
	}))
	defer elsewhere.Close()
	readers := map[string]func(r *http.Request) error{
		"all":     readAll,
		"message": func(r *http.Request) error { return Read(r, new(string)) },
		"form":    func(r *http.Request) error { return r.ParseForm() },
		"other bounds": func(r *http.Request) error {
			Bound(httptest.NewRecorder(), r, 100, time.Minute)
			return readAll(r)
		},
		"passed on": func(r *http.Request) error {
			out, err := http.NewRequestWithContext(t.Context(), http.MethodPost, elsewhere.URL, r.Body)
			if err != nil {
				return err
			}
			resp, err := elsewhere.Client().Do(out)
			if err == nil {
				_ = resp.Body.Close()
			}
			return err
		},
	}
	for _, c := range []struct {
		name string
		body io.Reader
		want errcode.Code
		says string
	}{
		{"whole", strings.NewReader(`"0123456"`), "", ""},
		{"large", strings.NewReader(`"0123456789"`), errcode.BodyTooLarge, "more than 10 bytes, the limit of /x"},
		{"slow", io.MultiReader(strings.NewReader(`"0`), iotest.ErrReader(os.ErrDeadlineExceeded)), errcode.BodyTooSlow,
			"the body of POST /x did not arrive in time"},
		{"cut", io.MultiReader(strings.NewReader(`"0`), iotest.ErrReader(io.ErrUnexpectedEOF)), errcode.BadRequest,
			"reading the body: unexpected EOF"},
	} {
		sent, err := io.ReadAll(c.body)
		for how, read := range readers {
			body := io.Reader(strings.NewReader(string(sent)))
			if err != nil {
				body = io.MultiReader(body, iotest.ErrReader(err))
			}
			r := httptest.NewRequest(http.MethodPost, "/x", body)
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			Bound(httptest.NewRecorder(), r, 10, time.Minute)
			var p *Problem
			switch got := read(r); {
			case c.want == "":
				if got != nil {
					t.Errorf("%s, %s: %v", c.name, how, got)
				}
			case !errors.As(got, &p) || p.Code != c.want || !strings.Contains(p.Detail, c.says):
				t.Errorf("%s, %s: %v, want %s: %s", c.name, how, got, c.want, c.says)
			}
		}
	}
}
