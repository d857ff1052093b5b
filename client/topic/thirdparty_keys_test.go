package topic_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/big"
	"strings"
)

// The code in this file decodes keys by docs/protocol.md alone.

// composite returns a key as JSON; MISSING is "?", numbers are exact fractions.
func composite(key []byte, desc []bool) (string, error) {
	var parts []string
	for i := 0; len(key) > 0; i++ {
		upright := bytes.Clone(key)
		if i < len(desc) && desc[i] {
			for n := range upright {
				upright[n] ^= 0xff
			}
		}
		c := &cursor{b: upright}
		part := c.value()
		if c.err != nil {
			return "", c.err
		}
		parts, key = append(parts, part), key[len(key)-len(c.b):]
	}
	return strings.Join(parts, " "), nil
}

func (c *cursor) value() string {
	switch kind := c.one(); kind {
	case 0x08:
		return "?"
	case 0x10:
		return "null"
	case 0x18:
		return "false"
	case 0x20:
		return "true"
	case 0x28:
		return c.number()
	case 0x30:
		return c.quoted()
	case 0x38:
		parts := []string{}
		for c.err == nil && len(c.b) > 0 && c.b[0] != 0 {
			parts = append(parts, c.value())
		}
		c.one()
		return "[" + strings.Join(parts, ",") + "]"
	case 0x40:
		b := c.take(4)
		if len(b) < 4 {
			return ""
		}
		parts := []string{}
		for left := binary.BigEndian.Uint32(b); left > 0 && c.err == nil; left-- {
			if c.one() != 0x30 {
				c.fail("a member's name is no string")
			}
			name := c.quoted()
			parts = append(parts, name+":"+c.value())
		}
		if c.one() != 0 {
			c.fail("no end of an object")
		}
		return "{" + strings.Join(parts, ",") + "}"
	default:
		c.fail(fmt.Sprintf("kind of value %x", kind))
		return ""
	}
}

func (c *cursor) quoted() string {
	var text []byte
	for c.err == nil {
		switch b := c.one(); {
		case b != 0:
			text = append(text, b)
		default:
			if b = c.one(); b == 0xff {
				text = append(text, 0)
			} else if b == 1 {
				return fmt.Sprintf("%q", text)
			} else {
				c.fail("a string's escape")
			}
		}
	}
	return ""
}

func (c *cursor) number() string {
	b := c.take(8)
	if len(b) < 8 {
		return ""
	}
	bits := binary.BigEndian.Uint64(b)
	if bits>>63 == 1 {
		bits ^= 1 << 63
	} else {
		bits = ^bits
	}
	f := math.Float64frombits(bits)
	switch {
	case math.IsInf(f, 0):
		flip := byte(0)
		if f < 0 {
			flip = 0xff
		}
		e := int64(0)
		for _, b := range c.take(4) {
			e = e<<8 | int64(b^flip)
		}
		digits := ""
		for d := c.one() ^ flip; d != 0 && c.err == nil; d = c.one() ^ flip {
			digits += string(rune('0' + d - 1))
		}
		v, _ := new(big.Int).SetString("0"+digits, 10)
		v.Mul(v, new(big.Int).Exp(big.NewInt(10), big.NewInt(e-int64(len(digits))), nil))
		if f < 0 {
			v.Neg(v)
		}
		return v.String()
	case math.Abs(f) < 1<<53:
		return new(big.Rat).SetFloat64(f).RatString()
	}
	v, _ := big.NewFloat(f).Int(nil)
	size := int(c.one()) - 0x80
	rest := bytes.Clone(c.take(uint64(max(size, -size))))
	if size < 0 {
		for i := range rest {
			rest[i] ^= 0xff
		}
		return v.Sub(v, new(big.Int).SetBytes(rest)).String()
	}
	return v.Add(v, new(big.Int).SetBytes(rest)).String()
}
