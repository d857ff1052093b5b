package wire

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"tidemark/index"
	"tidemark/internal/testing/allocbound"
	"tidemark/timestamp"
)

// acceptedExample returns accepted streams of n vbuckets, each with a stream of its own; every fifth has none any
// more.
func acceptedExample(n int) (rows []acceptedRow) {
	for v := range n {
		r := acceptedRow{v: uint16(v)}
		if v%5 != 4 {
			r.s = acceptedStream{projector: index.ProjectorID(fmt.Sprint("p", v%3)), open: v%2 == 0,
				incarnation: index.Incarnation{Epoch: 1, Term: 2, Counter: uint64(v)}}
		}
		rows = append(rows, r)
	}
	return rows
}

func movedExample(n int) (rows []movedRow) {
	for v := range n {
		rows = append(rows, movedRow{uint16(v), index.Incarnation{Epoch: 1, Counter: uint64(v % 3)}, uint64(v) << 30})
	}
	return rows
}

// vectorExample returns a vector in which each vbucket has a branch of its own.
func vectorExample(n int) timestamp.Vector {
	vector := timestamp.New(n)
	for v := range n {
		vector.Set(v, timestamp.Position{VBUUID: uint64(v)<<32 + 7, Seqno: uint64(v) << 20})
	}
	return vector
}

// Counts in a packed table must not cause allocations beyond the data.
func TestLengthsBoundAllocations(t *testing.T) {
	allocbound.Check(t, 0, func(b []byte) { _, _ = UnpackHeld(b) }, PackHeld(nil), PackHeld(heldExample()))
	allocbound.Check(t, 0, func(b []byte) { _, _ = positions(b) }, packPositions(nil), packPositions(pollExample(32)))
	allocbound.Check(t, 0, func(b []byte) { _ = unpackAccepted(b, func(uint16, acceptedStream) {}) },
		packAcceptedRows(acceptedExample(32)))
	allocbound.Check(t, 0, func(b []byte) { _, _ = expandMoved(b) }, packMoved(movedExample(32)))
}

// TestTablesAreBounded checks, for every table on the wire, that the longest one is accepted, and that one more row
// is refused with an error that has the count and its limit.
func TestTablesAreBounded(t *testing.T) {
	const most = timestamp.MaxVBuckets
	held := func(n int) error {
		all := make([]Held, n)
		for i := range all {
			all[i] = Held{Copy: index.CopyID(i), Node: index.NodeID(i % 256), OK: true}
		}
		got, err := UnpackHeld(PackHeld(all))
		return whole(err, slices.Equal(got, all))
	}
	poll := func(n int) error {
		got, err := positions(packPositions(pollExample(n)))
		return whole(err, samePositions(got, pollExample(n)))
	}
	accepted := func(n int) error {
		got, err := unpackAcceptedRows(packAcceptedRows(acceptedExample(n)))
		return whole(err, slices.Equal(got, acceptedExample(n)))
	}
	moved := func(n int) error {
		got, err := expandMoved(packMoved(movedExample(n)))
		return whole(err, slices.Equal(got, movedExample(n)))
	}
	listed := func(n int) error {
		s := StreamStates{Bucket: "b", Streams: make([]StreamState, n)}
		return s.Expand()
	}
	change := func(of func(*BucketReport, timestamp.Vector)) func(int) error {
		return func(n int) error {
			b, v := BucketReport{Heartbeat: HWHeartbeat{Bucket: "b"}}, vectorExample(n)
			of(&b, v)
			c, _ := b.since(nil)
			taken := Taken{Bucket: &ReportedBucket{}}
			err := taken.take(&c)
			report := &taken.Bucket.Report
			return whole(err, report.Heartbeat.HW.Equal(b.Heartbeat.HW) && report.Backfill.Equal(b.Backfill))
		}
	}
	hw := change(func(b *BucketReport, v timestamp.Vector) { b.Heartbeat.HW = v })
	backfill := change(func(b *BucketReport, v timestamp.Vector) { b.Backfill = v })
	for _, c := range []struct {
		name string
		make func(n int) error
		most int
		is   error
		want string // for one row more
	}{
		{"what copies hold", held, MaxHeld, ErrRows, "more than 1048576 rows"},
		{"an answer to a poll", poll, most, ErrRows, "row 4097 is 0 above key 4096, want keys up to 4095"},
		{"accepted streams", accepted, most, ErrRows, "row 4097 is 0 above key 4096, want keys up to 4095"},
		{"streams that moved", moved, most, ErrRows, "row 4097 is 0 above key 4096, want keys up to 4095"},
		{"streams", listed, most, ErrRows, "streams of 4097 vbuckets, want at most 4096"},
		{"HW", hw, most, ErrChange, "4097 vbuckets, want at most 4096"},
		{"backfill", backfill, most, ErrChange, "4097 vbuckets, want at most 4096"},
	} {
		if err := c.make(c.most); err != nil {
			t.Errorf("%s: %d rows: %v", c.name, c.most, err)
		}
		if err := c.make(c.most + 1); !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %d rows: %v, want %q", c.name, c.most+1, err, c.want)
		}
	}
}

var errOther = errors.New("it came as another one")

func whole(err error, same bool) error {
	if err == nil && !same {
		return errOther
	}
	return err
}

// TestInvalidTablesAreRefused checks that input that a writer never writes is refused.
func TestInvalidTablesAreRefused(t *testing.T) {
	kind := func(flag byte) []byte { return []byte{1, 'b', 1, 2, 3, 4, flag} } // of copies
	row := func(kind []byte, node ...byte) []byte {
		return append(append(append([]byte{rowsFormat, 1, 1}, kind...), node...), 0)
	}
	for _, c := range []struct {
		name, want string
		read       func() error
	}{
		{"a node that cannot be", "node 300, want at most 255", func() error {
			_, err := UnpackHeld(row(kind(1), 0xd8, 4))
			return err
		}},
		{"a flag that is none", "truncated or damaged in the row of key 0", func() error {
			_, err := UnpackHeld(row(kind(2), 2))
			return err
		}},
		{"no row any more, in a full table", "key 0 has no row", func() error {
			_, err := UnpackHeld([]byte{rowsFormat, 1, 0, 0})
			return err
		}},
		{"the same, of a poll", "key 0 has no row", func() error {
			_, err := positions([]byte{rowsFormat, 1, 0, 0})
			return err
		}},
		{"the same, of streams", "key 0 has no row", func() error {
			_, err := expandMoved([]byte{rowsFormat, 1, 0, 0})
			return err
		}},
		{"an empty position", "an empty position", func() error {
			_, err := positions([]byte{rowsFormat, 1, 1, 0, 0, 0, 0, 0, 0, 0})
			return err
		}},
	} {
		if err := c.read(); !errors.Is(err, ErrRows) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}
