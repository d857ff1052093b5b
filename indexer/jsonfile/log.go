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

// Log keeps what would be written too often as a whole: the first line of its file is the whole, each other one a
// change of it. A line is the checksum of its JSON, and the JSON. It promises what Write does, at a cost of the change
// alone: a whole one is due when the changes have become more than twice as long. One goroutine at a time uses it.
type Log struct {
	dir, name   string
	whole, size int64 // bytes of the first line and of all, as far as this Log has written them; size 0: of none
}

// NewLog returns a log in a folder. The first that it writes is a whole.
func NewLog(dir, name string) *Log { return &Log{dir: dir, name: name} }

// spareBytes is what changes may take where the whole is short.
const spareBytes = 64 << 10

// sumDigits and a space stand before the JSON of a line.
const sumDigits = 8

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Write makes the file say what whole gives. change, unless nil, is how that differs from what was written last: it
// alone is written, unless nothing was written yet, a whole is due, or the change cannot be written.
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

// due reports whether a whole has to be written next.
func (l *Log) due() bool { return l.size == 0 || l.size-l.whole > 2*l.whole+spareBytes }

// append writes a change. After an error the file may have it, and a whole is due.
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

// Read hands over the whole and then each change, in order; they are not the callee's to keep. cut says that the end of
// the file is a line which a crash has left unfinished: nobody was told that it was written. Errors wrap fs.ErrNotExist
// where there is no file.
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

// check returns what stands behind the checksum of a line.
func check(line []byte) ([]byte, error) {
	sum, text, _ := bytes.Cut(line, []byte{' '})
	want, err := strconv.ParseUint(string(sum), 16, 32)
	if is := crc32.Checksum(text, castagnoli); err != nil || uint32(want) != is {
		return nil, fmt.Errorf("its checksum is %08x, it says %.10q", is, sum)
	}
	return text, nil
}
