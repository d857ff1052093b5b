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

// A table ends with 41 bytes that name the kind of the block checksums and the location of two index blocks, followed
// by four bytes of format number and eight bytes of magic. Tables of row blocks have no checksum over these bytes,
// unlike later formats, and need one only for the format number: a wrong kind of checksum or a wrong location is
// detected by the checksum of the block that is read, wrong magic at once; but with a wrong format number, blocks
// would be misinterpreted. So only the format that this program writes is accepted.
const (
	footerTail = 4 + 8
	tableMagic = "\xf0\x9f\xaa\xb3\xf0\x9f\xaa\xb3"
	rowsFormat = 4
)

// checkFooter returns a corruption error if a table's end is not one that this program writes.
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
