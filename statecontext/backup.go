package statecontext

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

// BackupVersion is the file format that WriteBackup writes. ReadBackup reads older formats, too.
const BackupVersion = 1

// MaxBackupBytes bounds a backup file: the state snapshot plus header and checksum.
const MaxBackupBytes = MaxRestoreBytes + 4<<10

var (
	// ErrBackupCorrupt is wrapped if a file is not a backup, or is damaged or truncated.
	ErrBackupCorrupt = errors.New("corrupt backup")
	// ErrBackupVersion is wrapped if a backup has a file format or format level that this program does not support.
	ErrBackupVersion = errors.New("backup of a newer version")
)

var backupMagic = [8]byte{'T', 'I', 'D', 'E', 'B', 'A', 'C', 'K'}

// BackupInfo is the header of a backup.
type BackupInfo struct {
	Form        int    `json:"form"`
	ClusterID   string `json:"cluster_id"`
	Epoch       uint64 `json:"epoch"`
	CAS         uint64 `json:"cas"`
	FormatLevel uint64 `json:"format_level"`
	TimeMS      int64  `json:"time_ms"` // when it was taken, unix milliseconds
	Version     string `json:"version"` // of the program that took it
}

// Backup is a backup that has been read and verified.
type Backup struct {
	BackupInfo
	State    *State
	Snapshot []byte // the state, as WriteSnapshot wrote it
}

// WriteBackup writes a state as a backup file: magic and file format, the fields of BackupInfo with a CRC-32C, the
// state snapshot, and a SHA-256 of everything before it. It leaves out a restore in progress, the outcomes of
// requests, and users and tokens: they are not restored, and password hashes should not lie where backup files are
// kept.
func WriteBackup(w io.Writer, s *State, timeMS int64, version string) error {
	clean := *s.WithoutUsers()
	clean.staging, clean.ledger = nil, clean.ledger.cleared()
	p := appendUint(appendString(nil, clean.clusterID), clean.epoch)
	p = appendInt(appendUint(appendUint(p, clean.cas), clean.formatLevel), timeMS)
	p = appendString(p, version[:min(len(version), maxVersionBytes)])
	head := appendBytes(append(backupMagic[:], BackupVersion), p)
	head = binary.LittleEndian.AppendUint32(head, crc32.Checksum(head, castagnoli))
	sum := sha256.New()
	both := io.MultiWriter(w, sum)
	if _, err := both.Write(head); err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	if err := WriteSnapshot(both, &clean); err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	if _, err := w.Write(sum.Sum(nil)); err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	return nil
}

// ReadBackup is ReadBackupUpTo with the newest format level of this program.
func ReadBackup(data []byte) (*Backup, error) { return ReadBackupUpTo(FormatLevel, data) }

// ReadBackupUpTo reads a whole backup file as a program does whose newest format level is level, and verifies all of
// it. The returned backup refers to data. Errors wrap ErrBackupCorrupt or ErrBackupVersion.
func ReadBackupUpTo(level uint64, data []byte) (*Backup, error) {
	b, err := readBackupHead(data)
	if err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(data[:len(data)-sha256.Size]); !bytes.Equal(sum[:], data[len(data)-sha256.Size:]) {
		return nil, corruptBackup("the SHA-256 of its %d bytes does not match the one at its end: the file is truncated or "+
			"damaged", len(data))
	}
	if b.FormatLevel > level {
		return nil, fmt.Errorf("%w: format level %d, this program supports up to %d: install tidemark %s, which wrote it, "+
			"or a newer version", ErrBackupVersion, b.FormatLevel, level, b.Version)
	}
	if b.State, err = ReadSnapshotUpTo(level, bytes.NewReader(b.Snapshot)); err != nil {
		return nil, corruptBackup("%w", err)
	}
	if s := b.State; s.clusterID != b.ClusterID || s.epoch != b.Epoch || s.cas != b.CAS || s.formatLevel != b.FormatLevel {
		return nil, corruptBackup("its header has cluster %s, epoch %d, cas %d, format level %d; its state has cluster %s, "+
			"epoch %d, cas %d, format level %d",
			b.ClusterID, b.Epoch, b.CAS, b.FormatLevel, s.clusterID, s.epoch, s.cas, s.formatLevel)
	}
	return b, nil
}

func corruptBackup(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrBackupCorrupt, fmt.Errorf(format, args...))
}

// readBackupHead reads the header of a backup and locates the snapshot.
func readBackupHead(data []byte) (*Backup, error) {
	switch {
	case len(data) > MaxBackupBytes:
		return nil, corruptBackup("%d bytes, at most %d", len(data), MaxBackupBytes)
	case len(data) < len(backupMagic)+1 || [8]byte(data[:8]) != backupMagic:
		return nil, corruptBackup("the file does not begin with %q: it is no backup, or not the beginning of "+
			"one", backupMagic[:])
	}
	form := data[8]
	if form > BackupVersion {
		return nil, fmt.Errorf("%w: form %d, this program supports up to %d: install the version of tidemark that wrote it",
			ErrBackupVersion, form, BackupVersion)
	}
	d := decoder{b: data[9:]}
	p := d.bytes()
	at := len(data) - len(d.b)
	if d.err != nil || len(d.b) < 4+sha256.Size {
		return nil, corruptBackup("the file has only %d bytes and is truncated", len(data))
	}
	if got, want := crc32.Checksum(data[:at], castagnoli), binary.LittleEndian.Uint32(data[at:]); got != want {
		return nil, corruptBackup("its header has checksum %08x, want %08x", got, want)
	}
	b := &Backup{BackupInfo: BackupInfo{Form: int(form)}, Snapshot: data[at+4 : len(data)-sha256.Size]}
	d = decoder{b: p}
	b.ClusterID, b.Epoch, b.CAS, b.FormatLevel, b.TimeMS, b.Version = d.string(), d.uint(), d.uint(), d.uint(), d.int(),
		d.string()
	if err := d.end(); err != nil || form == 0 {
		return nil, corruptBackup("its header: %v, form %d", err, form)
	}
	return b, nil
}
