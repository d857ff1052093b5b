package storage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// The end of a table: 41 bytes that say which checksum blocks have and where the first two of them are, four of the
// format's number, eight that every table ends with. Tables of rows have no checksum over these as later formats do,
// and need none but for the number: a wrong kind of checksum, and a wrong place of a block, are seen by the checksum of
// what is read there, wrong last bytes at once; a wrong number would let blocks be read as what they are not. So no
// other number is let through than that of the format that the product writes.
const (
	footerTail = 4 + 8
	tableMagic = "\xf0\x9f\xaa\xb3\xf0\x9f\xaa\xb3"
	rowsFormat = 4
)

// checkFooter returns an error that is damage when a table's end is not one that the product writes.
func checkFooter(f vfs.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	var tail [footerTail]byte
	if info.Size() < footerTail {
		return fmt.Errorf("%w: a table of %d bytes", pebble.ErrCorruption, info.Size())
	}
	if _, err := f.ReadAt(tail[:], info.Size()-footerTail); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	number := binary.LittleEndian.Uint32(tail[:])
	switch {
	case !bytes.Equal(tail[4:], []byte(tableMagic)):
		return fmt.Errorf("%w: a table ends with %x, want %x", pebble.ErrCorruption, tail[4:], tableMagic)
	case number != rowsFormat:
		return fmt.Errorf("%w: a table of format %d, want %d", pebble.ErrCorruption, number, rowsFormat)
	}
	return nil
}

// Open implements vfs.FS.
func (g *guardFS) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := g.FS.Open(name, opts...)
	if err != nil || !isTable(name) {
		return f, err
	}
	if err := checkFooter(f); err != nil {
		_ = f.Close() // it was only read
		return nil, err
	}
	return f, nil
}
