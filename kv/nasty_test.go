package kv

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"tidemark/kv/kvclient"
	"tidemark/kv/mcbp"
	"tidemark/kv/server"
	"tidemark/kv/store"
)

// A cluster whose nodes have all moods that lose nothing rebalances under writes, to two nodes and back.
func TestRebalanceOfNastyNodes(t *testing.T) {
	t.Parallel()
	g := newGroupWith(t, 3, 1, func(c *Config) { c.Nasty = server.AllMoods &^ server.Losing })
	c := g.client()
	h := newHistory()
	stop := h.run(t, c)
	h.count(t, 100)
	for range 2 {
		kv3 := g.nodes["kv3"]
		g.resize(t, RebalanceRequest{Remove: []string{"kv3"}}, 2)
		h.count(t, 20)
		g.resize(t, RebalanceRequest{Add: kv3.mapNodes([]Peer{{ID: "kv3"}})}, 3)
		h.count(t, 20)
	}
	stop()
	g.same()
	h.check(t, c)
}

// resize rebalances and waits until the cluster has that many members.
func (g *group) resize(t *testing.T, r RebalanceRequest, members int) {
	t.Helper()
	if err := g.post("kv1", pathRebalance, r, nil); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if v := g.nodes["kv1"].View(); v.Map.Operation != nil || len(v.Map.Nodes) != members {
			return fmt.Errorf("%+v", v.Progress)
		}
		return nil
	})
}

// An active copy that was a replica for a moment has ended its streams without notice: its replicas detect that and
// request streams again.
func TestReplicaNoticesASilentEnd(t *testing.T) {
	t.Parallel()
	for _, moods := range []server.Moods{server.NoMoods, server.SilentTakeover, server.AllMoods &^ server.Losing} {
		t.Run(fmt.Sprint("moods ", moods), func(t *testing.T) {
			g := newGroupWith(t, 2, 1, func(c *Config) { c.Nasty = moods })
			c := g.client()
			set := func(value string) {
				t.Helper()
				for i := range 64 {
					if _, err := c.Set(within(t), fmt.Sprint("k", i), []byte(value), kvclient.StoreOptions{}); err != nil {
						t.Fatal(err)
					}
				}
			}
			set("1")
			g.same()
			vb := mcbp.VBucket([]byte("k1"), 16)
			source := g.nodes[g.nodes["kv1"].View().Map.Buckets[0].Chains[vb][0]]
			v := source.buckets()[0].store.VBucket(vb)
			if err := v.SetState(store.Replica); err != nil {
				t.Fatal(err)
			}
			eventually(t, func() error { // the node restores the map's state
				if state, _ := v.Status(); state != store.Active {
					return errors.New("not active")
				}
				return nil
			})
			set("2")
			g.same()
		})
	}
}

// A stream that waits while a deletion that it has not sent is purged ends: its consumer would never receive the
// deletion.
func TestStreamThatLacksADeletionEnds(t *testing.T) {
	config := testConfig(t.TempDir())
	config.Housekeep = time.Hour
	n, _ := runNode(t, config)
	kv := login(t, n.MemcachedAddr())
	kv.want(setFrame(0, "a", "1"), mcbp.StatusOK)
	const marker, mutation = mcbp.HeaderSize + mcbp.SnapshotMarkerV1Size, mcbp.HeaderSize + mcbp.MutationExtrasSize + 2
	c := openDCP(t, n.MemcachedAddr(), "c", 0, "connection_buffer_size", fmt.Sprint(marker+mutation))
	c.want(fromZero(0), mcbp.StatusOK)
	c.lines("snapshot 0-1 2 <nil>", "mutation 1 a=1 <nil>")
	kv.want(request(mcbp.OpDelete, 0, nil, []byte("a"), nil), mcbp.StatusOK)
	kv.want(setFrame(0, "b", "1"), mcbp.StatusOK)
	if err := n.buckets()[0].store.PurgeTombstones(within(t), -time.Minute); err != nil {
		t.Fatal(err)
	}
	c.send(request(mcbp.OpDCPBufferAck, 0, mcbp.AppendBufferAck(nil, uint32(marker+mutation)), nil, nil))
	if m := c.read(); m.Op != mcbp.OpDCPStreamEnd {
		t.Fatalf("%s", line(m))
	}
}

// A node that restarts on another port publishes it from the first map on.
func TestRestartAtAnotherPort(t *testing.T) {
	config := testConfig(t.TempDir())
	n, err := Open(config)
	if err != nil {
		t.Fatal(err)
	}
	n.Abandon()
	taken, err := net.Listen("tcp", n.MemcachedAddr())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	again, err := Open(config)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Abandon()
	_, port, _ := net.SplitHostPort(again.MemcachedAddr())
	_, old, _ := net.SplitHostPort(n.MemcachedAddr())
	if text := string(again.cluster.config("world").JSON); !strings.Contains(text, ":"+port) ||
		strings.Contains(text, ":"+old) {
		t.Fatalf("at %s: %s", port, text)
	}
}
