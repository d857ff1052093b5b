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
	// ErrLocked is wrapped when another process (or another Store of this one) has the folder.
	ErrLocked = errors.New("the index data folder is in use by another process")
	// ErrDiskFull is wrapped when there is no room for a batch, or when the room ran out below one. Nothing of the
	// batch is applied; the slice stays readable and takes batches again when there is room.
	ErrDiskFull = errors.New("no room on the disk of the index data")
	// ErrIO is wrapped when the file system fails for another reason than room. The store tries again by itself.
	ErrIO = errors.New("the file system of the index data fails")
	// ErrDamaged is wrapped by CorruptError: stored bytes are not what was written.
	ErrDamaged = errors.New("damaged index data")
	// ErrReopen is wrapped when the engine cannot go on writing: Recover brings the slice back to its last durable
	// batch. Until then it stays readable.
	ErrReopen = errors.New("the slice must be reopened")
	// ErrNewer is wrapped when a newer version of the program has written what is to be opened. Nothing is wrong with it,
	// and nothing is changed.
	ErrNewer = errors.New("index data of a newer version of the program (install it again: the data is whole)")
	// ErrClosed is wrapped when a slice, a snapshot or the store is closed or dropped.
	ErrClosed = errors.New("closed")
	// ErrExists is wrapped when a copy that is to be created is there already.
	ErrExists = errors.New("the copy exists already")
	// ErrNotFound is wrapped when there is no such copy or checkpoint.
	ErrNotFound = errors.New("not found")
	// ErrInvalid is wrapped when what the caller gave cannot be stored: it names the value and the limit.
	ErrInvalid = errors.New("invalid for this slice")
)

// NeedsRecover reports whether an error says that batches are refused until the slice has been recovered.
func NeedsRecover(err error) bool { return errors.Is(err, ErrReopen) || errors.Is(err, ErrDamaged) }

// CorruptError says which file of which copy is damaged. It wraps ErrDamaged.
type CorruptError struct {
	Copy index.CopyID
	File string
	Err  error
}

// Error names the file and what is wrong with it.
func (e *CorruptError) Error() string {
	what, _, _ := strings.Cut(fmt.Sprint(e.Err), "\n") // the engine's errors have details on further lines
	return fmt.Sprintf("%v: copy %s, file %s: %s", ErrDamaged, e.Copy, e.File, what)
}

// Unwrap gives ErrDamaged and the cause.
func (e *CorruptError) Unwrap() []error { return []error{ErrDamaged, e.Err} }

// classify turns an error of the engine or the file system into one of the package's, with the copy and folder.
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

// damage turns an error met while opening stored files into a CorruptError, unless it is the file system's: a missing
// file and bytes that do not parse are damage, "too many open files" and a newer version's are not.
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
