package keyversion_test

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"tidemark/index"
	_ "tidemark/internal/testing/draws"
	"tidemark/keyversion"
	"tidemark/timestamp"
)

func bytesUpTo(n int) *rapid.Generator[[]byte] { return rapid.SliceOfN(rapid.Byte(), 0, n) }

// numbers draws numbers that are often close to each other and sometimes arbitrary.
func numbers() *rapid.Generator[uint64] {
	return rapid.OneOf(rapid.Uint64Range(0, 300), rapid.Uint64Range(1<<40, 1<<40+300), rapid.Uint64())
}

func genCopies(t *rapid.T) []index.CopyID {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) index.CopyID {
		return index.CopyID(numbers().Draw(t, "copy"))
	}), 0, 4).Draw(t, "copies")
}

func genWindow(t *rapid.T) timestamp.Window {
	return timestamp.Window{Start: numbers().Draw(t, "start"), End: numbers().Draw(t, "end")}
}

// someLists are Rests that events share, and some that are equal to others.
var someLists = []*keyversion.Places{
	nil,
	keyversion.NewPlaces([]keyversion.Place{{Index: 1 << 33, Slice: 3}}),
	keyversion.NewPlaces([]keyversion.Place{{Index: 1 << 33, Slice: 3}}),
	keyversion.NewPlaces([]keyversion.Place{{Index: 2, Slice: index.AllSlices}, {Index: 7, Slice: 0xfffe},
		{Index: 1<<64 - 1}}),
}

func genEvent(t *rapid.T) keyversion.Event {
	ev := keyversion.Event{
		Kind:    keyversion.Kind(rapid.IntRange(1, int(keyversion.Deactivate)).Draw(t, "kind")),
		VBucket: rapid.Uint16Range(0, 3).Draw(t, "vbucket"),
		Incarnation: index.Incarnation{Epoch: rapid.SampledFrom([]uint64{7, 1 << 40}).Draw(t, "epoch"), Term: 3,
			Counter: rapid.Uint64Range(1, 2).Draw(t, "counter")},
		VBUUID: rapid.SampledFrom([]uint64{0, 1, 1 << 63}).Draw(t, "vbuuid"),
		Seqno:  numbers().Draw(t, "seqno"),
	}
	switch {
	case ev.Kind.Data():
		ev.Window = genWindow(t)
		ev.DocID = bytesUpTo(300).Draw(t, "docid")
		ev.Part, ev.More = rapid.SampledFrom([]uint16{0, 0, 1, 0xffff}).Draw(t, "part"), rapid.Bool().Draw(t, "more")
		ev.Statements = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) keyversion.Statement {
			return keyversion.Statement{
				Index: index.ID(numbers().Draw(t, "index")),
				Slice: index.SliceID(rapid.SampledFrom([]uint16{0, 1, 200, 0xfffe, 0xffff}).Draw(t, "slice")),
				Keys:  rapid.SliceOfN(bytesUpTo(20), 0, 5).Draw(t, "keys"),
			}
		}), 0, 4).Draw(t, "statements")
		if ev.Part == 0 && !ev.More {
			ev.Rest = rapid.SampledFrom(someLists).Draw(t, "rest")
		}
	case ev.Kind == keyversion.StreamEnd:
		ev.Window = genWindow(t)
	case ev.Kind == keyversion.Activate || ev.Kind == keyversion.Deactivate:
		ev.Copies = genCopies(t)
	case ev.Kind == keyversion.StreamEnd:
		for range rapid.IntRange(0, 3).Draw(t, "sums") {
			ev.Sums.Add(index.ID(rapid.IntRange(1, 3).Draw(t, "index")), index.SliceID(rapid.IntRange(0, 3).Draw(t, "slice")),
				[]byte("d"),
				numbers().Draw(t, "of"), []byte("k"))
		}
	case ev.Kind == keyversion.StreamBegin:
		ev.Begin = &keyversion.Begin{
			Start: numbers().Draw(t, "begin"), Purge: numbers().Draw(t, "purge"), Copies: genCopies(t),
			Revision: timestamp.MapRevision{Epoch: numbers().Draw(t, "epoch"), Rev: numbers().Draw(t, "rev")},
			Log: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) timestamp.LogEntry {
				return timestamp.LogEntry{VBUUID: rapid.Uint64().Draw(t, "branch"), Seqno: numbers().Draw(t, "from")}
			}), 0, 5).Draw(t, "log"),
		}
	}
	return ev
}

// plain returns independent copies in which empty and nil are the same, for the comparison of batches.
func plain(events []keyversion.Event) []keyversion.Event {
	out := append([]keyversion.Event(nil), events...)
	for i := range out {
		ev := &out[i]
		ev.DocID = append([]byte{}, ev.DocID...)
		ev.Copies = append([]index.CopyID{}, ev.Copies...)
		ev.Statements = append([]keyversion.Statement{}, ev.Statements...)
		for j := range ev.Statements {
			keys := [][]byte{}
			for _, k := range ev.Statements[j].Keys {
				keys = append(keys, append([]byte{}, k...))
			}
			ev.Statements[j].Keys = keys
		}
		if ev.Begin != nil {
			b := *ev.Begin
			b.Log, b.Copies = append(timestamp.FailoverLog{}, b.Log...), append([]index.CopyID{}, b.Copies...)
			ev.Begin = &b
		}
	}
	return out
}

// Decoding is the inverse of encoding, whatever the batch object held before.
func TestBatchRoundTrip(t *testing.T) {
	var reused keyversion.Batch
	rapid.Check(t, func(t *rapid.T) {
		in := keyversion.Batch{
			Number: rapid.Uint64().Draw(t, "number"),
			Events: rapid.SliceOfN(rapid.Custom(genEvent), 0, 20).Draw(t, "events"),
		}
		prefix := bytesUpTo(3).Draw(t, "prefix")
		frame, err := keyversion.AppendBatch(append([]byte(nil), prefix...), &in)
		if err != nil {
			t.Fatal(err)
		}
		if err := keyversion.Decode(frame[len(prefix):], &reused); err != nil {
			t.Fatal(err)
		}
		if reused.Number != in.Number || !reflect.DeepEqual(plain(reused.Events), plain(in.Events)) {
			t.Fatalf("in  %+v\nout %+v", in, reused)
		}
	})
}

// Every frame with one flipped bit, or truncated anywhere, is refused with a named error.
func TestDamageIsReported(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := keyversion.Batch{Number: 7, Events: rapid.SliceOfN(rapid.Custom(genEvent), 1, 5).Draw(t, "events")}
		frame, err := keyversion.AppendBatch(nil, &in)
		if err != nil {
			t.Fatal(err)
		}
		damaged := append([]byte(nil), frame...)
		if rapid.Bool().Draw(t, "cut") {
			damaged = damaged[:rapid.IntRange(0, len(damaged)-1).Draw(t, "at")]
		} else {
			bit := rapid.IntRange(0, len(damaged)*8-1).Draw(t, "bit")
			damaged[bit/8] ^= 1 << (bit % 8)
		}
		var out keyversion.Batch
		if err := keyversion.Decode(damaged, &out); !errors.Is(err, keyversion.ErrCorrupt) {
			t.Fatalf("damage gave %v", err)
		}
		if len(out.Events) != 0 || out.Number != 0 {
			t.Fatalf("half a batch: %+v", out)
		}
	})
}

// reseal restores valid checksums after a body was modified.
func reseal(frame []byte) []byte {
	table := crc32.MakeTable(crc32.Castagnoli)
	binary.LittleEndian.PutUint32(frame[16:], crc32.Checksum(frame[keyversion.HeaderSize:], table))
	binary.LittleEndian.PutUint32(frame[20:], crc32.Checksum(frame[:20], table))
	return frame
}

// A sender of wrong contents with valid checksums is detected by the lengths themselves.
func TestWrongLengths(t *testing.T) {
	valid := func() []byte {
		frame, err := keyversion.AppendBatch(nil, &keyversion.Batch{Number: 1, Events: []keyversion.Event{{
			Kind: keyversion.Insert, VBucket: 5, Incarnation: index.Incarnation{Epoch: 1, Term: 1, Counter: 1}, Seqno: 3,
			DocID: []byte("d"), Statements: []keyversion.Statement{{Index: 9, Slice: 0, Keys: [][]byte{[]byte("k")}}},
		}}})
		if err != nil {
			t.Fatal(err)
		}
		return frame
	}
	const body = keyversion.HeaderSize
	// Body: tag, vbucket, flags, vbuuid (8), epoch, term, counter, seqno, docid length, docid, statements, index,
	// slice+1, keys, key length, key.
	at := map[string]int{"tag": 0, "vbucket": 1, "flags": 2, "docid": 15, "statements": 17, "keys": 20, "key": 21}
	for name, tc := range map[string]struct {
		field string
		value byte
	}{
		"unknown kind":         {"tag", 0x8f},
		"kind 0":               {"tag", 0x80},
		"no run header":        {"tag", 0x01},
		"unknown flag":         {"tag", 0x91},
		"part of a Sync":       {"tag", 0xa4},
		"window without one":   {"tag", 0xc4},
		"unknown run flag":     {"flags", 3},
		"docid past the end":   {"docid", 100},
		"many statements":      {"statements", 100},
		"many keys":            {"keys", 100},
		"key past the end":     {"key", 2},
		"endless varint":       {"key", 0x80},
		"bytes after the last": {"key", 0},
	} {
		t.Run(name, func(t *testing.T) {
			frame := valid()
			frame[body+at[tc.field]] = tc.value
			var b keyversion.Batch
			if err := keyversion.Decode(reseal(frame), &b); !errors.Is(err, keyversion.ErrCorrupt) {
				t.Fatalf("got %v", err)
			}
		})
	}
	t.Run("length in the header", func(t *testing.T) {
		frame := valid()
		binary.LittleEndian.PutUint32(frame[4:], 1<<30)
		var b keyversion.Batch
		if err := keyversion.Decode(reseal(frame), &b); !errors.Is(err, keyversion.ErrCorrupt) {
			t.Fatalf("got %v", err)
		}
	})
	t.Run("format version", func(t *testing.T) {
		frame := valid()
		frame[3]++
		var b keyversion.Batch
		if err := keyversion.Decode(reseal(frame), &b); !errors.Is(err, keyversion.ErrFormat) {
			t.Fatalf("got %v", err)
		}
	})
	t.Run("a hello is no batch", func(t *testing.T) {
		frame, err := keyversion.AppendHello(nil, &keyversion.Hello{Connections: 1})
		if err != nil {
			t.Fatal(err)
		}
		var b keyversion.Batch
		if err := keyversion.Decode(frame, &b); !errors.Is(err, keyversion.ErrCorrupt) {
			t.Fatalf("got %v", err)
		}
	})
}

// A refused event leaves the encoder's frame unchanged.
func TestRefusedEventLeavesNoTrace(t *testing.T) {
	good := keyversion.Event{Kind: keyversion.Insert, VBucket: 1, Seqno: 10, DocID: []byte("doc")}
	for name, bad := range map[string]keyversion.Event{
		"kind":    {Kind: 0},
		"vbucket": {Kind: keyversion.Sync, VBucket: timestamp.MaxVBuckets},
		"docid":   {Kind: keyversion.Insert, VBucket: 2, Seqno: 99, DocID: make([]byte, keyversion.MaxDocID+1)},
		"statement": {Kind: keyversion.Insert, Seqno: 5, Statements: make([]keyversion.Statement,
			keyversion.MaxStatements+1)},
		"keys": {Kind: keyversion.Insert, Statements: []keyversion.Statement{{Index: 1, Keys: [][]byte{{1}}},
			{Index: 2, Keys: make([][]byte, keyversion.MaxKeys+1)}}},
		"key": {Kind: keyversion.Insert, Statements: []keyversion.Statement{{Keys: [][]byte{make([]byte,
			keyversion.MaxKey+1)}}}},
		"frame": {Kind: keyversion.Insert, Statements: []keyversion.Statement{{Keys: [][]byte{make([]byte, 15<<20),
			make([]byte, 15<<20), make([]byte, 15<<20), make([]byte, 15<<20)}}}},
		"copies": {Kind: keyversion.Activate, Copies: make([]index.CopyID, keyversion.MaxCopies+1)},
		"log": {Kind: keyversion.StreamBegin, Begin: &keyversion.Begin{Log: make(timestamp.FailoverLog,
			keyversion.MaxLog+1)}},
	} {
		t.Run(name, func(t *testing.T) {
			var e, clean keyversion.Encoder
			if err := e.Append(&bad); !errors.Is(err, keyversion.ErrTooLarge) {
				t.Fatalf("got %v", err)
			}
			if e.Len() != 0 || e.Events() != 0 {
				t.Fatalf("%d bytes, %d events left", e.Len(), e.Events())
			}
			next := good
			next.Seqno++
			for _, ev := range []*keyversion.Event{&good, &bad, &next} {
				if err := e.Append(ev); (err != nil) != (ev == &bad) {
					t.Fatal(err)
				}
				if ev != &bad {
					if err := clean.Append(ev); err != nil {
						t.Fatal(err)
					}
				}
			}
			if got, want := string(e.Finish(1)), string(clean.Finish(1)); got != want {
				t.Fatalf("a refused event left a trace: %x, want %x", got, want)
			}
		})
	}
	var e keyversion.Encoder
	for range keyversion.MaxEvents {
		if err := e.Append(&good); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.Append(&good); !errors.Is(err, keyversion.ErrTooLarge) {
		t.Fatalf("event past the limit: %v", err)
	}
	var b keyversion.Batch
	if err := keyversion.Decode(e.Finish(1), &b); err != nil || len(b.Events) != keyversion.MaxEvents {
		t.Fatalf("%d events, %v", len(b.Events), err)
	}
}

func TestHelloAndAck(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := func(s string) string { return rapid.StringN(0, 30, 100).Draw(t, s) }
		n := rapid.Uint16Range(1, 0xffff).Draw(t, "connections")
		in := keyversion.Hello{ClusterID: name("cluster"), Projector: index.ProjectorID(name("projector")),
			BootID: name("boot"),
			Topic:  name("topic"), Bucket: name("bucket"), BucketUUID: name("uuid"),
			Node:       index.NodeID(rapid.ByteRange(0, byte(index.MaxNodeID)).Draw(t, "node")),
			Connection: rapid.Uint16Range(0, n-1).Draw(t, "connection"), Connections: n}
		frame, err := keyversion.AppendHello(nil, &in)
		if err != nil {
			t.Fatal(err)
		}
		if out, err := keyversion.DecodeHello(frame); err != nil || out != in {
			t.Fatalf("%+v %v, want %+v", out, err, in)
		}
		cut := frame[:rapid.IntRange(0, len(frame)-1).Draw(t, "cut")]
		if _, err := keyversion.DecodeHello(cut); !errors.Is(err, keyversion.ErrCorrupt) {
			t.Fatalf("cut hello: %v", err)
		}
		ack := keyversion.Ack{Number: rapid.Uint64().Draw(t, "number"), Refused: name("refused")}
		if out, err := keyversion.DecodeAck(keyversion.AppendAck(nil, ack)); err != nil || out != ack {
			t.Fatalf("%+v %v, want %+v", out, err, ack)
		}
	})
	if _, err := keyversion.AppendHello(nil, &keyversion.Hello{Topic: strings.Repeat("t",
		keyversion.MaxName+1)}); !errors.Is(err, keyversion.ErrTooLarge) {
		t.Fatalf("long name: %v", err)
	}
	for _, h := range []keyversion.Hello{{}, {Connections: 2, Connection: 2}, {Connections: 1, Node: 251}} {
		frame, err := keyversion.AppendHello(nil, &h)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := keyversion.DecodeHello(frame); !errors.Is(err, keyversion.ErrCorrupt) {
			t.Fatalf("%+v: %v", h, err)
		}
	}
	long := keyversion.AppendAck(nil, keyversion.Ack{Refused: "x" + strings.Repeat("é", 1<<20)})
	if a, err := keyversion.DecodeAck(long); err != nil || len(a.Refused) != keyversion.MaxReason-1 ||
		!utf8.ValidString(a.Refused) {
		t.Fatalf("%d %v", len(a.Refused), err)
	}
}

// benchBatch is a batch of a busy vbucket: one index, 24 byte ids, 20 byte keys.
func benchBatch(vbuckets int) *keyversion.Batch {
	b := &keyversion.Batch{Number: 1}
	for i := range 64 {
		b.Events = append(b.Events, keyversion.Event{
			Kind: keyversion.Insert, VBucket: uint16(i % vbuckets), VBUUID: 0xabcdef0123456789,
			Incarnation: index.Incarnation{Epoch: 1700000000, Term: 12, Counter: 345}, Seqno: 1_000_000 + uint64(i),
			Window: timestamp.Window{Start: 999_999, End: 1_000_100}, DocID: []byte("airport::0123456789abcdef"),
			Statements: []keyversion.Statement{{Index: 1 << 40, Slice: 3, Keys: [][]byte{[]byte("US\x00Springfield Fld\x00")}}},
		})
	}
	return b
}

func BenchmarkEncode(b *testing.B) {
	for name, vbuckets := range map[string]int{"run": 1, "mixed": 64} {
		b.Run(name, func(b *testing.B) {
			batch := benchBatch(vbuckets)
			var e keyversion.Encoder
			var buf []byte
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				if n%64 == 0 {
					e.Reset(buf)
				}
				if err := e.Append(&batch.Events[n%64]); err != nil {
					b.Fatal(err)
				}
				if n++; n%64 == 0 {
					buf = e.Finish(1)
				}
			}
			b.ReportMetric(float64(len(buf))/64, "B/event")
		})
	}
}

func BenchmarkDecode(b *testing.B) {
	for name, vbuckets := range map[string]int{"run": 1, "mixed": 64} {
		b.Run(name, func(b *testing.B) {
			frame, err := keyversion.AppendBatch(nil, benchBatch(vbuckets))
			if err != nil {
				b.Fatal(err)
			}
			var out keyversion.Batch
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				if n%64 == 0 {
					if err := keyversion.Decode(frame, &out); err != nil {
						b.Fatal(err)
					}
				}
				n++
			}
		})
	}
}

func TestSteadyStateAllocatesNothing(t *testing.T) {
	batch := benchBatch(8)
	frame, err := keyversion.AppendBatch(nil, batch)
	if err != nil {
		t.Fatal(err)
	}
	var out keyversion.Batch
	var e keyversion.Encoder
	e.Reset(make([]byte, 0, 1<<16))
	if n := testing.AllocsPerRun(100, func() {
		if err := keyversion.Decode(frame, &out); err != nil {
			t.Fatal(err)
		}
		e.Reset(e.Finish(1))
		for i := range batch.Events {
			if err := e.Append(&batch.Events[i]); err != nil {
				t.Fatal(err)
			}
		}
	}); n != 0 {
		t.Fatalf("%v allocations per batch", n)
	}
}
