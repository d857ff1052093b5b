package api

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"tidemark/index"
	"tidemark/lifecycle"
	"tidemark/liveness"
	"tidemark/manager/api/v1"
	"tidemark/manager/coordinator/core"
	"tidemark/statecontext"
	"tidemark/wire"
)

// namedTroubles limits the buckets that a status lists per projector that cannot ask KV about them.
const namedTroubles = 4

// namedLacking limits the unavailable and degraded indexes that a status lists.
const namedLacking = 16

// faultsOf returns the reported faults of an index; nil if there are none.
func faultsOf(p *core.Progress) *v1.IndexFaults {
	f := &v1.IndexFaults{Expression: p.Faults.Expression, TooLong: p.Faults.TooLong, Incomplete: p.FaultsIncomplete}
	if f.Expression+f.TooLong > 0 {
		sample := v1.FaultSample(p.Faults.Sample)
		f.Sample = &sample
	} else if !f.Incomplete {
		return nil
	}
	return f
}

// availabilityOf returns the availability of a ready index; nil for another one.
func availabilityOf(p *core.Progress) *v1.Availability {
	if p.Availability == 0 {
		return nil
	}
	return &v1.Availability{State: p.Availability.String(), Why: p.Why, SinceMS: p.SinceMS}
}

// summary counts the indexes and lists those that lack copies; nil while the leader takes over, and has not heard of
// all copies.
func summary(s *statecontext.State, now *core.Status) *v1.IndexSummary {
	if now.Step != core.StepActive {
		return nil
	}
	sum := &v1.IndexSummary{}
	unavailable := 0 // of the listed ones, which come first
	for x := range s.Indexes() {
		d := &x.Definition
		p := now.Progress[d.ID]
		switch p.Availability {
		case lifecycle.Available:
			sum.Available++
			continue
		case lifecycle.Degraded:
			sum.Degraded++
		case lifecycle.Unavailable:
			sum.Unavailable++
		default:
			if d.State == index.Error {
				sum.Failed++
			} else {
				sum.Others++
			}
			continue
		}
		sum.Lacking, unavailable = nameLacking(sum.Lacking, unavailable, p.Availability,
			v1.LackingIndex{ID: d.ID, Name: d.Name, Bucket: d.Bucket, Availability: *availabilityOf(&p)})
	}
	return sum
}

// nameLacking inserts an index into the list, of which the first entries are the unavailable ones. The last one is
// dropped if there are too many.
func nameLacking(named []v1.LackingIndex, unavailable int, a lifecycle.Availability, x v1.LackingIndex) (
	[]v1.LackingIndex, int) {
	at := len(named)
	if a == lifecycle.Unavailable {
		at = unavailable
	}
	if at >= namedLacking {
		return named, unavailable
	}
	if a == lifecycle.Unavailable {
		unavailable++
	}
	named = slices.Insert(named, at, x)
	return named[:min(len(named), namedLacking)], unavailable
}

// majorityText returns what a cluster without a leader needs, and the remedy; they lists the managers in question.
func majorityText(they string) string {
	return "a majority of the managers" + they + " must run and reach each other; if they are lost permanently: " +
		"tidemark " +
		"cluster recover"
}

// verdict is a status while it is being judged.
type verdict struct{ *v1.Status }

// judge sets the verdict and its reasons. A stale status is judged by this manager's data alone. A cluster that is
// meant to have one manager does not lack others.
func judge(st *v1.Status, stale, meantAlone bool) {
	j := verdict{st}
	j.Verdict, j.Reasons = v1.VerdictReady, []string{}
	switch {
	case st.Leader.ID == "" && st.ClusterID == "" && len(st.Managers) == 0: // as inNoCluster, by the status alone
		j.bad(v1.VerdictNotReady, "%s", inNoClusterText)
	case st.Leader.ID == "":
		j.bad(v1.VerdictNotReady, "no manager leads: %s", majorityText(""))
	case st.Node.Role == "leader" && st.Coordinator != core.StepActive:
		j.bad(v1.VerdictNotReady, "%s has just become leader and is taking over", st.Leader.ID)
	case st.Node.Role != "leader" && !stale:
		j.bad(v1.VerdictNotReady, "the leader, %s at %s, does not answer: this status lacks what only the leader has",
			st.Leader.ID, st.Leader.REST)
	}
	if why := unstored(st.Managers, diskHangs); why != "" { // one that does not answer may only be late
		j.bad(v1.VerdictNotReady, "%s", why)
	}
	j.judgeManagers()
	if !meantAlone {
		j.judgeVoters()
	}
	if st.Node.Role == "leader" && st.Indexes != nil { // only an active leader knows
		j.judgeProjectors()
		j.judgeIndexers()
		j.judgeBuckets()
		j.judgeIndexes()
	}
}

// bad adds a reason. The worst verdict wins.
func (j verdict) bad(word, format string, args ...any) {
	if j.Verdict != v1.VerdictNotReady {
		j.Verdict = word
	}
	j.Reasons = append(j.Reasons, fmt.Sprintf(format, args...))
}

func (j verdict) judgeManagers() {
	for _, m := range j.Managers {
		switch {
		case m.Alive:
		case m.Problem != "":
			j.bad(v1.VerdictDegraded, "manager %s: %s", m.ID, m.Problem)
		case m.REST == "" && j.ClusterID == "":
			j.bad(v1.VerdictDegraded, "manager %s, with the Raft address %s: its state is unknown here until there is a "+
				"leader; ask that manager (--server)", m.ID, m.Raft)
		case m.REST == "":
			j.bad(v1.VerdictDegraded, "manager %s, with the Raft address %s, has never registered", m.ID, m.Raft)
		default:
			j.bad(v1.VerdictDegraded, "manager %s does not answer at %s", m.ID, m.REST)
		}
		for _, r := range m.NotReady {
			j.bad(v1.VerdictDegraded, "manager %s is not ready: %s", m.ID, r.Detail)
		}
	}
}

// judgeVoters adds a reason if a single manager has the only vote where more are intended, as after a recovery.
func (j verdict) judgeVoters() {
	var voters []string
	for _, m := range j.Managers {
		if m.Role != roleNonvoter {
			voters = append(voters, m.ID)
		}
	}
	if len(voters) == 1 && voters[0] == j.Leader.ID {
		j.bad(v1.VerdictDegraded, "manager %s is the only voter: the cluster survives no failure of a manager; add two: "+
			"tidemark manager with an empty folder and --join %s", voters[0], j.Leader.REST)
	}
}

func (j verdict) judgeProjectors() {
	active := 0
	for _, p := range j.Projectors {
		if p.State == "active" {
			active++
			j.judgeReachable("projector", string(p.ID), p.Admin, p.Unreachable)
			for _, t := range p.KV[:min(len(p.KV), namedTroubles)] {
				j.bad(v1.VerdictDegraded, "%s", kvTrouble(p.ID, wire.KVTrouble(t)))
			}
			if more := len(p.KV) - namedTroubles; more > 0 {
				j.bad(v1.VerdictDegraded, "projector %s cannot ask KV about %d more buckets", p.ID, more)
			}
			j.judgeUnreached(&p)
			continue
		}
		j.bad(v1.VerdictDegraded, "projector %s at %s is %s", p.ID, p.Admin, p.State)
	}
	switch {
	case len(j.Projectors) == 0:
		j.bad(v1.VerdictNotReady, "no projector has registered: start one next to each KV node (tidemark node starts one "+
			"with --kv)")
	case active == 0:
		j.bad(v1.VerdictNotReady, "no projector is active: start one next to each KV node")
	}
}

// judgeUnreached lists live indexers that a projector cannot reach, or that refuse it.
func (j verdict) judgeUnreached(p *v1.ProjectorStatus) {
	named := min(len(p.Unreached), namedTroubles)
	for i := range named {
		u := &p.Unreached[i]
		if u.Refused {
			j.bad(v1.VerdictDegraded, "%s; until it is accepted, indexes there lack changes", cannotReach(p.ID, u))
			continue
		}
		j.bad(v1.VerdictDegraded, "%s; no data gets there: check its --%s and --advertise, firewalls in between, and the "+
			"certificates of both", cannotReach(p.ID, u), u.Port)
	}
	if more := len(p.Unreached) - named + p.UnreachedOmitted; more > 0 {
		j.bad(v1.VerdictDegraded, "projector %s cannot use %d more data ports of indexers", p.ID, more)
	}
}

func (j verdict) judgeIndexers() {
	active := 0
	for n := range j.Indexers {
		i := &j.Indexers[n]
		if i.Evicting {
			j.bad(v1.VerdictDegraded, "indexer %s is being removed: %s", i.ID, leftOf(i))
		}
		switch {
		case i.State != "active":
			j.bad(v1.VerdictDegraded, "indexer %s at %s is %s%s", i.ID, i.Admin, i.State, j.instead(i))
			continue
		case i.Health != "" && i.Health != "ok":
			j.bad(v1.VerdictDegraded, "indexer %s: %s", i.ID, i.Health)
		}
		active++
		j.judgeReachable("indexer", i.ID, i.Admin, i.Unreachable)
	}
	if active == 0 {
		j.bad(v1.VerdictNotReady, "no indexer is active: start one")
	}
}

// judgeReachable adds a reason if a component reports but the leader cannot reach it.
func (j verdict) judgeReachable(role, id, admin, unreachable string) {
	if unreachable != "" {
		j.bad(v1.VerdictDegraded, "%s %s sends reports but does not answer the leader at %s: it hangs, or managers cannot "+
			"reach that address (--admin, --advertise): %s", role, id, admin, unreachable)
	}
}

// instead returns advice about an offline indexer. If another indexer has taken its name, with another folder, the
// old one will not come back by itself.
func (j verdict) instead(i *v1.IndexerStatus) string {
	if i.State != liveness.Offline.String() || i.Evicting {
		return ""
	}
	for n := range j.Indexers {
		if o := &j.Indexers[n]; o.ID == i.ID && o.UUID != i.UUID {
			return fmt.Sprintf(" (uuid %s), and another indexer of that name (uuid %s) has another data folder: if the first "+
				"folder is lost, tidemark cluster remove %s --force has its slices rebuilt", i.UUID, o.UUID, i.UUID)
		}
	}
	return fmt.Sprintf("; if it will not return: tidemark cluster remove %s --role indexer", i.ID)
}

// leftOf describes what is left on an indexer that is being removed, and why the removal is stuck.
func leftOf(i *v1.IndexerStatus) string {
	left := fmt.Sprintf("%d slices are still placed on it", i.Placed)
	if i.Placed == 1 {
		left = "1 slice is still placed on it"
	}
	if i.EvictionWaits != "" {
		left += "; " + i.EvictionWaits
	}
	return left
}

func (j verdict) judgeBuckets() {
	for _, b := range j.Buckets {
		if b.Wanted && b.StreamsMissing > 0 {
			j.bad(v1.VerdictNotReady, "%s", missingStreams(b.Name, b.StreamsMissing, b.VBuckets, b.Stuck))
		}
		if b.Rollback != "" {
			j.bad(v1.VerdictNotReady, "%s", rollingBack(b.Name, b.Rollback, b.RollbackForMS))
		}
	}
}

// judgeIndexes lists the indexes that cannot be scanned, and counts those that lack copies. The effect of a bucket's
// rollback on its indexes is reported with the bucket.
func (j verdict) judgeIndexes() {
	rolling := map[string]bool{}
	for _, b := range j.Buckets {
		rolling[b.Name] = b.Rollback != ""
	}
	listed := 0
	for _, x := range j.Indexes.Lacking {
		if x.State != lifecycle.Unavailable.String() {
			continue
		}
		if listed++; rolling[x.Bucket] {
			continue
		}
		j.bad(v1.VerdictNotReady, "index %s/%s cannot be scanned completely: %s", x.Bucket, x.Name, x.Why)
	}
	if more := j.Indexes.Unavailable - listed; more > 0 {
		j.bad(v1.VerdictNotReady, "%d more indexes cannot be scanned completely: tidemark index list", more)
	}
	if n := j.Indexes.Degraded; n > 0 {
		j.judgeDegraded(n)
	}
}

// judgeDegraded lists some of the n indexes that lack copies.
func (j verdict) judgeDegraded(n int) {
	var names []string
	for _, x := range j.Indexes.Lacking {
		if x.State == lifecycle.Degraded.String() && len(names) < 3 {
			names = append(names, x.Bucket+"/"+x.Name)
		}
	}
	text := "has"
	if n > 1 {
		text = "have"
	}
	if len(names) < n {
		names = append(names, "…")
	}
	j.bad(v1.VerdictDegraded, "%d of the indexes %s fewer copies than requested: %s", n, text,
		strings.Join(names, ", "))
}

func rounded(ms int64, to time.Duration) time.Duration {
	return (time.Duration(ms) * time.Millisecond).Round(to)
}
