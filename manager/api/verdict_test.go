package api

import (
	"fmt"
	"strings"
	"testing"

	"tidemark/index"
	"tidemark/lifecycle"
	"tidemark/manager/api/v1"
	"tidemark/manager/coordinator/core"
)

// TestStatusReportsWhyItWaits checks that each obstacle to readiness is listed with the component, the time and the
// reason.
func TestStatusReportsWhyItWaits(t *testing.T) {
	st := v1.Status{
		Projectors: []v1.ProjectorStatus{{ID: "p1", Admin: "http://p1", State: "active", Unreachable: "no route",
			Unreached: []v1.UnreachedPort{
				{Node: 1, Indexer: "i1", Port: "backfill", Address: "i1:9543", SinceMS: 1_000, Error: "no answer within 2s"},
				{Node: 1, Indexer: "i1", Port: "maintenance", Address: "i1:9542", SinceMS: 1_000, Refused: true,
					Error: "node 2 is meant: this is node 1"},
				{Node: 1, Indexer: "i1", Port: "catchup", Address: "i1:9544", SinceMS: 1_000}}},
			{ID: "p2", Admin: "http://p2", State: "offline"}},
		Indexers: []v1.IndexerStatus{{ID: "i1", State: "active", Health: "copy 7: no space left on device"},
			{ID: "i2", Admin: "http://i2", State: "suspect"},
			{ID: "i3", Admin: "http://i3", State: "active", Unreachable: "no route"}},
		Buckets: []v1.BucketStatus{
			{Name: "world", Wanted: true, VBuckets: 128, StreamsMissing: 64,
				Stuck: []v1.StuckVBucket{{VBucket: 65, State: "lost", Reason: "no projector hosts it", ForMS: 12_400}}},
			{Name: "orders", Wanted: true, VBuckets: 128, Rollback: "prepare: waiting for indexers: i2", RollbackForMS: 2_340},
			{Name: "unused", VBuckets: 128, StreamsMissing: 128},
		},
	}
	st.Leader.ID, st.Node.Role, st.Coordinator = "m1", "leader", "active"
	st.Indexes = &v1.IndexSummary{Degraded: 2, Unavailable: 2, Lacking: []v1.LackingIndex{
		{Bucket: "world", Name: "by_name", Availability: v1.Availability{State: "unavailable", Why: "slice 3 has 0 of 1 " +
			"copies (i2 is suspect)"}},
		{Bucket: "orders", Name: "by_day", Availability: v1.Availability{State: "unavailable", Why: "its bucket"}},
		{Bucket: "world", Name: "by_kind", Availability: v1.Availability{State: "degraded"}},
	}}
	judge(&st, false, true)
	all := strings.Join(st.Reasons, "\n")
	for _, want := range []string{
		"projector p1 sends reports but does not answer the leader at http://p1: it hangs, or managers cannot reach that " +
			"address (--admin, --advertise): no route",
		"indexer i3 sends reports but does not answer the leader at http://i3: ",
		"projector p2 at http://p2 is offline",
		"projector p1 cannot reach the backfill port of indexer i1 at i1:9543, since 1970-01-01T00:00:01Z: no answer within " +
			"2s; no data gets there: check its --backfill and --advertise, firewalls in between, and the certificates of both",
		"projector p1 is refused at the maintenance port of indexer i1 at i1:9542, since 1970-01-01T00:00:01Z: node 2 is " +
			"meant: this is node 1; until it is accepted, indexes there lack changes\n",
		"i1:9544, since 1970-01-01T00:00:01Z: the projector's log has the reason; no data gets there: check its --catchup",
		"indexer i1: copy 7: no space left on device",
		"indexer i2 at http://i2 is suspect",
		"bucket world: 64 of 128 vbuckets are not streamed; vbucket 65 for 12s: no projector hosts it",
		"bucket orders is being rolled back: prepare: waiting for indexers: i2, for 2.3s",
		"index world/by_name cannot be scanned completely: slice 3 has 0 of 1 copies (i2 is suspect)",
		"2 of the indexes have fewer copies than requested: world/by_kind, …",
	} {
		if !strings.Contains(all, want) {
			t.Errorf("%q is not among\n%s", want, all)
		}
	}
	if st.Verdict != v1.VerdictNotReady || strings.Contains(all, "unused") ||
		strings.Contains(all, "by_day") {
		t.Errorf("%s:\n%s", st.Verdict, all)
	}
}

// TestVerdictWithoutLeader checks that components that were not asked are not blamed, and that the remedy is given;
// with a leader whose coordinator is not active, nothing is judged for which the coordinator's data is needed.
func TestVerdictWithoutLeader(t *testing.T) {
	for name, c := range map[string]struct {
		leader, role string
		stale        bool
		want, says   string
	}{
		"no leader":                {"", "follower", false, v1.VerdictNotReady, "cluster recover"},
		"no leader, a stale read":  {"", "follower", true, v1.VerdictNotReady, "cluster recover"},
		"the leader is silent":     {"m2", "follower", false, v1.VerdictNotReady, "m2 at http://m2, does not answer"},
		"the leader was not asked": {"m2", "follower", true, v1.VerdictReady, ""},
		"its coordinator has not begun, or has ended": {"m1", "leader", false, v1.VerdictNotReady,
			"m1 has just become leader and is taking over"},
	} {
		t.Run(name, func(t *testing.T) {
			st := v1.Status{ClusterID: "c"}
			st.Leader.ID, st.Node.Role = c.leader, c.role
			if c.leader != "" {
				st.Leader.REST = "http://" + c.leader
			}
			judge(&st, c.stale, true)
			if all := strings.Join(st.Reasons, "\n"); st.Verdict != c.want || !strings.Contains(all, c.says) ||
				c.says == "" && all != "" {
				t.Errorf("%s: %s", st.Verdict, all)
			}
		})
	}
}

// TestVerdictCountsOmittedReasons checks that what is left out of a long list is counted; indexes of a bucket that is
// rolled back use up the list, and are covered by the bucket's reason.
func TestVerdictCountsOmittedReasons(t *testing.T) {
	st := v1.Status{Projectors: []v1.ProjectorStatus{{ID: "p1", State: "active"}},
		Indexers: []v1.IndexerStatus{{ID: "i1", State: "active"}},
		Buckets:  []v1.BucketStatus{{Name: "orders", Rollback: "prepare"}}}
	for i := range namedTroubles + 3 {
		st.Projectors[0].KV = append(st.Projectors[0].KV, v1.KVTrouble{Node: "kv1", Bucket: fmt.Sprint("b", i)})
		st.Projectors[0].Unreached = append(st.Projectors[0].Unreached, v1.UnreachedPort{Indexer: "i1"})
	}
	st.Projectors[0].UnreachedOmitted = 7
	st.Leader.ID, st.Node.Role, st.Coordinator = "m1", "leader", "active"
	for rolling := range namedLacking + 1 {
		st.Indexes = &v1.IndexSummary{Unavailable: 20}
		for i := range namedLacking {
			x := v1.LackingIndex{Bucket: "orders", Name: fmt.Sprint("x", i), Availability: v1.Availability{
				State: lifecycle.Unavailable.String()}}
			if i >= rolling {
				x.Bucket = "world"
			}
			st.Indexes.Lacking = append(st.Indexes.Lacking, x)
		}
		judge(&st, false, true)
		all := strings.Join(st.Reasons, "\n")
		for what, want := range map[string]int{"index world/": namedLacking - rolling, "index orders/": 0,
			"4 more indexes cannot be scanned completely": 1, "cannot ask KV node kv1": namedTroubles,
			"projector p1 cannot ask KV about 3 more buckets": 1, "port of indexer i1": namedTroubles,
			"projector p1 cannot use 10 more data ports of indexers": 1} {
			if got := strings.Count(all, what); got != want {
				t.Errorf("%d of the named are of a bucket that rolls back: %q is listed %d times, want %d:\n%s", rolling, what, got,
					want, all)
			}
		}
	}
}

// TestVerdictOnOfflineIndexers checks that an offline indexer's reason has the command, and the uuid if another
// indexer has its name.
func TestVerdictOnOfflineIndexers(t *testing.T) {
	st := v1.Status{Indexers: []v1.IndexerStatus{{ID: "i1", UUID: "u1", Admin: "http://i1", State: "offline"},
		{ID: "i3", UUID: "u3", Admin: "http://i3", State: "offline"},
		{ID: "i3", UUID: "u4", Admin: "http://i3", State: "active"},
		{ID: "i5", UUID: "u5", Admin: "http://i5", State: "suspect"},
		{ID: "i6", UUID: "u6", Admin: "http://i6", State: "offline", Evicting: true, Placed: 2}}}
	verdict{&st}.judgeIndexers()
	want := []string{
		"indexer i1 at http://i1 is offline; if it will not return: tidemark cluster remove i1 --role indexer",
		"indexer i3 at http://i3 is offline (uuid u3), and another indexer of that name (uuid u4) has another data folder: " +
			"if the first folder is lost, tidemark cluster remove u3 --force has its slices rebuilt",
		"indexer i5 at http://i5 is suspect",
		"indexer i6 is being removed: 2 slices are still placed on it",
		"indexer i6 at http://i6 is offline",
	}
	if got := strings.Join(st.Reasons, "\n"); got != strings.Join(want, "\n") {
		t.Errorf("the reasons are\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
}

// TestOnlyVoter checks that a single voter is reported where more are intended.
func TestOnlyVoter(t *testing.T) {
	for _, c := range []struct {
		name       string
		managers   []v1.ManagerStatus
		meantAlone bool
		says       string
	}{
		{"after a recovery", []v1.ManagerStatus{{ID: "m1", Role: "leader", Alive: true}}, false, "manager m1 is the only voter"},
		{"the others have no vote yet", []v1.ManagerStatus{{ID: "m1", Role: "leader", Alive: true},
			{ID: "m2", Role: roleNonvoter, Alive: true}}, false, "and --join http://m1"},
		{"two", []v1.ManagerStatus{{ID: "m1", Role: "leader", Alive: true}, {ID: "m2", Role: "voter", Alive: true}}, false, ""},
		{"meant so", []v1.ManagerStatus{{ID: "m1", Role: "leader", Alive: true}}, true, ""},
	} {
		st := v1.Status{Managers: c.managers}
		st.Leader.ID, st.Leader.REST, st.Node.Role = "m1", "http://m1", "follower"
		judge(&st, true, c.meantAlone)
		if all := strings.Join(st.Reasons, "\n"); !strings.Contains(all, c.says) || (c.says == "") != (all == "") {
			t.Errorf("%s: %q", c.name, all)
		}
	}
}

// TestSummaryNamesTheWorst checks that unavailable indexes come first in the limited list, in order, and that all are
// counted.
func TestSummaryNamesTheWorst(t *testing.T) {
	var lacking []v1.LackingIndex
	unavailable := 0
	for i := range 50 {
		a := lifecycle.Degraded
		if i%2 == 1 {
			a = lifecycle.Unavailable
		}
		lacking, unavailable = nameLacking(lacking, unavailable, a, v1.LackingIndex{ID: index.ID(i + 1)})
	}
	var ids []string
	for _, x := range lacking {
		ids = append(ids, fmt.Sprint(uint64(x.ID)))
	}
	if got, want := strings.Join(ids, " "), "2 4 6 8 10 12 14 16 18 20 22 24 26 28 30 32"; got != want {
		t.Errorf("named are %s, want %s", got, want)
	}
}

// TestNoSummaryDuringTakeover checks that a leader that has not heard of the copies yet does not count indexes that are
// ready as ones that are being built, nor report streams as missing that it has not adopted yet.
func TestNoSummaryDuringTakeover(t *testing.T) {
	w := newWritten(t)
	st := v1.Status{Buckets: []v1.BucketStatus{{Name: "b", Wanted: true, VBuckets: 4, StreamsMissing: 4}}}
	st.Leader.ID, st.Node.Role, st.Coordinator = "m1", "leader", "hello"
	st.Indexes = summary(w.s, &core.Status{Step: "hello"})
	judge(&st, false, true)
	if st.Indexes != nil || len(st.Reasons) != 1 || st.Reasons[0] != "m1 has just become leader and is taking over" {
		t.Errorf("%+v %q", st.Indexes, st.Reasons)
	}
	if summary(w.s, &core.Status{Step: core.StepActive}) == nil {
		t.Error("an active leader counts no indexes")
	}
}

// TestManagerWithoutClusterIsNoLoss checks that a manager that waits for its first cluster says what it waits for, and
// does not lead its operator to recover a lost majority; one that has a log of a cluster does.
func TestManagerWithoutClusterIsNoLoss(t *testing.T) {
	for _, tc := range []struct {
		managers []v1.ManagerStatus
		want     string
	}{
		{nil, "--bootstrap-expect managers at the addresses of --join, or for tidemark cluster join"},
		{[]v1.ManagerStatus{{ID: "m1", REST: "http://m1"}}, "tidemark cluster recover"},
	} {
		st := v1.Status{Managers: tc.managers}
		judge(&st, false, true)
		if st.Verdict != v1.VerdictNotReady || !strings.HasSuffix(st.Reasons[0], tc.want) {
			t.Errorf("%d managers: %s, %q; want %q", len(tc.managers), st.Verdict, st.Reasons, tc.want)
		}
	}
}
