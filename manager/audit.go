package manager

import (
	"fmt"
	"io"
	"os"

	"gopkg.in/natefinch/lumberjack.v2"
)

// DefaultAuditFiles and DefaultAuditSize are what AuditFile has where nothing is said.
const (
	DefaultAuditSize  = 100 // MiB
	DefaultAuditFiles = 10
)

// AuditFile says where the audit log is. When the file is full it goes on under a name with the time, beside a new one.
type AuditFile struct {
	Name  string // "": no audit log
	Size  int    // MiB of a file; 0: DefaultAuditSize
	Files int    // full ones that are kept, 0: DefaultAuditFiles
}

// open returns what writes the file, nil when there is to be none. That it cannot be written is told at once.
func (f AuditFile) open() (io.WriteCloser, error) {
	if f.Name == "" {
		return nil, nil //nolint:nilnil // none is wanted
	}
	if f.Size < 0 || f.Files < 0 {
		return nil, fmt.Errorf("--audit-log-size %d and --audit-log-files %d: want numbers above 0", f.Size, f.Files)
	}
	probe, err := os.OpenFile(f.Name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("audit log: %w", err)
	}
	if err := probe.Close(); err != nil {
		return nil, fmt.Errorf("audit log: %w", err)
	}
	to := &lumberjack.Logger{Filename: f.Name, MaxSize: f.Size, MaxBackups: f.Files}
	if to.MaxSize == 0 {
		to.MaxSize = DefaultAuditSize
	}
	if to.MaxBackups == 0 {
		to.MaxBackups = DefaultAuditFiles
	}
	return to, nil
}

// auditTo is what the API writes to, nil for nothing.
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
