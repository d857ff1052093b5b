package storage

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/cockroachdb/pebble/v2"

	"tidemark/index"
)

var (
	// ErrLocked is wrapped when another process, or another Store of this process, uses the folder.
	ErrLocked = errors.New("the index data folder is in use by another process")
	// ErrDiskFull is wrapped when there is no space for a batch, or when the space ran out during one. Nothing of the
	// batch is applied. The slice stays readable, and accepts batches again when there is space.
	ErrDiskFull = errors.New("no room on the disk of the index data")
	// ErrIO is wrapped when the file system fails for another reason than lack of space. The store retries on its
	// own.
	ErrIO = errors.New("the file system of the index data fails")
	// ErrDamaged is wrapped by CorruptError: stored bytes are not those that were written.
	ErrDamaged = errors.New("damaged index data")
	// ErrReopen is wrapped when the engine cannot continue writing. Recover takes the slice back to its last durable
	// batch; until then it stays readable.
	ErrReopen = errors.New("the slice must be reopened")
	// ErrNewer is wrapped when the data was written by a newer version of the program. The data is not damaged, and
	// is not changed.
	ErrNewer = errors.New("index data of a newer version of the program (install that version again: the data is intact)")
	// ErrClosed is wrapped when a slice, a snapshot or the store is closed or dropped.
	ErrClosed = errors.New("closed")
	// ErrExists is wrapped when a copy to be created exists already.
	ErrExists = errors.New("the copy already exists")
	// ErrNotFound is wrapped when there is no such copy or checkpoint.
	ErrNotFound = errors.New("not found")
	// ErrInvalid is wrapped when input cannot be stored. The error names the value and the limit.
	ErrInvalid = errors.New("invalid for this slice")
)

// NeedsRecover reports whether an error means that batches are refused until the slice has been recovered.
func NeedsRecover(err error) bool { return errors.Is(err, ErrReopen) || errors.Is(err, ErrDamaged) }

// CorruptError names the damaged file and its copy. It wraps ErrDamaged.
type CorruptError struct {
	Copy index.CopyID
	File string
	Err  error
}

// Error returns the file and what is wrong with it.
func (e *CorruptError) Error() string {
	what, _, _ := strings.Cut(fmt.Sprint(e.Err), "\n") // further lines of the engine's errors are details
	return fmt.Sprintf("%v: copy %s, file %s: %s", ErrDamaged, e.Copy, e.File, what)
}

// Unwrap returns ErrDamaged and the cause.
func (e *CorruptError) Unwrap() []error { return []error{ErrDamaged, e.Err} }

// classify maps an error of the engine or the file system to one of this package's, with the copy and folder.
func classify(id index.CopyID, folder string, err error) error {
	var corrupt *CorruptError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &corrupt), errors.Is(err, ErrDiskFull), errors.Is(err, ErrIO), errors.Is(err, ErrReopen),
		errors.Is(err, ErrClosed), errors.Is(err, ErrNewer), errors.Is(err, ErrInvalid), errors.Is(err, ErrNotFound):
		return err
	case errors.Is(err, pebble.ErrClosed):
		return fmt.Errorf("copy %s: %w: %w", id, ErrClosed, err)
	case pebble.IsCorruptionError(err):
		file := folder
		if info := pebble.ExtractDataCorruptionInfo(err); info != nil {
			file = info.Path
		}
		return &CorruptError{Copy: id, File: file, Err: err}
	case isNoSpace(err):
		return fmt.Errorf("copy %s in %s: %w: %w", id, folder, ErrDiskFull, err)
	}
	return fmt.Errorf("copy %s in %s: %w: %w", id, folder, ErrIO, err)
}

// damage maps an error from opening stored files to a CorruptError, unless it is the file system's: a missing file
// and bytes that do not parse are damage; "too many open files" and data of a newer version are not.
func damage(id index.CopyID, folder string, err error) error {
	var corrupt *CorruptError
	if errors.As(err, &corrupt) {
		return err
	}
	for _, kind := range []error{ErrReopen, ErrDiskFull, ErrIO, ErrClosed, ErrNewer} {
		if errors.Is(err, kind) {
			return err
		}
	}
	var errno syscall.Errno
	if errors.As(err, &errno) && errno != syscall.ENOENT && errno != syscall.ENOTDIR && errno != syscall.EISDIR {
		return classify(id, folder, err)
	}
	file := folder
	var path *fs.PathError
	if errors.As(err, &path) {
		file = path.Path
	} else if info := pebble.ExtractDataCorruptionInfo(err); info != nil {
		file = info.Path
	}
	return &CorruptError{Copy: id, File: filepath.Clean(file), Err: err}
}

func isNoSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
