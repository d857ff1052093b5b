package core

import (
	"testing"
	"time"

	"tidemark/index"
	"tidemark/wire"
)

// TestFates: a copy that a commit removed is dropped; a copy that no list contains, or that is of another index under
// the same id, is an orphan.
func TestFates(t *testing.T) {
	at := func(id index.ID, uuid string) map[index.CopyID]Wanted {
		return map[index.CopyID]Wanted{7: {Index: &index.Definition{ID: id, CreatedMS: 5},
			Bucket: &wire.Bucket{UUID: uuid, VBuckets: 4}}}
	}
	s := Stored{Copy: 7, Index: 1, CreatedMS: 5, BucketUUID: "u", VBuckets: 4}
	for what, c := range map[string]struct {
		want, named map[index.CopyID]Wanted
		fate        Fate
	}{
		"wanted": {at(1, "u"), nil, Stays}, "taken away": {nil, at(1, "u"), Goes}, "never named": {nil, nil, Orphaned},
		"of another index": {nil, at(2, "u"), Orphaned}, "of a bucket that was made anew": {nil, at(1, "v"), Orphaned},
	} {
		if fate := FateOf(s, c.want, c.named); fate != c.fate {
			t.Errorf("%s: %d, want %d", what, fate, c.fate)
		}
	}
	w := at(1, "u")[7]
	for _, o := range []Stored{{7, 1, 6, "u", 4}, {7, 1, 5, "u", 8}} {
		if w.Is(o) {
			t.Errorf("%+v is taken for another one", o)
		}
	}
}

// TestGrace: an orphan is dropped when its grace period is over, by a leader of its epoch, as a copy of its index.
func TestGrace(t *testing.T) {
	found := time.Unix(1000, 0)
	o := Orphan{Index: 3, Epoch: 2, Found: found}
	const grace = time.Minute
	over := found.Add(grace)
	if l := o.Left(grace, over.Add(-time.Second)); l != time.Second || o.Left(grace, over.Add(time.Hour)) != 0 ||
		o.Left(-1, over) >= 0 {
		t.Errorf("left %v", l)
	}
	if !o.Due(3, 2, grace, over) || o.Due(3, 2, grace, over.Add(-1)) || o.Due(4, 2, grace, over) ||
		o.Due(3, 3, grace, over) || o.Due(3, 2, -1, over.Add(time.Hour)) {
		t.Error("it is dropped too early, or by others, or not at all")
	}
}
