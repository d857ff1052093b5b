package wire

import (
	"slices"
	"testing"

	"github.com/fxamacker/cbor/v2"
	"pgregory.net/rapid"

	"tidemark/timestamp"
)

// TestRollbackAnswer: the timestamp that an indexer would restore arrives, also at and from an earlier version.
func TestRollbackAnswer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seqno := rapid.OneOf(rapid.Uint64(), rapid.Just(uint64(timestamp.Infinity)))
		restart := rapid.SliceOfN(seqno, 1, 64).Draw(t, "restart")
		q := RollbackRequest{RollbackID: 7, Brief: rapid.Bool().Draw(t, "brief")}
		b, err := cbor.Marshal(q.Answer(restart))
		if err != nil {
			t.Fatal(err)
		}
		var a RollbackReply
		if err := cbor.Unmarshal(b, &a); err != nil {
			t.Fatal(err)
		}
		if (len(a.Restart) > 0) == q.Brief && slices.Min(restart) < timestamp.Infinity || a.RollbackID != q.RollbackID {
			t.Fatalf("brief %v: %+v", q.Brief, a)
		}
		got := a.Timestamp(len(restart))
		for v, want := range restart {
			if none := len(got) == 0; none && want != timestamp.Infinity || !none && got[v] != want {
				t.Fatalf("%v arrived as %v", restart, got)
			}
		}
	})
}

// TestRollbackAnswerOfOthers: vbuckets that the bucket does not have count for nothing.
func TestRollbackAnswerOfOthers(t *testing.T) {
	a := RollbackReply{Restart: []PollPosition{{VBucket: 1, Participant: true, HW: 5},
		{VBucket: 9, Participant: true, HW: 6}, {VBucket: 0, HW: 7}}}
	if got := a.Timestamp(2); !slices.Equal(got, []uint64{timestamp.Infinity, 5}) {
		t.Errorf("%v", got)
	}
}
