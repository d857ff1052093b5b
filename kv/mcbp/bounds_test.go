package mcbp

import (
	"testing"

	"tidemark/internal/testing/allocbound"
	"tidemark/timestamp"
)

// Lengths in a frame and its fields must not cause allocations beyond the data.
func TestLengthsBoundAllocations(t *testing.T) {
	var valid [][]byte
	for _, f := range []Frame{
		{Header: Request(OpDCPStreamReq, 3, 4), Extras: StreamRequest{End: EndOfTime}.AppendExtras(nil)},
		{Header: Header{Magic: MagicResponse, Op: OpDCPStreamReq},
			Value: AppendFailoverLog(nil, timestamp.FailoverLog{{VBUUID: 1, Seqno: 2}, {VBUUID: 3, Seqno: 4}})},
		{Header: Request(OpDCPMutation, 3, 4), FrameExtras: []byte{1}, Extras: Mutation{Seqno: 1}.AppendExtras(nil),
			Key: []byte("\x00k"), Value: []byte("{}")},
		{Header: Request(OpDCPSnapshotMarker, 3, 4), Extras: []byte{2}, Value: SnapshotMarker{V2: true, HasPurge: true,
			End: 4}.AppendValue(nil)},
		{Header: Header{Magic: MagicResponse, Op: OpGetAllVBSeqnos}, Value: []byte{0, 1, 0, 0, 0, 0, 0, 0, 0, 9}},
		{Header: Header{Magic: MagicResponse, Op: OpGet}, Value: []byte{0, 0, 0, 10, 0, 0, 0, 6, '_', 's', 0, '{', '}', 0,
			'{', '}'}},
		{Header: Header{Magic: MagicResponse, Op: OpGetClusterConfig}, Value: []byte(`{"rev":1,"name":"b","uuid":"x","nodesExt":[{"services":{"kv":1}}],"vBucketServerMap":{"hashAlgorithm":"CRC","numReplicas":0,"serverList":["h:1"],"vBucketMap":[[0],[0]]}}`)},
	} {
		b, err := Append(nil, f)
		if err != nil {
			t.Fatal(err)
		}
		valid = append(valid, b)
	}
	allocbound.Check(t, 0, func(b []byte) {
		if f, _, err := Parse(b); err == nil {
			decodeAll(f)
		}
	}, valid...)
	// The fields alone, so that lengths inside of them are tested where the frame's own would be refused.
	allocbound.Check(t, 0, func(b []byte) { decodeAll(Frame{Extras: b, Key: b, Value: b, FrameExtras: b}) },
		valid[1][HeaderSize:], valid[3][HeaderSize:], valid[4][HeaderSize:], valid[5][HeaderSize:], valid[6][HeaderSize:])
}
