package logging

import (
	"bytes"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
)

// Limits of a Sink.
const (
	maxWaiting = 1 << 20 // bytes that wait for the reader; further writes are dropped
	// A write waits this long for the reader, so that the last lines before a crash get out. After one timeout no
	// write waits, until the buffer is empty.
	sinkPatience = 50 * time.Millisecond
)

// Sink forwards writes. Once it is detached, writers do not wait for the reader, which may be a full pipe to a
// stopped process: data that the reader does not take in time waits in a bounded buffer. When the buffer is full,
// whole writes are dropped, and their lines are counted in an extra line once the reader continues. Its methods are
// safe for concurrent use.
type Sink struct {
	to io.Writer

	mu       sync.Mutex
	detached bool
	asJSON   bool
	waiting  []byte
	lost     int           // lines dropped since the last note
	idle     chan struct{} // non-nil while a goroutine forwards: closed when the buffer is empty
	slow     bool          // a write timed out, and the buffer was not empty since
}

// NewSink returns a Sink that is not detached: it writes through.
func NewSink(to io.Writer) *Sink { return &Sink{to: to} }

// Under returns the underlying writer.
func (s *Sink) Under() io.Writer { return s.to }

// Detach ends the waiting of writers; asJSON selects the form of the line about dropped lines.
func (s *Sink) Detach(asJSON bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.detached, s.asJSON = true, asJSON
}

// Write implements io.Writer. If detached, it returns no error: a dropped line must not stop the writer.
func (s *Sink) Write(p []byte) (int, error) {
	s.mu.Lock()
	if !s.detached {
		s.mu.Unlock()
		return s.to.Write(p)
	}
	if len(s.waiting)+len(p) > maxWaiting {
		s.lost += lineCount(p)
		s.mu.Unlock()
		return len(p), nil
	}
	s.waiting = append(s.waiting, p...)
	if s.idle == nil {
		s.idle = make(chan struct{})
		go s.pass()
	}
	slow := s.slow
	s.mu.Unlock()
	if !slow && !s.Flush(sinkPatience) {
		s.mu.Lock()
		s.slow = s.idle != nil
		s.mu.Unlock()
	}
	return len(p), nil
}

// Flush waits until the buffer is empty or limit is over; it reports whether the buffer is empty.
func (s *Sink) Flush(limit time.Duration) bool {
	s.mu.Lock()
	idle := s.idle
	s.mu.Unlock()
	if idle == nil {
		return true
	}
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-idle:
		return true
	case <-t.C:
		return false
	}
}

// pass forwards the buffer until it is empty.
func (s *Sink) pass() {
	var buf []byte
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.waiting) > 0 {
		buf, s.waiting = s.waiting, buf[:0]
		if lost := s.lost; lost > 0 {
			s.lost = 0
			buf = append(buf, s.note(lost)...)
		}
		s.mu.Unlock()
		_, err := s.to.Write(buf)
		s.mu.Lock()
		if err != nil {
			s.lost += lineCount(buf)
		}
	}
	close(s.idle)
	s.idle, s.slow = nil, false
}

// note returns the line about dropped lines, which is written at their place.
func (s *Sink) note(lost int) string {
	now := time.Now().Format(hclog.TimeFormat)
	if s.asJSON {
		return fmt.Sprintf(`{"level":"warn","logger":"log","lost":%d,"message":"lines are missing here: nobody read them `+
			`in time","time":%q}`+"\n", lost, now)
	}
	return fmt.Sprintf("%s [WARN]  log: lines are missing here: nobody read them in time: lost=%d\n", now, lost)
}

func lineCount(p []byte) int { return max(bytes.Count(p, []byte{'\n'}), 1) }
