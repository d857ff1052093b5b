package wire

import (
	"errors"
	"reflect"
	"slices"
	"testing"

	"github.com/fxamacker/cbor/v2"
	"pgregory.net/rapid"

	"tidemark/timestamp"
)

// pollExample is a bucket of which each vbucket has a branch of its own, or of two, and takes part.
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

// pollNobody is the answer of an indexer that has nothing of the bucket.
func pollNobody(n int) []PollPosition {
	all := make([]PollPosition, n)
	for v := range all {
		all[v].VBucket = uint16(v)
	}
	return all
}

func vbucketsOf(all []PollPosition) (asked []uint16) {
	for _, p := range all {
		asked = append(asked, p.VBucket)
	}
	return asked
}

func samePositions(a, b []PollPosition) bool {
	return slices.EqualFunc(a, b, func(p, q PollPosition) bool {
		same := p.Log.Equal(q.Log)
		p.Log, q.Log = nil, nil
		return same && reflect.DeepEqual(p, q)
	})
}

// answered is what the asker takes of an answer that went over the wire.
func answered(t interface{ Fatal(...any) }, q *PollRequest, all []PollPosition) []PollPosition {
	a, err := q.Answer(all)
	if err != nil {
		t.Fatal(err)
	}
	b, err := cbor.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	a = &PollReply{}
	if err := cbor.Unmarshal(b, a); err != nil {
		t.Fatal(err)
	}
	got, err := q.Take(a)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// pack is packPoll of positions that are in order.
func pack(t testing.TB, asked []uint16, all []PollPosition) []byte {
	t.Helper()
	packed, err := packPoll(asked, all)
	if err != nil {
		t.Fatal(err)
	}
	return packed
}

func TestAnswersToPolls(t *testing.T) {
	log := timestamp.FailoverLog{{VBUUID: 9, Seqno: 40}, {VBUUID: 8}}
	rev := timestamp.MapRevision{Epoch: 2, Rev: 7}
	tests := []struct {
		name  string
		asked []uint16
		all   []PollPosition
	}{
		{"nothing is asked for", nil, nil},
		{"no position", []uint16{1, 2}, nil},
		{"an indexer without the bucket", []uint16{0, 1, 2, 3}, pollNobody(4)},
		{"one", []uint16{5}, []PollPosition{{VBucket: 5, Participant: true, HW: 7, Reach: 9, Log: log, Revision: rev}}},
		{"one that recovers by itself, with a log", []uint16{5}, []PollPosition{{VBucket: 5, Log: log, Revision: rev}}},
		{"a participant without anything", []uint16{5}, []PollPosition{{VBucket: 5, Participant: true}}},
		{"a reach below the position", []uint16{5}, []PollPosition{{VBucket: 5, Participant: true, HW: 7, Reach: 2}}},
		{"the largest numbers", []uint16{4, 4095}, []PollPosition{
			{VBucket: 4, Participant: true, HW: ^uint64(0), Reach: ^uint64(0),
				Log:      timestamp.FailoverLog{{VBUUID: ^uint64(0), Seqno: ^uint64(0)}},
				Revision: timestamp.MapRevision{Epoch: ^uint64(0), Rev: ^uint64(0)}},
			{VBucket: 4095, Participant: true, HW: 1, Reach: ^uint64(0)}}},
		{"some left out, at both ends and between", []uint16{1, 2, 3, 5, 8, 9}, []PollPosition{
			{VBucket: 2, Participant: true, HW: 3, Reach: 3, Log: log, Revision: rev},
			{VBucket: 5, Participant: true, HW: 1, Reach: 1, Log: log, Revision: rev},
			{VBucket: 8, HW: 1, Revision: rev}}},
		{"asked in any order", []uint16{8, 2, 5}, []PollPosition{{VBucket: 8, HW: 1}, {VBucket: 2},
			{VBucket: 5, Participant: true}}},
		{"many", vbucketsOf(pollExample(1024)), pollExample(1024)},
	}
	for _, c := range tests {
		if got := answered(t, &PollRequest{VBuckets: c.asked}, c.all); !samePositions(got, c.all) {
			t.Errorf("%s: got %+v, want %+v", c.name, got, c.all)
		}
	}
	for name, all := range map[string][]PollPosition{
		"not in the order of the request": {{VBucket: 8, HW: 1}, {VBucket: 2}},
		"one that was not asked for":      {{VBucket: 2}, {VBucket: 3}},
	} {
		if _, err := (&PollRequest{VBuckets: []uint16{2, 8}}).Answer(all); !errors.Is(err, ErrPoll) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAPackedAnswerThatIsCutShortIsRefused(t *testing.T) {
	all := pollExample(60)
	all[20], all[21] = PollPosition{VBucket: 20}, PollPosition{VBucket: 21}
	asked := vbucketsOf(all)
	packed := pack(t, asked, all)
	for cut := 1; cut < len(packed); cut++ {
		if _, err := unpackPoll(asked, packed[:cut]); !errors.Is(err, ErrPoll) {
			t.Errorf("cut to %d of %d bytes: %v", cut, len(packed), err)
		}
	}
	q := &PollRequest{VBuckets: asked[:59]}
	if got, err := q.Take(&PollReply{Packed: packed}); !errors.Is(err, ErrPoll) {
		t.Errorf("an answer to a larger request: %v, %v", got, err)
	}
	if _, err := unpackPoll(asked, append(slices.Clone(packed), 0)); !errors.Is(err, ErrPoll) {
		t.Errorf("a byte too many: %v", err)
	}
	if _, err := unpackPoll(asked, []byte{2, 0}); !errors.Is(err, ErrPoll) {
		t.Errorf("another format: %v", err)
	}
	if _, err := unpackPoll(asked, []byte{pollFormat, 1, 0, 1, 8}); !errors.Is(err, ErrPoll) {
		t.Errorf("an unknown kind: %v", err)
	}
}

// What an answer about 1,024 vbuckets takes: of branches of their own, of a few that are shared, and of none.
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
	}{{"own branches", own, 15 << 10}, {"shared branches", shared, 5 << 10}, {"no participant", pollNobody(1024), 8}} {
		n := len(pack(t, vbucketsOf(c.all), c.all))
		t.Logf("%s: %d bytes", c.name, n)
		if n == 0 || n > c.most {
			t.Errorf("%s: %d bytes, want at most %d", c.name, n, c.most)
		}
	}
}

// Whatever is asked for and whatever of it is left out, the asker takes what was answered.
func TestPackedAnswersToPolls(t *testing.T) {
	log := rapid.Custom(func(t *rapid.T) (l timestamp.FailoverLog) {
		for range rapid.IntRange(0, 3).Draw(t, "entries") {
			l = append(l, timestamp.LogEntry{VBUUID: rapid.Uint64Max(3).Draw(t, "vbuuid"),
				Seqno: rapid.Uint64().Draw(t, "seqno")})
		}
		return l
	})
	rapid.Check(t, func(t *rapid.T) {
		q := &PollRequest{VBuckets: rapid.SliceOfN(rapid.Uint16Max(40), 0, 30).Draw(t, "asked")}
		var all []PollPosition
		same := PollPosition{Participant: true, HW: 5, Reach: 6}
		for _, v := range q.VBuckets {
			p := same
			switch rapid.IntRange(0, 4).Draw(t, "what") {
			case 0:
				continue // left out
			case 1:
				p = PollPosition{}
			case 2:
				p = PollPosition{Participant: rapid.Bool().Draw(t, "participant"), HW: rapid.Uint64().Draw(t, "hw"),
					Reach: rapid.Uint64().Draw(t, "reach"),
					Log:   log.Draw(t, "log"), Revision: timestamp.MapRevision{Epoch: rapid.Uint64Max(1).Draw(t, "epoch"),
						Rev: rapid.Uint64Max(2).Draw(t, "rev")}}
				same = p
			}
			p.VBucket = v
			all = append(all, p)
		}
		if got := answered(t, q, all); !samePositions(got, all) {
			t.Fatalf("got %+v, want %+v", got, all)
		}
	})
}

func FuzzUnpackPoll(f *testing.F) {
	f.Add(uint16(0), pack(f, nil, nil))
	f.Add(uint16(20), pack(f, vbucketsOf(pollExample(20)), pollExample(20)))
	f.Add(uint16(20), pack(f, vbucketsOf(pollNobody(20)), pollExample(20)[3:9]))
	f.Add(uint16(1024), pack(f, vbucketsOf(pollNobody(1024)), pollNobody(1024)))
	f.Add(uint16(3), []byte{1, 1, 0, 3, 7, 1, 5, 2, 0, 0, 1, 9, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 1, 0, 0, 1})
	f.Fuzz(func(t *testing.T, n uint16, b []byte) {
		asked := vbucketsOf(pollNobody(int(n % (timestamp.MaxVBuckets + 1))))
		all, err := unpackPoll(asked, b)
		if err != nil {
			if !errors.Is(err, ErrPoll) {
				t.Fatal(err)
			}
			return
		}
		again, err := unpackPoll(asked, pack(t, asked, all))
		if err != nil || !samePositions(again, all) {
			t.Fatalf("%+v became %+v, %v", all, again, err)
		}
	})
}
