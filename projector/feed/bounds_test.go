package feed

import (
	"testing"

	"tidemark/internal/testing/allocbound"
	"tidemark/kv/mcbp"
)

// Beyond the memory that a connection reads into, memory is only allocated for what has arrived, whatever a node
// announces.
func TestLengthsBoundAllocations(t *testing.T) {
	compressed := mcbp.Request(mcbp.OpDCPMutation, 1, 2)
	compressed.Datatype = mcbp.DatatypeSnappy | mcbp.DatatypeXattr
	for _, f := range []mcbp.Frame{
		{Header: mcbp.Request(mcbp.OpDCPMutation, 1, 2), Extras: mcbp.Mutation{Seqno: 1}.AppendExtras(nil), Key: []byte("k"),
			Value: []byte("{}")},
		{Header: compressed, Extras: mcbp.Mutation{Seqno: 1, MetaLen: 1}.AppendExtras(nil), Key: []byte("k"),
			Value: []byte{5, 16, 0, 0, 0, 0, 1, 1}},
	} {
		b, err := mcbp.Append(nil, f)
		if err != nil {
			t.Fatal(err)
		}
		// A connection has a chunk for received and one for decompressed data, and lists of its own.
		allocbound.Check(t, 2*chunkBytes+128<<10, func(b []byte) { _, _ = readAll(b, []int{len(b)}) }, b)
	}
}
