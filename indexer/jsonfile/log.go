package jsonfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strconv"
)

// Log stores data that would be too expensive to write as a whole each time. The first line of its file is the whole
// data, each further line a change. A line consists of the checksum of its JSON, and the JSON. Log has the guarantees
// of Write at the cost of the change alone; it writes the whole again when the changes have become more than twice as
// long. It must not be used concurrently.
type Log struct {
	dir, name   string
	whole, size int64 // bytes of the first line and of the file, as written by this Log; size 0: unknown
}

// NewLog returns a log in a folder. Its first write is a whole.
func NewLog(dir, name string) *Log { return &Log{dir: dir, name: name} }

// spareBytes is the length of changes that is always permitted, however short the whole is.
const spareBytes = 64 << 10

// sumDigits is the number of hex digits of the checksum that precedes the JSON of a line, together with a space.
const sumDigits = 8

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Write makes the file contain what whole returns. change, unless nil, is the difference to what was written last:
// only it is written, unless nothing was written yet, a whole is due, or writing the change fails.
func (l *Log) Write(whole func() any, change any) error {
	if change != nil && !l.due() && l.append(change) == nil {
		return nil
	}
	l.size = 0
	b, err := lineOf(whole())
	if err != nil {
		return fmt.Errorf("encoding %s: %w", l.name, err)
	}
	if err := replace(l.dir, l.name, b); err != nil {
		return err
	}
	l.whole, l.size = int64(len(b)), int64(len(b))
	return nil
}

// due reports whether the next write must be a whole.
func (l *Log) due() bool { return l.size == 0 || l.size-l.whole > 2*l.whole+spareBytes }

// append writes a change. After an error the file may contain it or not, so that a whole is due.
func (l *Log) append(v any) error {
	b, err := lineOf(v)
	if err != nil {
		return fmt.Errorf("encoding %s: %w", l.name, err)
	}
	size := l.size + int64(len(b))
	l.size = 0
	path := filepath.Join(l.dir, l.name)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	if _, err = f.Write(b); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	l.size = size
	return nil
}

// Read calls whole and then change for each change, in order; they must not retain their argument. cut reports that
// the file ends with a line that a crash left incomplete, whose write was never confirmed. The error wraps
// fs.ErrNotExist if there is no file.
func (l *Log) Read(whole, change func(b []byte) error) (cut bool, err error) {
	path := filepath.Join(l.dir, l.name)
	rest, err := os.ReadFile(path)
	if err != nil {
		return false, err
	}
	take := whole
	for n := 1; len(rest) > 0 || n == 1; n++ {
		line, after, ended := bytes.Cut(rest, []byte{'\n'})
		text, err := check(line)
		if !ended && err == nil {
			err = errors.New("it has no end")
		}
		if err != nil && n > 1 && len(after) == 0 {
			return true, nil
		}
		if err == nil {
			err = take(text)
		}
		if err != nil {
			return false, fmt.Errorf("%s is damaged: line %d: %w", path, n, err)
		}
		take, rest = change, after
	}
	return false, nil
}

func lineOf(v any) ([]byte, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	b := make([]byte, 0, sumDigits+1+len(text)+1)
	b = fmt.Appendf(b, "%0*x ", sumDigits, crc32.Checksum(text, castagnoli))
	return append(append(b, text...), '\n'), nil
}

// check verifies a line's checksum and returns its JSON.
func check(line []byte) ([]byte, error) {
	sum, text, _ := bytes.Cut(line, []byte{' '})
	want, err := strconv.ParseUint(string(sum), 16, 32)
	if is := crc32.Checksum(text, castagnoli); err != nil || uint32(want) != is {
		return nil, fmt.Errorf("its checksum is %08x, the file has %.10q", is, sum)
	}
	return text, nil
}
