package packed

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"tidemark/index"
	"tidemark/ingest"
	_ "tidemark/internal/testing/draws"
	"tidemark/keyversion"
)

// someRests are rests that events may share. Two of them have the same content.
var someRests = []*keyversion.Places{
	nil,
	keyversion.NewPlaces([]keyversion.Place{{Index: 1, Slice: 0}, {Index: 2, Slice: index.AllSlices}}),
	keyversion.NewPlaces([]keyversion.Place{{Index: 1, Slice: 0}, {Index: 2, Slice: index.AllSlices}}),
	keyversion.NewPlaces([]keyversion.Place{{Index: 3, Slice: 1}, {Index: 3, Slice: index.AllSlices},
		{Index: 9, Slice: 1}}),
}

// TestPack checks that every copy unpacks from a packed event exactly what the event states for it.
func TestPack(t *testing.T) {
	kinds := []keyversion.Kind{keyversion.Insert, keyversion.Delete, keyversion.UpsertDeletion}
	var mine Spreader
	rapid.Check(t, func(t *rapid.T) {
		var a Arena
		var packed [][]byte
		var events []keyversion.Event
		for range rapid.IntRange(1, 20).Draw(t, "events") {
			e := keyversion.Event{Kind: rapid.SampledFrom(kinds).Draw(t, "kind"),
				DocID: rapid.SliceOfN(rapid.Byte(), 1, 300).Draw(t, "doc")}
			for i := range rapid.IntRange(0, 3).Draw(t, "statements") {
				s := keyversion.Statement{Index: index.ID(1 + i), Slice: index.SliceID(rapid.SampledFrom([]int{0, 1,
					int(index.AllSlices)}).Draw(t, "slice"))}
				for range rapid.IntRange(0, 3).Draw(t, "keys") {
					s.Keys = append(s.Keys, rapid.SliceOfN(rapid.Byte(), 0, 10000).Draw(t, "key"))
				}
				e.Statements = append(e.Statements, s)
			}
			e.Rest = rapid.SampledFrom(someRests).Draw(t, "rest")
			events, packed = append(events, e), append(packed, a.Pack(&e))
		}
		batch := &ingest.Batch{Segments: make([]ingest.Segment, 2)}
		for i := range packed {
			of := &batch.Segments[i%2].Events
			*of = append(*of, ingest.Entry{Data: packed[i], Rest: events[i].Rest})
		}
		for ix := range index.ID(4) {
			for no := range index.SliceID(2) {
				batch.Copies = append(batch.Copies, ingest.CopyBatch{Index: ix, Slice: no})
			}
		}
		shares, stating := mine.Spread(batch), map[[2]int]int{}
		for i := range events {
			for ix := range index.ID(4) {
				for no := range index.SliceID(2) {
					u := Unpacker{Index: ix, Slice: no}
					got, ok := u.Update(packed[i], events[i].Rest, Unknown, 9, 77)
					at, has := shares[2*int(ix)+int(no)].has(i%2, i/2, len(batch.Segments[i%2].Events))
					if has != ok {
						t.Fatalf("%v for %d/%d: in the share %v, want %v", events[i].Kind, ix, no, !ok, ok)
					}
					if has {
						at, _ := u.Update(packed[i], events[i].Rest, at, 9, 77)
						if !slices.EqualFunc(at.Keys, got.Keys, slices.Equal) || string(at.DocID) != string(got.DocID) {
							t.Fatalf("%v for %d/%d: %v where the share says, want %v", events[i].Kind, ix, no, at, got)
						}
					}
					if len(got.Keys) > 0 {
						stating[[2]int{int(ix), int(no)}]++
					}
					want, wantOK := stated(&events[i], ix, no)
					if ok != wantOK || ok && (string(got.DocID) != string(events[i].DocID) || got.VBucket != 9 || got.Seqno != 77 ||
						!slices.EqualFunc(got.Keys, want, slices.Equal)) {
						t.Fatalf("%v for %d/%d: %v %v, want %v %v", events[i].Kind, ix, no, got.Keys, ok, want, wantOK)
					}
				}
			}
		}
		for i := range shares {
			if n := stating[[2]int{i / 2, i % 2}]; shares[i].Stating != n {
				t.Fatalf("%d events with keys in share %d, want %d", shares[i].Stating, i, n)
			}
		}
	})
}

// has reports whether the share of a segment with n events contains the event with that number, exactly once, and
// where its statement is.
func (s *Share) has(segment, number, n int) (at int, has bool) {
	times := 0
	events := make([]ingest.Entry, n)
	for e, place := range s.Whole().Each(segment, events) {
		if e == &events[number] {
			at = place
			times++
		}
	}
	return at, times == 1
}

// stated reads an event in the obvious way.
func stated(e *keyversion.Event, ix index.ID, no index.SliceID) ([][]byte, bool) {
	if e.Kind == keyversion.Delete && len(e.Statements) == 0 && e.Rest == nil {
		return nil, true
	}
	for _, s := range e.Explicit(nil) {
		if s.Index != ix || s.Slice != no && s.Slice != index.AllSlices {
			continue
		}
		var keys [][]byte
		for _, k := range s.Keys {
			if e.Kind == keyversion.Insert && len(k) > 0 {
				keys = append(keys, k)
			}
		}
		return keys, true
	}
	return nil, false
}
