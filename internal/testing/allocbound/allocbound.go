// Package allocbound serves tests of decoders: it makes inputs whose length fields claim far more data than the input
// has, and measures what a decoder allocates for them. It calls the decoder with every variant and reports the first
// one for which the decoder allocates more than the input's size allows; it never looks at what the decoder returns.
package allocbound

import (
	"encoding/binary"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"testing"

	"tidemark/internal/testing/raced"
)

const (
	// PerByte is how many bytes a decoder may allocate for each byte of its input: a list of one-byte items becomes a
	// slice of structs, which doubles as it grows.
	PerByte = 128
	// Fixed is how many bytes a decoder may allocate for any input.
	Fixed = 16 << 10

	// dense is the number of offsets from the start of an input that are all tried. Behind them, as many more are
	// tried, evenly spread.
	dense = 64
	// together is the most variants that are measured at once.
	together = 64
	// tries is how many times a variant is measured. Other goroutines allocate too, so the minimum counts.
	tries = 5
	// gcPercent is GOGC while decoders are measured, unless the environment sets it: everything they allocate is
	// garbage, and collecting it takes longer than allocating it.
	gcPercent = 1000
)

// claims returns the bytes to write over an input: lengths of fixed and variable width, in both byte orders, and the
// heads of MessagePack and CBOR values with 32-bit and 64-bit lengths.
func claims() [][]byte {
	c := [][]byte{
		{0xff}, {0xff, 0xff}, {0xff, 0xff, 0xff, 0xff}, {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
		{0x7f, 0xff, 0xff, 0xff}, {0xff, 0xff, 0xff, 0x7f}, {0x01, 0x00, 0x00, 0x00}, {0x00, 0x40, 0x00, 0x00},
		{0x00, 0x00, 0x00, 0x01}, {0x40, 0x00, 0x00, 0x00}, {0x00, 0x00, 0x00, 0x40},
		{0xdd, 0x7f, 0xff, 0xff, 0xff}, {0xdf, 0x7f, 0xff, 0xff, 0xff}, {0xc6, 0x7f, 0xff, 0xff, 0xff},
		{0xdb, 0x7f, 0xff, 0xff, 0xff},
		{0x5a, 0x7f, 0xff, 0xff, 0xff}, {0x7a, 0x7f, 0xff, 0xff, 0xff}, {0x9a, 0x7f, 0xff, 0xff, 0xff},
		{0xba, 0x7f, 0xff, 0xff, 0xff}, {0x9b, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0xff},
	}
	for _, n := range []uint64{1 << 12, 1 << 16, 1 << 24, 1<<31 - 1, 1 << 40, 1<<63 - 1} {
		c = append(c, binary.AppendUvarint(nil, n))
	}
	return c
}

// Variants calls yield with valid and with all its variants: each claim written over the bytes at each offset, and
// each claim inserted in place of one byte. yield owns the slice and may change it.
func Variants(valid []byte, yield func(b []byte)) {
	yield(append([]byte(nil), valid...))
	step := max(1, (len(valid)-dense)/dense)
	for i := 0; i <= len(valid); i++ {
		if i > dense && (i-dense)%step != 0 {
			continue
		}
		for _, c := range claims() {
			over := append(append([]byte(nil), valid[:i]...), c...)
			if i+len(c) < len(valid) {
				over = append(over, valid[i+len(c):]...)
			}
			yield(over)
			if i < len(valid) && len(c) > 1 {
				yield(append(append(append([]byte(nil), valid[:i]...), c...), valid[i+1:]...))
			}
		}
	}
}

// Check decodes each valid input and all its variants. extra is what the decoder may allocate beyond Fixed in any
// case, for a buffer of its own. decode must correct checksums itself. With the race detector Check decodes only the
// valid inputs.
func Check(t testing.TB, extra int, decode func(b []byte), valid ...[]byte) {
	t.Helper()
	variants := Variants
	if raced.On { // decoding takes several times as long, and has no data races
		variants = func(valid []byte, yield func(b []byte)) { yield(valid) }
	}
	check(t, extra, decode, variants, valid...)
}

// check decodes the variants of each valid input.
func check(t testing.TB, extra int, decode func(b []byte), variants func(valid []byte, yield func(b []byte)),
	valid ...[]byte) {
	t.Helper()
	if os.Getenv("GOGC") == "" {
		defer debug.SetGCPercent(debug.SetGCPercent(gcPercent))
	}
	m := measure{extra: extra, decode: decode, errorf: t.Errorf}
	var batch [][]byte
	good := true
	for _, v := range valid {
		variants(v, func(b []byte) {
			if batch = append(batch, b); good && len(batch) >= together {
				good = m.all(batch)
				batch = batch[:0]
			}
		})
	}
	if good {
		m.all(batch)
	}
}

// measure holds a decoder to its limit.
type measure struct {
	extra  int
	decode func(b []byte)
	errorf func(format string, args ...any)
}

// limit returns how many bytes the decoder may allocate for an input.
func (m *measure) limit(b []byte) int { return PerByte*len(b) + Fixed + m.extra }

// all reports whether the decoder stays within its limit for each input of a batch; the first that exceeds it fails
// the test. Reading the allocation counters stops the world and takes longer than decoding most variants: if the
// whole batch allocates no more than one input may, none exceeds its limit; otherwise all tries smaller batches, of a
// size that is likely to stay below that.
func (m *measure) all(batch [][]byte) bool {
	if len(batch) <= 1 {
		return len(batch) == 0 || m.one(batch[0])
	}
	least := m.limit(slices.MinFunc(batch, func(a, b []byte) int { return len(a) - len(b) }))
	got := allocated(func() {
		for _, b := range batch {
			m.decode(append([]byte(nil), b...))
		}
	})
	if got <= least {
		return true
	}
	for part := range slices.Chunk(batch, max(1, len(batch)*least/(2*got))) {
		if !m.all(part) {
			return false
		}
	}
	return true
}

// one measures a single input.
func (m *measure) one(b []byte) bool {
	limit, least := m.limit(b), 0
	for try := range tries {
		got := allocated(func() { m.decode(append([]byte(nil), b...)) })
		if try == 0 || got < least {
			least = got
		}
		if least <= limit {
			return true
		}
	}
	m.errorf("%d bytes allocated for %d bytes of input, at most %d allowed: %.200x", least, len(b), limit, b)
	return false
}

// allocated returns how many bytes were allocated while f ran, by other goroutines too.
func allocated(f func()) int {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return int(after.TotalAlloc - before.TotalAlloc)
}
