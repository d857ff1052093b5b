package keyversion_test

import (
	"encoding/hex"
	"os"
	"strings"
	"testing"

	"tidemark/index"
	"tidemark/keyversion"
	"tidemark/timestamp"
)

// documented are the frames that docs/protocol.md explains.
func documented(t *testing.T) map[string][]byte {
	t.Helper()
	hello, err := keyversion.AppendHello(nil, &keyversion.Hello{ClusterID: "c1", Projector: "p1", BootID: "b",
		Topic: "/backfill/audit", Bucket: "travel",
		BucketUUID: "0a", Connections: 2})
	if err != nil {
		t.Fatal(err)
	}
	begin := keyversion.Event{Kind: keyversion.StreamBegin, VBucket: 5, Incarnation: index.Incarnation{Counter: 1},
		VBUUID: 0x77,
		Begin: &keyversion.Begin{Log: timestamp.FailoverLog{{VBUUID: 0x77}}, Revision: timestamp.MapRevision{Epoch: 1,
			Rev: 4}, Copies: []index.CopyID{300}}}
	insert := begin
	insert.Kind, insert.Begin, insert.Seqno, insert.Window, insert.DocID = keyversion.Insert, nil, 9,
		timestamp.Window{Start: 4, End: 12}, []byte("doc1")
	insert.Statements = []keyversion.Statement{{Index: 300, Slice: 0, Keys: [][]byte{{0x30, 'F', 'R', 0x00, 0x01}}}}
	sync := begin
	sync.Kind, sync.Begin, sync.Seqno = keyversion.Sync, nil, 12
	batch, err := keyversion.AppendBatch(nil, &keyversion.Batch{Number: 7, Events: []keyversion.Event{begin, insert,
		sync}})
	if err != nil {
		t.Fatal(err)
	}
	return map[string][]byte{"hello": hello, "batch": batch, "acknowledgement": keyversion.AppendAck(nil,
		keyversion.Ack{Number: 7})}
}

// The bytes in docs/protocol.md must be those that are sent.
func TestDocumentedFrames(t *testing.T) {
	doc, err := os.ReadFile("../docs/protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	for name, frame := range documented(t) {
		_, block, found := strings.Cut(string(doc), "```frame "+name+"\n")
		block, _, closed := strings.Cut(block, "```")
		var text strings.Builder
		for line := range strings.Lines(block) {
			bytes, _, _ := strings.Cut(line, ";")
			text.WriteString(strings.Join(strings.Fields(bytes), ""))
		}
		if !found || !closed || text.String() != hex.EncodeToString(frame) {
			t.Errorf("docs/protocol.md, frame %s: shows\n%s\nwant\n%x", name, text.String(), frame)
		}
	}
}
