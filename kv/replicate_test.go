package kv

import (
	"bytes"
	"testing"

	"tidemark/kv/mcbp"
	"tidemark/projector/feed"
)

// What a replica keeps of a document is what the active copy sent, byte by byte, attributes or not.
func TestDocumentOfAReplica(t *testing.T) {
	for _, value := range []string{"", "\x00\x00\x00\x00", "\x00\x00\x00\x00{}", "\x00\x00\x00\x04attr",
		"\x00\x00\x00\x04attr{}", "{}"} {
		e := feed.Event{Kind: feed.Mutation, Key: []byte("k"), Value: []byte(value)}
		if len(value) >= 4 {
			e.Datatype = mcbp.DatatypeXattr
		}
		e.Decode()
		if d := document(&e); !bytes.Equal(d.Value, []byte(value)) || d.Datatype != byte(e.Datatype) {
			t.Errorf("%q became %q of datatype %d, want %d", value, d.Value, d.Datatype, e.Datatype)
		}
	}
}
