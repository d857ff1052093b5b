package kv

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"tidemark/kv/mcbp"
	"tidemark/kv/server"
)

// fromThere requests a stream from a consumer's position.
func fromThere(vb uint16, uuid, start, snapStart, snapEnd uint64) mcbp.Frame {
	return streamFrame(vb, mcbp.StreamRequest{Start: start, End: mcbp.EndOfTime, VBUUID: uuid, SnapStart: snapStart,
		SnapEnd: snapEnd})
}

// Some draws the same moods for the same seed, others for other seeds, and only allowed ones.
func TestMoodsAreDrawn(t *testing.T) {
	seen, none := server.NoMoods, server.AllMoods
	for seed := range uint64(64) {
		some := server.AllMoods.Some(seed)
		if some != server.AllMoods.Some(seed) || (server.Gaps|server.Frames).Some(seed)&^(server.Gaps|server.Frames) != 0 {
			t.Fatalf("seed %d: %v", seed, some)
		}
		seen, none = seen|some, none&some
	}
	if seen != server.AllMoods || none != server.NoMoods {
		t.Errorf("never drawn: %v; always: %v", server.AllMoods&^seen, none)
	}
}

// A request whose snapshot begins below the purge seqno is refused, even if its start seqno is above it.
func TestMoodPurgeByWindow(t *testing.T) {
	for moods, want := range map[server.Moods]mcbp.Status{server.NoMoods: mcbp.StatusOK,
		server.PurgeByWindow: mcbp.StatusRollback} {
		n := nastyNode(t, moods)
		kv := login(t, n.MemcachedAddr())
		for _, f := range []mcbp.Frame{setFrame(0, "a", "1"), request(mcbp.OpDelete, 0, nil, []byte("a"), nil),
			setFrame(0, "b", "1"), setFrame(0, "c", "1")} {
			kv.want(f, mcbp.StatusOK)
		}
		vb := n.buckets()[0].store.VBucket(0)
		if err := vb.ForgetTombstones(); err != nil || vb.Purged() != 2 {
			t.Fatalf("%v, purged up to %d", err, vb.Purged())
		}
		c := openDCP(t, n.MemcachedAddr(), "c", 0)
		uuid := vb.Info().Failover[0].VBUUID
		c.want(fromThere(0, uuid, 3, 0, 4), want)
		c = openDCP(t, n.MemcachedAddr(), "d", 0)
		c.want(fromThere(0, uuid, 3, 3, 3), mcbp.StatusOK)
	}
}

// After a stream has ended, the first request for it is refused because it still exists; the next one is granted.
func TestMoodStreamExists(t *testing.T) {
	n := nastyNode(t, server.StreamExists)
	c := openDCP(t, n.MemcachedAddr(), "c", 0)
	c.want(fromZero(0), mcbp.StatusOK)
	for range 2 {
		c.want(request(mcbp.OpDCPCloseStream, 0, nil, nil, nil), mcbp.StatusOK)
		c.want(fromZero(1), mcbp.StatusOK)
		c.want(fromZero(0), mcbp.StatusKeyExists)
		c.want(fromZero(0), mcbp.StatusOK)
		c.want(request(mcbp.OpDCPCloseStream, 1, nil, nil, nil), mcbp.StatusOK)
		c.want(fromZero(1), mcbp.StatusKeyExists)
	}
	login(t, n.MemcachedAddr()).want(setFrame(2, "a", "1"), mcbp.StatusOK)
	c.want(streamFrame(2, mcbp.StreamRequest{End: 1}), mcbp.StatusOK)
	c.lines("snapshot 0-1 2 <nil>", "mutation 1 a=1 <nil>", "end ok <nil>")
	c.want(fromZero(2), mcbp.StatusKeyExists)
	c.want(fromZero(2), mcbp.StatusOK)
}

func TestMoodsOfControls(t *testing.T) {
	n := nastyNode(t, server.NoFlowControl|server.NoopIntervals)
	c := openDCP(t, n.MemcachedAddr(), "c", 0)
	for _, k := range []struct {
		key, value string
		want       mcbp.Status
	}{
		{mcbp.ControlBufferSize, "1000", mcbp.StatusInvalid},
		{mcbp.ControlEnableNoop, "true", mcbp.StatusOK},
		{mcbp.ControlNoopInterval, "5", mcbp.StatusInvalid},
		{mcbp.ControlNoopInterval, "21", mcbp.StatusInvalid},
		{mcbp.ControlNoopInterval, "20", mcbp.StatusOK},
		{mcbp.ControlNoopInterval, "120", mcbp.StatusOK},
	} {
		c.want(request(mcbp.OpDCPControl, 0, nil, []byte(k.key), []byte(k.value)), k.want)
	}
}

// Statistics are refused to clients and consumers, but not to the nodes of the cluster.
func TestMoodNoStats(t *testing.T) {
	n := nastyNode(t, server.NoStats)
	ask := request(mcbp.OpStat, 0, nil, []byte("vbucket-details 0"), nil)
	login(t, n.MemcachedAddr()).want(ask, mcbp.StatusNoAccess)
	openDCP(t, n.MemcachedAddr(), "c", 0).want(ask, mcbp.StatusNoAccess)
	openDCP(t, n.MemcachedAddr(), "replication:kv1->kv2:1", 0).want(ask, mcbp.StatusOK)
}

// The config names its node by the address that the client used, and an additional node that cannot be reached.
func TestMoodOddMaps(t *testing.T) {
	n := nastyNode(t, server.OddMaps)
	c := login(t, n.MemcachedAddr())
	config, err := mcbp.ParseClusterConfig(c.want(request(mcbp.OpGetClusterConfig, 0, nil, nil, nil), mcbp.StatusOK).Value)
	if err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string][]string{"127.0.0.1": {n.MemcachedAddr(), "127.0.0.1:9"}} {
		var got []string
		for i := range config.NumNodes() {
			addr, err := config.KVAddr(i, host, false)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, addr)
		}
		if !slices.Equal(got, want) {
			t.Errorf("nodes %v, want %v", got, want)
		}
	}
	if list := config.VBucketServerMap.ServerList; list[0][:5] != "$HOST" {
		t.Errorf("server list %v", list)
	}
	for vb := range uint16(config.NumVBuckets()) {
		if config.Owner(vb) != 0 {
			t.Fatalf("vbucket %d is said to be on node %d", vb, config.Owner(vb))
		}
	}
}

// Every eleventh request that needs memory fails.
func TestMoodTemporary(t *testing.T) {
	n := nastyNode(t, server.Temporary)
	c := login(t, n.MemcachedAddr())
	var got []int
	statuses := map[mcbp.Status]int{}
	for i := range 66 {
		c.want(request(mcbp.OpNoop, 0, nil, nil, nil), mcbp.StatusOK)
		c.want(request(mcbp.OpVersion, 0, nil, nil, nil), mcbp.StatusOK)
		f := []mcbp.Frame{setFrame(0, "a", "1"), request(mcbp.OpGetAllVBSeqnos, 0, nil, nil, nil)}[i%2]
		if i%4 == 1 {
			f = setFrame(0, "a", "1")
		}
		a := c.call(f)
		if s := a.Status(); s != mcbp.StatusOK {
			got = append(got, i+1)
			statuses[s]++
		}
	}
	if want := []int{11, 22, 33, 44, 55, 66}; !slices.Equal(got, want) || statuses[mcbp.StatusTemporary] == 0 ||
		statuses[mcbp.StatusNoMemory] == 0 {
		t.Errorf("refused %v, want %v; %v", got, want, statuses)
	}
}

// Reads are answered during warmup before writes and streams are.
func TestMoodWarmupReads(t *testing.T) {
	n := nastyNode(t, server.WarmupReads)
	kv := login(t, n.MemcachedAddr())
	c := openDCP(t, n.MemcachedAddr(), "c", 0)
	for i := range 6 {
		kv.want(request(mcbp.OpGet, 0, nil, []byte("a"), nil), mcbp.StatusKeyNotFound)
		kv.want(request(mcbp.OpGetAllVBSeqnos, 0, nil, nil, nil), mcbp.StatusOK)
		if i%2 == 0 {
			kv.want(setFrame(0, "a", "1"), mcbp.StatusTemporary)
		} else {
			c.want(fromZero(0), mcbp.StatusTemporary)
		}
	}
	kv.want(setFrame(0, "a", "1"), mcbp.StatusOK)
	c.want(fromZero(0), mcbp.StatusOK)
}

// Backfills start late and a few at a time, but all of them run.
func TestMoodPauses(t *testing.T) {
	n := nastyNode(t, server.Pauses)
	kv := login(t, n.MemcachedAddr())
	for vb := range uint16(8) {
		kv.want(setFrame(vb, "a", "1"), mcbp.StatusOK)
		kv.want(setFrame(vb, "b", "1"), mcbp.StatusOK)
	}
	c := openDCP(t, n.MemcachedAddr(), "c", 0)
	for vb := range uint16(8) {
		c.want(fromZero(vb), mcbp.StatusOK)
	}
	began := time.Now()
	got := map[uint16]int{}
	for range 8 * 3 {
		f := c.read()
		got[f.VBucket()]++
	}
	if len(got) != 8 || time.Since(began) < 40*time.Millisecond {
		t.Errorf("%v after %v", got, time.Since(began))
	}
	for vb, n := range got {
		if n != 3 {
			t.Errorf("%d messages of vbucket %d, want 3", n, vb)
		}
	}
}

// The fifth snapshot from memory of sufficient length is cut short; the rest comes from disk, and no item comes
// twice.
func TestMoodCursorDrop(t *testing.T) {
	n := nastyNode(t, server.CursorDrop)
	kv := login(t, n.MemcachedAddr())
	c := openDCP(t, n.MemcachedAddr(), "c", 0)
	c.want(fromZero(0), mcbp.StatusOK)
	last, end, cut := uint64(0), uint64(0), 0
	for seqno := uint64(0); cut == 0; seqno += 6 {
		if seqno > 6000 {
			t.Fatal("no snapshot was cut short")
		}
		var frames []mcbp.Frame
		for i := range 6 {
			frames = append(frames, setFrame(0, fmt.Sprint("k", seqno, "-", i), "1"))
		}
		kv.send(frames...)
		for range frames {
			kv.read()
		}
		for last < seqno+6 {
			f := c.read()
			switch f.Op {
			case mcbp.OpDCPSnapshotMarker:
				m, err := mcbp.DecodeSnapshotMarker(f.Extras, f.Value)
				if err != nil {
					t.Fatal(err)
				}
				if last < end {
					cut++
					if m.Flags&mcbp.SnapshotDisk == 0 || m.Start != last {
						t.Errorf("at %d of a snapshot to %d: %s", last, end, line(f))
					}
				}
				end = m.End
			case mcbp.OpDCPMutation:
				m, err := mcbp.DecodeMutation(f.Extras)
				if err != nil || m.Seqno != last+1 {
					t.Fatalf("%s after %d: %v", line(f), last, err)
				}
				last = m.Seqno
			}
		}
	}
}

// A stream ends as too slow at the beginning of a snapshot, and can be requested again from its position.
func TestMoodSlowEnd(t *testing.T) {
	n := nastyNode(t, server.SlowEnd)
	kv := login(t, n.MemcachedAddr())
	c := openDCP(t, n.MemcachedAddr(), "c", 0)
	c.want(fromZero(0), mcbp.StatusOK)
	for i := uint64(1); ; i++ {
		kv.want(setFrame(0, fmt.Sprint("k", i), "1"), mcbp.StatusOK)
		f := c.read()
		if f.Op == mcbp.OpDCPStreamEnd {
			if line(f) != "end too slow <nil>" || i < 10 {
				t.Errorf("at %d: %s", i, line(f))
			}
			uuid := n.buckets()[0].store.VBucket(0).Info().Failover[0].VBUUID
			c.want(fromThere(0, uuid, i-1, i-1, i-1), mcbp.StatusOK)
			c.lines(fmt.Sprintf("snapshot %d-%d 2 <nil>", i-1, i), fmt.Sprintf("mutation %d k%d=1 <nil>", i, i))
			return
		}
		c.lines(fmt.Sprintf("mutation %d k%d=1 <nil>", i, i))
	}
}

// The first mutation arrives last if its vbucket is a slow one.
func TestMoodUneven(t *testing.T) {
	n := nastyNode(t, server.Uneven)
	kv := login(t, n.MemcachedAddr())
	c := openDCP(t, n.MemcachedAddr(), "c", 0)
	c.want(fromZero(3), mcbp.StatusOK)
	c.want(fromZero(4), mcbp.StatusOK)
	kv.want(setFrame(3, "a", "1"), mcbp.StatusOK)
	began := time.Now()
	kv.want(setFrame(4, "b", "1"), mcbp.StatusOK)
	c.lines("snapshot 0-1 1 <nil>", "mutation 1 b=1 <nil>", "snapshot 0-1 1 <nil>", "mutation 1 a=1 <nil>")
	if d := time.Since(began); d < 200*time.Millisecond {
		t.Errorf("it came after %v", d)
	}
}

// The first snapshot from memory begins inside the one from disk.
func TestMoodInsideWindows(t *testing.T) {
	n := nastyNode(t, server.InsideWindows)
	kv := login(t, n.MemcachedAddr())
	for i := range 6 {
		kv.want(setFrame(0, fmt.Sprint("k", i), "1"), mcbp.StatusOK)
	}
	c := openDCP(t, n.MemcachedAddr(), "c", 0)
	c.want(fromZero(0), mcbp.StatusOK)
	c.lines("snapshot 0-6 2 <nil>")
	for i := range 6 {
		c.lines(fmt.Sprintf("mutation %d k%d=1 <nil>", i+1, i))
	}
	for i, window := range []string{"3-7", "8-8"} {
		kv.want(setFrame(0, "new", fmt.Sprint(i)), mcbp.StatusOK)
		c.lines("snapshot "+window+" 1 <nil>", fmt.Sprintf("mutation %d new=%d <nil>", 7+i, i))
	}
}

// An idle connection is closed earlier than by default, unless the configuration has a timeout.
func TestMoodIdleClose(t *testing.T) {
	config := testConfig(t.TempDir())
	config.IdleTimeout = 0
	for moods, want := range map[server.Moods]time.Duration{server.NoMoods: 0, server.IdleClose: server.IdleCloseAfter} {
		c := config
		c.Nasty = moods
		if err := c.check(); err != nil || c.IdleTimeout != want {
			t.Errorf("%v: %v, %v", moods, c.IdleTimeout, err)
		}
	}
	config.Nasty, config.IdleTimeout = server.IdleClose, time.Hour
	if err := config.check(); err != nil || config.IdleTimeout != time.Hour {
		t.Errorf("%v, %v", config.IdleTimeout, err)
	}
}

// A killed node loses what was not synced and begins a new branch; a node that is stopped in order loses nothing.
func TestMoodUnpersisted(t *testing.T) {
	config := testConfig(t.TempDir())
	config.Nasty, config.Housekeep = server.Unpersisted, time.Hour
	n, stop := runNode(t, config)
	kv := login(t, n.MemcachedAddr())
	kv.want(setFrame(0, "kept", "1"), mcbp.StatusOK)
	before := n.buckets()[0].store.VBucket(0).Info().Failover
	stop()
	n, stop = runNode(t, config)
	kv = login(t, n.MemcachedAddr())
	for i := range 100 {
		kv.want(setFrame(0, fmt.Sprint("lost", i), "1"), mcbp.StatusOK)
	}
	if log := n.buckets()[0].store.VBucket(0).Info().Failover; !slices.Equal(log, before) {
		t.Errorf("an orderly stop began a branch: %v, was %v", log, before)
	}
	n.buckets()[0].held.lose() // as a kill does
	stop()
	if err := os.Remove(filepath.Join(config.Dir, "buckets", "world", "log", "clean.json")); err != nil {
		t.Fatal(err)
	}
	n, _ = runNode(t, config)
	info := n.buckets()[0].store.VBucket(0).Info()
	if info.High != 1 || info.Items != 1 || info.Failover[0] == before[0] || info.Failover[1] != before[0] {
		t.Errorf("%+v; the branch was %v", info, before)
	}
}

// A document disappears without a request of a client, by an ordinary deletion.
func TestMoodEviction(t *testing.T) {
	n := nastyNode(t, server.Eviction)
	kv := login(t, n.MemcachedAddr())
	for i := range 32 {
		kv.want(setFrame(0, fmt.Sprint("k", i), "1"), mcbp.StatusOK)
	}
	kv.want(request(mcbp.OpGet, 0, nil, []byte("k0"), nil), mcbp.StatusKeyNotFound)
	kv.want(request(mcbp.OpGet, 0, nil, []byte("k1"), nil), mcbp.StatusOK)
	vb := n.buckets()[0].store.VBucket(0)
	if info := vb.Info(); info.Items != 31 || info.Tombstones != 1 || info.High != 33 {
		t.Errorf("%+v", info)
	}
}

// Every third write makes two versions, the second with attributes. The client gets the mutation token of the second,
// and a deletion keeps the attributes.
func TestMoodXattrs(t *testing.T) {
	n := nastyNode(t, server.Xattrs)
	kv := login(t, n.MemcachedAddr(), mcbp.FeatureMutationToken, mcbp.FeatureXattr)
	c := openDCP(t, n.MemcachedAddr(), "c", mcbp.OpenXattrs, mcbp.ControlEnableNoop, "true")
	var seqnos []uint64
	var cas uint64
	for i := range 3 {
		a := kv.want(setFrame(0, fmt.Sprint("k", i), "1"), mcbp.StatusOK)
		token, err := mcbp.DecodeMutationToken(a.Extras)
		if err != nil {
			t.Fatal(err)
		}
		seqnos, cas = append(seqnos, token.Seqno), a.CAS
	}
	if want := []uint64{1, 2, 4}; !slices.Equal(seqnos, want) {
		t.Fatalf("seqnos %v, want %v", seqnos, want)
	}
	g := kv.want(request(mcbp.OpGet, 0, nil, []byte("k2"), nil), mcbp.StatusOK)
	if string(g.Value) != "1" || g.CAS != cas {
		t.Fatalf("%q with cas %d, want %d", g.Value, g.CAS, cas)
	}
	c.want(fromZero(0), mcbp.StatusOK)
	c.lines("snapshot 0-4 2 <nil>", "mutation 1 k0=1 <nil>", "mutation 2 k1=1 <nil>")
	if f := c.read(); !f.Datatype.Has(mcbp.DatatypeXattr) || len(f.Value) <= 1 {
		t.Fatalf("%s, datatype %v", line(f), f.Datatype)
	}
	kv.want(request(mcbp.OpDelete, 0, nil, []byte("k2"), nil), mcbp.StatusOK)
	c.read()
	if f := c.read(); f.Op != mcbp.OpDCPDeletion || !f.Datatype.Has(mcbp.DatatypeXattr) || len(f.Value) == 0 {
		t.Fatalf("%s, datatype %v", line(f), f.Datatype)
	}
}

// Independent of moods: DCP requests before DCP_OPEN end the connection, even those that only read.
func TestRequestsBeforeOpen(t *testing.T) {
	n := nastyNode(t, server.NoMoods)
	for _, f := range []mcbp.Frame{request(mcbp.OpDCPFailoverLog, 0, nil, nil, nil), fromZero(0),
		request(mcbp.OpDCPControl, 0, nil, []byte(mcbp.ControlEnableNoop), []byte("true"))} {
		c := login(t, n.MemcachedAddr())
		c.send(f)
		c.closed(f.Op.String())
	}
}
