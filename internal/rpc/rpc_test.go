package rpc

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/timestamp"
	"tidemark/wire"
)

func echo(t *testing.T) *httptest.Server {
	t.Helper()
	h := Message(func(_ context.Context, req *wire.ProjectorReport) (*wire.ProjectorReport, error) {
		switch req.ID {
		case "fenced":
			_, err := wire.Fence{ClusterID: "c", Epoch: 1, Term: 2}.Admit("", wire.Fence{ClusterID: "c", Epoch: 1, Term: 1})
			return nil, err
		case "busy":
			p := Refuse(errcode.Unavailable, "queue full")
			p.RetryAfterMS, p.Leader = 1500, &wire.Leader{ID: "m", REST: "http://x"}
			return nil, p
		}
		return req, nil
	})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		Bound(w, r, 1<<16, time.Minute)
		h.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

func TestMessageRoundTrip(t *testing.T) {
	s, c := echo(t), NewClient(2, nil)
	defer c.Close()
	in := wire.ProjectorReport{ID: "p", BootID: "b", ClusterID: "c", Sequence: 1<<63 + 5, Revision: 7,
		Buckets: []wire.StreamStates{{
			Bucket: "world", BucketUUID: "u", Full: true, Streams: []wire.StreamState{
				{VBucket: 3, Incarnation: index.Incarnation{Epoch: 1, Term: 2, Counter: 3},
					Log: timestamp.FailoverLog{{VBUUID: 1<<64 - 1, Seqno: 4}}, Revision: timestamp.MapRevision{Epoch: 1, Rev: 2}},
				{VBucket: 1023, Complete: 1 << 60, Ended: true, Purge: 1}},
		}}}
	var out wire.ProjectorReport
	if err := c.Do(context.Background(), http.MethodPost, s.URL, &in, &out); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(in, out) {
		t.Errorf("sent %+v\n got %+v", in, out)
	}
}

func TestErrorsKeepTheirCode(t *testing.T) {
	s, c := echo(t), NewClient(2, nil)
	defer c.Close()
	var p *Problem
	err := c.Do(context.Background(), http.MethodPost, s.URL, &wire.ProjectorReport{ID: "fenced"}, nil)
	if !errors.As(err, &p) || p.Code != errcode.Fenced || p.Status != http.StatusConflict {
		t.Errorf("got %v", err)
	}
	err = c.Do(context.Background(), http.MethodPost, s.URL, &wire.ProjectorReport{ID: "busy"}, nil)
	if !errors.As(err, &p) || p.RetryAfterMS != 1500 || p.Leader == nil || p.Leader.REST != "http://x" {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Nanosecond)
	defer cancel()
	if err := c.Do(ctx, http.MethodPost, s.URL, &wire.ProjectorReport{}, nil); err == nil || errors.As(err, &p) {
		t.Errorf("a call that was cut off must not look like an answer: %v", err)
	}
}

func TestBadBodyErrorsHavePosition(t *testing.T) {
	s := echo(t)
	for _, c := range []struct {
		name, media, body string
		status            int
		want              string
	}{
		{"syntax", MediaJSON, "{\n  \"id\": ]", 400, "line 2 column 9"},
		{"cut", MediaJSON, `{"id": "x`, 400, "ends in the middle"},
		{"type", MediaJSON, `{"sequence": "x"}`, 400, `field "sequence" is a string, want a whole number from 0 to 18446744073709551615, at line 1 column`},
		{"number that is too large", MediaJSON, `{"sequence": 99999999999999999999}`, 400, `field "sequence" is 99999999999999999999, want a whole number from 0 to 18446744073709551615`},
		{"no whole number", MediaJSON, `{"sequence": 1.5}`, 400, `field "sequence" is 1.5, want a whole number`},
		{"text that is a number", MediaJSON, `{"id": 7}`, 400, `field "id" is a number, want a string`},
		{"no object", MediaJSON, `[]`, 400, `it is an array, want an object`},
		{"unknown field", MediaJSON, `{"idd": "x"}`, 400, `unknown field "idd"`},
		{"a field twice", MediaJSON, `{"id": "x", "sequence": 1, "id": "y"}`, 400, `field "id" occurs twice, again at line 1 column 28`},
		{"two values", MediaJSON, `{"id":"x"} {}`, 400, "data follows the value"},
		{"too large", MediaJSON, `{"id":"` + strings.Repeat("x", 1<<17) + `"}`, 413, "more than 65536 bytes"},
		{"media", "text/html", `x`, 415, "send application/json"},
		{"cbor", MediaCBOR, "\xff\xff", 400, "CBOR body"},
		{"cbor with a lying length", MediaCBOR, "\x9b\x7f\xff\xff\xff\xff\xff\xff\xff", 400, "CBOR body"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := http.Post(s.URL, c.media, strings.NewReader(c.body))
			if err != nil {
				t.Fatal(err)
			}
			defer r.Body.Close()
			p := ReadProblem(r)
			if p.Status != c.status || !strings.Contains(p.Detail, c.want) {
				t.Errorf("got %d %q, want %d and %q", p.Status, p.Detail, c.status, c.want)
			}
		})
	}
	r, err := http.NewRequest(http.MethodPost, s.URL, strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set(HeaderFormat, "99")
	a, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	if p := ReadProblem(a); p.Code != errcode.UnsupportedFormat {
		t.Errorf("a foreign format gave %v", p)
	}
}

// TestAnswersOfOtherPrograms checks answers of other programs, which may be empty.
func TestAnswersOfOtherPrograms(t *testing.T) {
	for _, c := range []struct {
		body, want string
	}{{"", "an empty answer with HTTP status 404"}, {"no such page\n", "INTERNAL: no such page"},
		{strings.Repeat("x", 1<<22), "xxx…"}} {
		p := ReadProblem(&http.Response{StatusCode: 404, Body: io.NopCloser(strings.NewReader(c.body))})
		if !strings.Contains(p.Error(), c.want) || p.Status != 404 || len(p.Detail) > maxQuoted {
			t.Errorf("%q: %d %v, want %q", c.body, p.Status, p, c.want)
		}
	}
}

// TestUnreadyAnswerIsBounded checks that clients can read the whole answer for any number of reasons, and that it
// has every code, with the number of reasons left out.
func TestUnreadyAnswerIsBounded(t *testing.T) {
	all := []Reason{{Code: "no_leader", Detail: "lost"}}
	for i := range 5000 {
		all = append(all, Reason{Code: "kv_unavailable", Detail: fmt.Sprintf("%d %s", i, strings.Repeat("\"", 5000))})
	}
	w := httptest.NewRecorder()
	WriteProblem(w, Unready(all))
	p := ReadProblem(w.Result())
	if n := len(p.Reasons); p.Code != errcode.NotReady || n != maxReasons+2 ||
		p.Reasons[n-2] != (Reason{Code: "kv_unavailable", Detail: "and 4980 more", More: 4980}) ||
		p.Reasons[n-1] != (Reason{Code: "no_leader", Detail: "lost"}) ||
		!strings.HasSuffix(p.Detail, "; and 4980 more; lost") {
		t.Errorf("%d reasons, at last %+v; %.300s", n, p.Reasons[max(n-2, 0):], p.Error())
	}
	if p := Unready(append(p.Reasons, Reason{Code: "kv_unavailable", Detail: "z"})); len(p.Reasons) != maxReasons+2 ||
		p.Reasons[maxReasons].More != 4981 {
		t.Errorf("passed on: %d reasons, %+v", len(p.Reasons), p.Reasons[len(p.Reasons)-2:])
	}
}

// TestTooLargeAnswersAreReported checks that an answer above the limit is reported with its size and its address, and
// taken neither for a whole one nor for one that was cut off.
func TestTooLargeAnswersAreReported(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, strings.Repeat(" ", 100))
	}))
	defer s.Close()
	for most, want := range map[int64]string{100: "", 99: "GET " + s.URL + "/x: reading the answer: the answer is too " +
		"large: it has more than 99 bytes"} {
		answer, err := http.Get(s.URL + "/x")
		if err != nil {
			t.Fatal(err)
		}
		b, err := ReadAnswer(answer, most)
		if want == "" && (err != nil || len(b) != 100) || want != "" && (b != nil || !errors.Is(err, ErrTooLarge) ||
			!strings.HasPrefix(err.Error(), want)) {
			t.Errorf("%d: %d bytes, %v", most, len(b), err)
		}
		if err := answer.Body.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestACertificateHasNoZone checks that a server at an IPv6 address with a zone proves the address, and only that one.
func TestACertificateHasNoZone(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})) // at ::1, by its certificate
	defer s.Close()
	trusts, ok := s.Client().Transport.(*http.Transport)
	if !ok {
		t.Fatalf("%T", s.Client().Transport)
	}
	var dialed string
	ask := func(conf *tls.Config, url string) error {
		mine := transport(1, conf)
		defer mine.CloseIdleConnections()
		mine.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			dialed = addr
			return new(net.Dialer).DialContext(ctx, network, s.Listener.Addr().String())
		}
		r, err := (&http.Client{Transport: mine}).Get(url)
		if err != nil {
			return err
		}
		return r.Body.Close()
	}
	trusting := &tls.Config{RootCAs: trusts.TLSClientConfig.RootCAs}
	if err := ask(trusting, "https://[::1%25eth0]:1/"); err != nil || dialed != "[::1%eth0]:1" {
		t.Errorf("dialed %s: %v", dialed, err)
	}
	var other x509.HostnameError
	if err := ask(trusting, "https://[fe80::1%25eth0]:1/"); !errors.As(err, &other) {
		t.Errorf("a server that proves another address: %v", err)
	}
	// Of the CAs of the system none has signed the certificate, which the name of the server is compared with first.
	if err := ask(nil, "https://[::1%25eth0]:1/"); err == nil || errors.As(err, &other) {
		t.Errorf("without a configuration: %v", err)
	}
}
