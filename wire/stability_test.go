package wire

import (
	"slices"
	"testing"

	"tidemark/timestamp"
)

func stabilityOf(number uint64, seqnos ...uint64) BucketStability {
	s := BucketStability{Bucket: "b", Stability: timestamp.Stability{Vector: timestamp.New(len(seqnos))}}
	for v, seqno := range seqnos {
		s.Vector.Set(v, timestamp.Position{VBUUID: 7, Seqno: seqno})
		s.Logs = append(s.Logs, timestamp.FailoverLog{{VBUUID: 7}})
	}
	s.Ref = timestamp.Ref{Generation: 1, Number: number, Hash: s.Vector.Hash()}
	return s
}

// TestStabilityDeltas checks that a delta decodes to the full timestamp, and that a receiver with another base, or
// none, reports it as missing.
func TestStabilityDeltas(t *testing.T) {
	first, second, third := stabilityOf(1, 10, 20, 0), stabilityOf(2, 10, 25, 3), stabilityOf(3, 11, 25, 3)
	third.Logs = slices.Clone(second.Logs)
	third.Logs[2] = timestamp.FailoverLog{{VBUUID: 9, Seqno: 3}, {VBUUID: 7}}
	bases := StabilityBases{}
	all, missing := bases.Decode(&StabilityRequest{Stabilities: []BucketStability{first}})
	if len(all) != 1 || len(missing) != 0 {
		t.Fatal(all, missing)
	}
	d, ok := second.Since(&first)
	if !ok {
		t.Fatal("no delta")
	}
	if len(d.Logs) != 0 {
		t.Errorf("equal logs are sent again: %v", d.Logs)
	}
	e, ok := third.Since(&second)
	if !ok || len(e.Logs) != 1 {
		t.Fatalf("want the one log that changed, got %v %v", e.Logs, ok)
	}
	if _, missing := bases.Decode(&StabilityRequest{Deltas: []StabilityDelta{e}}); !slices.Equal(missing, []string{"b"}) {
		t.Errorf("a change of the second was taken for one of the first: missing %v", missing)
	}
	for i, want := range []struct {
		d StabilityDelta
		s BucketStability
	}{{d, second}, {e, third}} {
		all, missing := bases.Decode(&StabilityRequest{Deltas: []StabilityDelta{want.d}})
		if len(missing) != 0 || len(all) != 1 || !all[0].Vector.Equal(want.s.Vector) ||
			all[0].Named() != want.s.Named() ||
			!slices.EqualFunc(all[0].Logs, want.s.Logs, timestamp.FailoverLog.Equal) {
			t.Fatalf("step %d: got %+v, missing %v, want %+v", i, all, missing, want.s)
		}
	}
	if !first.Logs[2].Equal(timestamp.FailoverLog{{VBUUID: 7}}) || first.Vector.Seqnos[1] != 20 {
		t.Error("a base was changed")
	}
	again, ok := third.Since(&third) // a timestamp without an acknowledgement is sent again
	if !ok {
		t.Fatal("no delta to itself")
	}
	all, missing = bases.Decode(&StabilityRequest{Deltas: []StabilityDelta{again}})
	if len(missing) != 0 || len(all) != 1 || all[0].Number != 3 {
		t.Error(all, missing)
	}
}

// TestStabilityDeltasThatAreRefused checks that there is no delta across a rollback, a generation, a bucket or a change
// of the number of vbuckets, and that a delta whose result does not match its hash is refused.
func TestStabilityDeltasThatAreRefused(t *testing.T) {
	base := stabilityOf(5, 10, 20)
	for name, change := range map[string]func(*BucketStability){
		"rolled back": func(s *BucketStability) { s.RollbackID = 1 },
		"generation":  func(s *BucketStability) { s.Generation = 2 },
		"bucket":      func(s *BucketStability) { s.Bucket = "c" },
		"vbuckets":    func(s *BucketStability) { *s = stabilityOf(6, 1, 2, 3) },
	} {
		s := stabilityOf(6, 12, 20)
		change(&s)
		if _, ok := s.Since(&base); ok {
			t.Errorf("%s: encoded as a delta", name)
		}
	}
	s := stabilityOf(6, 12, 20)
	good, _ := s.Since(&base)
	for name, change := range map[string]func(*StabilityDelta){
		"hash": func(d *StabilityDelta) { d.Hash++ }, "base hash": func(d *StabilityDelta) { d.BaseHash++ },
		"base number":       func(d *StabilityDelta) { d.BaseNumber++ },
		"cut short":         func(d *StabilityDelta) { d.Delta = d.Delta[:len(d.Delta)-1] },
		"too long":          func(d *StabilityDelta) { d.Delta = append(slices.Clone(d.Delta), 0) },
		"empty":             func(d *StabilityDelta) { d.Delta = nil },
		"log of no vbucket": func(d *StabilityDelta) { d.Logs = []LogUpdate{{VBucket: 2}} },
	} {
		d := good
		change(&d)
		bases := StabilityBases{"b": base}
		if all, missing := bases.Decode(&StabilityRequest{Deltas: []StabilityDelta{d}}); len(all) != 0 || len(missing) != 1 {
			t.Errorf("%s: accepted: %v", name, all)
		}
		if bases["b"].Number != 5 {
			t.Errorf("%s: the base is lost", name)
		}
	}
}

// TestStabilityDeltaIsSmall bounds the size of a promotion sent to an indexer, with the product's number of vbuckets.
func TestStabilityDeltaIsSmall(t *testing.T) {
	seqnos := make([]uint64, 1024)
	for v := range seqnos {
		seqnos[v] = 1_000_000 + uint64(v)
	}
	first := stabilityOf(1, seqnos...)
	for v := range seqnos {
		seqnos[v] += 20 // 100,000 mutations a second
	}
	second := stabilityOf(2, seqnos...)
	second.Logs = first.Logs
	d, ok := second.Since(&first)
	if !ok || len(d.Logs) != 0 || len(d.Delta) > 3*1024+16 {
		t.Errorf("the change takes %d bytes and %d logs, want 3 bytes for each vbucket at most and none", len(d.Delta),
			len(d.Logs))
	}
}
