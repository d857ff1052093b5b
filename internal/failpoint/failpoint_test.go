package failpoint

import (
	"os"
	"strings"
	"testing"
	"time"
)

// TestHold checks that one transition is held back, which the test sees, until it sets another one or none.
func TestHold(t *testing.T) {
	if Dir("").Hold() != nil {
		t.Error("without a folder something is asked")
	}
	d := Dir(t.TempDir())
	hold := d.Hold()
	if hold("done") || d.Held("done") {
		t.Error("it is held back without a request")
	}
	for _, what := range []string{"done", "forget"} {
		if err := d.SetHold(what); err != nil || d.Held(what) {
			t.Errorf("%s: %v", what, err)
		}
		if hold("pending") || d.Held(what) || !hold(what) || !d.Held(what) || d.Held("pending") {
			t.Errorf("%s is not what is held back", what)
		}
	}
	if err := d.SetHold(""); err != nil || hold("forget") || d.Held("forget") {
		t.Errorf("nothing is to be held back: %v", err)
	}
}

// TestFaults checks that each file is for one process and one fault, that no file means no fault, and that an invalid
// one is an error that names the file.
func TestFaults(t *testing.T) {
	d := Dir(t.TempDir())
	ahead := func(process string) time.Duration {
		t.Helper()
		now, err := d.Clock(process)
		if err != nil {
			t.Fatal(err)
		}
		return time.Until(now())
	}
	if err := d.SetClock("m1", time.Hour); err != nil {
		t.Fatal(err)
	}
	if a, b := ahead("m1"), ahead("m2"); a < 59*time.Minute || b > time.Minute {
		t.Errorf("m1 is %s ahead, m2 %s; want an hour and nothing", a, b)
	}
	write := d.Write("m1")
	if err := d.SetWrite("m1", 50*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := write(); err != nil || time.Since(began) < 50*time.Millisecond {
		t.Errorf("a write took %s, %v", time.Since(began), err)
	}
	for range 2 {
		if err := d.SetWrite("m1", 0); err != nil {
			t.Error(err)
		}
	}
	if err := write(); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(d.path("m1", clockFile), []byte("later"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Clock("m1"); err == nil || !strings.Contains(err.Error(), "m1.clock") {
		t.Errorf("%v", err)
	}
}

func TestNoFolder(t *testing.T) {
	if f := Dir("").Write("m1"); f != nil {
		t.Error("a failpoint without a folder")
	}
	if _, err := Dir("").Clock("m1"); err != nil {
		t.Error(err)
	}
}
