package scanport

import (
	"testing"

	"tidemark/collate"
	"tidemark/internal/testing/allocbound"
)

// TestLengthsBoundAllocations checks that counts and lengths in messages, tokens and places do not make a reader
// allocate more memory than their bytes justify. A row of few bytes takes no room for as many components as the head
// announces.
func TestLengthsBoundAllocations(t *testing.T) {
	read := func(b []byte) {
		var a Answer
		for err := a.Read(b); err == nil; {
			var ok bool
			if _, _, ok, err = a.Next(); !ok {
				return
			}
		}
	}
	key, err := collate.AppendComposite(nil, [][]byte{[]byte("1")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	wide := AppendHead(nil, make([]bool, maxComponents))
	head := len(wide)
	for range 2000 {
		wide = AppendRow(wide, key, nil)
	}
	allocbound.Check(t, 0, read, message(t), Finish(wide, head, End, nil))
	allocbound.Check(t, 0, func(b []byte) { _, _ = ParseRequest(b) },
		AppendRequest(nil, Request{Op: Scan, Index: "5", Resume: []byte("abc"), Body: []byte("{}")}))
	one := seen("world", 57)
	allocbound.Check(t, 0, func(b []byte) { _, _, _ = CutSeen(b) }, append(one.AppendSeen(nil), "rest"...))
	allocbound.Check(t, 0, func(b []byte) { _, _ = ParseSession(string(b)) }, []byte(Tokens([]Seen{one, one})))
}
