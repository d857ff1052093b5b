package api

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"tidemark/manager/api/v1"
	"tidemark/wire"
)

// TestUnstored checks when a majority of the managers certainly stores nothing, and what is said of them.
func TestUnstored(t *testing.T) {
	manager := func(id, role string, alive bool, faults ...string) v1.ManagerStatus {
		m := v1.ManagerStatus{ID: id, REST: "http://" + id, Role: role, Alive: alive}
		for _, f := range faults {
			m.NotReady = append(m.NotReady, wire.Reason{Code: "disk", Detail: f})
		}
		return m
	}
	const full, hangs, low = "disk fails: /m: no space left on device", "disk hangs: a write to /m", "disk low: 9 bytes"
	m1, m2 := manager("m1", "leader", true), manager("m2", "voter", true, low, full)
	unknown := v1.ManagerStatus{ID: "m3", Role: "voter"} // a manager without a state does not know its address
	for _, c := range []struct {
		name    string
		all     []v1.ManagerStatus
		failing bool
		want    []string // "": nothing
	}{
		{"one of three is full", []v1.ManagerStatus{m1, m2, manager("m3", "voter", true)}, false, nil},
		{"two of three are full", []v1.ManagerStatus{m1, m2, manager("m3", "voter", true, full)}, true,
			[]string{"manager m2 cannot write (" + full + "), manager m3 cannot write", "2 of the 3 managers", "make room"}},
		{"one is full, one hangs", []v1.ManagerStatus{m1, m2, manager("m3", "voter", true, hangs)}, false,
			[]string{"m2", "m3 cannot write (" + hangs}},
		{"the same, when only failures count", []v1.ManagerStatus{m1, m2, manager("m3", "voter", true, hangs)}, true, nil},
		{"one is full, one is silent", []v1.ManagerStatus{m1, m2, manager("m3", "voter", false)}, false,
			[]string{"m2 cannot write", "manager m3 does not answer"}},
		{"two are silent: that is no matter of disks", []v1.ManagerStatus{m1, manager("m2", "voter", false),
			manager("m3", "voter", false)}, false, nil},
		{"one is full, one is not known", []v1.ManagerStatus{m1, m2, unknown}, false, nil},
		{"one of two is full", []v1.ManagerStatus{m1, m2}, false, []string{"2 of the 2 managers"}},
		{"one has no vote", []v1.ManagerStatus{m1, m2, manager("m3", roleNonvoter, true, full),
			manager("m4", "voter", true)}, false, nil},
		{"low is not full", []v1.ManagerStatus{manager("m1", "leader", true, low)}, false, nil},
	} {
		got := unstored(c.all, c.failing)
		if (got == "") != (c.want == nil) {
			t.Errorf("%s: %q", c.name, got)
		}
		for _, want := range c.want {
			if !strings.Contains(got, want) {
				t.Errorf("%s: %q is not in %q", c.name, want, got)
			}
		}
	}
	st := v1.Status{Managers: []v1.ManagerStatus{m1, m2, manager("m3", "voter", true, full)}, Coordinator: "active"}
	st.Leader.ID, st.Node.Role = "m1", "leader"
	if judge(&st, false, false); st.Verdict != v1.VerdictNotReady || !strings.HasPrefix(st.Reasons[0], unstoredWord) {
		t.Errorf("a cluster that stores nothing is %s: %q", st.Verdict, st.Reasons)
	}
}

// TestAWriteThatCannotBeStoredEnds checks that a write ends, as if its time were over, when disks have failed at two
// looks in a row, and not before.
func TestAWriteThatCannotBeStoredEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, looks := time.Now(), 0
		inner, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		ends := newOutOfTime(inner)
		below, stop := context.WithTimeout(ends, time.Hour) // handlers make contexts of theirs
		defer stop()
		go watchStorable(inner, func() bool { looks++; return looks != 2 }, cancel)
		<-below.Done()
		if took, want := time.Since(began), unstoredAfter+3*unstoredLook; took != want || looks != 4 {
			t.Errorf("it ends after %v and %d looks, want %v and 4", took, looks, want)
		}
		for _, ctx := range []context.Context{ends, below} {
			if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
				t.Errorf("it ends with %v", ctx.Err())
			}
		}
		gone, leave := context.WithCancelCause(t.Context())
		left := newOutOfTime(gone)
		if left.Err() != nil {
			t.Errorf("before its end: %v", left.Err())
		}
		leave(nil)
		if <-left.Done(); !errors.Is(left.Err(), context.Canceled) {
			t.Errorf("of a caller that has gone: %v", left.Err())
		}
	})
}
