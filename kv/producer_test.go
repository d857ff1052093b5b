package kv

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"testing"
	"time"

	"tidemark/mcbp"
)

// A consumer that asks for the second form of markers gets it, with the purge seqno when it knows that.
func TestMarkerForms(t *testing.T) {
	n, _ := runNode(t, testConfig(t.TempDir()))
	login(t, n.MemcachedAddr()).want(setFrame(0, "a", "1"), mcbp.StatusOK)
	for version, want := range map[string]mcbp.SnapshotMarker{
		"1.0": {End: 1, Flags: mcbp.SnapshotDisk},
		"2.0": {End: 1, Flags: mcbp.SnapshotDisk, V2: true, MaxVisible: 1},
		"2.2": {End: 1, Flags: mcbp.SnapshotDisk, V2: true, MaxVisible: 1, HasPurge: true},
	} {
		c := openDCP(t, n.MemcachedAddr(), "c"+version, 0, mcbp.ControlMaxMarker, version)
		c.want(fromZero(0), mcbp.StatusOK)
		f := c.read()
		if m, err := mcbp.DecodeSnapshotMarker(f.Extras, f.Value); err != nil || m != want {
			t.Errorf("%s: %+v %v, want %+v", version, m, err, want)
		}
		c.lines("mutation 1 a=1 <nil>")
		c.want(request(mcbp.OpDCPControl, 0, nil, []byte(mcbp.ControlMaxMarker), []byte("3.0")), mcbp.StatusInvalid)
	}
}

// A window that ends where no item is (it was de-duplicated away) is closed by SEQNO_ADVANCED for those who know it.
func TestSeqnoAdvanced(t *testing.T) {
	n, _ := runNode(t, testConfig(t.TempDir()))
	kv := login(t, n.MemcachedAddr())
	for _, key := range []string{"a", "b", "b"} {
		kv.want(setFrame(0, key, "1"), mcbp.StatusOK)
	}
	for _, x := range []struct {
		features []mcbp.Feature
		lines    []string
	}{
		{nil, []string{"snapshot 0-2 2 <nil>", "mutation 1 a=1 <nil>", "end ok <nil>"}},
		{[]mcbp.Feature{mcbp.FeatureCollections}, []string{"snapshot 0-2 2 <nil>", "mutation 1 \x00a=1 <nil>", "advanced 2 <nil>", "end ok <nil>"}},
	} {
		c := login(t, n.MemcachedAddr(), x.features...)
		c.want(request(mcbp.OpDCPOpen, 0, mcbp.Open{Flags: mcbp.OpenProducer}.AppendExtras(nil), fmt.Append(nil, "c", len(x.features)), nil), mcbp.StatusOK)
		c.want(streamFrame(0, mcbp.StreamRequest{End: 2}), mcbp.StatusOK)
		c.lines(x.lines...)
	}
}

// Ten thousand streams opened and closed leave nothing behind.
func TestTenThousandStreams(t *testing.T) {
	n, _ := runNode(t, testConfig(t.TempDir()))
	kv := login(t, n.MemcachedAddr())
	for vb := range 16 {
		kv.want(setFrame(uint16(vb), "a", "1"), mcbp.StatusOK)
	}
	c := openDCP(t, n.MemcachedAddr(), "c", 0, mcbp.ControlEndOnClose, "true")
	const rounds = 10_000 / 16
	for range rounds {
		var frames []mcbp.Frame
		for vb := range uint16(16) {
			frames = append(frames, fromZero(vb), request(mcbp.OpDCPCloseStream, vb, nil, nil, nil))
		}
		c.send(frames...)
		for ends := 0; ends < 16; {
			if f := c.read(); f.Op == mcbp.OpDCPStreamEnd {
				ends++
			} else if f.Magic.IsResponse() && f.Status() != mcbp.StatusOK {
				t.Fatalf("%v: %v", f.Op, f.Status())
			}
		}
	}
	if s := n.Status().Counters; s.Streams != 0 || s.StreamsAccepted < rounds*16 {
		t.Fatalf("%d streams are open, %d were accepted", s.Streams, s.StreamsAccepted)
	}
	for vb := range uint16(16) {
		if got := n.buckets[0].store.VBucket(vb).Listeners(); got != 0 {
			t.Fatalf("%d listeners are left on vbucket %d", got, vb)
		}
	}
	c.want(fromZero(0), mcbp.StatusOK)
	c.lines("snapshot 0-1 2 <nil>", "mutation 1 a=1 <nil>")
}

// Headers that announce much and bring nothing take no memory for it: 64 connections announce 1.3 GB together.
func TestAnnouncedBodiesTakeNoMemory(t *testing.T) {
	n, _ := runNode(t, testConfig(t.TempDir()))
	head, err := mcbp.Append(nil, setFrame(0, "a", ""))
	if err != nil {
		t.Fatal(err)
	}
	binary.BigEndian.PutUint32(head[8:], mcbp.MaxBody)
	used := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	var clients []*rawClient
	for range 64 {
		clients = append(clients, login(t, n.MemcachedAddr()))
	}
	before := used()
	for _, c := range clients {
		if _, err := c.nc.Write(head); err != nil {
			t.Fatal(err)
		}
	}
	// The node has read a header when it has nothing more in its buffers; another connection's requests show that it goes on.
	other := login(t, n.MemcachedAddr())
	for range 50 {
		other.want(setFrame(1, "b", "1"), mcbp.StatusOK)
		time.Sleep(time.Millisecond)
	}
	if grown := int64(used()) - int64(before); grown > 64<<20 {
		t.Fatalf("%d bytes for bodies that never came", grown)
	}
}
