package router_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tidemark/index"
	"tidemark/internal/testing/families"
	"tidemark/keyversion"
	"tidemark/partition"
	"tidemark/projector/router"
)

// One event per mutation and endpoint states every index that is hosted there, even one without a key.
func TestOneEventPerMutationAndEndpoint(t *testing.T) {
	f := newFixture(t, router.Config{}, maintenance(4))
	v := view(t, 1, one(1, 1, 2), one(2, 2), one(3, 1))
	f.begin(3, 1, v, 10)
	f.must(f.topic.Mutation(t.Context(), 3, doc(11, "a", "k1", "k2", "k3")))
	f.must(f.topic.Mutation(t.Context(), 3, doc(12, "b", "", "k2", "")))
	f.must(f.topic.Delete(t.Context(), 3, doc(15, "a")))
	f.must(f.topic.End(t.Context(), 3, 15, 0, nil))
	f.tap.expect(t, "n1",
		"STREAM_BEGIN vb3 i1 10 after 10 [11 31]",
		"INSERT vb3 i1 11 a 1/0=k1 3/0=k3",
		"INSERT vb3 i1 12 b 1/0= 3/0=",
		"DELETE vb3 i1 15 a 1/0= 3/0=",
		"STREAM_END vb3 i1 15")
	f.tap.expect(t, "n2",
		"STREAM_BEGIN vb3 i1 10 after 10 [12 22]",
		"INSERT vb3 i1 11 a 1/0=k1 2/0=k2",
		"INSERT vb3 i1 12 b 1/0= 2/0=k2",
		"DELETE vb3 i1 15 a 1/0= 2/0=",
		"STREAM_END vb3 i1 15")
	h := f.tap.at("n2")[0].hello
	want := keyversion.Hello{ClusterID: "cluster", Projector: "p1", BootID: "boot", Topic: "/maintenance", Bucket: "b",
		BucketUUID: "u",
		Node:       2, Connection: 0, Connections: 1}
	if h != want {
		t.Fatalf("hello %+v, want %+v", h, want)
	}
}

// Each document goes to the endpoints of its own slice, and to no others.
func TestDocumentsGoToTheirSlices(t *testing.T) {
	f := newFixture(t, router.Config{}, maintenance(1))
	var nextCopy index.CopyID
	top := topology(5, 8, 1, []index.NodeID{1, 2, 3}, &nextCopy)
	v := view(t, 1, top)
	f.begin(0, 1, v, 0)
	want := map[index.NodeID][]string{}
	for i := range 100 {
		id := fmt.Sprintf("doc%d", i)
		f.must(f.topic.Mutation(t.Context(), 0, doc(uint64(i+1), id, "k")))
		slice := families.Provider(&top.Layout).Slice(partition.KeyVersion{DocID: []byte(id)})
		at := slices.IndexFunc(top.Copies, func(c partition.Copy) bool { return c.Slice == slice })
		node := top.Copies[at].Node
		want[node] = append(want[node], fmt.Sprintf("INSERT vb0 i1 %d %s 5/%d=k", i+1, id, slice))
	}
	for _, n := range v.Nodes() {
		lines := append([]string{fmt.Sprintf("STREAM_BEGIN vb0 i1 0 after 0 %v", v.Copies(n))}, want[n]...)
		f.tap.expect(t, fmt.Sprintf("n%d", n), lines...)
	}
}

// For an index that is partitioned by key, every endpoint gets every mutation: the keys in its slices, and the
// statement that its other slices have none.
func TestKeysMoveBetweenSlices(t *testing.T) {
	f := newFixture(t, router.Config{}, maintenance(1))
	var nextCopy index.CopyID
	top := topology(5, 4, 1, []index.NodeID{1, 2}, &nextCopy)
	top.Layout.Scheme, top.Layout.Bounds = partition.RangeKey, [][]byte{[]byte("d"), []byte("m"), []byte("t")}
	f.begin(0, 1, view(t, 1, one(1, 1), top), 0)
	f.must(f.topic.Mutation(t.Context(), 0, doc(1, "x", "k", "a")))
	several := doc(2, "x", "k", "e")
	several.Keys[1] = [][]byte{[]byte("z"), []byte("a"), []byte("e"), []byte("d")}
	f.must(f.topic.Mutation(t.Context(), 0, several))
	f.must(f.topic.Mutation(t.Context(), 0, doc(3, "x", "", "t")))
	f.must(f.topic.Mutation(t.Context(), 0, doc(4, "x", "", "")))
	f.must(f.topic.Delete(t.Context(), 0, doc(5, "x")))
	f.tap.expect(t, "n1", "STREAM_BEGIN vb0 i1 0 after 0 [1 3 11]",
		"INSERT vb0 i1 1 x 1/0=k 5/0=a 5/65535=",
		"INSERT vb0 i1 2 x 1/0=k 5/0=a 5/65535=",
		"INSERT vb0 i1 3 x 1/0= 5/65535=",
		"INSERT vb0 i1 4 x 1/0= 5/65535=",
		"DELETE vb0 i1 5 x 1/0= 5/65535=")
	f.tap.expect(t, "n2", "STREAM_BEGIN vb0 i1 0 after 0 [2 4]",
		"UpsertDeletion vb0 i1 1 x 5/65535=",
		"INSERT vb0 i1 2 x 5/1=e,d 5/3=z",
		"INSERT vb0 i1 3 x 5/3=t 5/65535=",
		"UpsertDeletion vb0 i1 4 x 5/65535=",
		"DELETE vb0 i1 5 x 5/65535=")
	var sum uint64
	for _, st := range f.r.Stats() {
		sum += st.UpsertDeletions
	}
	if sum != 2 {
		t.Errorf("%d UpsertDeletions are counted", sum)
	}
}

// A view contains allocated copies on nodes with an address; that of a side stream exactly the copies it names.
func TestViewChoosesCopies(t *testing.T) {
	top := one(1, 1, 2, 3)
	top.Copies[0].State = partition.Placed
	top.Copies[1].State = partition.Leaving
	endpoints := map[index.NodeID]string{1: "a", 2: "b", 3: "c"}
	v, err := router.NewView(router.ViewConfig{Endpoints: endpoints, Topologies: []partition.Topology{top}})
	if err != nil || !slices.Equal(v.Nodes(), []index.NodeID{3}) {
		t.Fatalf("%v %v", v.Nodes(), err)
	}
	v, err = router.NewView(router.ViewConfig{Endpoints: endpoints, Topologies: []partition.Topology{top},
		Only: []index.CopyID{11}})
	if err != nil || !slices.Equal(v.Nodes(), []index.NodeID{1}) || !slices.Equal(v.Copies(1), []index.CopyID{11}) ||
		v.Copies(3) != nil {
		t.Fatalf("%v %v", v.Nodes(), err)
	}
	v, err = router.NewView(router.ViewConfig{Endpoints: map[index.NodeID]string{1: "a"},
		Topologies: []partition.Topology{top}})
	if err != nil || len(v.Nodes()) != 0 || v.Sources() != 1 {
		t.Fatalf("%v %v", v.Nodes(), err)
	}
	top.Copies[2].Slice = 1
	if _, err := router.NewView(router.ViewConfig{Endpoints: endpoints,
		Topologies: []partition.Topology{top}}); !errors.Is(err, router.ErrView) {
		t.Fatalf("slice out of range: %v", err)
	}
	top.Layout.Partitions = 0
	if _, err := router.NewView(router.ViewConfig{Topologies: []partition.Topology{top}}); !errors.Is(err,
		partition.ErrLayout) {
		t.Fatalf("no partitions: %v", err)
	}
}

// Copies join and leave between two mutations, in band; a new endpoint first gets a BEGIN without copies.
func TestSwitchSendsJoinsAndLeaves(t *testing.T) {
	f := newFixture(t, router.Config{}, maintenance(1))
	f.begin(0, 1, view(t, 1, one(1, 1), one(2, 1)), 0)
	f.must(f.topic.Mutation(t.Context(), 0, doc(1, "a", "x", "y")))
	f.must(f.topic.Switch(t.Context(), 0, view(t, 2, one(2, 1), one(3, 1, 2)), 1))
	f.must(f.topic.Mutation(t.Context(), 0, doc(2, "b", "y", "z")))
	f.must(f.topic.Switch(t.Context(), 0, view(t, 3, one(3, 2)), 2))
	f.must(f.topic.Mutation(t.Context(), 0, doc(3, "c", "z")))
	f.begin(0, 2, view(t, 4, one(4, 3)), 3)
	f.tap.expect(t, "n1",
		"STREAM_BEGIN vb0 i1 0 after 0 [11 21]",
		"INSERT vb0 i1 1 a 1/0=x 2/0=y",
		"DEACTIVATE vb0 i1 1 [11]",
		"ACTIVATE vb0 i1 1 [31]",
		"INSERT vb0 i1 2 b 2/0=y 3/0=z",
		"DEACTIVATE vb0 i1 2 [21 31]")
	f.tap.expect(t, "n2",
		"STREAM_BEGIN vb0 i1 1 after 1 []",
		"ACTIVATE vb0 i1 1 [32]",
		"INSERT vb0 i1 2 b 3/0=z",
		"INSERT vb0 i1 3 c 3/0=z",
		"DEACTIVATE vb0 i1 3 [32]")
	f.tap.expect(t, "n3", "STREAM_BEGIN vb0 i2 3 after 3 [43]")
	// Connections that are no longer used are closed.
	f.tap.await(t, func() bool { return f.tap.ended("n1") && f.tap.ended("n2") && !f.tap.ended("n3") },
		func() string { return "connections without use stay open" })
}

// After a broken connection, StreamBegin has the position that the endpoint acknowledged, and the rest is sent again.
func TestReconnectResumesAtTheAcknowledgedPosition(t *testing.T) {
	f := newFixture(t, router.Config{}, maintenance(2))
	v := view(t, 1, one(1, 1))
	f.begin(0, 1, v, 5)
	f.must(f.topic.Mutation(t.Context(), 0, doc(6, "a", "x")))
	f.tap.expect(t, "n1", "STREAM_BEGIN vb0 i1 5 after 5 [11]", "INSERT vb0 i1 6 a 1/0=x")
	f.must(f.topic.Drain(t.Context()))
	f.tap.set(f.tap.hold, "n1", true)
	f.must(f.topic.Mutation(t.Context(), 0, doc(7, "b", "y")))
	f.begin(1, 2, v, 50)
	first := []string{"STREAM_BEGIN vb0 i1 5 after 5 [11]", "INSERT vb0 i1 6 a 1/0=x", "INSERT vb0 i1 7 b 1/0=y",
		"STREAM_BEGIN vb1 i2 50 after 50 [11]"}
	f.tap.expect(t, "n1", first...)
	f.tap.at("n1")[0].Close()
	again := append(slices.Clone(first), "-- again", "STREAM_BEGIN vb0 i1 6 after 6 [11]", "INSERT vb0 i1 7 b 1/0=y",
		"STREAM_BEGIN vb1 i2 50 after 50 [11]")
	f.tap.expect(t, "n1", again...)
	f.tap.ackAll("n1")
	f.must(f.topic.Drain(t.Context()))
	f.topic.Drop(0)
	f.must(f.topic.End(t.Context(), 1, 50, 0, nil))
	f.must(f.topic.Drain(t.Context()))
	// Nothing is repeated for a vbucket that was dropped or has ended.
	f.begin(0, 3, v, 60)
	f.tap.await(t, func() bool { return strings.Contains(f.tap.script("n1"), "STREAM_BEGIN vb0 i3 60 after 60 [11]") },
		func() string { return f.tap.script("n1") })
	f.must(f.topic.Drain(t.Context()))
	conns := f.tap.at("n1")
	conns[len(conns)-1].Close()
	f.tap.await(t, func() bool {
		s := f.tap.script("n1")
		return strings.HasSuffix(s, "-- again\nSTREAM_BEGIN vb0 i3 60 after 60 [11]\n")
	}, func() string { return f.tap.script("n1") })
}

// big returns a document whose event is larger than a batch.
func big(seqno uint64) *router.Doc {
	return &router.Doc{VBUUID: 77, Seqno: seqno, Window: windowOf(seqno), DocID: []byte("big"),
		Keys: [][][]byte{{bytes.Repeat([]byte("k"), 70<<10)}}}
}

// An endpoint that is connected and slow holds its vbuckets back until it acknowledges; the worker's context ends the
// wait.
func TestSlowEndpointThrottles(t *testing.T) {
	f := newFixture(t, router.Config{QueueBytes: 128 << 10, ReservedBytes: 32 << 10}, maintenance(2))
	f.tap.set(f.tap.hold, "n1", true)
	v := view(t, 1, one(1, 1))
	f.begin(0, 1, v, 0)
	seqno := uint64(0)
	full := func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		seqno++
		err := f.topic.Mutation(ctx, 0, big(seqno))
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		return err != nil
	}
	for !full() {
		if seqno > 10 {
			t.Fatal("never full")
		}
	}
	lost := seqno
	// Control messages have reserved room.
	f.begin(1, 1, v, 9)
	f.must(f.topic.Sync(1, 77, 9))
	f.must(f.topic.End(t.Context(), 1, 9, 0, nil))
	// The mutation that was abandoned is announced when there is room again, and the stream continues after it.
	f.tap.ackAll("n1")
	f.must(f.topic.Drain(t.Context()))
	f.must(f.topic.Mutation(t.Context(), 0, doc(lost+1, "a", "x")))
	f.must(f.topic.Drain(t.Context()))
	s := f.tap.script("n1")
	tail := fmt.Sprintf("DropData vb0 i1 %d\nSTREAM_BEGIN vb0 i1 %d after %d [11]\nINSERT vb0 i1 %d a 1/0=x\n", lost, lost,
		lost, lost+1)
	if !strings.HasSuffix(s, tail) || !strings.Contains(s, "SYNC vb1 i1 9\nSTREAM_END vb1 i1 9\n") {
		t.Fatalf("...%s\nwant a tail of\n%s", s[max(0, len(s)-400):], tail)
	}
	if st := f.r.Stats()[0]; st.Stalls == 0 || st.Drops != 1 || st.DroppedEvents != 1 {
		t.Fatalf("%+v", st)
	}
}

// An unreachable endpoint holds up no other: what exceeds its bound is dropped, and the first connection announces
// that and where each vbucket continues, whatever has happened to it meanwhile.
func TestUnreachableEndpointDelaysNoOther(t *testing.T) {
	f := newFixture(t, router.Config{QueueBytes: 64 << 10, ReservedBytes: 1 << 10}, maintenance(5))
	f.tap.set(f.tap.refuse, "n1", true)
	v := view(t, 1, one(1, 1, 2))
	for vb := range uint16(5) {
		f.begin(vb, 1, v, 0)
	}
	const n = 100
	for seqno := uint64(1); seqno <= n; seqno++ {
		f.must(f.topic.Mutation(t.Context(), 0, big(seqno)))
		f.must(f.topic.Mutation(t.Context(), 1, doc(seqno, "s", "x")))
		f.must(f.topic.Mutation(t.Context(), 2, doc(seqno, "s", "x")))
		f.must(f.topic.Mutation(t.Context(), 3, doc(seqno, "s", "x")))
	}
	f.must(f.topic.Sync(1, 77, n+3))
	f.must(f.topic.End(t.Context(), 2, n, 0, nil))
	f.begin(3, 2, v, n+7)
	f.must(f.topic.Switch(t.Context(), 1, view(t, 2, one(1, 1, 2), one(2, 1)), n))
	f.topic.Drop(4)
	if b := f.r.Stats(); len(b) == 0 || slices.ContainsFunc(b, func(s router.EndpointStats) bool {
		return s.Node == 1 &&
			s.QueueBytes > 400<<10
	}) {
		t.Fatalf("%+v", b)
	}
	why := func(l router.LaneState) bool { return l.Node == 1 && l.State == "down" && l.Error == "no route" }
	if all := f.topic.Lanes(); !slices.ContainsFunc(all, why) {
		t.Errorf("nothing says why it cannot be reached: %+v", all)
	}
	f.tap.set(f.tap.refuse, "n1", false)
	f.must(f.topic.Drain(t.Context()))
	s := f.tap.script("n1")
	for _, want := range []string{
		fmt.Sprintf("STREAM_BEGIN vb0 i1 %d after %d [11]\n", n, n),
		fmt.Sprintf("STREAM_BEGIN vb1 i1 %d after %d [11 21]\n", n, n),
		fmt.Sprintf("STREAM_BEGIN vb2 i1 %d after %d [11]\nSTREAM_END vb2 i1 %d\n", n, n, n),
		fmt.Sprintf("STREAM_BEGIN vb3 i2 %d after %d [11]\n", n+7, n+7),
	} {
		if !strings.Contains(s, want) {
			t.Errorf("missing %q in\n%s", want, strings.ReplaceAll(s, strings.Repeat("k", 70<<10), "K"))
		}
	}
	for vb := range 4 {
		if c := strings.Count(s, fmt.Sprintf("DropData vb%d ", vb)); c != 1 {
			t.Errorf("%d DropData for vbucket %d, want 1", c, vb)
		}
	}
	if got := strings.Count(f.tap.script("n2"), "INSERT"); got != 4*n {
		t.Errorf("the other endpoint got %d of %d", got, 4*n)
	}
}

// A side stream has one endpoint and must not lose anything: it waits even for an unreachable endpoint.
func TestSideStreamWaitsForItsEndpoint(t *testing.T) {
	t.Parallel()
	cfg := maintenance(1)
	cfg.Path, cfg.Class = "/catchup/1/1", keyversion.ClassCatchup
	f := newFixture(t, router.Config{QueueBytes: 64 << 10}, cfg)
	f.tap.set(f.tap.refuse, "n1", true)
	f.begin(0, 1, view(t, 1, one(1, 1)), 0)
	done := make(chan error, 1)
	go func() {
		for seqno := uint64(1); seqno <= 20; seqno++ {
			if err := f.topic.Mutation(t.Context(), 0, big(seqno)); err != nil {
				done <- err
				return
			}
		}
		done <- f.topic.End(t.Context(), 0, 20, 30, nil)
	}()
	f.tap.await(t, func() bool { f.tap.mu.Lock(); defer f.tap.mu.Unlock(); return f.tap.dials["n1"] > 3 },
		func() string { return "no attempts" })
	select {
	case err := <-done:
		t.Fatalf("did not wait: %v", err)
	default:
	}
	f.tap.set(f.tap.refuse, "n1", false)
	f.must(<-done)
	f.must(f.topic.Drain(t.Context()))
	if s := f.tap.script("n1"); strings.Count(s, "INSERT") != 20 || strings.Contains(s, "DropData") ||
		!strings.HasSuffix(s, "STREAM_END vb0 i1 20\n") {
		t.Fatal("lost something")
	}
}

// A side stream that is broken off announces that, however often its connection is cut, and never an END. The other
// vbuckets of the connection continue.
func TestASideStreamIsBrokenOff(t *testing.T) {
	cfg := maintenance(2)
	cfg.Path, cfg.Class = "/catchup/1/1", keyversion.ClassCatchup
	f := newFixture(t, router.Config{}, cfg)
	f.tap.set(f.tap.hold, "n1", true)
	v := view(t, 1, one(1, 1))
	f.begin(0, 1, v, 0)
	f.begin(1, 1, v, 0)
	f.must(f.topic.Mutation(t.Context(), 0, doc(6, "a", "x")))
	f.must(f.topic.Break(t.Context(), 0, 6))
	if err := f.topic.Break(t.Context(), 0, 6); !errors.Is(err, router.ErrNotBegun) {
		t.Errorf("a second time: %v", err)
	}
	f.must(f.topic.Mutation(t.Context(), 1, doc(7, "b", "y")))
	want := []string{"STREAM_BEGIN vb0 i1 0 after 0 [11]", "STREAM_BEGIN vb1 i1 0 after 0 [11]", "INSERT vb0 i1 6 a 1/0=x",
		"DropData vb0 i1 7", "INSERT vb1 i1 7 b 1/0=y"}
	f.tap.expect(t, "n1", want...)
	f.tap.at("n1")[0].Close()
	f.tap.expect(t, "n1", append(append(slices.Clone(want), "-- again"), want...)...)
	f.tap.ackAll("n1")
	f.must(f.topic.End(t.Context(), 1, 7, 9, nil))
	f.must(f.topic.Drain(t.Context()))
	if s := f.tap.script("n1"); strings.Contains(s, "STREAM_END vb0") || strings.Count(s, "STREAM_END vb1") != 1 {
		t.Error(s)
	}
}

// A stream that is broken off while its endpoint takes nothing ends correctly, too: what is queued is not lost, and a
// deferred announcement is made.
func TestASideStreamIsBrokenOffLater(t *testing.T) {
	t.Parallel()
	cfg := maintenance(1)
	cfg.Path, cfg.Class = "/catchup/1/1", keyversion.ClassCatchup
	f := newFixture(t, router.Config{QueueBytes: 64 << 10, ReservedBytes: 1}, cfg)
	f.tap.set(f.tap.block, "n1", true)
	f.begin(0, 1, view(t, 1, one(1, 1)), 0)
	var err error
	last := uint64(0)
	for err == nil { // until there is no room
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		last++
		err = f.topic.Mutation(ctx, 0, big(last))
		cancel()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	_ = f.topic.Break(ctx, 0, last-1)
	cancel()
	f.tap.set(f.tap.block, "n1", false)
	f.tap.at("n1")[0].Close()
	f.must(f.topic.Drain(t.Context()))
	s, want := f.tap.script("n1"), fmt.Sprint("DropData vb0 i1 ", last)
	if strings.Contains(s, "STREAM_END") || !strings.Contains(s, want) {
		t.Error(s)
	}
}

// A view without an endpoint releases the workers that wait for it, before they switch.
func TestAnnounceFreesWorkers(t *testing.T) {
	t.Parallel()
	f := newFixture(t, router.Config{QueueBytes: 64 << 10}, maintenance(1))
	f.tap.set(f.tap.block, "n1", true)
	f.begin(0, 1, view(t, 1, one(1, 1)), 0)
	done := make(chan error, 1)
	go func() {
		var err error
		for seqno := uint64(1); seqno <= 20 && err == nil; seqno++ {
			err = f.topic.Mutation(t.Context(), 0, big(seqno))
		}
		done <- err
	}()
	f.tap.await(t, func() bool { return len(f.r.Stats()) > 0 && f.r.Stats()[0].Stalls > 0 },
		func() string { return "never full" })
	next := view(t, 2, one(1, 2))
	f.topic.Announce(next)
	f.must(<-done)
	f.must(f.topic.Switch(t.Context(), 0, next, 20))
	f.tap.expect(t, "n2", "STREAM_BEGIN vb0 i1 20 after 20 []", "ACTIVATE vb0 i1 20 [12]")
	f.tap.await(t, func() bool { return f.tap.ended("n1") },
		func() string { return "the stuck endpoint is never given up" })
}

// An endpoint that moved is found through the next view, and gets everything that it has not acknowledged.
func TestAddressChanges(t *testing.T) {
	t.Parallel()
	f := newFixture(t, router.Config{}, maintenance(1))
	f.tap.set(f.tap.hold, "n1", true)
	v := view(t, 1, one(1, 1))
	f.begin(0, 1, v, 0)
	f.must(f.topic.Mutation(t.Context(), 0, doc(1, "a", "x")))
	f.tap.expect(t, "n1", "STREAM_BEGIN vb0 i1 0 after 0 [11]", "INSERT vb0 i1 1 a 1/0=x")
	moved, err := router.NewView(router.ViewConfig{Revision: 2, Endpoints: map[index.NodeID]string{1: "elsewhere"},
		Topologies: []partition.Topology{one(1, 1)}})
	f.must(err)
	f.topic.Announce(moved)
	f.tap.expect(t, "elsewhere", "STREAM_BEGIN vb0 i1 0 after 0 [11]", "INSERT vb0 i1 1 a 1/0=x")
	// An older view does not restore the old address.
	f.topic.Announce(v)
	f.must(f.topic.Switch(t.Context(), 0, moved, 1))
	f.must(f.topic.Mutation(t.Context(), 0, doc(2, "b", "y")))
	f.tap.expect(t, "elsewhere", "STREAM_BEGIN vb0 i1 0 after 0 [11]", "INSERT vb0 i1 1 a 1/0=x",
		"INSERT vb0 i1 2 b 1/0=y")
}

// Of many Syncs within a tick, which is 5 ms from the first of them, the newest is sent, after the events it covers.
// For maintenance streams the tick is Config.CalmLinger.
func TestSyncsAreGathered(t *testing.T) {
	side := maintenance(2)
	side.Path, side.Class = "/catchup/1/1", keyversion.ClassCatchup
	for _, cfg := range []router.TopicConfig{maintenance(2), side} {
		t.Run(cfg.Class.String(), func(t *testing.T) { testSyncsAreGathered(t, cfg) })
	}
}

func testSyncsAreGathered(t *testing.T, cfg router.TopicConfig) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, router.Config{CalmLinger: 5 * time.Millisecond}, cfg)
		v := view(t, 1, one(1, 1))
		f.begin(0, 1, v, 0)
		f.begin(1, 1, v, 0)
		synctest.Wait() // the streams have begun at the endpoint: only Syncs and events follow
		for seqno := uint64(1); seqno <= 30; seqno++ {
			f.must(f.topic.Mutation(t.Context(), 0, doc(seqno, "a", "x")))
			f.must(f.topic.Sync(0, 77, seqno))
			f.must(f.topic.Sync(1, 77, 100+seqno))
			time.Sleep(700 * time.Microsecond) // no Sync coincides with a tick
		}
		f.must(f.topic.Drain(t.Context()))
		high, syncs := uint64(0), map[string][]uint64{}
		for line := range strings.Lines(f.tap.script("n1")) {
			var vb string
			var seqno uint64
			if _, err := fmt.Sscanf(line, "INSERT vb0 i1 %d", &seqno); err == nil {
				high = seqno
			}
			if _, err := fmt.Sscanf(line, "SYNC %s i1 %d", &vb, &seqno); err == nil {
				syncs[vb] = append(syncs[vb], seqno)
				if vb == "vb0" && seqno > high {
					t.Fatalf("Sync %d before its event, after %d", seqno, high)
				}
			}
		}
		// There are eight within each tick, because the next one begins with the first Sync after it.
		if want := map[string][]uint64{"vb0": {8, 16, 24, 30}, "vb1": {108, 116, 124, 130}}; !maps.EqualFunc(syncs, want,
			slices.Equal) {
			t.Fatalf("Syncs %v, want %v\n%s", syncs, want, f.tap.script("n1"))
		}
	})
}

// A key set that does not fit into any frame is left out and counted; the document's other indexes are not affected.
func TestOversizedKeySet(t *testing.T) {
	t.Parallel()
	f := newFixture(t, router.Config{}, maintenance(1))
	f.begin(0, 1, view(t, 1, one(1, 1), one(2, 1)), 0)
	d := doc(1, "a", "x", "y")
	huge := make([]byte, keyversion.MaxKey)
	d.Keys[0] = [][]byte{huge, huge, huge}
	f.must(f.topic.Mutation(t.Context(), 0, d))
	f.must(f.topic.Mutation(t.Context(), 0, doc(2, "b", "x", "y")))
	f.tap.expect(t, "n1", "STREAM_BEGIN vb0 i1 0 after 0 [11 21]", "INSERT vb0 i1 1 a 1/0= 2/0=y",
		"INSERT vb0 i1 2 b 1/0=x 2/0=y")
	if st := f.r.Stats()[0]; st.Oversized != 1 {
		t.Fatalf("%+v", st)
	}
}

// Close ends pending calls, and later calls return that it is closed.
func TestCloseEndsWaiting(t *testing.T) {
	f := newFixture(t, router.Config{QueueBytes: 64 << 10}, maintenance(1))
	f.tap.set(f.tap.block, "n1", true)
	v := view(t, 1, one(1, 1))
	f.begin(0, 1, v, 0)
	done := make(chan error, 1)
	go func() {
		var err error
		for seqno := uint64(1); err == nil; seqno++ {
			err = f.topic.Mutation(t.Context(), 0, big(seqno))
		}
		done <- err
	}()
	f.tap.await(t, func() bool { return len(f.r.Stats()) > 0 && f.r.Stats()[0].Stalls > 0 },
		func() string { return "never full" })
	f.topic.Close()
	if err := <-done; !errors.Is(err, router.ErrClosed) {
		t.Fatal(err)
	}
	if err := f.topic.Begin(t.Context(), v, streamAt(0, inc(2), 0)); !errors.Is(err, router.ErrClosed) {
		t.Fatal(err)
	}
	again, err := f.r.Open(maintenance(1)) // a closed topic may be opened again
	f.must(err)
	f.r.Close()
	if err := again.Begin(t.Context(), v, streamAt(0, inc(2), 0)); !errors.Is(err, router.ErrClosed) {
		t.Fatal(err)
	}
	if _, err := f.r.Open(maintenance(1)); !errors.Is(err, router.ErrClosed) {
		t.Fatal(err)
	}
}

func TestWrongUse(t *testing.T) {
	f := newFixture(t, router.Config{}, maintenance(2))
	if _, err := f.r.Open(maintenance(2)); !errors.Is(err, router.ErrTopic) {
		t.Errorf("opened twice: %v", err)
	}
	if _, err := f.r.Open(router.TopicConfig{Path: "/x", VBuckets: 5000}); !errors.Is(err, router.ErrTopic) {
		t.Errorf("too many vbuckets: %v", err)
	}
	if _, err := router.New(router.Config{}); !errors.Is(err, router.ErrTopic) {
		t.Errorf("empty configuration: %v", err)
	}
	ctx := t.Context()
	v := view(t, 1, one(1, 1))
	for what, err := range map[string]error{
		"mutation": f.topic.Mutation(ctx, 1, doc(1, "a", "x")), "deletion": f.topic.Delete(ctx, 1, doc(1, "a")),
		"sync": f.topic.Sync(1, 7, 1), "switch": f.topic.Switch(ctx, 1, v, 1), "end": f.topic.End(ctx, 1, 1, 1, nil),
		"vbucket out of range": f.topic.Sync(2, 7, 1), "begin out of range": f.topic.Begin(ctx, v, streamAt(2, inc(1), 0)),
	} {
		if !errors.Is(err, router.ErrNotBegun) {
			t.Errorf("%s before begin: %v", what, err)
		}
	}
	f.topic.Drop(1)
	f.begin(1, 1, v, 0)
	if err := f.topic.Mutation(ctx, 1, doc(1, "a", "x", "y")); !errors.Is(err, router.ErrView) {
		t.Errorf("keys of two indexes for a view of one: %v", err)
	}
	if err := f.topic.Switch(ctx, 1, nil, 1); !errors.Is(err, router.ErrView) {
		t.Errorf("no view: %v", err)
	}
}

func TestMetrics(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	f := newFixture(t, router.Config{Registerer: reg}, maintenance(1))
	f.begin(0, 1, view(t, 1, one(1, 1)), 0)
	f.must(f.topic.Mutation(t.Context(), 0, doc(1, "a", "x")))
	f.must(f.topic.Drain(t.Context()))
	value := func(name string) float64 {
		families, err := reg.Gather()
		f.must(err)
		for _, m := range families {
			if m.GetName() == name && len(m.GetMetric()) == 1 {
				if m.GetMetric()[0].GetCounter() != nil {
					return m.GetMetric()[0].GetCounter().GetValue()
				}
				return m.GetMetric()[0].GetGauge().GetValue()
			}
		}
		return -1
	}
	if value("tidemark_router_events_total") != 1 || value("tidemark_router_connections") != 1 {
		t.Fatalf("events %v, connections %v", value("tidemark_router_events_total"), value("tidemark_router_connections"))
	}
	f.topic.Close() // counters outlive the topic, gauges do not
	if value("tidemark_router_events_total") != 1 || value("tidemark_router_connections") != 0 {
		t.Fatalf("events %v, connections %v", value("tidemark_router_events_total"), value("tidemark_router_connections"))
	}
}

// TestGatheredDataIsFlushed: data and Syncs of a maintenance stream gather until something urges them: a report to the
// leader, a message that begins or ends a stream, a call that waits for room, or Drain. Data of other receivers than
// indexers is not delayed.
func TestGatheredDataIsFlushed(t *testing.T) {
	f := newFixture(t, router.Config{CalmLinger: time.Hour, QueueBytes: 16 << 10, ReservedBytes: 1 << 10}, maintenance(2))
	v := view(t, 1, one(1, 1))
	f.begin(0, 1, v, 0)
	lines := []string{"STREAM_BEGIN vb0 i1 0 after 0 [11]"}
	more := func(all ...string) {
		t.Helper()
		lines = append(lines, all...)
		f.tap.expect(t, "n1", lines...)
	}
	more()
	f.must(f.topic.Mutation(t.Context(), 0, doc(1, "a", "x")))
	f.must(f.topic.Sync(0, 77, 1))
	f.topic.Urge()
	more("INSERT vb0 i1 1 a 1/0=x", "SYNC vb0 i1 1")
	f.must(f.topic.Sync(0, 77, 2))
	f.topic.Urge()
	more("SYNC vb0 i1 2")
	f.must(f.topic.Mutation(t.Context(), 0, doc(3, "a", "x")))
	f.begin(1, 1, v, 0)
	more("INSERT vb0 i1 3 a 1/0=x", "STREAM_BEGIN vb1 i1 0 after 0 [11]")
	f.must(f.topic.Mutation(t.Context(), 0, doc(4, "a", "x")))
	f.must(f.topic.Drain(t.Context()))
	more("INSERT vb0 i1 4 a 1/0=x")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for seqno := uint64(5); seqno <= 104; seqno++ { // the open frame alone uses up the room before it is full
		f.must(f.topic.Mutation(ctx, 0, doc(seqno, "a", strings.Repeat("x", 1<<10))))
	}
	f.must(f.topic.Drain(t.Context()))
	if n := strings.Count(f.tap.script("n1"), "INSERT"); n != 103 { // 2 was only a Sync, and nothing was dropped
		t.Errorf("%d of 103 documents have come", n)
	}

	cfg := maintenance(1)
	cfg.Path, cfg.Class = "/catchup/1/1", keyversion.ClassCatchup
	side := newFixture(t, router.Config{CalmLinger: time.Hour}, cfg)
	side.begin(0, 1, v, 0)
	side.must(side.topic.Mutation(t.Context(), 0, doc(1, "a", "x")))
	side.must(side.topic.Sync(0, 77, 1))
	side.tap.expect(t, "n1", "STREAM_BEGIN vb0 i1 0 after 0 [11]", "INSERT vb0 i1 1 a 1/0=x", "SYNC vb0 i1 1")
}
