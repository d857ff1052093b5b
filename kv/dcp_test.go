package kv

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"tidemark/kv/mcbp"
	"tidemark/kv/store"
)

func (c *rawClient) lines(want ...string) {
	c.t.Helper()
	for _, w := range want {
		if got := line(c.read()); got != w {
			c.t.Fatalf("got %q, want %q", got, w)
		}
	}
}

// silent checks that the server sends nothing for the time d.
func (c *rawClient) silent(d time.Duration) {
	c.t.Helper()
	_ = c.nc.SetReadDeadline(time.Now().Add(d))
	f, err := c.tryRead()
	var timeout net.Error
	if !errors.As(err, &timeout) || !timeout.Timeout() {
		c.t.Fatalf("got %v (%v), want nothing", line(f), err)
	}
	_ = c.nc.SetReadDeadline(time.Now().Add(60 * time.Second))
}

func TestStreamFromZeroThenLive(t *testing.T) {
	n, _ := runNode(t, testConfig(t.TempDir()))
	kv := login(t, n.MemcachedAddr())
	for _, f := range []mcbp.Frame{setFrame(2, "a", "1"), setFrame(2, "b", "2"), setFrame(2, "a", "3"),
		setFrame(2, "c", "4"), request(mcbp.OpDelete, 2, nil, []byte("b"), nil)} {
		kv.want(f, mcbp.StatusOK)
	}
	c := openDCP(t, n.MemcachedAddr(), "c", 0, "send_stream_end_on_client_close_stream", "true")
	a := c.want(fromZero(2), mcbp.StatusOK)
	if log, err := mcbp.DecodeFailoverLog(a.Value); err != nil || len(log) != 1 {
		t.Fatalf("failover log %v %v", log, err)
	}
	c.lines("snapshot 0-5 2 <nil>", "mutation 3 a=3 <nil>", "mutation 4 c=4 <nil>", "DCP_DELETION 5 b <nil>")
	kv.want(setFrame(2, "d", "5"), mcbp.StatusOK)
	c.lines("snapshot 6-6 1 <nil>", "mutation 6 d=5 <nil>")
	c.want(fromZero(2), mcbp.StatusKeyExists)
	c.want(request(mcbp.OpDCPCloseStream, 2, nil, nil, nil), mcbp.StatusOK)
	c.lines("end closed <nil>")
	c.want(request(mcbp.OpDCPCloseStream, 2, nil, nil, nil), mcbp.StatusKeyNotFound)
	kv.want(setFrame(2, "d", "6"), mcbp.StatusOK)
	c.silent(50 * time.Millisecond)

	// The stream starts in the middle: the first marker begins at the consumer's position.
	uuid := n.buckets()[0].store.VBucket(2).Info().Failover[0].VBUUID
	c.want(streamFrame(2, mcbp.StreamRequest{Start: 5, End: mcbp.EndOfTime, VBUUID: uuid, SnapStart: 5, SnapEnd: 5}),
		mcbp.StatusOK)
	c.lines("snapshot 5-7 2 <nil>", "mutation 7 d=6 <nil>")
	// The stream starts at the high seqno: the first marker is one of memory.
	c.want(streamFrame(3, mcbp.StreamRequest{End: mcbp.EndOfTime}), mcbp.StatusOK)
	kv.want(setFrame(3, "x", "1"), mcbp.StatusOK)
	c.lines("snapshot 0-1 1 <nil>", "mutation 1 x=1 <nil>")
}

func TestFiniteStreamsEnd(t *testing.T) {
	n, _ := runNode(t, testConfig(t.TempDir()))
	kv := login(t, n.MemcachedAddr())
	kv.want(setFrame(0, "a", "1"), mcbp.StatusOK)
	kv.want(setFrame(0, "b", "2"), mcbp.StatusOK)
	kv.want(setFrame(0, "a", "3"), mcbp.StatusOK)
	c := openDCP(t, n.MemcachedAddr(), "c", 0)
	ask := func(vb uint16, r mcbp.StreamRequest) { c.t.Helper(); c.want(streamFrame(vb, r), mcbp.StatusOK) }
	ask(0, mcbp.StreamRequest{End: 0})
	c.lines("end ok <nil>")
	whole := []string{"snapshot 0-3 2 <nil>", "mutation 2 b=2 <nil>", "mutation 3 a=3 <nil>"}
	for end := range uint64(3) { // a stream ends with the snapshot that contains its end, as with engines
		ask(0, mcbp.StreamRequest{End: end + 1})
		c.lines(append(slices.Clone(whole), "end ok <nil>")...)
	}
	ask(0, mcbp.StreamRequest{End: mcbp.EndOfTime, Flags: mcbp.StreamToLatest})
	c.lines(append(slices.Clone(whole), "end ok <nil>")...)
	ask(1, mcbp.StreamRequest{End: mcbp.EndOfTime, Flags: mcbp.StreamToLatest})
	c.lines("end ok <nil>")
	ask(0, mcbp.StreamRequest{End: 5})
	c.lines(whole...)
	kv.send(setFrame(0, "c", "4"), setFrame(0, "d", "5"), setFrame(0, "e", "6"))
	for range 3 {
		kv.read()
	}
	var tail []string
	for len(tail) == 0 || !strings.HasPrefix(tail[len(tail)-1], "end") {
		if l := line(c.read()); !strings.HasPrefix(l, "snapshot") { // in one window or several
			tail = append(tail, l)
		}
	}
	got := strings.Replace(strings.Join(tail, "; "), "mutation 6 e=6 <nil>; ", "", 1) // in a window with 5, or not sent
	if got != "mutation 4 c=4 <nil>; mutation 5 d=5 <nil>; end ok <nil>" {
		t.Fatalf("a stream up to 5 ended with %q", got)
	}
}

func TestStreamRequestsRefused(t *testing.T) {
	n, _ := runNode(t, testConfig(t.TempDir()))
	login(t, n.MemcachedAddr()).want(setFrame(0, "a", "1"), mcbp.StatusOK)
	c := openDCP(t, n.MemcachedAddr(), "c", 0)
	c.want(streamFrame(0, mcbp.StreamRequest{Start: 5, End: 4, SnapStart: 5, SnapEnd: 5}), mcbp.StatusRange)
	c.want(streamFrame(0, mcbp.StreamRequest{Start: 1, End: 4, SnapStart: 2, SnapEnd: 5}), mcbp.StatusRange)
	a := c.want(streamFrame(0, mcbp.StreamRequest{Start: 1, End: 4, VBUUID: 77, SnapStart: 1, SnapEnd: 1}),
		mcbp.StatusRollback)
	if to, err := mcbp.DecodeRollback(a.Value); to != 0 || err != nil {
		t.Fatalf("roll back to %d %v", to, err)
	}
	c.want(fromZero(77), mcbp.StatusNotMyVBucket)
	c.want(request(mcbp.OpDCPStreamReq, 0, []byte{1, 2, 3}, nil, nil), mcbp.StatusInvalid)
	for value, status := range map[string]mcbp.Status{
		`{"purge_seqno":"12"}`: mcbp.StatusOK, `{}`: mcbp.StatusOK,
		`{"collections":["0"]}`: mcbp.StatusInvalid, `{"scope":"0"}`: mcbp.StatusInvalid, `{"uid":"0"}`: mcbp.StatusInvalid, // not negotiated
		`{"sid":1}`: mcbp.StatusInvalid, `[]`: mcbp.StatusInvalid, `{"purge_seqno":"x"}`: mcbp.StatusInvalid,
	} {
		f := streamFrame(0, mcbp.StreamRequest{End: 0})
		f.Value = []byte(value)
		c.want(f, status)
		if status == mcbp.StatusOK {
			c.lines("end ok <nil>")
		}
	}
	c.want(streamFrame(0, mcbp.StreamRequest{End: 1, Flags: mcbp.StreamTakeover}), mcbp.StatusNotSupported)
	c.want(request(mcbp.OpDCPAddStream, 0, []byte{0, 0, 0, 0}, nil, nil), mcbp.StatusNotSupported)
	c.want(request(mcbp.OpDCPFailoverLog, 0, nil, nil, nil), mcbp.StatusOK)
	c.want(request(mcbp.OpDCPFailoverLog, 99, nil, nil, nil), mcbp.StatusNotMyVBucket)

	x := openDCP(t, n.MemcachedAddr(), "x", mcbp.OpenXattrs)
	x.want(fromZero(0), mcbp.StatusNotSupported) // attributes without NOOP
	x.want(request(mcbp.OpDCPControl, 0, nil, []byte("enable_noop"), []byte("true")), mcbp.StatusOK)
	x.want(fromZero(0), mcbp.StatusOK)
}

func TestConnectionsOfOneNameAndOrderOfRequests(t *testing.T) {
	n, _ := runNode(t, testConfig(t.TempDir()))
	first := openDCP(t, n.MemcachedAddr(), "same", 0)
	second := openDCP(t, n.MemcachedAddr(), "same", 0)
	first.closed("replaced by another connection of its name")
	second.want(fromZero(0), mcbp.StatusOK)
	second.send(request(mcbp.OpDCPOpen, 0, mcbp.Open{Flags: mcbp.OpenProducer}.AppendExtras(nil), []byte("again"), nil))
	second.closed("a second DCP_OPEN")
	early := login(t, n.MemcachedAddr())
	early.send(request(mcbp.OpDCPFailoverLog, 0, nil, nil, nil))
	early.closed("FAILOVER_LOG before DCP_OPEN")

	c := login(t, n.MemcachedAddr())
	open := func(flags mcbp.OpenFlags, name string) mcbp.Frame {
		return request(mcbp.OpDCPOpen, 0, mcbp.Open{Flags: flags}.AppendExtras(nil), []byte(name), nil)
	}
	c.want(open(0, "consumer"), mcbp.StatusNotSupported)
	c.want(open(mcbp.OpenProducer|mcbp.OpenNotifier, "x"), mcbp.StatusNotSupported)
	c.want(open(mcbp.OpenProducer, ""), mcbp.StatusInvalid)
	c.want(open(mcbp.OpenProducer, strings.Repeat("n", mcbp.MaxConnectionName+1)), mcbp.StatusInvalid)
	c.want(open(mcbp.OpenProducer|0x4000, "x"), mcbp.StatusInvalid)
	c.want(open(mcbp.OpenProducer, "x"), mcbp.StatusOK)
	for _, k := range []string{"enable_stream_id", "max_marker_version", "nonsense"} {
		c.want(request(mcbp.OpDCPControl, 0, nil, []byte(k), []byte("true")), mcbp.StatusInvalid)
	}
	for k, v := range map[string]string{"connection_buffer_size": "x", "set_noop_interval": "-1", "enable_noop": "maybe",
		"max_marker_version": "NaN"} {
		c.want(request(mcbp.OpDCPControl, 0, nil, []byte(k), []byte(v)), mcbp.StatusInvalid)
	}
	for _, v := range []string{"", "0", "NaN", "-Inf", "Inf", "1e300", "5s"} {
		c.want(request(mcbp.OpDCPControl, 0, nil, []byte("set_noop_interval"), []byte(v)), mcbp.StatusInvalid)
	}
	for k, v := range map[string]string{"connection_buffer_size": "1000", "set_noop_interval": "20", "enable_noop": "true",
		"set_priority": "high", "supports_cursor_dropping_vulcan": "true"} {
		c.want(request(mcbp.OpDCPControl, 0, nil, []byte(k), []byte(v)), mcbp.StatusOK)
	}
	c.want(setFrame(0, "a", "still a client"), mcbp.StatusOK)
	if got := n.Status().Counters; got.DCPOpens != 9 {
		t.Fatalf("%d DCP_OPEN counted", got.DCPOpens)
	}
}

// The producer never has more bytes in flight than the window and one message; NOOPs do not count.
func TestFlowControl(t *testing.T) {
	n, _ := runNode(t, testConfig(t.TempDir()))
	kv := login(t, n.MemcachedAddr())
	const docs, window = 200, 2000
	for i := range docs {
		kv.want(setFrame(0, fmt.Sprintf("k%03d", i), strings.Repeat("v", 100)), mcbp.StatusOK)
	}
	c := openDCP(t, n.MemcachedAddr(), "c", 0, "connection_buffer_size", fmt.Sprint(window), "set_noop_interval", "0.1",
		"enable_noop", "true")
	c.want(fromZero(0), mcbp.StatusOK)
	received, noops, unacked := 0, 0, 0
	largest := 24 + 31 + 4 + 100
	for received < docs {
		f := c.read()
		switch f.Op {
		case mcbp.OpDCPNoop:
			noops++
			c.send(mcbp.Frame{Header: mcbp.Response(f.Header, mcbp.StatusOK)})
			if noops%2 == 0 { // the window is full for at least one interval
				c.send(request(mcbp.OpDCPBufferAck, 0, mcbp.AppendBufferAck(nil, uint32(unacked)), nil, nil))
				unacked = 0
				if noops > 4 { // without a window from now on
					c.send(request(mcbp.OpDCPControl, 0, nil, []byte("connection_buffer_size"), []byte("0")))
				}
			}
			continue
		case mcbp.OpDCPControl:
			continue
		case mcbp.OpDCPMutation:
			received++
		}
		unacked += f.Size()
		if noops <= 4 && unacked >= window+largest {
			t.Fatalf("%d bytes on their way, the window is %d", unacked, window)
		}
	}
	if noops < 3 {
		t.Fatalf("%d NOOPs", noops)
	}
}

// A stream whose window is full in the middle of a snapshot is ended as too slow once the versions replaced meanwhile
// exceed what a node keeps. The consumer receives that end when its window allows it. Other streams of the vbucket go
// on.
func TestStalledConsumer(t *testing.T) {
	config := testConfig(t.TempDir())
	config.QuotaBytes = 512 << 20 // a vbucket's share is at most 64 MiB
	n, _ := runNode(t, config)
	kv := login(t, n.MemcachedAddr())
	for i := range 300 {
		kv.want(setFrame(0, fmt.Sprint("k", i), "1"), mcbp.StatusOK)
	}
	still := openDCP(t, n.MemcachedAddr(), "still", 0, mcbp.ControlBufferSize, "100")
	still.want(fromZero(0), mcbp.StatusOK)
	still.lines("snapshot 0-300 2 <nil>", "mutation 1 k0=1 <nil>")
	large := strings.Repeat("x", 4<<20)
	for range 18 {
		kv.want(setFrame(0, "hot", large), mcbp.StatusOK)
	}
	quick := openDCP(t, n.MemcachedAddr(), "quick", 0)
	quick.want(fromZero(0), mcbp.StatusOK)
	quick.lines("snapshot 0-318 2 <nil>")
	for seen := 0; seen < 301; seen++ {
		if f := quick.read(); f.Op != mcbp.OpDCPMutation {
			t.Fatalf("the quick consumer got %s after %d mutations", line(f), seen)
		}
	}
	still.send(request(mcbp.OpDCPControl, 0, nil, []byte(mcbp.ControlBufferSize), []byte("0")))
	f := still.read()
	for f.Op == mcbp.OpDCPControl || f.Op == mcbp.OpDCPMutation {
		f = still.read()
	}
	if want := "end " + mcbp.EndTooSlow.String() + " <nil>"; line(f) != want {
		t.Fatalf("got %s, want %s", line(f), want)
	}
}

func TestConsumerThatAnswersNoNoop(t *testing.T) {
	t.Parallel()
	config := testConfig(t.TempDir())
	config.DCPTimeout = 400 * time.Millisecond
	n, _ := runNode(t, config)
	c := openDCP(t, n.MemcachedAddr(), "c", 0, "set_noop_interval", "0.1", "enable_noop", "true")
	c.closed("no NOOP answered")
	quiet := openDCP(t, n.MemcachedAddr(), "quiet", 0) // without NOOP a silent consumer may stay
	quiet.silent(700 * time.Millisecond)
	quiet.want(fromZero(0), mcbp.StatusOK)
}

func TestFormsOfDeletions(t *testing.T) {
	n, _ := runNode(t, testConfig(t.TempDir()))
	kv := login(t, n.MemcachedAddr(), mcbp.FeatureXattr)
	kv.want(setFrame(0, "a", "1"), mcbp.StatusOK)
	kv.want(request(mcbp.OpDelete, 0, nil, []byte("a"), nil), mcbp.StatusOK)
	kv.want(request(mcbp.OpSet, 0, mcbp.Store{Expiry: 1_000_000_000}.AppendExtras(nil), []byte("b"), nil), mcbp.StatusOK)
	kv.want(request(mcbp.OpGet, 0, nil, []byte("b"), nil), mcbp.StatusKeyNotFound)
	f := setFrame(0, "c", string(mcbp.AppendXattrs(nil, []byte("attr")))+"body")
	f.Datatype = mcbp.DatatypeXattr
	kv.want(f, mcbp.StatusOK)
	for i, x := range []struct {
		flags    mcbp.OpenFlags
		controls []string
		want     string
	}{
		{0, nil, "DCP_DELETION/18 DCP_DELETION/18 DCP_MUTATION/31/body/0"},
		{mcbp.OpenDeleteTimes, nil, "DCP_DELETION/21 DCP_DELETION/21 DCP_MUTATION/31/body/0"},
		{0, []string{"enable_expiry_opcode", "true"}, "DCP_DELETION/21 DCP_EXPIRATION/20 DCP_MUTATION/31/body/0"},
		{mcbp.OpenNoValue, nil, "DCP_DELETION/18 DCP_DELETION/18 DCP_MUTATION/31//0"},
		{mcbp.OpenXattrs, []string{"enable_noop", "true"}, "DCP_DELETION/18 DCP_DELETION/18 " +
			"DCP_MUTATION/31/\x00\x00\x00\x04attrbody/4"},
	} {
		c := openDCP(t, n.MemcachedAddr(), fmt.Sprint("c", i), x.flags, x.controls...)
		c.want(streamFrame(0, mcbp.StreamRequest{End: 5}), mcbp.StatusOK)
		c.lines("snapshot 0-5 2 <nil>")
		var got []string
		for range 3 {
			m := c.read()
			text := fmt.Sprintf("%v/%d", m.Op, len(m.Extras))
			if m.Op == mcbp.OpDCPMutation {
				text += fmt.Sprintf("/%s/%d", m.Value, m.Datatype)
			}
			got = append(got, text)
		}
		if strings.Join(got, " ") != x.want {
			t.Errorf("flags %#x %v: %q, want %q", x.flags, x.controls, got, x.want)
		}
	}
}

func TestVBucketThatGoesAwayEndsItsStream(t *testing.T) {
	t.Parallel()
	n, _ := runNode(t, testConfig(t.TempDir()))
	c := openDCP(t, n.MemcachedAddr(), "c", 0)
	c.want(fromZero(4), mcbp.StatusOK)
	keepStates(t, n)
	if err := n.buckets()[0].store.VBucket(4).SetState(store.Dead); err != nil {
		t.Fatal(err)
	}
	c.lines("end state changed <nil>")
	a := c.want(fromZero(4), mcbp.StatusNotMyVBucket)
	if config, err := mcbp.ParseClusterConfig(a.Value); err != nil || config.NumVBuckets() != 16 {
		t.Fatalf("config in the answer: %v", err)
	}
}

// While writers overwrite, delete and re-create a few hot keys in random bursts, streams that are opened and cut at
// random have, at every snapshot end, exactly the state of the vbucket at that seqno, and always reach the end.
func TestStreamEqualsHistory(t *testing.T) {
	t.Parallel()
	n, _ := runNode(t, testConfig(t.TempDir()))
	kv := login(t, n.MemcachedAddr(), mcbp.FeatureMutationToken)
	const total = 6000
	history := make([]string, total+1) // by seqno: "key=value" or "key"
	done := make(chan struct{})
	go func() {
		defer close(done)
		rng := rand.New(rand.NewPCG(3, 4))
		live := map[string]bool{}
		for seqno := 1; seqno <= total; {
			burst := min(rng.IntN(40)+1, total-seqno+1)
			var frames []mcbp.Frame
			for range burst {
				key := fmt.Sprintf("k%d", rng.IntN(12))
				if live[key] && rng.IntN(3) == 0 {
					frames = append(frames, request(mcbp.OpDelete, 0, nil, []byte(key), nil))
					history[seqno] = key
				} else {
					frames = append(frames, setFrame(0, key, fmt.Sprint(seqno)))
					history[seqno] = fmt.Sprintf("%s=%d", key, seqno)
				}
				live[key] = !strings.HasSuffix(history[seqno], key)
				seqno++
			}
			kv.send(frames...)
			for range burst {
				if f := kv.read(); f.Status() != mcbp.StatusOK {
					t.Errorf("write: %v", f.Status())
					return
				}
			}
			if rng.IntN(4) == 0 {
				time.Sleep(time.Duration(rng.IntN(2000)) * time.Microsecond)
			}
		}
	}()

	rng := rand.New(rand.NewPCG(5, 6))
	state := map[string]string{}
	var at uint64
	uuid := n.buckets()[0].store.VBucket(0).Info().Failover[0].VBUUID
	var events []string // of the current window
	seen := map[string]string{}
	var seqnos []uint64
	for round := 0; at < total; round++ {
		c := openDCP(t, n.MemcachedAddr(), fmt.Sprint("c", round%3), 0, "connection_buffer_size", "0")
		c.want(streamFrame(0, mcbp.StreamRequest{Start: at, End: mcbp.EndOfTime, VBUUID: uuid, SnapStart: at, SnapEnd: at}),
			mcbp.StatusOK)
		var end uint64
		events = events[:0]
		for left := rng.IntN(800) + 1; left > 0 && at < total; {
			f := c.read()
			switch f.Op {
			case mcbp.OpDCPSnapshotMarker:
				m, err := mcbp.DecodeSnapshotMarker(f.Extras, f.Value)
				if err != nil || end != 0 || m.End <= at {
					t.Fatalf("at %d: %s while the window to %d is open", at, line(f), end)
				}
				end = m.End
			case mcbp.OpDCPMutation:
				m, _ := mcbp.DecodeMutation(f.Extras)
				seqnos = append(seqnos, m.Seqno)
				events = append(events, fmt.Sprintf("%s=%s", f.Key, f.Value))
			case mcbp.OpDCPDeletion:
				m, _ := mcbp.DecodeDeletion(f.Extras)
				seqnos = append(seqnos, m.Seqno)
				events = append(events, string(f.Key))
			default:
				t.Fatalf("got %s", line(f))
			}
			last := at
			if len(seqnos) > 0 {
				last = seqnos[len(seqnos)-1]
			}
			if len(seqnos) > 1 && seqnos[len(seqnos)-2] >= last || last > end && end > 0 {
				t.Fatalf("seqnos %v in a window to %d", seqnos, end)
			}
			if end == 0 || last < end {
				continue
			}
			for _, e := range events {
				key, value, set := strings.Cut(e, "=")
				delete(state, key)
				if set {
					state[key] = value
				}
			}
			at, end, events, seqnos = end, 0, events[:0], seqnos[:0]
			left--
			clear(seen)
			for _, h := range history[1 : at+1] { // the log and the history have writes that are not acknowledged yet, too
				key, value, set := strings.Cut(h, "=")
				delete(seen, key)
				if set {
					seen[key] = value
				}
			}
			if fmt.Sprint(state) != fmt.Sprint(seen) {
				t.Fatalf("state at %d: %v, want %v", at, state, seen)
			}
		}
		if round%2 == 0 {
			_ = c.nc.Close()
		}
		seqnos = seqnos[:0]
	}
	<-done
}
