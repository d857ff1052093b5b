package allocbound

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
)

// complaints counts the failures that Check reports.
type complaints struct {
	testing.TB
	said []string
}

func (c *complaints) Helper() {}

func (c *complaints) Errorf(format string, args ...any) {
	c.said = append(c.said, fmt.Sprintf(format, args...))
}

var kept []byte // keeps the compiler from removing the allocation

// TestCheck checks that a decoder that allocates a claimed length without checking it is reported, for every form of
// a length, and that one that checks lengths is not.
func TestCheck(t *testing.T) {
	valid := append([]byte("head"), 0, 0, 0, 3, 'a', 'b', 'c')
	forms := map[string]func(b []byte) uint64{
		"big":     func(b []byte) uint64 { return uint64(binary.BigEndian.Uint32(b)) },
		"little":  func(b []byte) uint64 { return uint64(binary.LittleEndian.Uint32(b)) },
		"uvarint": func(b []byte) uint64 { n, _ := binary.Uvarint(b); return n },
	}
	for name, length := range forms {
		for _, careful := range []bool{false, true} {
			c := &complaints{TB: t}
			check(c, 0, func(b []byte) {
				if len(b) < 8 {
					return
				}
				n := min(length(b[4:]), 8<<20)
				if careful && n > uint64(len(b)) {
					return
				}
				kept = make([]byte, n)
			}, Variants, valid)
			if careful != (len(c.said) == 0) {
				t.Errorf("%s, careful %v: %q", name, careful, c.said)
			}
		}
	}
	kept = nil
}

// TestOneExcessiveInputIsFound checks that one input with an excessive allocation is found at any position among many
// that allocate nearly as much as they may, and that nothing is reported without it.
func TestOneExcessiveInputIsFound(t *testing.T) {
	inputs := make([][]byte, 2*together+1)
	for i := range inputs {
		inputs[i] = []byte{byte(i)}
	}
	alone := func(valid []byte, yield func(b []byte)) { yield(valid) }
	for guilty := -1; guilty < len(inputs); guilty++ {
		c := &complaints{TB: t}
		check(c, 0, func(b []byte) {
			n := PerByte + Fixed/2
			if int(b[0]) == guilty {
				n = 2 * (PerByte + Fixed)
			}
			kept = make([]byte, n)
		}, alone, inputs...)
		want := 1
		if guilty < 0 {
			want = 0
		}
		if len(c.said) != want {
			t.Errorf("input %d of %d: %q", guilty, len(inputs), c.said)
		} else if want == 1 && !strings.HasSuffix(c.said[0], fmt.Sprintf(": %02x", guilty)) {
			t.Errorf("input %d of %d: %q", guilty, len(inputs), c.said)
		}
	}
	kept = nil
}
