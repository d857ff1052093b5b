package wire

import (
	"reflect"
	"slices"
	"testing"

	"github.com/fxamacker/cbor/v2"
	"tidemark/timestamp"
)

// pollExample returns the positions of a bucket in which each vbucket has a branch of its own, or of two, and
// participates.
func pollExample(n int) []PollPosition {
	all := make([]PollPosition, n)
	for v := range all {
		p := PollPosition{VBucket: uint16(v), Participant: true, HW: uint64(1_000_000 + v*v%701),
			Revision: timestamp.MapRevision{Epoch: 1, Rev: 12},
			Log:      timestamp.FailoverLog{{VBUUID: 0x9e3779b97f4a7c15 * uint64(v+1)}}}
		if p.Reach = p.HW; v%7 == 0 {
			p.Reach += 40
		}
		if v%50 == 0 {
			p.Log = append(timestamp.FailoverLog{{VBUUID: uint64(v), Seqno: 900_000}}, p.Log...)
		}
		all[v] = p
	}
	return all
}

// absentPoll returns the positions of an indexer that has nothing of the bucket.
func absentPoll(n int) []PollPosition {
	all := make([]PollPosition, n)
	for v := range all {
		all[v].VBucket = uint16(v)
	}
	return all
}

func samePositions(a, b []PollPosition) bool {
	return slices.EqualFunc(a, b, func(p, q PollPosition) bool {
		same := p.Log.Equal(q.Log)
		p.Log, q.Log = nil, nil
		return same && reflect.DeepEqual(p, q)
	})
}

// answered returns the positions of an answer after encoding and decoding.
func answered(t interface{ Fatal(...any) }, all []PollPosition) []PollPosition {
	b, err := cbor.Marshal(AnswerPoll(all))
	if err != nil {
		t.Fatal(err)
	}
	var a PollReply
	if err := cbor.Unmarshal(b, &a); err != nil {
		t.Fatal(err)
	}
	got, err := a.Positions()
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestAnswersToPolls(t *testing.T) {
	log := timestamp.FailoverLog{{VBUUID: 9, Seqno: 40}, {VBUUID: 8}}
	rev := timestamp.MapRevision{Epoch: 2, Rev: 7}
	for _, c := range []struct {
		name      string
		all, want []PollPosition // nil: equal to all
	}{
		{"no position", nil, nil},
		{"an indexer without the bucket", absentPoll(4), []PollPosition{}},
		{"one", []PollPosition{{VBucket: 5, Participant: true, HW: 7, Reach: 9, Log: log, Revision: rev}}, nil},
		{"one that recovers by itself, with a log", []PollPosition{{VBucket: 5, Log: log, Revision: rev}}, nil},
		{"one that recovers by itself, with a map", []PollPosition{{VBucket: 5, Revision: rev}}, nil},
		{"a participant without anything", []PollPosition{{VBucket: 5, Participant: true}}, nil},
		{"a reach below the position", []PollPosition{{VBucket: 5, Participant: true, HW: 7, Reach: 2}}, nil},
		{"the largest numbers", []PollPosition{
			{VBucket: 4, Participant: true, HW: ^uint64(0), Reach: ^uint64(0),
				Log:      timestamp.FailoverLog{{VBUUID: ^uint64(0), Seqno: ^uint64(0)}},
				Revision: timestamp.MapRevision{Epoch: ^uint64(0), Rev: ^uint64(0)}},
			{VBucket: 4095, Participant: true, HW: 1, Reach: ^uint64(0)}}, nil},
		{"asked in any order", []PollPosition{{VBucket: 8, HW: 1}, {VBucket: 2}, {VBucket: 5, Participant: true}},
			[]PollPosition{{VBucket: 5, Participant: true}, {VBucket: 8, HW: 1}}},
		{"many", pollExample(1024), nil},
	} {
		if c.want == nil {
			c.want = c.all
		}
		if got := answered(t, c.all); !samePositions(got, c.want) {
			t.Errorf("%s: got %+v, want %+v", c.name, got, c.want)
		}
	}
}

// Bounds the size of an answer about 1,024 vbuckets: with a branch each, a few shared ones, and none.
func TestSizeOfAnswersToPolls(t *testing.T) {
	own := pollExample(1024)
	shared := pollExample(1024)
	for i := range shared {
		shared[i].Log = timestamp.FailoverLog{{VBUUID: uint64(i % 3), Seqno: 5}}
	}
	for _, c := range []struct {
		name string
		all  []PollPosition
		most int
	}{{"own branches", own, 20 << 10}, {"shared branches", shared, 6 << 10}, {"no participant", absentPoll(1024), 2}} {
		n := len(AnswerPoll(c.all).Packed)
		t.Logf("%s: %d bytes", c.name, n)
		if n == 0 || n > c.most {
			t.Errorf("%s: %d bytes, want at most %d", c.name, n, c.most)
		}
	}
}
