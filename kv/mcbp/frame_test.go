package mcbp

import (
	"bytes"
	"encoding/hex"
	"errors"
	"testing"

	"pgregory.net/rapid"

	_ "tidemark/internal/testing/draws"
	"tidemark/timestamp"
)

// Golden bytes, written by hand from the description of the protocol, so that encoder and decoder cannot have the
// same error.
func TestGoldenFrames(t *testing.T) {
	tests := []struct {
		name  string
		frame Frame
		hex   string
	}{
		{"hello request",
			Frame{Header: Header{Magic: MagicRequest, Op: OpHello, Opaque: 7}, Key: []byte("a"),
				Value: AppendFeatures(nil, []Feature{FeatureXattr})},
			"80 1f 0001 00 00 0000 00000003 00000007 0000000000000000 61 0006"},
		{"get answer",
			Frame{Header: Header{Magic: MagicResponse, Op: OpGet, Datatype: DatatypeJSON, Opaque: 1, CAS: 0x1122334455667788},
				Extras: AppendGetReply(nil, 2), Value: []byte("{}")},
			"81 00 0000 04 01 0000 00000006 00000001 1122334455667788 00000002 7b7d"},
		{"not my vbucket",
			Frame{Header: Header{Magic: MagicResponse, Op: OpSet, VBucketOrStatus: uint16(StatusNotMyVBucket)}},
			"81 01 0000 00 00 0007 00000000 00000000 0000000000000000"},
		{"response with frame extras",
			Frame{Header: Header{Magic: MagicResponse, Op: OpGet}, FrameExtras: []byte{0x02, 0x01, 0x02}, Key: []byte("k")},
			"18 00 03 01 00 00 0000 00000004 00000000 0000000000000000 020102 6b"},
		{"request with a stream id frame",
			Frame{Header: Header{Magic: MagicRequest, Op: OpDCPStreamReq, VBucketOrStatus: 3}, FrameExtras: []byte{0x22, 0, 9},
				Extras: StreamRequest{Flags: StreamActiveOnly, Start: 1, End: EndOfTime, VBUUID: 2, SnapStart: 3,
					SnapEnd: 4}.AppendExtras(nil)},
			"08 53 03 00 30 00 0003 00000033 00000000 0000000000000000 220009" +
				"00000010 00000000 0000000000000001 ffffffffffffffff 0000000000000002 0000000000000003 0000000000000004"},
		{"snapshot marker v1",
			Frame{Header: Header{Magic: MagicRequest, Op: OpDCPSnapshotMarker, Opaque: 5},
				Extras: SnapshotMarker{Start: 1, End: 16, Flags: SnapshotDisk}.AppendExtras(nil)},
			"80 56 0000 14 00 0000 00000014 00000005 0000000000000000 0000000000000001 0000000000000010 00000002"},
		{"mutation",
			Frame{Header: Header{Magic: MagicRequest, Op: OpDCPMutation, VBucketOrStatus: 9, Opaque: 5, CAS: 3},
				Extras: Mutation{Seqno: 4, RevSeqno: 1, Flags: 2, Expiry: 3, LockTime: 4, MetaLen: 0, NRU: 5}.AppendExtras(nil),
				Key:    []byte("k"), Value: []byte("v")},
			"80 57 0001 1f 00 0009 00000021 00000005 0000000000000003 0000000000000004 0000000000000001 00000002 00000003 " +
				"00000004 0000 05 6b 76"},
		{"deletion v2",
			Frame{Header: Header{Magic: MagicRequest, Op: OpDCPDeletion}, Extras: Deletion{Seqno: 4, RevSeqno: 1, DeleteTime: 9,
				WithTime: true}.AppendExtras(nil), Key: []byte("k")},
			"80 58 0001 15 00 0000 00000016 00000000 0000000000000000 0000000000000004 0000000000000001 00000009 00 6b"},
		{"buffer acknowledgement",
			Frame{Header: Header{Magic: MagicRequest, Op: OpDCPBufferAck}, Extras: AppendBufferAck(nil, 0x1000)},
			"80 5d 0000 04 00 0000 00000004 00000000 0000000000000000 00001000"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			want, err := hex.DecodeString(string(bytes.ReplaceAll([]byte(tt.hex), []byte(" "), nil)))
			if err != nil {
				t.Fatal(err)
			}
			got, err := Append(nil, tt.frame)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Fatalf("encoded\n %x want\n %x", got, want)
			}
			f, n, err := Parse(want)
			if err != nil || n != len(want) {
				t.Fatalf("Parse: %d, %v", n, err)
			}
			again, err := Append(nil, f)
			if err != nil || !bytes.Equal(again, want) {
				t.Fatalf("encoded again %x, %v", again, err)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	ok, _ := Append(nil, Frame{Header: Request(OpSet, 1, 2), Key: []byte("key"), Value: []byte("value"),
		Extras: Store{}.AppendExtras(nil)})
	edit := func(at int, b ...byte) []byte {
		out := bytes.Clone(ok)
		copy(out[at:], b)
		return out
	}
	tests := []struct {
		name string
		buf  []byte
		want error
	}{
		{"nothing", nil, ErrShort},
		{"part of a header", ok[:23], ErrShort},
		{"part of a body", ok[:len(ok)-1], ErrShort},
		{"unknown magic", edit(0, 0x42), ErrMagic},
		{"unknown magic in the first byte alone", []byte("G"), ErrMagic},
		{"body of 4 GiB", edit(8, 0xff, 0xff, 0xff, 0xff), ErrTooLarge},
		{"body one above the limit", edit(8, 0x01, 0x52, 0x00, 0x01), ErrTooLarge},
		{"key longer than the body", edit(2, 0xff, 0xff), ErrLengths},
		{"extras longer than the body", edit(4, 0xff), ErrLengths},
		{"frame extras longer than the body", edit(0, 0x08, 0x01, 0xff), ErrLengths},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, n, err := Parse(tt.buf); !errors.Is(err, tt.want) || n != 0 {
				t.Fatalf("got %d, %v; want %v", n, err, tt.want)
			}
		})
	}
	if MaxBody != 0x01520000 {
		t.Fatalf("MaxBody is %#x: adjust the row above", MaxBody)
	}
}

func TestAppendRefuses(t *testing.T) {
	tests := []struct {
		name string
		f    Frame
		want error
	}{
		{"no magic", Frame{}, ErrMagic},
		{"key", Frame{Header: Request(OpGet, 0, 0), Key: make([]byte, MaxKey+1)}, ErrTooLarge},
		{"key with frame extras", Frame{Header: Request(OpGet, 0, 0), FrameExtras: []byte{0}, Key: make([]byte, 256)},
			ErrTooLarge},
		{"extras", Frame{Header: Request(OpGet, 0, 0), Extras: make([]byte, 256)}, ErrTooLarge},
		{"frame extras", Frame{Header: Request(OpGet, 0, 0), FrameExtras: make([]byte, 256)}, ErrTooLarge},
		{"body", Frame{Header: Request(OpGet, 0, 0), Value: make([]byte, MaxBody+1)}, ErrTooLarge},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dst := []byte("before")
			if out, err := Append(dst, tt.f); !errors.Is(err, tt.want) || string(out) != "before" {
				t.Fatalf("got %q, %v; want %v and dst unchanged", out, err, tt.want)
			}
		})
	}
}

// Parsing aliases and does not copy; appending to a section cannot overwrite its neighbour.
func TestParseAliases(t *testing.T) {
	buf, _ := Append(nil, Frame{Header: Request(OpSet, 1, 2), Extras: make([]byte, 8), Key: []byte("key"),
		Value: []byte("value")})
	f, _, err := Parse(buf)
	if err != nil {
		t.Fatal(err)
	}
	buf[len(buf)-1] = 'E'
	if string(f.Value) != "valuE" {
		t.Fatal("the value is a copy")
	}
	_ = append(f.Key, 'x')
	if string(f.Value) != "valuE" {
		t.Fatal("appending to the key overwrote the value")
	}
	c := f.Clone()
	buf[len(buf)-1] = '!'
	if string(c.Value) != "valuE" || string(c.Key) != "key" {
		t.Fatalf("clone %q %q", c.Key, c.Value)
	}
	if n := testing.AllocsPerRun(100, func() { _, _, _ = Parse(buf) }); n != 0 {
		t.Fatalf("Parse allocates %v times", n)
	}
}

// Any frame within the limits survives append and parse, also followed by other frames, and each shorter prefix is
// ErrShort.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		flex := rapid.Bool().Draw(t, "flexible")
		maxKey := 300
		f := Frame{Header: Header{
			Magic:           rapid.SampledFrom([]Magic{MagicRequest, MagicResponse}).Draw(t, "magic"),
			Op:              Opcode(rapid.Byte().Draw(t, "op")),
			Datatype:        Datatype(rapid.Byte().Draw(t, "datatype")),
			VBucketOrStatus: rapid.Uint16().Draw(t, "vb"),
			Opaque:          rapid.Uint32().Draw(t, "opaque"),
			CAS:             rapid.Uint64().Draw(t, "cas"),
		}}
		if flex {
			maxKey = MaxFlexKey
			f.FrameExtras = rapid.SliceOfN(rapid.Byte(), 1, 255).Draw(t, "frame extras")
		}
		f.Extras = rapid.SliceOfN(rapid.Byte(), 0, 255).Draw(t, "extras")
		f.Key = rapid.SliceOfN(rapid.Byte(), 0, maxKey).Draw(t, "key")
		f.Value = rapid.SliceOfN(rapid.Byte(), 0, 400).Draw(t, "value")
		buf, err := Append([]byte("xy"), f)
		if err != nil {
			t.Fatal(err)
		}
		buf = buf[2:]
		size := len(buf)
		got, n, err := Parse(append(buf, 0x80, 0x01))
		if err != nil || n != size || got.Size() != size {
			t.Fatalf("Parse: %d of %d, %v", n, size, err)
		}
		for _, p := range [][2][]byte{{got.FrameExtras, f.FrameExtras}, {got.Extras, f.Extras}, {got.Key, f.Key},
			{got.Value, f.Value}} {
			if !bytes.Equal(p[0], p[1]) {
				t.Fatalf("section %x, want %x", p[0], p[1])
			}
		}
		if got.Op != f.Op || got.Datatype != f.Datatype || got.VBucketOrStatus != f.VBucketOrStatus ||
			got.Opaque != f.Opaque || got.CAS != f.CAS {
			t.Fatalf("header %+v, want %+v", got.Header, f.Header)
		}
		cut := rapid.IntRange(0, size-1).Draw(t, "cut")
		if _, _, err := Parse(buf[:cut]); !errors.Is(err, ErrShort) {
			t.Fatalf("prefix of %d bytes: %v", cut, err)
		}
	})
}

// Whatever is received: no panic, and a parsed frame is encoded to the same bytes.
func FuzzParse(f *testing.F) {
	for _, fr := range []Frame{
		{Header: Request(OpDCPStreamReq, 3, 4), Extras: StreamRequest{End: EndOfTime}.AppendExtras(nil)},
		{Header: Header{Magic: MagicResponse, Op: OpDCPStreamReq}, Value: AppendFailoverLog(nil, timestamp.FailoverLog{{VBUUID: 1, Seqno: 2}})},
		{Header: Request(OpDCPMutation, 3, 4), FrameExtras: []byte{1}, Extras: Mutation{Seqno: 1}.AppendExtras(nil),
			Key: []byte("\x00k"), Value: []byte("{}")},
		{Header: Request(OpDCPSnapshotMarker, 3, 4), Extras: []byte{2}, Value: SnapshotMarker{V2: true, HasPurge: true,
			End: 4}.AppendValue(nil)},
	} {
		b, err := Append(nil, fr)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		fr, n, err := Parse(data)
		if err != nil {
			return
		}
		again, err := Append(nil, fr)
		if err != nil {
			t.Fatal(err)
		}
		// A flexible magic without frame extras is legal to receive and encoded in the same form.
		if !bytes.Equal(again, data[:n]) {
			t.Fatalf("encoded again %x, was %x", again, data[:n])
		}
		decodeAll(fr)
	})
}

// decodeAll runs every decoder of fixed fields; they must not panic.
func decodeAll(f Frame) {
	_, _ = DecodeOpen(f.Extras)
	_, _ = DecodeStreamRequest(f.Extras)
	_, _ = DecodeFailoverLog(f.Value)
	_, _ = DecodeRollback(f.Value)
	_, _ = DecodeStreamEnd(f.Extras)
	_, _ = DecodeSnapshotMarker(f.Extras, f.Value)
	_, _ = DecodeMutation(f.Extras)
	_, _ = DecodeDeletion(f.Extras)
	_, _ = DecodeBufferAck(f.Extras)
	if e, err := DecodeSystemEvent(f.Extras); err == nil {
		_ = e.EmptiesDefault(f.Value)
	}
	_, _ = DecodeWithMeta(f.Extras)
	_ = SystemXattrs(f.Value)
	_, _ = DecodeSeqnoAdvanced(f.Extras)
	_, _ = DecodeOSOSnapshot(f.Extras)
	_, _ = DecodeFeatures(f.Value)
	_, _ = DecodeStore(f.Extras)
	_, _ = DecodeTouch(f.Extras)
	_, _ = DecodeGetReply(f.Extras)
	_, _ = DecodeArithmetic(f.Extras)
	_, _ = DecodeCounter(f.Value)
	for b := f.FrameExtras; len(b) > 0; {
		id, content, rest, err := NextFrameInfo(b)
		if err != nil {
			break
		}
		_, b = id.String()+string(content), rest
	}
	_, _ = DecodeMutationToken(f.Extras)
	_, _, _ = DecodeVBSeqnosRequest(f.Extras)
	_, _ = DecodeVBSeqnos(f.Value)
	_, _ = DecodeObserveSeqno(f.Value)
	_, _, _ = DecodeKnownConfig(f.Extras)
	_, _, _ = DecodeCollectionID(f.Extras)
	_, _, _ = SplitCollectionKey(f.Key)
	_, _, _ = SplitXattrs(f.Value)
	_, _ = ParseClusterConfig(f.Value)
	_ = f.Op.String() + f.Status().String()
}
