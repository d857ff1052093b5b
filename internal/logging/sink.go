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
	maxWaiting = 1 << 20 // bytes that wait for the reader; what is more is lost
	// A write waits so long for the reader, so that what a process says last before it crashes is out. After one that
	// was not read in this time none waits, until all is read.
	sinkPatience = 50 * time.Millisecond
)

// Sink passes on what is written. Once it is detached, nobody who writes waits for the reader, who may be a full pipe
// to a process that is stopped: what the reader does not take in time waits in a bounded buffer; what is more is lost
// by whole writes, and their lines are counted in a line of its own when the reader is back. Its methods may be called
// from anywhere.
type Sink struct {
	to io.Writer

	mu       sync.Mutex
	detached bool
	asJSON   bool
	waiting  []byte
	lost     int           // lines since the reader was told last
	idle     chan struct{} // while a goroutine passes on: closed when all is
	slow     bool          // a write was not passed on in time, and not all is since
}

// NewSink returns one that is not detached: it writes through.
func NewSink(to io.Writer) *Sink { return &Sink{to: to} }

// Under returns the writer below.
func (s *Sink) Under() io.Writer { return s.to }

// Detach lets nobody wait any more; asJSON is how it is told that lines were lost.
func (s *Sink) Detach(asJSON bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.detached, s.asJSON = true, asJSON
}

// Write implements io.Writer. Detached, it returns no error: what is lost stops nobody.
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

// Flush waits until all is passed on, or the time is over; it reports which.
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

// pass writes what waits until nothing does.
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

// note tells of lines that were lost between what stands above it and below.
func (s *Sink) note(lost int) string {
	now := time.Now().Format(hclog.TimeFormat)
	if s.asJSON {
		return fmt.Sprintf(`{"level":"warn","logger":"log","lost":%d,"message":"lines are missing here: nobody read them `+
			`in time","time":%q}`+"\n", lost, now)
	}
	return fmt.Sprintf("%s [WARN]  log: lines are missing here: nobody read them in time: lost=%d\n", now, lost)
}

func lineCount(p []byte) int { return max(bytes.Count(p, []byte{'\n'}), 1) }
