package allocbound

import (
	"encoding/binary"
	"fmt"
	"testing"
)

// complaints counts what Check says.
type complaints struct {
	testing.TB
	said []string
}

func (c *complaints) Helper() {}

func (c *complaints) Errorf(format string, args ...any) {
	c.said = append(c.said, fmt.Sprintf(format, args...))
}

var kept []byte // keeps the compiler from leaving the allocation out

// A decoder that believes a length is found out, whatever the length's form; one that looks first is not.
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
