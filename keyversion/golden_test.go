package keyversion_test

import (
	"bytes"
	"encoding/hex"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"tidemark/index"
	"tidemark/keyversion"
	"tidemark/timestamp"
)

var update = flag.Bool("update", false, "write the golden frames anew (only for a new format version)")

// goldenBatch has every kind of event and every branch of the encoding: runs that change by vbucket, vbuuid and
// incarnation, windows that stay and change, seqnos that fall, empty sets and empty keys, all slices, lists of places.
func goldenBatch() *keyversion.Batch {
	first := index.Incarnation{Epoch: 1700000000, Term: 12, Counter: 345}
	next := index.Incarnation{Epoch: 1700000000, Term: 13, Counter: 1}
	const branch = 0x0123456789abcdef
	event := func(k keyversion.Kind, vb uint16, seqno uint64) keyversion.Event {
		return keyversion.Event{Kind: k, VBucket: vb, Incarnation: first, VBUUID: branch, Seqno: seqno}
	}
	begin := event(keyversion.StreamBegin, 7, 100)
	begin.Begin = &keyversion.Begin{Start: 100, Log: timestamp.FailoverLog{{VBUUID: branch, Seqno: 90},
		{VBUUID: 5, Seqno: 0}},
		Purge: 33, Revision: timestamp.MapRevision{Epoch: 2, Rev: 19}, Copies: []index.CopyID{1, 1 << 40}}
	insert := event(keyversion.Insert, 7, 101)
	insert.Window, insert.DocID = timestamp.Window{Start: 100, End: 105}, []byte("airport::1")
	insert.Statements = []keyversion.Statement{
		{Index: 1 << 33, Slice: 0, Keys: [][]byte{[]byte("US"), {}, []byte("\x00\xff")}},
		{Index: 2, Slice: 1023},
	}
	remove := event(keyversion.Delete, 7, 104)
	remove.Window, remove.DocID = insert.Window, []byte("airport::2")
	remove.Statements = []keyversion.Statement{{Index: 2, Slice: 4}}
	rest := keyversion.NewPlaces([]keyversion.Place{{Index: 1 << 33, Slice: 3}, {Index: 2, Slice: index.AllSlices}})
	insert.Rest, remove.Rest = rest, rest
	sync := event(keyversion.Sync, 7, 105)
	other := event(keyversion.Insert, 1023, 1<<50)
	other.Window, other.DocID = timestamp.Window{Start: 0, End: 1 << 51}, []byte("d")
	gone := event(keyversion.UpsertDeletion, 7, 99)
	gone.VBUUID, gone.Window, gone.DocID = 5, timestamp.Window{Start: 98, End: 99}, []byte("airport::3")
	gone.Statements = []keyversion.Statement{{Index: 2, Slice: index.AllSlices}}
	drop := event(keyversion.DropData, 7, 106)
	activate := event(keyversion.Activate, 7, 107)
	activate.Incarnation, activate.Copies = next, []index.CopyID{3, 4}
	deactivate := event(keyversion.Deactivate, 7, 107)
	deactivate.Incarnation, deactivate.Copies = next, []index.CopyID{1}
	end := event(keyversion.StreamEnd, 7, 107)
	end.Incarnation, end.Window = next, timestamp.Window{End: 110}
	part, second := insert, insert
	part.Rest, second.Rest = nil, nil
	part.Seqno, part.More, part.Statements = 105, true, insert.Statements[:1]
	second.Seqno, second.Part, second.Statements = 105, 1, insert.Statements[1:]
	dsync := event(keyversion.DSync, 7, 105)
	return &keyversion.Batch{Number: 0x1122334455, Events: []keyversion.Event{begin, insert, part, second, remove, sync,
		dsync, other, gone, drop,
		activate, deactivate, end}}
}

// Frames of format 1 must be encoded and decoded permanently as in testdata.
func TestGoldenFrames(t *testing.T) {
	batch, err := keyversion.AppendBatch(nil, goldenBatch())
	if err != nil {
		t.Fatal(err)
	}
	helloIn := keyversion.Hello{ClusterID: "6f1c", Projector: "projector-1", BootID: "b00t", Topic: "/maintenance",
		Bucket:     "world",
		BucketUUID: "0011aabb", Node: 250, Connection: 1, Connections: 2}
	hello, err := keyversion.AppendHello(nil, &helloIn)
	if err != nil {
		t.Fatal(err)
	}
	ackIn := keyversion.Ack{Number: 1 << 40, Refused: "stale incarnation"}
	for name, frame := range map[string][]byte{"batch-1": batch, "hello-1": hello,
		"ack-1": keyversion.AppendAck(nil, ackIn)} {
		path := filepath.Join("testdata", "golden", name+".hex")
		if *update {
			if err := os.WriteFile(path, []byte(hexLines(frame)), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		want, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(frame, want) {
			t.Errorf("%s is written differently now:\n%s", name, hexLines(frame))
		}
		switch name {
		case "batch-1":
			var out keyversion.Batch
			if err := keyversion.Decode(want, &out); err != nil || out.Number != goldenBatch().Number ||
				!reflect.DeepEqual(plain(out.Events), plain(goldenBatch().Events)) {
				t.Errorf("%s reads as %+v, %v", name, out, err)
			}
		case "hello-1":
			if out, err := keyversion.DecodeHello(want); err != nil || out != helloIn {
				t.Errorf("%s reads as %+v, %v", name, out, err)
			}
		case "ack-1":
			if out, err := keyversion.DecodeAck(want); err != nil || out != ackIn {
				t.Errorf("%s reads as %+v, %v", name, out, err)
			}
		}
	}
}

func hexLines(b []byte) string {
	var s strings.Builder
	for len(b) > 0 {
		n := min(32, len(b))
		s.WriteString(hex.EncodeToString(b[:n]) + "\n")
		b = b[n:]
	}
	return s.String()
}

// FuzzDecode decodes bodies with valid checksums: accepted input survives another round trip, and nothing panics.
func FuzzDecode(f *testing.F) {
	golden, err := keyversion.AppendBatch(nil, goldenBatch())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(golden[keyversion.HeaderSize:])
	f.Add([]byte{})
	var b, again keyversion.Batch
	f.Fuzz(func(t *testing.T, body []byte) {
		var e keyversion.Encoder
		frame := append(e.Finish(9), body...)
		frame[4], frame[5], frame[6], frame[7] = byte(len(body)), byte(len(body)>>8), byte(len(body)>>16), byte(len(body)>>24)
		if keyversion.Decode(reseal(frame), &b) != nil {
			return
		}
		second, err := keyversion.AppendBatch(nil, &b)
		if err != nil {
			t.Fatalf("what was read cannot be written: %v", err)
		}
		if err := keyversion.Decode(second, &again); err != nil || !reflect.DeepEqual(plain(b.Events), plain(again.Events)) {
			t.Fatalf("%v\n%+v\n%+v", err, b.Events, again.Events)
		}
	})
}

// FuzzFrames passes whole frames to every decoder.
func FuzzFrames(f *testing.F) {
	golden, err := keyversion.AppendBatch(nil, goldenBatch())
	if err != nil {
		f.Fatal(err)
	}
	hello, err := keyversion.AppendHello(nil, &keyversion.Hello{Topic: "/maintenance", Connections: 2})
	if err != nil {
		f.Fatal(err)
	}
	for _, frame := range [][]byte{golden, hello, keyversion.AppendAck(nil, keyversion.Ack{Number: 4}), nil} {
		f.Add(frame)
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		for _, sealed := range []bool{false, true} {
			if sealed && len(frame) >= keyversion.HeaderSize {
				frame = reseal(append([]byte(nil), frame...))
			}
			var b keyversion.Batch
			if err := keyversion.Decode(frame, &b); err != nil && len(b.Events) != 0 {
				t.Fatalf("half a batch with %v", err)
			}
			if h, err := keyversion.DecodeHello(frame); err == nil && h.Connection >= h.Connections {
				t.Fatalf("accepted %+v", h)
			}
			_, _ = keyversion.DecodeAck(frame)
		}
	})
}
