package storage

import (
	"bytes"
	"encoding/hex"
	"testing"

	"tidemark/ingest"
	"tidemark/timestamp"
)

// TestStoredForms fixes the bytes of every record: they are on disks, and a change needs a new format version.
func TestStoredForms(t *testing.T) {
	prev, next := newState(2), newState(2)
	next.number, next.items, next.exact = 7, 3, true
	next.positions[1] = ingest.Position{VBUUID: 0xAB, Side: 1, Main: 300, A: 2, Floor: 4, WindowEnd: 5}
	next.stable.Set(1, timestamp.Position{VBUUID: 0xAB, Seqno: 300})
	changed, err := appendStateRecord(nil, &prev, &next, []uint16{1}, false)
	must(t, err)
	full, err := appendStateRecord(nil, &prev, &next, nil, true)
	must(t, err)
	for _, c := range []struct {
		name string
		got  []byte
		want string
	}{
		{"back key", appendBackKey(nil, 0x0102, []byte("doc")), "620102646f63"},
		{"back value", appendBackValue(nil, 300, [][]byte{{0x30, 'a'}, {0x10}}), "ac0202023061" + "0110"},
		{"tombstone", appendBackValue(nil, 300, nil), "ac0200"},
		{"forward key", appendFwdKey(nil, []byte{0x30, 'a'}, []byte("doc")), "663061646f63"},
		{"log key", logKey(0x0102), "6c0102"},
		{"state", changed, "0102" + "0706" + "01020103ab00000000000000d804" + "01" + "0001" +
			"01ab0000000000000001ac02020405"},
		{"full state", full, "0103" + "0706" + "01020103ab00000000000000d804" + "02" +
			"0000" + "0100000000000000000000000000" + "0001" + "01ab0000000000000001ac02020405"},
	} {
		if got := hex.EncodeToString(c.got); got != c.want {
			t.Errorf("%s is %s, want %s", c.name, got, c.want)
		}
	}
	for _, record := range [][]byte{changed, full} {
		got := newState(2)
		r, err := parseStateRecord(record)
		must(t, err)
		must(t, got.apply(r))
		if got.number != 7 || got.items != 3 || !got.exact || got.positions[1] != next.positions[1] ||
			!got.stable.Equal(next.stable) {
			t.Fatalf("%+v", got)
		}
	}
}

func FuzzBackValue(f *testing.F) {
	f.Add(appendBackValue(nil, 300, [][]byte{{0x30, 'a'}, {0x10}}))
	f.Add([]byte{1, 0xFF, 0xFF, 0xFF, 0xFF, 0x0F})
	f.Fuzz(func(t *testing.T, v []byte) {
		seqno, keys, err := decodeBackValue(nil, v)
		if err != nil {
			return
		}
		again, keys2, err := decodeBackValue(nil, appendBackValue(nil, seqno, keys))
		if err != nil || again != seqno || len(keys2) != len(keys) {
			t.Fatalf("%x: %d %d keys, again %d %d keys, %v", v, seqno, len(keys), again, len(keys2), err)
		}
	})
}

func FuzzStateRecord(f *testing.F) {
	prev, next := newState(3), newState(3)
	next.number, next.items = 7, 3
	next.positions[2].Main = 9
	for _, full := range []bool{false, true} {
		r, err := appendStateRecord(nil, &prev, &next, []uint16{2}, full)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(r)
	}
	f.Fuzz(func(t *testing.T, v []byte) {
		s := newState(3)
		r, err := parseStateRecord(v)
		if err == nil {
			err = s.apply(r)
		}
		if err == nil && (len(s.positions) != 3 || s.stable.Len() != 3) {
			t.Fatal("a record changed the number of vbuckets")
		}
	})
}

func FuzzForwardRow(f *testing.F) {
	f.Add([]byte("fkeydoc"), []byte{3})
	f.Fuzz(func(t *testing.T, row, value []byte) {
		key, docID, err := splitFwd(row, value)
		if err == nil && !bytes.Equal(appendFwdKey(nil, key, docID), row) {
			t.Fatalf("%x splits into %x and %x", row, key, docID)
		}
	})
}
