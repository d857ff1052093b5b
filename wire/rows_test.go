package wire

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// textRow is a row of a table whose kinds are texts; of a key that has no row any more kind is "-".
type textRow struct {
	key    uint64
	kind   string
	values [2]uint64
}

var textRows = rowReader[string]{keys: 1 << 20, values: 2, take: (*unpacker).text}

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
	err = textRows.read(b, func(key uint64, kind *string, values [2]uint64) {
		if kind == nil {
			rows = append(rows, textRow{key: key, kind: "-"})
		} else {
			rows = append(rows, textRow{key, *kind, values})
		}
	})
	return rows, err
}

// TestRows has the format, byte by byte.
func TestRows(t *testing.T) {
	for _, c := range []struct {
		name string
		rows []textRow
		want []byte
	}{
		{"nothing", nil, []byte{1}},
		{"a kind is written once", []textRow{{2, "ab", [2]uint64{5, 1}}, {3, "c", [2]uint64{7, 1}}, {4, "ab", [2]uint64{6, 0}},
			{300, "ab", [2]uint64{6, 0}}},
			[]byte{1, 2, 1, 2, 'a', 'b', 10, 2, 1, 2, 1, 'c', 4, 0, 1, 1, 1, 1, 0xa8, 2, 1, 0, 0}},
		{"no row any more", []textRow{{0, "", [2]uint64{3, 3}}, {1, "-", [2]uint64{}}, {2, "", [2]uint64{3, 3}}},
			[]byte{1, 0, 1, 0, 6, 6, 1, 0, 1, 1, 0, 0}},
		{"a key twice, and the largest numbers", []textRow{{9, "a", [2]uint64{^uint64(0), 0}}, {9, "a", [2]uint64{0, 1 << 63}}},
			[]byte{1, 9, 1, 1, 'a', 1, 0, 0, 1, 2, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1}},
	} {
		b := packText(c.rows)
		if got, err := unpackText(b); !slices.Equal(b, c.want) || !slices.Equal(got, c.rows) || err != nil {
			t.Errorf("%s: %v gives %v, %v; want %v of %v", c.name, b, got, err, c.rows, c.want)
		}
	}
	for name, b := range map[string][]byte{
		"no format": nil, "another format": {2}, "a kind that is not the next one": {1, 0, 2, 1, 'a', 0, 0},
		"a kind longer than all": {1, 0, 1, 9, 'a'}, "no kind": {1, 0, 1}, "no value": {1, 0, 1, 1, 'a', 0},
		"a key too high": {1, 0x80, 0x80, 0x40, 0}, "a number that does not end": {1, 0x80},
		"keys beyond a number": {1, 5, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 0},
	} {
		if got, err := unpackText(b); !errors.Is(err, ErrRows) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}

// TestRowsComeBack: whatever is packed is read, and what is cut is refused, or ends at a row.
func TestRowsComeBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var rows []textRow
		key := uint64(0)
		for range rapid.IntRange(0, 20).Draw(t, "rows") {
			key += rapid.Uint64Max(300).Draw(t, "gap")
			r := textRow{key: key, kind: rapid.SampledFrom([]string{"-", "", "a", "bb"}).Draw(t, "kind")}
			if r.kind != "-" {
				r.values = [2]uint64{rapid.Uint64().Draw(t, "value"), rapid.Uint64Max(2).Draw(t, "other")}
			}
			rows = append(rows, r)
		}
		b := packText(rows)
		got, err := unpackText(b)
		if err != nil || !slices.Equal(got, rows) {
			t.Fatalf("%v became %v, %v", rows, got, err)
		}
		cut := rapid.IntRange(0, len(b)-1).Draw(t, "cut")
		if got, err = unpackText(b[:cut]); err == nil && !slices.Equal(packText(got), b[:cut]) {
			t.Fatalf("%v, cut at %d, became %v", b, cut, got)
		}
	})
}

// FuzzRows: no bytes make a reader fall over, and what it reads is what is written again.
func FuzzRows(f *testing.F) {
	f.Add(packText([]textRow{{2, "ab", [2]uint64{5, 1}}, {3, "-", [2]uint64{}}, {4, "ab", [2]uint64{6, 0}}}))
	f.Add(AnswerPoll(pollExample(20)).Packed)
	f.Add(PackHeld(heldExample()))
	f.Fuzz(func(t *testing.T, b []byte) {
		stable(t, b, unpackText, packText)
		stable(t, b, func(b []byte) ([]PollPosition, error) { return (&PollReply{b}).Positions() },
			func(all []PollPosition) []byte { return AnswerPoll(all).Packed })
		stable(t, b, UnpackHeld, PackHeld)
	})
}

// stable reads b; if it can be read, what is written of it is read as the same.
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
	if again, err := read(once); err != nil || fmt.Sprint(again) != fmt.Sprint(all) && !slices.Equal(write(again), once) {
		t.Fatalf("%v became %v, %v", all, again, err)
	}
}
