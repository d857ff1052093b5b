package members

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"tidemark/errcode"
	"tidemark/internal/testing/testcluster"
)

// others returns the numbers of all managers but one.
func others(all []int, but int) []int {
	return slices.DeleteFunc(slices.Clone(all), func(n int) bool { return n == but })
}

func ids(numbers ...int) (all []string) {
	for _, n := range numbers {
		all = append(all, fmt.Sprintf("m%d", n))
	}
	return all
}

func (w *cluster) stopAndWipe(n int) {
	w.t.Helper()
	id := fmt.Sprintf("m%d", n)
	w.procs[id].Kill()
	if err := os.RemoveAll(filepath.Join(w.dir, id)); err != nil {
		w.t.Fatal(err)
	}
}

// ended waits until a removed manager has ended, and checks that it never starts on that folder again.
func (w *cluster) ended(n int) {
	w.t.Helper()
	p := w.procs[fmt.Sprintf("m%d", n)]
	if code := p.Wait(); code != errcode.ExitRemoved || !strings.Contains(p.Log(), "manager stops") {
		w.t.Errorf("m%d was removed and ended with %d", n, code)
	}
	p = w.manager(n, "--bootstrap-expect", "3", "--join", w.join(1, 2, 3, 4))
	if code := p.Wait(); code != errcode.ExitRemoved || !strings.Contains(p.Log(), "delete the folder") {
		w.t.Errorf("m%d was started again on its folder and ended with %d", n, code)
	}
}

// TestMembers changes members under DDL and writes: a fourth manager joins, the leader is removed, a manager joins in
// its place, one leaves, and a removed machine comes back with an empty folder. What would leave the living members
// without a majority is refused; with --yes-lose-data the dead members that prevent a majority are removed first; a
// manager that was away meanwhile learns of its removal, although its --join names only managers that are gone. No
// DDL fails, nothing acknowledged is lost, indexes equal the oracle.
func TestMembers(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	w := newCluster(t)
	w.everything(1)
	all := []int{1, 2, 3, 4, 5}
	c, servers := w.client(all...), w.join(all...)
	w.active(ctx, c, 1, 1)
	w.load(ctx)
	w.create(ctx, c, statements...)
	load, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	d := &ddl{}
	wg.Go(func() { d.run(load, t, c) })
	wg.Go(func() { w.writes(load, 1) })

	w.manager(4, "--join", w.join(1, 2, 3)) // grow
	w.voters(ctx, c, ids(1, 2, 3, 4)...)

	led := w.leader(ctx, c)
	w.does(ctx, 0, servers, []string{"cluster", "remove", fmt.Sprintf("m%d", led)}, "removed")
	three := others([]int{1, 2, 3, 4}, led)
	w.voters(ctx, c, ids(three...)...)
	w.ended(led)

	w.manager(5, "--join", w.join(three...)) // replace: the new one joins first
	w.voters(ctx, c, append(ids(three...), "m5")...)
	leaves := others(three, w.leader(ctx, c))[0]
	w.does(ctx, 0, w.join(leaves), []string{"cluster", "leave"}, "left")
	two := others(three, leaves)
	w.voters(ctx, c, append(ids(two...), "m5")...)
	w.ended(leaves)

	led = w.leader(ctx, c) // three voters, of which one dies
	living := others([]int{two[0], two[1], 5}, led)
	dead, asked := living[0], living[1]
	w.procs[fmt.Sprintf("m%d", dead)].Kill()
	w.until(ctx, "the dead one is seen as dead", func() (bool, string) {
		s, err := c.Status(ctx)
		return err == nil && roles(&s)[fmt.Sprintf("m%d", dead)] == "dead", fmt.Sprint(roles(&s), err)
	})
	w.does(ctx, errcode.ExitConflict, servers, []string{"cluster", "remove", fmt.Sprintf("m%d", asked)}, "QUORUM_AT_RISK",
		"repair and restart it, or remove it first")
	w.does(ctx, errcode.ExitConflict, w.join(asked), []string{"cluster", "leave"}, "QUORUM_AT_RISK")
	d.enough(ctx, w)
	stop()
	wg.Wait()
	w.equal(ctx, c, "one of three is dead", both)

	// Done with --yes-lose-data: the dead one is removed first, so that the remaining ones are a majority and writes
	// continue. Both removed managers end permanently.
	w.does(ctx, errcode.ExitOK, servers, []string{"cluster", "remove", fmt.Sprintf("m%d", asked), "--yes-lose-data"},
		"removed: ", "do not answer: "+fmt.Sprintf("m%d-", dead))
	w.voters(ctx, c, fmt.Sprintf("m%d", led))
	w.ended(asked)
	w.manager(dead, "--bootstrap-expect", "3", "--join", w.join(others(all, led)...)) // none of which is left
	w.ended(dead)
	w.create(ctx, c, `CREATE INDEX after ON world(name) WITH {"num_partition":2}`)

	back := leaves // a removed machine with its folder deleted, started by its old command
	w.stopAndWipe(back)
	w.manager(back, "--bootstrap-expect", "3", "--join", w.join(1, 2, 3, 4, 5))
	w.until(ctx, "the removed machine has a vote as a new one", func() (bool, string) {
		s, err := c.Status(ctx)
		return err == nil && roles(&s)[fmt.Sprintf("m%d", back)] == "voter", fmt.Sprint(roles(&s), err)
	})
	d.check(ctx, t, c)
	w.equal(ctx, c, "at the end", map[string]string{"airports_by_country": "airports_by_country",
		"places_by_name": "places_by_name", "after": "places_by_name"})
}

// TestLostMajority loses the folders of two of three managers. The survivor recovers alone, with everything
// acknowledged; indexes continue to serve, new ones are built, and two new managers join.
func TestLostMajority(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	w := newCluster(t)
	w.everything(2)
	c := w.client(1, 2, 3, 4, 5)
	w.active(ctx, c, 1, 2)
	w.load(ctx)
	w.create(ctx, c, statements...)
	load, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	d := &ddl{}
	wg.Go(func() { d.run(load, t, c) })
	wg.Go(func() { w.writes(load, 2) })
	d.enough(ctx, w)
	stop()
	wg.Wait()
	survivor := w.leader(ctx, c) // it has everything that was acknowledged
	for _, n := range others([]int{1, 2, 3}, survivor) {
		w.stopAndWipe(n)
	}
	w.recover(ctx, survivor)
	w.afterRecovery(ctx, survivor, d)
}

// recover runs the runbook's command on the only manager that is left, and restarts it.
func (w *cluster) recover(ctx context.Context, n int) {
	w.t.Helper()
	id := fmt.Sprintf("m%d", n)
	w.does(ctx, errcode.ExitConflict, "", []string{"cluster", "recover", "--data", id}, "in use")
	w.procs[id].Stop()
	w.does(ctx, errcode.ExitFailed, "", []string{"cluster", "recover", "--data", id}, "would be removed permanently",
		"--yes-lose-data")
	w.does(ctx, errcode.ExitOK, "", []string{"cluster", "recover", "--data", id, "--yes-lose-data"})
	w.spawn(id, w.procs[id].Args...)
}

func (w *cluster) afterRecovery(ctx context.Context, survivor int, d *ddl) {
	w.t.Helper()
	c := w.client(survivor)
	w.voters(ctx, c, ids(survivor)...)
	w.active(ctx, c, 1, 2)
	if d != nil {
		d.check(ctx, w.t, c)
	}
	w.equal(ctx, c, "after the recovery", both)
	load, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { w.writes(load, 3) })
	w.create(ctx, c, `CREATE INDEX anew ON world(iso_country, name) WHERE kind = "airport" WITH {"num_partition":4}`)
	free := []int{4, 5}
	for _, n := range free {
		w.manager(n, "--join", w.rest(survivor))
	}
	w.voters(ctx, w.client(survivor, 4, 5), ids(append(free, survivor)...)...)
	stop()
	wg.Wait()
	w.equal(ctx, w.client(4, 5), "with two new managers", map[string]string{"airports_by_country": "airports_by_country",
		"places_by_name": "places_by_name", "anew": "airports_by_country"})
}

// TestIndexers checks that a dead indexer with the only copies is removed by force, that others rebuild them, and
// that its folder is refused afterwards. A copy of a living indexer's folder is refused while that indexer lives, a
// node of another cluster is refused with the cluster's name, and a node that has moved to another address is
// accepted, a projector too.
func TestIndexers(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	w := newCluster(t)
	w.everything(3)
	c, servers := w.client(1, 2, 3), w.join(1, 2, 3)
	w.active(ctx, c, 1, 3)
	w.load(ctx)
	w.create(ctx, c, statements...)
	load, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	wg.Go(func() { w.writes(load, 5) })

	w.does(ctx, errcode.ExitConflict, servers, []string{"cluster", "remove", "i3"}, "NODE_ALIVE")
	w.procs["i3"].Kill()
	w.until(ctx, "i3 counts as offline", func() (bool, string) {
		out, code := w.run(ctx, servers, "cluster", "remove", "i3")
		return code == errcode.ExitConflict && strings.Contains(out, "LAST_COPIES"), out
	})
	w.does(ctx, 0, servers, []string{"cluster", "remove", "i3", "--dry-run"}, "would be removed", "airports_by_country")
	w.does(ctx, 0, servers, []string{"cluster", "remove", "i3", "--force"}, "removed: indexer i3")
	w.active(ctx, c, 1, 2)
	if p := w.indexer(3); p.Wait() != errcode.ExitRemoved || !strings.Contains(p.Log(), "delete its data folder") {
		t.Error("the folder of a removed indexer was not refused")
	}
	stop()
	wg.Wait()
	w.equal(ctx, c, "i3 was removed", both)

	w.procs["i1"].Stop()
	if out, err := exec.CommandContext(ctx, "cp", "-a", filepath.Join(w.dir, "i1"),
		filepath.Join(w.dir, "copy")).CombinedOutput(); err != nil {
		t.Fatalf("cp: %v %s", err, out)
	}
	registered := func(p *testcluster.Process) int { return strings.Count(p.Log(), "indexer: registered") }
	before := registered(w.procs["i1"])
	first := w.indexer(1)
	w.until(ctx, "the living one has registered", func() (bool, string) {
		return registered(first) > before, first.Log() // before this report the copy would pass for the living indexer
	})
	w.active(ctx, c, 1, 2)
	second := w.indexerAt("i9", "copy", 75)
	w.until(ctx, "a copy of a living indexer's folder is refused", func() (bool, string) {
		return strings.Contains(second.Log(), "BOOT_CONFLICT"), second.Log()
	})
	w.equal(ctx, c, "beside a copied folder", both)
	second.Kill()

	w.procs["i2"].Stop() // it moves
	w.indexerAt("i2", "i2", 80)
	w.procs["p1"].Stop()
	w.projector(43)
	w.until(ctx, "new addresses are known", func() (bool, string) {
		s, err := c.Status(ctx)
		if err != nil {
			return false, err.Error()
		}
		have := fmt.Sprint(s.Indexers, s.Projectors)
		return strings.Contains(have, w.addr(80)) && strings.Contains(have, w.addr(43)), have
	})
	w.active(ctx, c, 1, 2)
	load, stop = context.WithCancel(ctx)
	wg.Go(func() { w.writes(load, 6) })
	w.create(ctx, c, `CREATE INDEX moved ON world(name)`)
	stop()
	wg.Wait()
	w.equal(ctx, c, "at other addresses", map[string]string{"airports_by_country": "airports_by_country",
		"moved": "places_by_name"})
	t.Run("another cluster", func(t *testing.T) { w.foreign(ctx, t) })
	w.active(ctx, c, 1, 2)
	w.voters(ctx, c, ids(1, 2, 3)...)
}

// foreign makes another cluster whose nodes register with this one.
func (w *cluster) foreign(ctx context.Context, t *testing.T) {
	b := newCluster(t)
	b.manager(1)
	oc := b.client(1)
	b.leader(ctx, oc)
	indexer := func(managers string) *testcluster.Process {
		return b.spawn("i1", "indexer", "--id", "f1", "--data", filepath.Join(b.dir, "i1"), "--managers", managers, "--admin",
			b.addr(50),
			"--scan", b.addr(51), "--maintenance", b.addr(52), "--backfill", b.addr(53), "--catchup", b.addr(54))
	}
	p := indexer(b.rest(1))
	b.until(ctx, "it belongs to the other cluster", func() (bool, string) {
		return strings.Contains(p.Log(),
			"registered: cluster="), p.Log()
	})
	p.Stop()
	p = indexer(w.join(1, 2, 3))
	b.until(ctx, "an indexer of another cluster is refused by name", func() (bool, string) {
		return strings.Contains(p.Log(), "FOREIGN_CLUSTER"), p.Log()
	})
	b.procs["m1"].Stop()
	m := b.manager(1, "--join", w.join(1, 2, 3))
	b.until(ctx, "a manager of another cluster gets an error with its name", func() (bool, string) {
		return strings.Contains(m.Log(), "manager at an address of --join belongs to another cluster"), m.Log()
	})
}

// TestNames checks managers that know each other by host names: one restarts with other ports, then all of them at
// once.
func TestNames(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	w := newCluster(t)
	w.host = "localhost"
	w.trio()
	c := w.client(1, 2, 3, 12)
	w.voters(ctx, c, ids(1, 2, 3)...)
	w.procs["m2"].Stop()
	w.managerAt(2, 12, "--bootstrap-expect", "3", "--join", w.join(1, 2, 3))
	w.until(ctx, "m2 is known at its other ports", func() (bool, string) {
		s, err := c.Status(ctx)
		i := slices.IndexFunc(s.Managers, func(m status) bool { return m.ID == "m2" })
		return err == nil && i >= 0 && s.Managers[i].Alive && s.Managers[i].REST == "http://"+w.rest(12) &&
			s.Managers[i].Raft == w.rest(32), fmt.Sprint(s.Managers, err)
	})
	w.voters(ctx, c, ids(1, 2, 3)...)
	for _, id := range ids(1, 2, 3) {
		w.procs[id].Stop()
	}
	for n := 1; n <= 3; n++ {
		w.managerAt(n, 13+n, "--bootstrap-expect", "3", "--join", w.join(14, 15, 16))
	}
	c = w.client(14, 15, 16)
	w.until(ctx, "all are known at other ports", func() (bool, string) {
		s, err := c.Status(ctx)
		ok := err == nil && s.Coordinator == "active" && len(s.Managers) == 3
		for _, m := range s.Managers {
			ok = ok && m.Alive && slices.Contains([]string{w.rest(34), w.rest(35), w.rest(36)}, m.Raft)
		}
		return ok, fmt.Sprint(s.Managers, err)
	})
}
