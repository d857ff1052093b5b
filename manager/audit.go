package manager

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"gopkg.in/natefinch/lumberjack.v2"
)

// DefaultAuditSize and DefaultAuditFiles are the defaults of AuditFile's fields.
const (
	DefaultAuditSize  = 100 // MiB
	DefaultAuditFiles = 10
)

// AuditFile configures the audit log. A full file is renamed with the time in its name, and a new one is begun.
type AuditFile struct {
	Name  string // "": no audit log
	Size  int    // MiB per file; 0: DefaultAuditSize
	Files int    // number of full files to keep; 0: DefaultAuditFiles
}

// open returns the writer of the audit log, nil if there is none. It fails at once if the file cannot be written.
func (f AuditFile) open() (io.WriteCloser, error) {
	if f.Name == "" {
		return nil, nil //nolint:nilnil // no audit log is configured
	}
	if f.Size < 0 || f.Files < 0 {
		return nil, fmt.Errorf("--audit-log-size %d and --audit-log-files %d: want positive numbers", f.Size, f.Files)
	}
	if info, err := os.Stat(f.Name); err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("audit log: %s is not a regular file, and a full one is renamed: name a file", f.Name)
	}
	probe, err := os.OpenFile(f.Name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("audit log: %w", err)
	}
	cut, err := isCut(f.Name)
	if err = errors.Join(err, probe.Close()); err != nil {
		return nil, fmt.Errorf("audit log: %w", err)
	}
	to := &lumberjack.Logger{Filename: f.Name, MaxSize: f.Size, MaxBackups: f.Files}
	if to.MaxSize == 0 {
		to.MaxSize = DefaultAuditSize
	}
	if to.MaxBackups == 0 {
		to.MaxBackups = DefaultAuditFiles
	}
	return newLines(to, cut), nil
}

// isCut reports whether a file ends in the middle of a line, as after a full disk.
func isCut(name string) (bool, error) {
	f, err := os.Open(name)
	if err != nil {
		return false, err
	}
	last := make([]byte, 1)
	info, err := f.Stat()
	if err == nil && info.Size() > 0 {
		_, err = f.ReadAt(last, info.Size()-1)
	} else {
		last[0] = '\n'
	}
	return last[0] != '\n', errors.Join(err, f.Close())
}

// auditPatience is how long a call waits until its line is written. While the disk hangs, later calls do not wait.
const auditPatience = 2 * time.Second

// errAuditHangs is returned for a line that is not written in time. It may still be written.
var errAuditHangs = fmt.Errorf("a line has been pending for more than %v: the disk hangs, or is far too slow",
	auditPatience)

// lines writes whole lines. If a line could be written only in part, as on a full disk, the next one still
// begins on a line of its own. No caller waits longer than auditPatience.
type lines struct {
	to   io.WriteCloser
	turn chan struct{} // capacity 1: held while a line is written, whether or not its caller still waits
	// when the line that is being written began, nil: none is. A later caller gives up at once if that is long ago.
	began atomic.Pointer[time.Time]
	cut   bool // what is there ends in the middle of a line; owned by who has the turn
}

func newLines(to io.WriteCloser, cut bool) *lines {
	return &lines{to: to, turn: make(chan struct{}, 1), cut: cut}
}

// Write implements io.Writer.
func (l *lines) Write(line []byte) (int, error) {
	late := time.NewTimer(auditPatience)
	defer late.Stop()
	select {
	case l.turn <- struct{}{}:
	default:
		if began := l.began.Load(); began != nil && time.Since(*began) >= auditPatience {
			return 0, errAuditHangs
		}
		select {
		case l.turn <- struct{}{}:
		case <-late.C:
			return 0, errAuditHangs
		}
	}
	type written struct {
		n   int
		err error
	}
	ended := make(chan written, 1)
	own := bytes.Clone(line) // it may be written when the caller has gone
	now := time.Now()
	l.began.Store(&now)
	go func() {
		n, err := l.write(own)
		l.began.Store(nil)
		<-l.turn
		ended <- written{n, err}
	}()
	select {
	case w := <-ended:
		return w.n, w.err
	case <-late.C:
		return 0, errAuditHangs
	}
}

// write writes a line. The caller has the turn.
func (l *lines) write(line []byte) (int, error) {
	b := line
	if l.cut {
		b = append([]byte{'\n'}, line...)
	}
	n, err := l.to.Write(b)
	if n > 0 {
		l.cut = b[n-1] != '\n'
	}
	return max(0, n-(len(b)-len(line))), err
}

// Close implements io.Closer.
func (l *lines) Close() error { return l.to.Close() }

// auditTo returns the writer for the API, nil if there is none.
func (m *Manager) auditTo() io.Writer {
	if m.audit == nil {
		return nil
	}
	return m.audit
}

func (m *Manager) closeAudit() error {
	if m.audit == nil {
		return nil
	}
	if err := m.audit.Close(); err != nil {
		return fmt.Errorf("audit log: %w", err)
	}
	return nil
}
