package steady

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// told is a test that fails without failing this one.
type told struct {
	testing.TB
	errors int
	fatal  bool
}

func (f *told) Error(...any)          { f.errors++ }
func (f *told) Fatalf(string, ...any) { f.fatal = true }

// TestRun: a try that fails while the process runs fails the test; one in whose middle it stood still is repeated, with
// its own clean-up and context.
func TestRun(t *testing.T) {
	var order []string
	n := 0
	Run(t, time.Nanosecond, func(t *T) { // the machine always stands still for longer
		n++
		t.Cleanup(func() { order = append(order, "first") })
		t.Cleanup(func() { order = append(order, "second") })
		time.Sleep(3 * look)
		if n < 3 {
			t.Fatal("again")
		}
		if t.Failed() || t.Context().Err() != nil {
			t.Error("a new try begins anew")
		}
	})
	if want := []string{"second", "first", "second", "first", "second", "first"}; n != 3 || !slices.Equal(order, want) {
		t.Errorf("%d tries, %v", n, order)
	}

	synctest.Test(t, func(t *testing.T) { // where nothing ever stands still
		f := &told{TB: t}
		n := 0
		Run(f, time.Second, func(t *T) {
			n++
			t.Errorf("one")
			t.Error("two")
			t.FailNow()
		})
		if n != 1 || f.errors != 3 || !f.fatal {
			t.Errorf("%d tries, %+v", n, f)
		}
	})
}
