package wire

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"tidemark/index"

	"pgregory.net/rapid"
)

// textRow is a row of a table whose kinds are strings; kind "-" means that the key was removed.
type textRow struct {
	key    uint64
	kind   string
	values [2]uint64
}

var textRows = rowReader[string]{keys: 1 << 20, gone: true, values: 2, take: (*unpacker).text}

func packText(rows []textRow) []byte {
	w := rowWriter[string]{put: appendText}
	for _, r := range rows {
		if r.kind == "-" {
			w.none(r.key)
		} else {
			w.row(r.key, r.kind, r.values[:]...)
		}
	}
	return w.packed()
}

func unpackText(b []byte) (rows []textRow, err error) {
	err = textRows.read(b, func(key uint64, kind *string, values [2]uint64) error {
		if kind == nil {
			rows = append(rows, textRow{key: key, kind: "-"})
		} else {
			rows = append(rows, textRow{key, *kind, values})
		}
		return nil
	})
	return rows, err
}

// TestRows checks the format, byte by byte.
func TestRows(t *testing.T) {
	for _, c := range []struct {
		name string
		rows []textRow
		want []byte
	}{
		{"nothing", nil, []byte{2, 0}},
		{"a kind is written once", []textRow{{2, "ab", [2]uint64{5, 1}}, {3, "c", [2]uint64{7, 1}}, {4, "ab", [2]uint64{6, 0}},
			{300, "ab", [2]uint64{6, 0}}},
			[]byte{2, 3, 1, 2, 'a', 'b', 10, 2, 1, 2, 1, 'c', 4, 0, 1, 1, 1, 1, 0xa8, 2, 1, 0, 0, 0}},
		{"no row any more", []textRow{{0, "", [2]uint64{3, 3}}, {1, "-", [2]uint64{}}, {2, "", [2]uint64{3, 3}}},
			[]byte{2, 1, 1, 0, 6, 6, 1, 0, 1, 1, 0, 0, 0}},
		{"the highest key, and the largest numbers", []textRow{{9, "a", [2]uint64{^uint64(0), 0}},
			{1<<20 - 1, "a", [2]uint64{0, 1 << 63}}},
			[]byte{2, 10, 1, 1, 'a', 1, 0, 0xf6, 0xff, 0x3f, 1, 2, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1, 0}},
	} {
		b := packText(c.rows)
		if got, err := unpackText(b); !slices.Equal(b, c.want) || !slices.Equal(got, c.rows) || err != nil {
			t.Errorf("%s: %v gives %v, %v; want %v of %v", c.name, b, got, err, c.rows, c.want)
		}
	}
	for _, c := range []struct {
		name string
		b    []byte
		want string // of the error
	}{
		{"no format", nil, "format 0, want 2"}, {"another format", []byte{1, 0}, "format 1, want 2"},
		{"a kind that is not the next one", []byte{2, 1, 2, 1, 'a', 0, 0, 0}, "key 0 has kind 2 after kind 0"},
		{"a kind longer than all", []byte{2, 1, 1, 9, 'a', 0}, "truncated or damaged in the row of key 0"},
		{"no kind", []byte{2, 1, 1}, "truncated or damaged in the row of key 0"},
		{"no value", []byte{2, 1, 1, 1, 'a', 0}, "truncated or damaged in the row of key 0"},
		{"no end", []byte{2, 6, 0}, "truncated after 1 rows"}, {"no row and no end", []byte{2}, "truncated after 0 rows"},
		{"a key too high", []byte{2, 0x81, 0x80, 0x40, 0, 0}, "row 1 is 1048576 above key 0, want keys up to 1048575"},
		{"a number that does not end", []byte{2, 0x80}, "truncated after 0 rows"},
		{"keys beyond a number", []byte{2, 6, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 0, 0},
			"row 2 is 18446744073709551614 above key 6"},
		{"a key twice", packText([]textRow{{9, "a", [2]uint64{}}, {9, "a", [2]uint64{}}}),
			"4 bytes after the end of 1 rows"},
		{"keys that fall", packText([]textRow{{9, "-", [2]uint64{}}, {8, "-", [2]uint64{}}}), "row 2 is"},
		{"bytes behind the end", []byte{2, 1, 0, 0, 0}, "1 bytes after the end of 1 rows"},
	} {
		if got, err := unpackText(c.b); !errors.Is(err, ErrRows) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, %v; want %q", c.name, got, err, c.want)
		}
	}
}

// TestRowsComeBack checks that packed rows are decoded, and that a truncated table is refused wherever it is cut.
func TestRowsComeBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var rows []textRow
		key := rapid.Uint64Max(2).Draw(t, "first")
		for range rapid.IntRange(0, 20).Draw(t, "rows") {
			r := textRow{key: key, kind: rapid.SampledFrom([]string{"-", "", "a", "bb"}).Draw(t, "kind")}
			if r.kind != "-" {
				r.values = [2]uint64{rapid.Uint64().Draw(t, "value"), rapid.Uint64Max(2).Draw(t, "other")}
			}
			rows = append(rows, r)
			key += 1 + rapid.Uint64Max(300).Draw(t, "gap")
		}
		b := packText(rows)
		got, err := unpackText(b)
		if err != nil || !slices.Equal(got, rows) {
			t.Fatalf("%v became %v, %v", rows, got, err)
		}
		for cut := range b {
			if got, err = unpackText(b[:cut]); !errors.Is(err, ErrRows) {
				t.Fatalf("%v, cut at %d, became %v, %v", b, cut, got, err)
			}
		}
	})
}

// acceptedRow is a difference of accepted streams.
type acceptedRow struct {
	v uint16
	s acceptedStream
}

func unpackAcceptedRows(b []byte) (rows []acceptedRow, err error) {
	err = unpackAccepted(b, func(v uint16, s acceptedStream) { rows = append(rows, acceptedRow{v, s}) })
	return rows, err
}

func packAcceptedRows(rows []acceptedRow) []byte {
	var was, is Accepted
	for _, r := range rows {
		if r.s == (acceptedStream{}) { // no stream is accepted any more
			was.add(r.v, acceptedStream{projector: "p"})
		} else {
			is.add(r.v, r.s)
		}
	}
	if b := packAccepted(&was, &is); b != nil {
		return b
	}
	return (&rowWriter[acceptedStream]{}).packed()
}

// movedRow is a moved stream.
type movedRow struct {
	v        uint16
	inc      index.Incarnation
	complete uint64
}

func expandMoved(b []byte) (rows []movedRow, err error) {
	s := StreamStates{Moved: b}
	if len(b) == 0 {
		return nil, ErrRows // there is no empty table
	}
	err = s.Expand()
	for i := range s.Streams {
		st := &s.Streams[i]
		rows = append(rows, movedRow{st.VBucket, st.Incarnation, st.Complete})
	}
	return rows, err
}

func packMoved(rows []movedRow) []byte {
	s := StreamStates{Moved: (&rowWriter[index.Incarnation]{}).packed()}
	for _, r := range rows {
		s.Move(r.v, r.inc, r.complete)
	}
	return s.Moved
}

func positions(b []byte) ([]PollPosition, error) { return (&PollReply{b}).Positions() }

func packPositions(all []PollPosition) []byte { return AnswerPoll(all).Packed }

// FuzzRows checks that no bytes make a reader panic, and that accepted input is encoded and decoded to the same.
func FuzzRows(f *testing.F) {
	f.Add(packText([]textRow{{2, "ab", [2]uint64{5, 1}}, {3, "-", [2]uint64{}}, {4, "ab", [2]uint64{6, 0}}}))
	f.Add(packPositions(pollExample(20)))
	f.Add(PackHeld(heldExample()))
	f.Add(packAcceptedRows(acceptedExample(5)))
	f.Add(packMoved(movedExample(5)))
	f.Fuzz(func(t *testing.T, b []byte) {
		stable(t, b, unpackText, packText)
		stable(t, b, positions, packPositions)
		stable(t, b, UnpackHeld, PackHeld)
		stable(t, b, unpackAcceptedRows, packAcceptedRows)
		stable(t, b, expandMoved, packMoved)
	})
}

// stable decodes b; if that succeeds, encoding and decoding the result must be the identity.
func stable[T any](t *testing.T, b []byte, read func([]byte) ([]T, error), write func([]T) []byte) {
	t.Helper()
	all, err := read(b)
	if err != nil {
		if !errors.Is(err, ErrRows) {
			t.Fatal(err)
		}
		return
	}
	once := write(all)
	again, err := read(once)
	if err != nil || fmt.Sprintf("%#v", again) != fmt.Sprintf("%#v", all) {
		t.Fatalf("%v became %v, %v", all, again, err)
	}
	if twice := write(again); !slices.Equal(twice, once) {
		t.Fatalf("%v was written as %v, then as %v", all, once, twice)
	}
}
