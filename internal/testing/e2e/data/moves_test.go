package data

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"tidemark/index"
	"tidemark/internal/failpoint"
	"tidemark/internal/localcluster"
	"tidemark/internal/testing/e2e/harness"
	"tidemark/internal/testing/testcluster"
	"tidemark/manager/api/v1"
	"tidemark/partition"
	"tidemark/rebalance"
	"tidemark/statecontext"
)

var movesFlag = flag.String("moves",
	"done/source,catchup/target,forget/target,done/leader,catchup/projector,done/source",
	"cells of TestMoves, TRANSITION/VICTIM, or all: "+strings.Join(moveTransitions, ", ")+" with "+
		strings.Join(moveVictims, ", "))

// Transitions of a moving slice, named by the state that follows; forget is the removal of the old copy. Victims are
// the processes that are killed before a transition.
var (
	moveTransitions = []string{"pending", "catchup", "done", "forget"}
	moveVictims     = []string{"source", "target", "third", "leader", "projector", "kv"}
)

// movesCells returns the cells that -moves selects.
func movesCells(t *testing.T) (all [][2]string) {
	t.Helper()
	if *movesFlag == "all" {
		for _, what := range moveTransitions {
			for _, who := range moveVictims {
				all = append(all, [2]string{what, who})
			}
		}
		return all
	}
	for text := range strings.SplitSeq(*movesFlag, ",") {
		what, who, ok := strings.Cut(text, "/")
		if !ok || !slices.Contains(moveTransitions, what) || !slices.Contains(moveVictims, who) {
			t.Fatalf("-moves %q: want TRANSITION/VICTIM of %v and %v", text, moveTransitions, moveVictims)
		}
		all = append(all, [2]string{what, who})
	}
	return all
}

// breaker kills a process at a transition.
type breaker struct {
	mover
	up     *testcluster.Cluster
	fail   failpoint.Dir
	bucket string
}

// victim returns the pid of the process to kill at a step.
func (b *breaker) victim(who string, y partition.Rebalance) func(f *localcluster.Manifest) int {
	switch who {
	case "leader":
		leader := -1
		harness.Eventually(b.t, harness.Hang, "a leader", func() (bool, string) {
			leader = b.up.Leader(b.ctx, 0)
			return leader >= 0, ""
		})
		return func(f *localcluster.Manifest) int { return f.Managers[leader].PID }
	case "projector":
		return func(f *localcluster.Manifest) int { return f.Projectors[0].PID }
	case "kv":
		return func(f *localcluster.Manifest) int { return f.KV[0].PID }
	}
	st, err := b.c.Status(b.ctx)
	if err != nil {
		b.t.Fatal(err)
	}
	name := ""
	for _, i := range st.Indexers {
		switch i.Node {
		case y.Src.Node:
			if who == "source" {
				name = i.ID
			}
		case y.Dst.Node:
			if who == "target" {
				name = i.ID
			}
		default:
			if who == "third" {
				name = i.ID
			}
		}
	}
	return func(f *localcluster.Manifest) int {
		return f.Indexers[slices.IndexFunc(f.Indexers, func(e localcluster.IndexerEntry) bool { return e.ID == name })].PID
	}
}

// before returns the state of a step that waits for a transition.
func before(what string) partition.RebalanceState {
	switch what {
	case "pending":
		return partition.RebalanceStart
	case "catchup":
		return partition.RebalancePending
	case "done":
		return partition.RebalanceCatchup
	}
	return partition.RebalanceDone
}

// held waits until a transition of a rebalance is held back, and returns a step that waits for it.
func (b *breaker) held(id uint64, what string) (y partition.Rebalance) {
	b.t.Helper()
	harness.Eventually(b.t, harness.Hang, "a slice is about to be "+what, func() (bool, string) {
		r, err := b.c.RebalanceStatus(b.ctx, id)
		if err != nil {
			return false, err.Error()
		}
		if r.Phase.Over() && what != "forget" {
			b.t.Fatalf("it is over: %+v", r)
		}
		for i := range r.Moves {
			if r.Moves[i].State == before(what) {
				y = r.Moves[i].Rebalance
			}
		}
		if r.Phase.Over() { // steps of a finished rebalance are gone
			at := slices.IndexFunc(b.steps, func(p rebalance.Step) bool { return p.Old != 0 && p.From != nil })
			y = partition.Rebalance{Old: b.steps[at].Old, Src: partition.Shard{Node: *b.steps[at].From},
				Dst: partition.Shard{Node: b.steps[at].To}}
		}
		return b.fail.Held(what) && y.Old != 0, fmt.Sprintf("%+v", r)
	})
	return y
}

// settled waits until each slice has exactly its copies, all whole.
func (b *breaker) settled() {
	b.t.Helper()
	folders := map[string]string{}
	for _, e := range b.up.Manifest().Indexers {
		folders[e.ID] = filepath.Join(b.up.Dir, e.ID)
	}
	settled(b.ctx, b.t, b.up, folders)
}

// settled waits until each slice has exactly two copies, both whole, and the data folders of the indexers, given by
// their ids, contain nothing else.
func settled(ctx context.Context, t *testing.T, up *testcluster.Cluster, folders map[string]string) {
	t.Helper()
	harness.Eventually(t, harness.Hang, "all copies are whole, and nothing is left of others", func() (bool, string) {
		var list v1.TopologyList
		if err := testcluster.GetJSON(ctx, up.Manifest().Managers[0].REST+"/v1/topology", &list); err != nil {
			return false, err.Error()
		}
		placed := map[index.NodeID][]string{}
		for _, x := range list.Indexes {
			for i := range x.Copies {
				c := &x.Copies[i]
				if c.State != partition.Allocated || !c.Exact {
					return false, fmt.Sprintf("%s: %+v", x.Name, *c)
				}
				placed[c.Node] = append(placed[c.Node], c.ID.String())
			}
			if n := int(x.Layout.Partitions) * 2; len(x.Copies) != n {
				return false, fmt.Sprintf("%s has %d copies, want %d", x.Name, len(x.Copies), n)
			}
		}
		st, err := up.Client().Status(ctx)
		if err != nil {
			return false, err.Error()
		}
		looked := 0
		for _, i := range st.Indexers {
			folder, ok := folders[i.ID]
			if !ok {
				continue
			}
			looked++
			if i.OrphanCount > 0 {
				return false, fmt.Sprintf("%s has orphans: %+v", i.ID, i.Orphans)
			}
			got, err := foldersIn(filepath.Join(folder, "copies"))
			if want := slices.Sorted(slices.Values(placed[i.Node])); err != nil || !slices.Equal(got, want) {
				return false, fmt.Sprintf("%s has folders %v, want those of its copies, %v: %v", i.ID, got, want, err)
			}
		}
		return looked == len(folders), fmt.Sprintf("%d indexers of %v", looked, folders)
	})
}

// foldersIn lists the folders in one, in order.
func foldersIn(dir string) (names []string, err error) {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return names, err
}

// cell holds a transition back, kills a process there, and releases the transition: at once, or when the process is
// back.
func (b *breaker) cell(what, who string, req v1.RebalanceRequest, atOnce bool) {
	b.t.Helper()
	hold := func(what string) {
		if err := b.fail.SetHold(what); err != nil {
			b.t.Fatal(err)
		}
	}
	hold(what)
	defer hold("")
	id := b.begin(req)
	pid := b.victim(who, b.held(id, what))
	old := pid(b.up.Manifest())
	if err := syscall.Kill(old, syscall.SIGKILL); err != nil {
		b.t.Fatal(err)
	}
	if atOnce {
		hold("")
	}
	b.up.WaitRestart(old, pid)
	hold("")
	if r := b.over(id); r.Phase != statecontext.RebalanceFinished {
		b.t.Errorf("%s/%s: %+v", what, who, r)
	}
	b.settled()
}

// TestMoves moves slices with a replica while documents change, filled with the files of other copies, and kills each
// kind of process at each transition (-moves all). No scan fails, none shows a wrong row, and in the end every slice
// is where the plan has it.
func TestMoves(t *testing.T) {
	t.Parallel()
	cells := movesCells(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(len(cells)+2)*3*time.Minute)
	defer cancel()
	fail := failpoint.Dir(t.TempDir())
	// A cell is about the slice whose transition is held back.
	size, every, slices, names := []string{"--kv", "1", "--vbuckets", "32"}, 16, 2,
		[]string{"places_by_name", "airports_by_elevation"}
	if *movesFlag == "all" {
		size, every, slices, names = nil, 8, 6, harness.SampleIndexes()
	}
	up := testcluster.Start(t, t.TempDir(), append(size, "--failpoints", string(fail))...)
	c, bucket := up.Client(), up.Manifest().Bucket
	w := harness.NewWorkloadOf(ctx, t, up.KV(ctx), every)
	for _, statement := range sampleStatements(bucket, names) {
		harness.Create(ctx, t, c, fmt.Sprintf(`%s WITH {"num_replica":1, "num_partition":%d}`, statement, slices))
	}
	b := &breaker{mover: mover{t: t, ctx: ctx, c: c}, up: up, fail: fail, bucket: bucket}
	b.settled()
	load, stop := context.WithCancel(ctx)
	defer stop()
	var writers sync.WaitGroup
	writers.Go(func() { w.Run(load, 1, 200) })
	s := scanner{names: names, pause: 150 * time.Millisecond} // so that scans are in progress at each kill
	s.run(load, c, bucket)
	leave := v1.RebalanceRequest{Remove: []string{"i3"}, Receives: 2, Sends: 2}
	come := v1.RebalanceRequest{Keep: []string{"i3"}, Receives: 2, Sends: 2}
	if r := b.over(b.begin(leave)); r.Phase != statecontext.RebalanceFinished {
		t.Fatalf("%+v", r)
	}
	if f := s.wrong(); len(f) > 0 {
		t.Errorf("scans failed while nothing was killed: %v", f)
	}
	if installed, failed := fills(ctx, t, up); installed == 0 || failed > 0 {
		t.Errorf("while nothing was killed %d copies were filled by files, %d were to be and were not", installed, failed)
	}
	for n, cell := range cells {
		req := come
		if n%2 == 1 {
			req = leave
		}
		began := time.Now()
		b.cell(cell[0], cell[1], req, n%4 < 2)
		t.Logf("%s/%s: %s", cell[0], cell[1], time.Since(began).Round(time.Millisecond))
		if f := s.wrong(); len(f) > 0 {
			t.Errorf("%s/%s: scans failed: %v", cell[0], cell[1], f)
		}
	}
	if len(cells)%2 == 0 {
		b.over(b.begin(come))
	}
	r, err := c.Rebalance(ctx, v1.RebalanceRequest{}, true)
	if err != nil || !r.Plan.Balanced {
		t.Errorf("the plan in the end: %+v, %v", r.Plan, err)
	}
	stop()
	writers.Wait()
	s.wg.Wait()
	for i, got := range s.scans {
		if d := got.Check(w.History); d != "" {
			t.Fatalf("scan %d of %s: %s", i, got.Index, d)
		}
	}
	t.Logf("%d writes, %d scans equal the oracle's", w.Writes.Load(), len(s.scans))
	harness.CheckFinal(ctx, t, c, w, bucket, names...)
}
