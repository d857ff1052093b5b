package storage

import (
	"bytes"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"tidemark/internal/testing/raced"
)

// TestFlippedFooter flips bits in the end of a table, which has no checksum: whichever the bit, reads are correct, or
// the file is named as damaged. Flips in the kind of checksum, the format number and the last bytes are all detected.
func TestFlippedFooter(t *testing.T) {
	const footer = 53
	template, path, content := largestTable(t)
	for bit := range footer * 8 {
		field := bit / 8
		always := field == 0 || field >= footer-footerTail
		if every := stride(field, footer); bit%every != 0 || raced.On && bit%8 != field%8 {
			continue // with the race detector one bit of each byte: the test command tries the others
		}
		flipped := bytes.Clone(content)
		flipped[len(content)-footer+field] ^= 1 << (bit % 8)
		if seen := readFlipped(t, template, path, flipped); always && !seen {
			t.Errorf("bit %d of byte %d was not seen", bit%8, field)
		}
	}
}

// TestFormatNumber: no other number at the end of a table is accepted as its format, whichever of Pebble's formats it
// is.
func TestFormatNumber(t *testing.T) {
	template, path, content := largestTable(t)
	for n := range byte(10) {
		at := len(content) - footerTail
		if n == content[at] {
			continue
		}
		changed := bytes.Clone(content)
		changed[at] = n
		if !readFlipped(t, template, path, changed) {
			t.Errorf("a table of format %d was taken for one of format %d", content[at], n)
		}
	}
}

// largestTable returns a table whose blocks Open alone does not read.
func largestTable(t *testing.T) (template *vfs.MemFS, path string, content []byte) {
	template = vfs.NewMem()
	build(t, template)
	for _, p := range walk(t, template, "data/1/db-1") {
		b, err := readFile(template, p)
		must(t, err)
		if isTable(p) && len(b) > len(content) {
			path, content = p, b
		}
	}
	if len(content) < 2*blockBytes {
		t.Fatalf("the largest table has %d bytes: Open alone reads it", len(content))
	}
	return template, path, content
}

// stride returns which bits of a byte of the footer are tried: all of the kind of checksum and the format number.
func stride(field, footer int) int {
	switch {
	case field == 0 || field >= footer-footerTail && field < footer-footerTail+4:
		return 1
	case field >= footer-footerTail:
		return 3
	}
	return 11
}

// readFlipped reports whether damage was found by opening or reading; data that was read without damage is correct.
func readFlipped(t *testing.T, template *vfs.MemFS, path string, content []byte) bool {
	fs := vfs.NewMem()
	if _, err := vfs.Clone(template, fs, "data", "data"); err != nil {
		t.Fatal(err)
	}
	must(t, writeSynced(fs, path, content))
	store := openTest(t, "data", func(o *Options) { o.FS, o.VerifyBytes = fs, -1 })
	defer func() { must(t, store.Close()) }()
	slice, ok := store.Slice(1)
	if !ok {
		t.Fatal(store.Damaged())
	}
	opened := slice.Recovery().Outcome
	return readDamaged(t, slice) > 0 || opened != Intact
}
