package api

import (
	"bytes"
	"net/http"
	"os"
	"testing"
	"time"
)

// slowReader is a connection to a client that accepts rate bytes a second, in virtual time.
type slowReader struct {
	http.ResponseWriter
	rate     int
	now, end time.Time
	taken    bytes.Buffer
}

func (s *slowReader) SetWriteDeadline(at time.Time) error { s.end = at; return nil }

func (s *slowReader) Flush() {}

func (s *slowReader) Write(b []byte) (int, error) {
	takes := min(len(b), int(s.end.Sub(s.now)*time.Duration(s.rate)/time.Second))
	s.now = s.now.Add(time.Duration(takes) * time.Second / time.Duration(s.rate))
	n, _ := s.taken.Write(b[:takes])
	if n < len(b) {
		return n, os.ErrDeadlineExceeded
	}
	return n, nil
}

// TestSlowWatcherGetsItsSnapshot checks that a snapshot may take any time while the watcher keeps accepting data and
// may still watch.
func TestSlowWatcherGetsItsSnapshot(t *testing.T) {
	head, state := []byte("event: snapshot\n"), bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	for _, tc := range []struct {
		name   string
		rate   int
		pieces int // after which no more may be sent; 0: never
		whole  bool
	}{
		{name: "all at once", rate: len(state), whole: true},
		{name: "4 KiB a second", rate: 4 << 10, whole: true},
		{name: "too little", rate: watchPiece / 31},
		{name: "its user is removed meanwhile", rate: 4 << 10, pieces: 3},
	} {
		s, asked := &slowReader{rate: tc.rate, now: time.Unix(0, 0)}, 0
		out := eventWriter{w: s, control: http.NewResponseController(s), now: func() time.Time { return s.now },
			may: func() bool { asked++; return tc.pieces == 0 || asked < tc.pieces }}
		if ok := out.send(watchPatience, head, state); ok != tc.whole || ok && s.taken.Len() != len(head)+len(state) {
			t.Errorf("%s: %d bytes of %d, %v", tc.name, s.taken.Len(), len(head)+len(state), ok)
		}
		if !bytes.HasPrefix(append(head[:len(head):len(head)], state...), s.taken.Bytes()) {
			t.Errorf("%s: other bytes than were to be sent", tc.name)
		}
		if tc.pieces > 0 && s.taken.Len() != tc.pieces*watchPiece {
			t.Errorf("%s: %d bytes were sent", tc.name, s.taken.Len())
		}
	}
}
