package manager

import (
	"fmt"
	"io"
	"os"

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
