package copies

import (
	"testing"

	"tidemark/ingest"
)

// TestCopyIsWrongUntilItsRowsAreDeleted: a copy counts as wrong from when a vbucket is to be retaken until its rows
// have been deleted, also while they are being deleted; afterwards the count shows that it was.
func TestCopyIsWrongUntilItsRowsAreDeleted(t *testing.T) {
	w := newLaneWorld(t)
	s := w.k.slices[1]
	w.serve()
	stands := func(when string, wrong bool) Standing {
		t.Helper()
		c, err := w.k.Standing(t.Context(), s)
		if err != nil || c.Wrong != wrong || !c.Fit {
			t.Fatalf("%s: %+v, %v; want that it is wrong: %v", when, c, err, wrong)
		}
		return c
	}
	before := stands("at first", false)
	if err := w.k.Retake(t.Context(), 1, 0, nil, false); err != nil {
		t.Fatal(err)
	}
	stands("not begun", true)
	if err := w.k.do(t.Context(), func() { w.k.pump(t.Context()) }); err != nil {
		t.Fatal(err)
	}
	for deleting := false; !deleting; {
		at := w.begins()
		if deleting = at.of.Batch.Kind == ingest.DeleteRange; !deleting {
			w.ends(at.of.Batch.Copies[at.at].ID)
		}
	}
	stands("being deleted", true)
	w.ends(1)
	for under := 1; under > 0; {
		if err := w.k.do(t.Context(), func() { under = w.k.work.InFlight() }); err != nil {
			t.Fatal(err)
		}
	}
	if after := stands("deleted", false); after.Emptied == before.Emptied || after.Empty != before.Empty+1 {
		t.Errorf("%+v, was %+v", after, before)
	}
}
