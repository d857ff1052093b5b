package kv

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"tidemark/kv/mcbp"
	"tidemark/kv/server"
	"tidemark/kv/store"
)

// nastyNode runs a node with the given moods.
func nastyNode(t *testing.T, moods server.Moods) *Node {
	t.Helper()
	config := testConfig(t.TempDir())
	config.Nasty = moods
	n, _ := runNode(t, config)
	return n
}

func TestMoodNames(t *testing.T) {
	var names []string
	all := server.NoMoods
	for _, m := range server.MoodList() {
		got, err := server.ParseMoods(m.Name)
		if err != nil || got != m.Mood || got.String() != m.Name || m.Help == "" {
			t.Errorf("%s: %v %v", m.Name, got, err)
		}
		names, all = append(names, m.Name), all|m.Mood
	}
	if got, err := server.ParseMoods(strings.Join(names, ", ")); got != all || err != nil || all != server.AllMoods {
		t.Errorf("%v %v", got, err)
	}
	if got, err := server.ParseMoods("all"); got != server.AllMoods || err != nil {
		t.Errorf("%v %v", got, err)
	}
	if got, err := server.ParseMoods(""); got != server.NoMoods || err != nil {
		t.Errorf("%v %v", got, err)
	}
	if _, err := server.ParseMoods("gaps,cheerful"); err == nil || !strings.Contains(err.Error(), "cheerful") ||
		!strings.Contains(err.Error(), "raw-json") {
		t.Error(err)
	}
}

// The stream of a vbucket that is moved away stays silent, without an end; the connection and its other streams go
// on.
func TestMoodSilentTakeover(t *testing.T) {
	n := nastyNode(t, server.SilentTakeover)
	kv := login(t, n.MemcachedAddr())
	c := openDCP(t, n.MemcachedAddr(), "c", 0)
	c.want(fromZero(4), mcbp.StatusOK)
	c.want(fromZero(5), mcbp.StatusOK)
	keepStates(t, n)
	v := n.buckets()[0].store.VBucket(4)
	if err := v.SetState(store.Replica); err != nil {
		t.Fatal(err)
	}
	kv.want(setFrame(5, "a", "1"), mcbp.StatusOK)
	c.lines("snapshot 0-1 1 <nil>", "mutation 1 a=1 <nil>") // no end of the stream of vbucket 4
	a := streamFrame(4, mcbp.StreamRequest{End: mcbp.EndOfTime, Flags: mcbp.StreamActiveOnly})
	c.want(a, mcbp.StatusNotMyVBucket)
	if err := v.SetState(store.Active); err != nil {
		t.Fatal(err)
	}
	kv.want(setFrame(4, "b", "1"), mcbp.StatusOK)
	kv.want(setFrame(5, "b", "2"), mcbp.StatusOK)
	c.lines("snapshot 2-2 1 <nil>", "mutation 2 b=2 <nil>") // the old stream of vbucket 4 stays silent
	c.want(a, mcbp.StatusOK)
	c.lines("snapshot 0-1 2 <nil>", "mutation 1 b=1 <nil>")
}

func TestMoodGaps(t *testing.T) {
	n := nastyNode(t, server.Gaps)
	kv := login(t, n.MemcachedAddr(), mcbp.FeatureMutationToken)
	var seqnos []uint64
	for i := range 5 {
		token, err := mcbp.DecodeMutationToken(kv.want(setFrame(0, fmt.Sprint("k", i), "1"), mcbp.StatusOK).Extras)
		if err != nil {
			t.Fatal(err)
		}
		seqnos = append(seqnos, token.Seqno)
	}
	if want := []uint64{1, 2, 4, 5, 7}; !slices.Equal(seqnos, want) {
		t.Fatalf("seqnos %v, want %v", seqnos, want)
	}
	c := openDCP(t, n.MemcachedAddr(), "c", 0)
	c.want(streamFrame(0, mcbp.StreamRequest{End: 6}), mcbp.StatusOK) // the requested end is in a gap
	c.lines("snapshot 0-7 2 <nil>", "mutation 1 k0=1 <nil>", "mutation 2 k1=1 <nil>", "mutation 4 k2=1 <nil>",
		"mutation 5 k3=1 <nil>", "mutation 7 k4=1 <nil>", "end ok <nil>")
}

func TestMoodDiskSnapshots(t *testing.T) {
	n := nastyNode(t, server.DiskSnapshots)
	kv := login(t, n.MemcachedAddr())
	c := openDCP(t, n.MemcachedAddr(), "c", 0)
	c.want(fromZero(0), mcbp.StatusOK)
	for i := range 2 {
		kv.want(setFrame(0, fmt.Sprint("k", i), "1"), mcbp.StatusOK)
		c.lines(fmt.Sprintf("snapshot %d-%d 2 <nil>", []int{0, 2}[i], i+1), fmt.Sprintf("mutation %d k%d=1 <nil>", i+1, i))
	}
}

func TestMoodOddBoundaries(t *testing.T) {
	n := nastyNode(t, server.OddBoundaries)
	kv := login(t, n.MemcachedAddr())
	c := openDCP(t, n.MemcachedAddr(), "c", 0)
	c.want(fromZero(0), mcbp.StatusOK)
	for i, window := range []string{"0-1", "2-2", "2-3", "4-4"} {
		kv.want(setFrame(0, fmt.Sprint("k", i), "1"), mcbp.StatusOK)
		c.lines("snapshot "+window+" 1 <nil>", fmt.Sprintf("mutation %d k%d=1 <nil>", i+1, i))
	}
	// The windows are not contiguous: the items between them are de-duplicated away.
	uuid := n.buckets()[0].store.VBucket(0).Info().Failover[0].VBUUID
	kv.want(setFrame(0, "k1", "2"), mcbp.StatusOK)
	c.lines("snapshot 4-5 1 <nil>", "mutation 5 k1=2 <nil>")
	d := openDCP(t, n.MemcachedAddr(), "d", 0)
	d.want(streamFrame(0, mcbp.StreamRequest{Start: 1, End: 3, VBUUID: uuid, SnapStart: 1, SnapEnd: 1}), mcbp.StatusOK)
	d.lines("snapshot 1-5 2 <nil>", "mutation 3 k2=1 <nil>", "mutation 4 k3=1 <nil>", "mutation 5 k1=2 <nil>",
		"end ok <nil>")
}

// During warmup, requests for documents and streams fail temporarily; the map and the statistics are served.
func TestMoodWarmup(t *testing.T) {
	n := nastyNode(t, server.Warmup)
	c := login(t, n.MemcachedAddr())
	c.want(request(mcbp.OpGetClusterConfig, 0, nil, nil, nil), mcbp.StatusOK)
	open := request(mcbp.OpDCPOpen, 0, mcbp.Open{Flags: mcbp.OpenProducer}.AppendExtras(nil), []byte("c"), nil)
	refused := 0
	for i := 0; ; i++ {
		f := []mcbp.Frame{setFrame(0, "a", "1"), request(mcbp.OpGet, 0, nil, []byte("a"), nil), open,
			request(mcbp.OpGetAllVBSeqnos, 0, nil, nil, nil)}[i%4]
		a := c.call(f)
		if a.Status() != mcbp.StatusTemporary {
			break
		}
		refused++
		if state := c.stats("warmup")["ep_warmup_state"]; refused < 16 && state != "loading data" {
			t.Fatalf("after %d: %s", refused, state)
		}
	}
	if refused != 16 {
		t.Fatalf("%d requests refused, want 16", refused)
	}
	c.want(setFrame(0, "a", "1"), mcbp.StatusOK)
	c.want(open, mcbp.StatusOK)
}

// A new map is shown late, and after it the old one once more.
func TestMoodMapLag(t *testing.T) {
	n := nastyNode(t, server.MapLag)
	c := login(t, n.MemcachedAddr())
	rev := func(f mcbp.Frame, status mcbp.Status) int64 {
		t.Helper()
		config, err := mcbp.ParseClusterConfig(c.want(f, status).Value)
		if err != nil {
			t.Fatal(err)
		}
		return config.Rev
	}
	ask := request(mcbp.OpGetClusterConfig, 0, nil, nil, nil)
	first := rev(ask, mcbp.StatusOK)
	m := n.cluster.current()
	m.Rev++
	if err := n.cluster.publish(m); err != nil {
		t.Fatal(err)
	}
	var got []int64
	for range 2 {
		got = append(got, rev(ask, mcbp.StatusOK)-first)
	}
	got = append(got, rev(request(mcbp.OpGet, 99, nil, []byte("a"), nil), mcbp.StatusNotMyVBucket)-first)
	known := request(mcbp.OpGetClusterConfig, 0, mcbp.KnownConfig{RevEpoch: m.RevEpoch, Rev: m.Rev}.AppendExtras(nil), nil,
		nil)
	for range 3 {
		got = append(got, rev(known, mcbp.StatusOK)-first)
	}
	if want := []int64{0, 0, 1, 0, 1, 1}; !slices.Equal(got, want) {
		t.Fatalf("revisions %v, want %v", got, want)
	}
}

func TestMoodOldControls(t *testing.T) {
	n := nastyNode(t, server.OldControls)
	c := openDCP(t, n.MemcachedAddr(), "c", 0, "connection_buffer_size", "1000", "set_noop_interval", "20", "enable_noop",
		"true")
	for _, key := range []string{mcbp.ControlEndOnClose, mcbp.ControlExpiryOpcode, mcbp.ControlMaxMarker,
		"backfill_order"} {
		c.want(request(mcbp.OpDCPControl, 0, nil, []byte(key), []byte("true")), mcbp.StatusInvalid)
	}
	c.want(fromZero(0), mcbp.StatusOK)
}

func TestMoodExpiryAsDeletion(t *testing.T) {
	n := nastyNode(t, server.ExpiryAsDeletion)
	kv := login(t, n.MemcachedAddr())
	kv.want(request(mcbp.OpSet, 0, mcbp.Store{Expiry: 1_000_000_000}.AppendExtras(nil), []byte("b"), nil), mcbp.StatusOK)
	kv.want(request(mcbp.OpGet, 0, nil, []byte("b"), nil), mcbp.StatusKeyNotFound)
	c := openDCP(t, n.MemcachedAddr(), "c", 0, "enable_expiry_opcode", "true")
	c.want(fromZero(0), mcbp.StatusOK)
	c.lines("snapshot 0-2 2 <nil>", "DCP_DELETION 2 b <nil>")
}

func TestMoodRawJSON(t *testing.T) {
	n := nastyNode(t, server.RawJSON)
	kv := login(t, n.MemcachedAddr(), mcbp.FeatureJSON)
	kv.want(setFrame(0, "a", `{"x":1}`), mcbp.StatusOK)
	if g := kv.want(request(mcbp.OpGet, 0, nil, []byte("a"), nil), mcbp.StatusOK); g.Datatype != 0 {
		t.Fatalf("datatype %v", g.Datatype)
	}
	c := openDCP(t, n.MemcachedAddr(), "c", 0)
	c.want(fromZero(0), mcbp.StatusOK)
	c.lines("snapshot 0-1 2 <nil>")
	if m := c.read(); m.Datatype != 0 || string(m.Value) != `{"x":1}` {
		t.Fatalf("%s, datatype %v", line(m), m.Datatype)
	}
}

func TestMoodFrames(t *testing.T) {
	n := nastyNode(t, server.Frames)
	plain := login(t, n.MemcachedAddr())
	if a := plain.want(setFrame(0, "a", "1"), mcbp.StatusOK); a.Magic != mcbp.MagicResponse {
		t.Fatalf("magic %#x without negotiation", a.Magic)
	}
	for _, feature := range []mcbp.Feature{mcbp.FeatureFlexibleFrames, mcbp.FeatureTracing} {
		c := login(t, n.MemcachedAddr(), feature)
		a := c.want(request(mcbp.OpGet, 0, nil, []byte("a"), nil), mcbp.StatusOK)
		if a.Magic != mcbp.MagicFlexResponse || string(a.Value) != "1" || len(a.Extras) != 4 {
			t.Fatalf("magic %#x, value %q, extras %v", a.Magic, a.Value, a.Extras)
		}
		if id, content, rest, err := mcbp.NextFrameInfo(a.FrameExtras); id != mcbp.FrameServerDuration || len(content) != 2 ||
			len(rest) != 0 || err != nil {
			t.Fatalf("frame extras %v: %v %v %v %v", a.FrameExtras, id, content, rest, err)
		}
		c.want(request(mcbp.OpDCPOpen, 0, mcbp.Open{Flags: mcbp.OpenProducer}.AppendExtras(nil), fmt.Append(nil, feature),
			nil), mcbp.StatusOK)
		if a := c.want(fromZero(0), mcbp.StatusOK); a.Magic != mcbp.MagicFlexResponse ||
			len(a.Value) != mcbp.FailoverEntrySize {
			t.Fatalf("stream request: magic %#x, value %v", a.Magic, a.Value)
		}
		c.lines("snapshot 0-1 2 <nil>", "mutation 1 a=1 <nil>")
	}
}

func TestMoodNoCloseEnd(t *testing.T) {
	n := nastyNode(t, server.NoCloseEnd)
	c := openDCP(t, n.MemcachedAddr(), "c", 0)
	c.want(request(mcbp.OpDCPControl, 0, nil, []byte(mcbp.ControlEndOnClose), []byte("true")), mcbp.StatusInvalid)
	c.want(fromZero(0), mcbp.StatusOK)
	c.want(request(mcbp.OpDCPCloseStream, 0, nil, nil, nil), mcbp.StatusOK)
	c.want(request(mcbp.OpDCPCloseStream, 0, nil, nil, nil), mcbp.StatusKeyNotFound) // the next message after the answer
}

// When messages use the window up to its last byte, one more message is sent.
func TestMoodOvershoot(t *testing.T) {
	for moods, want := range map[server.Moods]int{server.NoMoods: 2, server.Overshoot: 3} {
		n := nastyNode(t, moods)
		kv := login(t, n.MemcachedAddr())
		for i := range 9 {
			kv.want(setFrame(0, fmt.Sprint("k", i), "v"), mcbp.StatusOK)
		}
		const marker, mutation = mcbp.HeaderSize + mcbp.SnapshotMarkerV1Size, mcbp.HeaderSize + mcbp.MutationExtrasSize + 3
		window := marker + 2*mutation
		c := openDCP(t, n.MemcachedAddr(), "c", 0, "connection_buffer_size", fmt.Sprint(window))
		c.want(fromZero(0), mcbp.StatusOK)
		c.lines("snapshot 0-9 2 <nil>")
		for i := range want {
			c.lines(fmt.Sprintf("mutation %d k%d=v <nil>", i+1, i))
		}
		// The window is full: the node answers requests and sends no message. An acknowledgement makes room for one
		// message.
		for range 20 {
			c.want(request(mcbp.OpNoop, 0, nil, nil, nil), mcbp.StatusOK)
		}
		c.send(request(mcbp.OpDCPBufferAck, 0, mcbp.AppendBufferAck(nil, uint32(mutation)), nil, nil))
		c.lines(fmt.Sprintf("mutation %d k%d=v <nil>", want+1, want))
	}
}

// A replica grants streams that are not restricted to active vbuckets. This is independent of moods.
func TestReplicaStreams(t *testing.T) {
	n := nastyNode(t, server.NoMoods)
	kv := login(t, n.MemcachedAddr())
	kv.want(setFrame(4, "a", "1"), mcbp.StatusOK)
	keepStates(t, n)
	if err := n.buckets()[0].store.VBucket(4).SetState(store.Replica); err != nil {
		t.Fatal(err)
	}
	c := openDCP(t, n.MemcachedAddr(), "c", 0)
	c.want(streamFrame(4, mcbp.StreamRequest{End: mcbp.EndOfTime, Flags: mcbp.StreamActiveOnly}), mcbp.StatusNotMyVBucket)
	c.want(fromZero(4), mcbp.StatusOK)
	c.lines("snapshot 0-1 2 <nil>", "mutation 1 a=1 <nil>")
	c.want(request(mcbp.OpDCPFailoverLog, 4, nil, nil, nil), mcbp.StatusNotMyVBucket)
	kv.want(request(mcbp.OpGet, 4, nil, []byte("a"), nil), mcbp.StatusNotMyVBucket)
}

// The replication between nodes loses nothing of a document, whatever the moods.
func TestMoodsSpareReplication(t *testing.T) {
	n := nastyNode(t, server.OldControls|server.ExpiryAsDeletion|server.RawJSON)
	kv := login(t, n.MemcachedAddr(), mcbp.FeatureJSON)
	kv.want(setFrame(0, "a", `{}`), mcbp.StatusOK)
	kv.want(request(mcbp.OpSet, 0, mcbp.Store{Expiry: 1_000_000_000}.AppendExtras(nil), []byte("b"), nil), mcbp.StatusOK)
	kv.want(request(mcbp.OpGet, 0, nil, []byte("b"), nil), mcbp.StatusKeyNotFound)
	c := openDCP(t, n.MemcachedAddr(), "replication:kv1->kv2:1", 0, mcbp.ControlExpiryOpcode, "true")
	c.want(fromZero(0), mcbp.StatusOK)
	c.lines("snapshot 0-3 2 <nil>")
	if f := c.read(); f.Datatype != mcbp.DatatypeJSON {
		t.Fatalf("datatype %v", f.Datatype)
	}
	c.lines("DCP_EXPIRATION 3 b <nil>")
}

// A deletion older than a second is missing from streams, and a start below it is refused.
func TestMoodPurges(t *testing.T) {
	t.Parallel()
	config := testConfig(t.TempDir())
	config.Nasty, config.Housekeep = server.Purges, 10*time.Millisecond
	n, _ := runNode(t, config)
	kv := login(t, n.MemcachedAddr())
	for _, f := range []mcbp.Frame{setFrame(0, "a", "1"), setFrame(0, "b", "1"),
		request(mcbp.OpDelete, 0, nil, []byte("b"), nil), setFrame(0, "c", "1")} {
		kv.want(f, mcbp.StatusOK)
	}
	vb := n.buckets()[0].store.VBucket(0)
	for deadline := time.Now().Add(testTimeout); vb.Purged() == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("nothing was forgotten: %+v", vb.Info())
		}
	}
	c := openDCP(t, n.MemcachedAddr(), "c", 0)
	c.want(streamFrame(0, mcbp.StreamRequest{End: 1}), mcbp.StatusOK)
	c.lines("snapshot 0-4 2 <nil>", "mutation 1 a=1 <nil>", "mutation 4 c=1 <nil>", "end ok <nil>")
	c.want(streamFrame(0, mcbp.StreamRequest{Start: 2, End: 4, VBUUID: vb.Info().Failover[0].VBUUID, SnapStart: 2,
		SnapEnd: 2}), mcbp.StatusRollback)
}

// One of every four streams from 0 lacks a deletion that existed when the stream was granted.
func TestMoodPurgesBeforeTheFirstSnapshot(t *testing.T) {
	n := nastyNode(t, server.Purges)
	kv := login(t, n.MemcachedAddr())
	write := func(frames ...mcbp.Frame) {
		for _, f := range frames {
			kv.want(f, mcbp.StatusOK)
		}
	}
	write(setFrame(0, "a", "1"), setFrame(0, "b", "1"), request(mcbp.OpDelete, 0, nil, []byte("b"), nil),
		setFrame(0, "c", "1"))
	vb := n.buckets()[0].store.VBucket(0)
	c := openDCP(t, n.MemcachedAddr(), "c", 0)
	c.want(streamFrame(0, mcbp.StreamRequest{End: 1}), mcbp.StatusOK)
	c.lines("snapshot 0-4 2 <nil>", "mutation 1 a=1 <nil>", "mutation 4 c=1 <nil>", "end ok <nil>")
	if purged := vb.Purged(); purged != 3 {
		t.Errorf("the purge seqno is %d, want 3", purged)
	}
	write(request(mcbp.OpDelete, 0, nil, []byte("a"), nil), setFrame(0, "d", "1"))
	c.want(streamFrame(0, mcbp.StreamRequest{End: 1}), mcbp.StatusOK)
	c.lines("snapshot 0-6 2 <nil>", "mutation 4 c=1 <nil>", "DCP_DELETION 5 a <nil>", "mutation 6 d=1 <nil>",
		"end ok <nil>")
}
