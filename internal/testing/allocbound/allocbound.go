// Package allocbound is for the tests of decoders: it makes inputs whose length fields claim far more than there is and
// measures what a decoder allocates for them. It promises to call the decoder with every variant and to name the first
// that is answered with more memory than its size allows; it never looks at what the decoder returns.
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
	// slice of structs, doubled as it grows.
	PerByte = 128
	// Fixed is what a decoder may allocate whatever its input.
	Fixed = 16 << 10

	// dense is how far from its beginning every offset of an input is tried; beyond, as many again, evenly spread.
	dense = 64
	// together is the most variants that are measured at once.
	together = 64
	// tries is how often one is measured: other goroutines allocate too, the least counts.
	tries = 5
	// gcPercent is GOGC while decoders are measured, unless the environment says otherwise: all they make is garbage, and
	// collecting it takes longer than making it.
	gcPercent = 1000
)

// claims are what is written over an input: lengths in fixed and variable width, of either end, and the heads of
// MessagePack and CBOR values with 32-bit and 64-bit lengths.
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

// Variants calls yield with valid and with all its variants: each claim over the bytes of each offset, and each claim
// in the place of one byte, with the rest behind it. The slice is yield's to change and to keep.
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

// Check decodes each valid input and all its variants. extra is what the decoder may allocate beyond Fixed in any case,
// for a buffer of its own, and decode does whatever makes a checksum right. With the race detector it decodes the valid
// inputs alone.
func Check(t testing.TB, extra int, decode func(b []byte), valid ...[]byte) {
	t.Helper()
	variants := Variants
	if raced.On { // decoding takes several times as long, and the detector sees nothing in it
		variants = func(valid []byte, yield func(b []byte)) { yield(valid) }
	}
	check(t, extra, decode, variants, valid...)
}

// check decodes what variants makes of each valid input.
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

// limit is what an input may be answered with.
func (m *measure) limit(b []byte) int { return PerByte*len(b) + Fixed + m.extra }

// all reports whether none of these is answered with more than it may; the first that is fails the test. A look at what
// was allocated stops all that runs, and takes longer than most variants: if all together take no more than one of them
// may, none does; if they take more, as many are looked at together as are likely not to.
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

// one is all of a single input.
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

// allocated is how many bytes f allocates, with those of whoever runs beside it.
func allocated(f func()) int {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return int(after.TotalAlloc - before.TotalAlloc)
}
