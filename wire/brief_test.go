package wire

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/fxamacker/cbor/v2"
	"pgregory.net/rapid"

	"tidemark/index"
	_ "tidemark/internal/testing/draws"
	"tidemark/timestamp"
)

// level is the state of a reporting indexer.
type level struct {
	buckets map[string]*BucketReport
	copies  map[index.CopyID]CopyReport
}

func (l *level) report(sequence uint64) *IndexerReport {
	r := &IndexerReport{Sequence: sequence}
	for _, name := range []string{"a", "b", "c"} {
		if b := l.buckets[name]; b != nil {
			c := *b
			c.Accepted = Accepted{VBuckets: slices.Clone(b.Accepted.VBuckets),
				Incarnations: slices.Clone(b.Accepted.Incarnations),
				Projectors:   slices.Clone(b.Accepted.Projectors), Open: slices.Clone(b.Accepted.Open)}
			c.Heartbeat.HW, c.Backfill = b.Heartbeat.HW.Clone(), b.Backfill.Clone()
			r.Buckets = append(r.Buckets, c)
		}
	}
	for id := range index.CopyID(4) {
		if c, ok := l.copies[id]; ok {
			r.Copies = append(r.Copies, c)
		}
	}
	return r
}

// change modifies one bucket.
func (l *level) change(t *rapid.T) {
	const n = 6
	name := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "bucket")
	b := l.buckets[name]
	if b == nil {
		b = &BucketReport{Generation: 1}
		b.Heartbeat.Bucket, b.Heartbeat.HW = name, timestamp.New(n)
		l.buckets[name] = b
	}
	position := func() timestamp.Position {
		return timestamp.Position{VBUUID: rapid.Uint64Range(0, 3).Draw(t, "vbuuid"),
			Seqno: rapid.Uint64Max(300).Draw(t, "seqno")}
	}
	switch v := rapid.IntRange(0, n-1).Draw(t, "vb"); rapid.IntRange(0, 7).Draw(t, "what") {
	case 0:
		b.Generation, b.RollbackID = rapid.Uint64Range(1, 3).Draw(t, "generation"),
			rapid.Uint64Range(0, 2).Draw(t, "rollback")
	case 1:
		b.Heartbeat.LastStability, b.Heartbeat.MutationQueue = rapid.Uint64Max(3).Draw(t, "stability"),
			rapid.Uint64Max(3).Draw(t, "queue")
		b.Heartbeat.LastNumber = rapid.Uint64Max(3).Draw(t, "number")
	case 2:
		b.Heartbeat.IndexIDs = append(slices.Clone(b.Heartbeat.IndexIDs), index.ID(1+len(b.Heartbeat.IndexIDs)))
	case 3:
		b.Heartbeat.HW.Set(v, position())
	case 4:
		if b.Backfill.Len() == 0 {
			b.Backfill = timestamp.New(n)
		}
		b.Backfill.Set(v, position())
	case 5:
		b.Backfill = timestamp.Vector{}
	case 6:
		l.copies[index.CopyID(v%4)] = CopyReport{Copy: index.CopyID(v % 4), Done: rapid.Uint64Max(3).Draw(t, "done")}
	default:
		s := acceptedStream{projector: rapid.SampledFrom([]index.ProjectorID{"p", "q"}).Draw(t, "projector"),
			incarnation: index.Incarnation{Term: 1, Counter: rapid.Uint64Range(1, 3).Draw(t, "counter")},
			open:        rapid.Bool().Draw(t, "open")}
		table := acceptedTable{}
		for row, w := range b.Accepted.VBuckets {
			was, _ := b.Accepted.at(row)
			table.set(w, was)
		}
		if rapid.Bool().Draw(t, "gone") {
			s = acceptedStream{}
		}
		table.set(uint16(v), s)
		b.Accepted = table.all()
	}
}

func through(t *rapid.T, r *IndexerReport) *IndexerReport {
	b, err := cbor.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	back := &IndexerReport{}
	if err := cbor.Unmarshal(b, back); err != nil {
		t.Fatal(err)
	}
	return back
}

// Whatever changes, whatever is lost and whichever leader takes over: a receiver that does not ask for a full report
// has the state that the sender has reported, and after one more answered exchange it does not ask for one.
func TestBriefReports(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := &level{buckets: map[string]*BucketReport{}, copies: map[index.CopyID]CopyReport{}}
		var sender ReportSender
		var leader ReportReceiver
		copies := map[index.CopyID]CopyReport{}
		hw := map[string]timestamp.Vector{} // as reported, if it is wanted
		var wanted []string
		asked := 0
		for sequence := range uint64(rapid.IntRange(1, 30).Draw(t, "reports")) {
			for range rapid.IntRange(0, 3).Draw(t, "changes") {
				l.change(t)
			}
			event := rapid.IntRange(0, 9).Draw(t, "event")
			switch event {
			case 0: // another leader
				leader = ReportReceiver{}
				clear(copies)
			case 1:
				wanted = rapid.SliceOfDistinct(rapid.SampledFrom([]string{"a", "b", "c"}), rapid.ID).Draw(t, "wanted")
			case 2:
				hello := l.report(0)
				hello.Shorten()
				leader.Take(through(t, hello))
				copies = maps.Clone(l.copies)
			}
			all := l.report(sequence + 1)
			sent := l.report(sequence + 1)
			sender.Make(sent, false)
			for i := range all.Buckets {
				if b := &all.Buckets[i]; sender.WantsHW(b.Heartbeat.Bucket) {
					hw[b.Heartbeat.Bucket] = b.Heartbeat.HW
				}
			}
			if event == 3 { // lost in transit
				sender.Lost()
				continue
			}
			r := through(t, sent)
			taken, err := leader.Take(r)
			if r.Whole() {
				clear(copies)
			}
			for _, c := range r.Copies {
				copies[c.Copy] = c
			}
			for _, x := range taken {
				if x.Bucket != leader.Buckets[x.Bucket.Report.Heartbeat.Bucket] {
					t.Fatal("a bucket that is not remembered")
				}
			}
			if event == 4 { // the answer is lost
				sender.Lost()
				continue
			}
			sender.Answered(&ReportReply{Known: true, Full: err != nil, HW: wanted})
			if err != nil {
				if asked++; asked > 2 {
					t.Fatal("a full report is asked for again and again")
				}
				continue
			}
			asked = 0
			if !reflect.DeepEqual(copies, l.copies) {
				t.Fatalf("copies %v, want %v", copies, l.copies)
			}
			if len(leader.Buckets) != len(l.buckets) {
				t.Fatalf("%d buckets, want %d", len(leader.Buckets), len(l.buckets))
			}
			for _, b := range all.Buckets {
				agree(t, leader.Buckets[b.Heartbeat.Bucket], &b, hw, slices.Contains(wanted, b.Heartbeat.Bucket))
			}
		}
	})
}

func agree(t *rapid.T, got *ReportedBucket, want *BucketReport, hw map[string]timestamp.Vector, wanted bool) {
	name := want.Heartbeat.Bucket
	if a := got.Accepted(); !slices.Equal(a.VBuckets, want.Accepted.VBuckets) ||
		!slices.Equal(a.Incarnations, want.Accepted.Incarnations) ||
		!slices.Equal(a.Projectors, want.Accepted.Projectors) || !slices.Equal(a.Open, want.Accepted.Open) {
		t.Fatalf("%s: accepted %+v, want %+v", name, a, want.Accepted)
	}
	o, h := &got.Report, &want.Heartbeat
	if o.Generation != want.Generation || o.RollbackID != want.RollbackID || !o.Backfill.Equal(want.Backfill) ||
		o.Heartbeat.LastStability != h.LastStability || o.Heartbeat.LastNumber != h.LastNumber ||
		o.Heartbeat.MutationQueue != h.MutationQueue || !slices.Equal(o.Heartbeat.IndexIDs, h.IndexIDs) {
		t.Fatalf("%s: %+v, want %+v", name, o, want)
	}
	if sent := o.Heartbeat.HW; sent.Len() > 0 && !sent.Equal(hw[name]) {
		t.Fatalf("%s: HW %v, want %v (wanted: %v)", name, sent, hw[name], wanted)
	}
}

// TestBriefReportsAreBrief bounds the size of a report without changes, and the bytes per changed vbucket.
func TestBriefReportsAreBrief(t *testing.T) {
	const n = 1024
	b := BucketReport{Generation: 1}
	b.Heartbeat.Bucket, b.Heartbeat.HW = "travel-sample", timestamp.New(n)
	for v := range uint16(n) {
		b.Heartbeat.HW.Set(int(v), timestamp.Position{VBUUID: 1<<63 + uint64(v)*1e15, Seqno: 1 << 30})
		b.Accepted.add(v, acceptedStream{projector: []index.ProjectorID{"p01", "p02", "p03"}[v%3],
			incarnation: index.Incarnation{Epoch: 1, Term: 3, Counter: 7}, open: true})
	}
	size := func(r *IndexerReport) int {
		t.Helper()
		text, err := cbor.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		return len(text)
	}
	var sender ReportSender
	first := &IndexerReport{Sequence: 1, Buckets: []BucketReport{b}}
	sender.Make(first, true)
	sender.Answered(&ReportReply{Known: true, HW: []string{"travel-sample"}})
	second := &IndexerReport{Sequence: 2, Buckets: []BucketReport{b}}
	sender.Make(second, false)
	sender.Answered(&ReportReply{Known: true, HW: []string{"travel-sample"}})
	moved := b
	moved.Heartbeat.HW = b.Heartbeat.HW.Clone()
	for v := range n {
		moved.Heartbeat.HW.Seqnos[v] += 50
	}
	third := &IndexerReport{Sequence: 3, Buckets: []BucketReport{moved}}
	sender.Make(third, false)
	sender.Answered(&ReportReply{Known: true})
	moved.Heartbeat.HW.Seqnos[0]++ // HW that is not wanted
	moved.Heartbeat.MutationQueue = 1 << 20
	fourth := &IndexerReport{Sequence: 4, Buckets: []BucketReport{moved}}
	sender.Make(fourth, false)
	for _, c := range []struct {
		what      string
		got, most int
	}{{"everything without HW", size(first), 3500}, {"HW for the first time", size(second), 15*n + 300},
		{"every HW moved", size(third), 2*n + 350}, {"a queue", size(fourth), 300}} {
		t.Logf("%s: %d bytes", c.what, c.got)
		if c.got > c.most {
			t.Errorf("%s: %d bytes, want at most %d", c.what, c.got, c.most)
		}
	}
}

// Streams are stored in a table that discards those that are gone.
func TestAcceptedTableStaysSmall(t *testing.T) {
	var table acceptedTable
	for counter := range uint64(3 * maxTableStreams) {
		table.set(uint16(counter%8), acceptedStream{projector: "p", incarnation: index.Incarnation{Counter: counter},
			open: counter%2 == 0})
	}
	if len(table.streams) > maxTableStreams {
		t.Errorf("%d streams for 8 vbuckets", len(table.streams))
	}
	for v := range 8 {
		s, ok := table.get(v)
		if want := uint64(3*maxTableStreams - 8 + v); !ok || s.incarnation.Counter != want || s.open != (want%2 == 0) {
			t.Errorf("vbucket %d: %+v, want counter %d", v, s, want)
		}
	}
}

func TestMovedStreams(t *testing.T) {
	one, two := index.Incarnation{Term: 1, Counter: 1}, index.Incarnation{Term: 2, Counter: 1}
	first := StreamState{VBucket: 2, Incarnation: one, Complete: 9, Ended: true, Log: timestamp.FailoverLog{{VBUUID: 5}},
		Purge: 1, Revision: timestamp.MapRevision{Rev: 1}}
	s := StreamStates{Bucket: "b", Streams: []StreamState{first}}
	s.Move(0, one, 7)
	s.Move(3, two, 1<<40)
	s.Move(1023, one, 8)
	if err := s.Expand(); err != nil {
		t.Fatal(err)
	}
	want := []StreamState{first, {VBucket: 0, Incarnation: one, Complete: 7},
		{VBucket: 3, Incarnation: two, Complete: 1 << 40}, {VBucket: 1023, Incarnation: one, Complete: 8}}
	if !reflect.DeepEqual(s.Streams, want) || s.Moved != nil {
		t.Errorf("%+v", s)
	}
	var pair StreamStates
	pair.Move(4, one, 7)
	pair.Move(9, one, 8)
	bad := StreamStates{Streams: []StreamState{first}, Moved: pair.Moved[:len(pair.Moved)-2]}
	if err := bad.Expand(); !errors.Is(err, ErrRows) || len(bad.Streams) != 1 || bad.Moved != nil {
		t.Errorf("cut short: %v, %v", err, bad)
	}
}

// FuzzChange checks that no report makes a receiver panic or store more than a bucket has.
func FuzzChange(f *testing.F) {
	b := BucketReport{}
	b.Heartbeat.Bucket, b.Heartbeat.HW, b.Backfill = "b", timestamp.New(3), timestamp.New(3)
	b.Accepted.add(1, acceptedStream{projector: "p", incarnation: index.Incarnation{Term: 1}, open: true})
	report := IndexerReport{Sequence: 1, Buckets: []BucketReport{b}}
	report.Shorten()
	c := report.Changes[0]
	seed, err := cbor.Marshal(&report)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed, c.Accepted, c.HW)
	f.Add([]byte{0xa0}, []byte{rowsFormat, 1, 1, 1, 'p', 1, 1, 1, 1, 0}, []byte{1, 3, 1, 2, 4})
	f.Fuzz(func(t *testing.T, text, accepted, vector []byte) {
		var leader ReportReceiver
		var r IndexerReport
		if cbor.Unmarshal(text, &r) == nil {
			leader.Take(&r)
			r.Sequence, r.Base = r.Sequence+1, r.Sequence
			leader.Take(&r)
		}
		leader.Take(&IndexerReport{Sequence: 1, Changes: []BucketChange{{Bucket: "b", Whole: true, VBuckets: 3,
			Accepted: accepted, HW: vector}}})
		for _, b := range leader.Buckets {
			if a := b.Accepted(); len(a.VBuckets) > timestamp.MaxVBuckets ||
				b.Report.Heartbeat.HW.Len() > timestamp.MaxVBuckets {
				t.Fatalf("%d vbuckets", len(a.VBuckets))
			}
		}
	})
}

// TestNewsOfReports checks what counts as news for which a leader may be waiting. The fill of a queue that is less
// than half full does not, but is reported all the same.
func TestNewsOfReports(t *testing.T) {
	level := func(change func(*BucketReport, *[]CopyReport)) *IndexerReport {
		b := BucketReport{Generation: 1, Heartbeat: HWHeartbeat{Bucket: "b", QueueLimit: 100, MutationQueue: 10}}
		copies := []CopyReport{{Copy: 1, Ready: true}}
		change(&b, &copies)
		return &IndexerReport{Sequence: 2, Buckets: []BucketReport{b}, Copies: copies}
	}
	for _, c := range []struct {
		name       string
		change     func(*BucketReport, *[]CopyReport)
		sent, news bool
	}{
		{"nothing", func(*BucketReport, *[]CopyReport) {}, false, false},
		{"a little more in the queue", func(b *BucketReport, _ *[]CopyReport) { b.Heartbeat.MutationQueue = 49 }, true, false},
		{"a queue half full", func(b *BucketReport, _ *[]CopyReport) { b.Heartbeat.MutationQueue = 50 }, true, true},
		{"an acknowledgement", func(b *BucketReport, _ *[]CopyReport) { b.Acks = []Ack{{Made: true}} }, true, true},
		{"more in the queue and a timestamp", func(b *BucketReport, _ *[]CopyReport) {
			b.Heartbeat.MutationQueue, b.Heartbeat.LastNumber = 20, 7
		}, true, true},
		{"a copy", func(_ *BucketReport, c *[]CopyReport) { (*c)[0].Held.Number = 7 }, false, true},
	} {
		var r ReportSender
		first := level(func(*BucketReport, *[]CopyReport) {})
		first.Sequence = 1
		if !r.Make(first, true) {
			t.Errorf("%s: a full report is no news", c.name)
		}
		r.Answered(&ReportReply{Known: true})
		next := level(c.change)
		if news := r.Make(next, false); news != c.news || len(next.Changes) > 0 != c.sent {
			t.Errorf("%s: news %v, want %v; %d changes", c.name, news, c.news, len(next.Changes))
		}
	}
}

// TestReportsThatAreRefused checks the errors for reports with invalid contents. The receiver keeps its state, and
// accepts no change before a full report.
func TestReportsThatAreRefused(t *testing.T) {
	many := make([]BucketChange, MaxReportedBuckets+1)
	packed := packAcceptedRows(acceptedExample(3))
	for _, c := range []struct {
		name    string
		changes []BucketChange
		is      error
		want    string
	}{
		{"a bucket twice", []BucketChange{{Bucket: "b", Whole: true}, {Bucket: "b", Whole: true}}, ErrChange,
			`bucket "b" is reported twice`},
		{"a bucket twice, as " +
			"changes", []BucketChange{{Bucket: "a"}, {Bucket: "a"}}, ErrChange, `bucket "a" is reported twice`},
		{"too many buckets", many, ErrChange, "10001 buckets, want at most 10000"},
		{"accepted streams that are cut", []BucketChange{{Bucket: "a", Accepted: packed[:len(packed)-1]}}, ErrRows,
			`bucket "a": packed rows: truncated after 3 rows`},
		{"an unknown bucket", []BucketChange{{Bucket: "c"}}, ErrBase, `bucket "c"`},
		{"too many vbuckets", []BucketChange{{Bucket: "a", VBuckets: 4097}}, ErrChange,
			`bucket "a": change of a bucket in a report: 4097 vbuckets, want at most 4096`},
	} {
		var r ReportReceiver
		if _, err := r.Take(&IndexerReport{Sequence: 1, Changes: []BucketChange{{Bucket: "a", Whole: true,
			Generation: 7}}}); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Take(&IndexerReport{Sequence: 2, Base: 1, Changes: c.changes}); !errors.Is(err, c.is) ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
		if r.Whole() || r.Buckets["a"] == nil || len(r.Buckets) > 2 {
			t.Errorf("%s: whole %v, %d buckets", c.name, r.Whole(), len(r.Buckets))
		}
	}
}

// BenchmarkAccepted takes a full report in which each vbucket has a stream of its own, or all share three.
func BenchmarkAccepted(b *testing.B) {
	for _, of := range []int{3, 1024, timestamp.MaxVBuckets} {
		b.Run(fmt.Sprintf("%d streams", of), func(b *testing.B) {
			var rows []acceptedRow
			for v := range max(of, 1024) {
				rows = append(rows, acceptedRow{uint16(v), acceptedStream{projector: "p01", open: true,
					incarnation: index.Incarnation{Epoch: 1, Term: 2, Counter: uint64(v % of)}}})
			}
			for b.Loop() {
				var table acceptedTable
				for _, r := range rows {
					table.set(r.v, r.s)
				}
			}
		})
	}
}
