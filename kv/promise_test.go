package kv

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"tidemark/kv/clustermap"
	"tidemark/kv/kvclient"
	"tidemark/kv/seglog"
)

// promised is a cluster of three nodes in which kv3 is active for vbucket vb and its documents. kv1 leads, kv2 would
// be next.
type promised struct {
	*group
	c    *kvclient.Client
	vb   uint16
	keys []string
}

func newPromised(t *testing.T) *promised {
	t.Helper()
	g := &promised{group: newGroup(t, 3, 1)}
	g.c = g.client()
	m := g.at("kv2").current()
	for m.Buckets[0].Chains[g.vb][0] != "kv3" {
		g.vb++
	}
	g.keys = keysOf(g.vb, 16, 5)
	g.write("1")
	return g
}

func (g *promised) at(id string) *cluster { return g.nodes[id].cluster }

func (g *promised) write(value string) {
	g.t.Helper()
	for _, key := range g.keys {
		if _, err := g.c.Set(within(g.t), key, []byte(value), kvclient.StoreOptions{}); err != nil {
			g.t.Fatal(err)
		}
	}
}

// holds checks that the acknowledged writes are there, wherever the vbucket is now.
func (g *promised) holds(value string) {
	g.t.Helper()
	g.settled()
	for _, key := range g.keys {
		if d, err := g.c.Get(within(g.t), key); err != nil || string(d.Value) != value {
			g.t.Errorf("%s is %q (%v), acknowledged was %q", key, d.Value, err, value)
		}
	}
}

// takeover moves vbucket vb to another owner, as one step of a rebalance that the node by leads.
func (g *promised) takeover(by, to string) error {
	g.t.Helper()
	ctx, c := within(g.t), g.at(by)
	m := c.current().Clone()
	from := m.Buckets[0].Chains[g.vb][0]
	m.Rev++
	m.Buckets[0].Chains[g.vb] = []string{to, from}
	highs, err := c.peers.seal(ctx, c.contact(from), sealRequest{Bucket: "world", VBuckets: []uint16{g.vb},
		Milliseconds: sealTime.Milliseconds()})
	if err != nil {
		g.t.Fatal(err)
	}
	// Unseal the vbucket, which is not sealed any more if the map was committed.
	defer c.peers.seal(ctx, c.contact(from), sealRequest{Bucket: "world", VBuckets: []uint16{g.vb}})
	_, err = c.commit(ctx, m, from, sealed{"world": {g.vb: highs[0]}})
	return err
}

// begun begins a failover at the node by, up to the promises of its epoch, before there is a map of it. It returns
// the map before the failover and the epoch.
func (g *promised) begun(by string, without ...string) (clustermap.Map, int64) {
	g.t.Helper()
	g.settled()
	m := g.at(by).current()
	epoch, err := g.try(by, without...)
	if err != nil {
		g.t.Fatal(err)
	}
	return m, epoch
}

func (g *promised) try(by string, without ...string) (int64, error) {
	g.t.Helper()
	c := g.at(by)
	m := c.current()
	views, err := c.views(within(g.t), slices.DeleteFunc(slices.Clone(m.Nodes),
		func(x clustermap.Node) bool { return slices.Contains(without, x.ID) }), copies{})
	if err != nil {
		g.t.Fatal(err)
	}
	return c.begin(within(g.t), m, views)
}

// plan returns the map of a failover.
func (g *promised) plan(by string, m clustermap.Map, epoch int64, without ...string) clustermap.Map {
	g.t.Helper()
	next, _, err := g.at(by).promote(within(g.t), m, FailoverRequest{Nodes: without, Lose: true})
	if err != nil {
		g.t.Fatal(err)
	}
	next.RevEpoch, next.Rev = epoch, 1
	return next
}

func (g *promised) restart(ids ...string) {
	g.t.Helper()
	for _, id := range ids {
		g.stop(id)
	}
	for _, id := range ids {
		g.again(id)
	}
	for _, id := range ids {
		ready(g.t, g.nodes[id])
	}
}

// hold keeps a node from settling a failover that a test has begun in its name.
func (g *promised) hold(id string) (release func()) {
	g.t.Helper()
	release, err := g.at(id).alone(within(g.t))
	if err != nil {
		g.t.Fatal(err)
	}
	return release
}

// The plan of a failover would undo what the old leader does meanwhile, with all later writes. A node that has
// promised to take no map of the old leader keeps that promise, whichever nodes are restarted meanwhile.
func TestPromiseSurvivesARestart(t *testing.T) {
	t.Parallel()
	for _, ids := range [][]string{{"kv3"}, {"kv3", "kv1"}} {
		t.Run(strings.Join(ids, " and "), func(t *testing.T) {
			g := newPromised(t)
			release := g.hold("kv2")
			m, epoch := g.begun("kv2", "kv1")
			g.restart(ids...)
			if err := g.takeover("kv1", "kv1"); !errors.Is(err, errOlder) ||
				!strings.Contains(err.Error(), "kv2 that its epoch 2 is next") {
				t.Errorf("the old leader's takeover: %v", err)
			}
			g.write("2")
			if _, err := g.at("kv2").commit(within(t), g.plan("kv2", m, epoch, "kv1"), "", nil); err != nil {
				t.Fatal(err)
			}
			release()
			g.holds("2")
			if left := g.nodes["kv3"].View().Promises; len(left) > 0 {
				t.Errorf("promises that were met are left: %v", left)
			}
		})
	}
}

// A node that missed the map of a failover gets it later; until then it takes no map of the old leader.
func TestPromiseLastsUntilTheMapArrives(t *testing.T) {
	g := newPromised(t)
	release := g.hold("kv2")
	m, epoch := g.begun("kv2", "kv1")
	next := g.plan("kv2", m, epoch, "kv1")
	next, err := g.at("kv2").reserve(next)
	if err != nil {
		t.Fatal(err)
	}
	g.at("kv2").settle(within(t)) // a map of the epoch may exist somewhere: the promise stays
	if err := g.takeover("kv1", "kv1"); !errors.Is(err, errOlder) {
		t.Errorf("the old leader's takeover: %v", err)
	}
	if err := g.at("kv2").adopt(next, nil); err != nil {
		t.Fatal(err)
	}
	release()
	eventually(t, func() error { // kv3 requests the newest map
		if m := g.at("kv3").current(); m.RevEpoch != epoch {
			return errors.New("it has not come")
		}
		return nil
	})
	g.holds("1")
}

// A failover that is given up before there is a map of it, because it is refused or its maker dies, leaves the old
// leader in place.
func TestAbandonedFailover(t *testing.T) {
	t.Parallel()
	free := func(t *testing.T, g *promised) {
		t.Helper()
		eventually(t, func() error {
			for id, n := range g.nodes {
				if left := n.View().Promises; len(left) > 0 {
					return errors.New(id + " has promises")
				}
			}
			return nil
		})
		if err := g.takeover("kv1", "kv1"); err != nil {
			t.Error(err)
		}
		g.write("2")
		g.holds("2")
	}
	t.Run("refused", func(t *testing.T) {
		g := newPromised(t)
		err := g.post("kv2", pathFailover, FailoverRequest{Nodes: []string{"kv1", "kv2"}}, nil)
		if err = errors.Join(err, g.post("kv3", pathFailover, FailoverRequest{Nodes: []string{"kv1", "kv2"}},
			nil)); !errors.Is(err, ErrRefused) {
			t.Fatal(err)
		}
		free(t, g)
	})
	t.Run("its maker dies", func(t *testing.T) {
		g := newPromised(t)
		release := g.hold("kv2")
		g.begun("kv2", "kv1")
		if err := g.takeover("kv1", "kv1"); !errors.Is(err, errOlder) {
			t.Errorf("the old leader's takeover: %v", err)
		}
		release()
		g.restart("kv2")
		free(t, g)
	})
	t.Run("all die", func(t *testing.T) {
		g := newPromised(t)
		release := g.hold("kv2")
		g.begun("kv2", "kv1")
		release()
		g.restart("kv1", "kv2", "kv3")
		free(t, g)
	})
}

// If only a failover's dead maker has its map, the epoch of the maker's own failover is higher: the map does not come
// back with the maker.
func TestMapThatOnlyOneNodeHas(t *testing.T) {
	g := newPromised(t)
	hold := g.hold("kv2")
	m, epoch := g.begun("kv2", "kv1")
	next := g.plan("kv2", m, epoch, "kv1")
	next, err := g.at("kv2").reserve(next)
	if err != nil {
		t.Fatal(err)
	}
	hold()
	g.stop("kv2")
	// The map is stored, and no other node has it.
	if err := seglog.WriteJSON(filepath.Join(g.confs["kv2"].Dir, mapName), next); err != nil {
		t.Fatal(err)
	}
	err = g.post("kv1", pathFailover, FailoverRequest{Nodes: []string{"kv2"}}, nil)
	if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "kv2 is beginning epoch 2") {
		t.Fatalf("while kv2 may still be about it: %v", err)
	}
	g.restart("kv3") // the restart ends kv2's turn, which kv3 keeps in memory alone
	var a FailoverAnswer
	eventually(t, func() error {
		return g.post("kv1", pathFailover, FailoverRequest{Nodes: []string{"kv2"}, Lose: true}, &a)
	})
	// The refused failover could not take its promises back, as kv2 is down: the next one uses the same epoch.
	if a.RevEpoch != epoch+1 {
		t.Errorf("it begins epoch %d", a.RevEpoch)
	}
	g.write("2")
	g.again("kv2")
	ready(t, g.nodes["kv2"])
	if v := g.nodes["kv2"].View(); v.Member {
		t.Errorf("kv2 is back with its map: %+v", v.Map)
	}
	g.holds("2")
}

// Several epochs are promised: giving up one leaves the earlier promises as they were.
func TestSeveralPromises(t *testing.T) {
	t.Parallel()
	g := newPromised(t)
	defer g.hold("kv2")()
	m, first := g.begun("kv2", "kv1")
	if _, err := g.at("kv2").reserve(g.plan("kv2", m, first, "kv1")); err != nil { // its map may have been made
		t.Fatal(err)
	}
	if _, err := g.try("kv1", "kv2"); !errors.Is(err, ErrRefused) {
		t.Fatalf("a second one at the same time: %v", err)
	}
	g.restart("kv3", "kv1")
	hold := g.hold("kv1")
	_, second := g.begun("kv1", "kv2")
	if all := g.nodes["kv3"].View().Promises; len(all) != 2 || all[0].RevEpoch != first ||
		all[1] != (clustermap.Promise{RevEpoch: second, Maker: "kv1"}) {
		t.Fatalf("%v", all)
	}
	g.at("kv1").settle(within(t))
	hold()
	if all := g.nodes["kv3"].View().Promises; len(all) != 1 || all[0].RevEpoch != first {
		t.Errorf("the second was given up, and left %v", all)
	}
	if err := g.takeover("kv1", "kv1"); !errors.Is(err, errOlder) {
		t.Errorf("the old leader's takeover: %v", err)
	}
	g.holds("1")
}

// A promise is kept until the node has a map of its epoch or a later one; an unreadable file of promises is reported
// by its path.
func TestPromisesOnDisk(t *testing.T) {
	config := testConfig(t.TempDir())
	n, stop := runNode(t, config)
	stop()
	path := filepath.Join(config.Dir, promisesName)
	epoch := n.cluster.current().RevEpoch
	for _, c := range []struct {
		text string
		open int
	}{
		{`[{"rev_epoch":` + strconv.FormatInt(epoch, 10) + `,"maker":"kv2"}]`, 0},
		{`[{"rev_epoch":` + strconv.FormatInt(epoch, 10) + `,"maker":"kv2"},{"rev_epoch":` + strconv.FormatInt(epoch+1, 10) + `,"maker":"kv3"}]`, 1},
	} {
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		n, err := Open(config)
		if err != nil {
			t.Fatal(err)
		}
		if all := n.cluster.promised(); len(all) != c.open {
			t.Errorf("%s: %v", c.text, all)
		}
		n.Abandon()
	}
	if err := os.WriteFile(path, []byte(`[{"rev_`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(config); !errors.Is(err, clustermap.ErrMap) || !strings.Contains(err.Error(), path) ||
		!strings.Contains(err.Error(), "remove it") {
		t.Errorf("half a file: %v", err)
	}
}
