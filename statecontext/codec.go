package statecontext

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"tidemark/timestamp"
)

var (
	// ErrUndecodable is wrapped if a Raft entry is not a list of commands that this program supports. The node has to
	// stop, because its state would diverge if it skipped the entry.
	ErrUndecodable = errors.New("undecodable command")
	// ErrTooLarge is wrapped if commands do not fit into one Raft entry.
	ErrTooLarge = errors.New("commands too large for one log entry")
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// appendString appends the length and the bytes of s.
func appendString(dst []byte, s string) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(s)))
	return append(dst, s...)
}

func appendBytes(dst, b []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(b)))
	return append(dst, b...)
}

func appendUint(dst []byte, u uint64) []byte { return binary.AppendUvarint(dst, u) }

func appendInt(dst []byte, i int64) []byte { return binary.AppendVarint(dst, i) }

func appendBool(dst []byte, b bool) []byte {
	if b {
		return append(dst, 1)
	}
	return append(dst, 0)
}

// appendVector appends a whole vector, which may have no vbuckets.
func appendVector(dst []byte, t timestamp.Vector) []byte { return t.AppendVector(dst) }

// decoder consumes fields from a byte slice and keeps the first error; after an error, every field reads as zero.
type decoder struct {
	b   []byte
	err error
}

func (d *decoder) fail(format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf(format, args...)
	}
	d.b = nil
}

func (d *decoder) byte() byte {
	if len(d.b) == 0 {
		d.fail("truncated")
		return 0
	}
	c := d.b[0]
	d.b = d.b[1:]
	return c
}

func (d *decoder) bool() bool {
	c := d.byte()
	if c > 1 {
		d.fail("%d where 0 or 1 is expected", c)
	}
	return c == 1
}

func (d *decoder) uint() uint64 {
	u, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.fail("truncated number")
		return 0
	}
	d.b = d.b[n:]
	return u
}

// max reads a number that must not exceed top.
func (d *decoder) max(top uint64, what string) uint64 {
	u := d.uint()
	if u > top {
		d.fail("%s %d, at most %d", what, u, top)
		return 0
	}
	return u
}

func (d *decoder) int() int64 {
	i, n := binary.Varint(d.b)
	if n <= 0 {
		d.fail("truncated number")
		return 0
	}
	d.b = d.b[n:]
	return i
}

// count reads the number of the elements that follow. Each takes at least one byte, which bounds it.
func (d *decoder) count() int { return int(d.max(uint64(len(d.b)), "count")) }

// bytes reads a length and that many bytes. The result aliases the input.
func (d *decoder) bytes() []byte {
	n := d.count()
	if d.err != nil || n > len(d.b) {
		d.fail("truncated")
		return nil
	}
	b := d.b[:n:n]
	d.b = d.b[n:]
	return b
}

func (d *decoder) string() string { return string(d.bytes()) }

func (d *decoder) fixed(dst []byte) {
	if len(d.b) < len(dst) {
		d.fail("truncated")
		return
	}
	copy(dst, d.b)
	d.b = d.b[len(dst):]
}

func (d *decoder) vector() timestamp.Vector {
	if d.err != nil {
		return timestamp.Vector{}
	}
	t, rest, err := timestamp.DecodeVector(d.b)
	if err != nil {
		d.fail("%w", err)
		return timestamp.Vector{}
	}
	d.b = rest
	return t
}

func (d *decoder) log() timestamp.FailoverLog {
	if d.err != nil {
		return nil
	}
	l, rest, err := timestamp.DecodeLog(d.b)
	if err != nil {
		d.fail("%w", err)
		return nil
	}
	d.b = rest
	return l
}

// end returns the first error, or an error if bytes are left over.
func (d *decoder) end() error {
	if d.err == nil && len(d.b) > 0 {
		d.fail("%d bytes left over", len(d.b))
	}
	return d.err
}

func appendCommand(dst []byte, c *Command) []byte {
	dst = append(dst, byte(c.Body.kind()))
	dst = appendInt(appendInt(dst, c.TimeMS), c.WallMS)
	dst = appendBool(dst, c.Request != nil)
	if r := c.Request; r != nil {
		dst = appendString(dst, r.Principal)
		dst = appendString(dst, r.Key)
		if r.keyed() {
			dst = append(dst, r.BodyHash[:]...)
		}
	}
	return c.Body.append(dst)
}

func decodeCommand(raw []byte) (Command, error) {
	d := decoder{b: raw}
	k := kind(d.byte())
	c := Command{TimeMS: d.int(), WallMS: d.int()}
	if d.bool() {
		r := &Request{Principal: d.string(), Key: d.string()}
		if r.keyed() {
			d.fixed(r.BodyHash[:])
		}
		c.Request = r
	}
	if d.err != nil {
		return c, d.err
	}
	c.Body = decodeBody(k, &d)
	if c.Body == nil {
		return c, fmt.Errorf("unknown command type %d", k)
	}
	if err := d.end(); err != nil {
		return c, fmt.Errorf("command type %d: %w", k, err)
	}
	return c, nil
}
