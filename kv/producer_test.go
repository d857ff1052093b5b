package kv

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/golang/snappy"

	"tidemark/internal/testing/raced"
	"tidemark/kv/mcbp"
	"tidemark/kv/server"
)

// A consumer that negotiates version 2 of snapshot markers gets it, from 2.2 on with the purge seqno.
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

// Deletions carry the attributes that the consumer has requested: none, the system's, or all; bodies are always sent.
// Values are compressed for consumers that negotiated it, if they or the node force compression.
func TestBodiesOfDeletionsAndCompression(t *testing.T) {
	n, _ := runNode(t, testConfig(t.TempDir()))
	kv := login(t, n.MemcachedAddr(), mcbp.FeatureXattr, mcbp.FeatureSnappy)
	pair := func(name string) []byte { // an attribute with the value 1
		return append(append(binary.BigEndian.AppendUint32(nil, uint32(len(name)+3)), name...), 0, '1', 0)
	}
	system, all := pair("_s"), append(pair("_s"), pair("u")...)
	withBody := func(section []byte) []byte { return append(mcbp.AppendXattrs(nil, section), "body"...) }
	bury := request(mcbp.OpDeleteWithMeta, 0, mcbp.WithMeta{Rev: 5, CAS: 77}.AppendExtras(nil), []byte("a"),
		snappy.Encode(nil, withBody(all)))
	bury.Datatype = mcbp.DatatypeXattr | mcbp.DatatypeSnappy
	kv.want(bury, mcbp.StatusOK)
	kv.want(bury, mcbp.StatusKeyExists) // a deletion of that revision and CAS exists
	bury.Extras = mcbp.WithMeta{Rev: 4, CAS: 78}.AppendExtras(nil)
	kv.want(bury, mcbp.StatusKeyExists)
	bury.Extras = mcbp.WithMeta{Rev: 4, CAS: 77, Options: mcbp.MetaSkipConflict}.AppendExtras(nil)
	kv.want(bury, mcbp.StatusOK)
	bury.Extras = mcbp.WithMeta{Rev: 4}.AppendExtras(nil)
	kv.want(bury, mcbp.StatusInvalid)
	kv.want(request(mcbp.OpGet, 0, nil, []byte("a"), nil), mcbp.StatusKeyNotFound)

	for i, x := range []struct {
		flags    mcbp.OpenFlags
		controls []string
		want     []byte
		datatype mcbp.Datatype
	}{
		{0, nil, []byte("body"), 0},
		{mcbp.OpenXattrs, nil, withBody(system), mcbp.DatatypeXattr},
		{mcbp.OpenXattrs | mcbp.OpenDeletedUserXattrs, nil, withBody(all), mcbp.DatatypeXattr},
		{mcbp.OpenXattrs, []string{mcbp.ControlForceCompress, "true"}, snappy.Encode(nil, withBody(system)),
			mcbp.DatatypeXattr | mcbp.DatatypeSnappy},
		{mcbp.OpenNoValue, []string{mcbp.ControlForceCompress, "true"}, nil, 0},
	} {
		c := login(t, n.MemcachedAddr(), mcbp.FeatureXattr, mcbp.FeatureSnappy)
		c.want(request(mcbp.OpDCPOpen, 0, mcbp.Open{Flags: mcbp.OpenProducer | x.flags}.AppendExtras(nil),
			fmt.Append(nil, "c", i), nil), mcbp.StatusOK)
		for k := 0; k < len(x.controls); k += 2 {
			c.want(request(mcbp.OpDCPControl, 0, nil, []byte(x.controls[k]), []byte(x.controls[k+1])), mcbp.StatusOK)
		}
		c.want(request(mcbp.OpDCPControl, 0, nil, []byte(mcbp.ControlEnableNoop), []byte("true")), mcbp.StatusOK)
		c.want(fromZero(0), mcbp.StatusOK)
		if f := c.read(); f.Op != mcbp.OpDCPSnapshotMarker {
			t.Fatalf("%d: %v", i, f.Op)
		}
		f := c.read()
		if d, err := mcbp.DecodeDeletion(f.Extras); err != nil || f.Op != mcbp.OpDCPDeletion || d.RevSeqno != 4 ||
			f.CAS != 77 || !bytes.Equal(f.Value, x.want) || f.Datatype != x.datatype {
			t.Errorf("%d: %v %+v %v cas %d: %q of datatype %d, want %q of %d", i, f.Op, d, err, f.CAS, f.Value, f.Datatype,
				x.want, x.datatype)
		}
	}
	c := openDCP(t, n.MemcachedAddr(), "without snappy", 0)
	c.want(request(mcbp.OpDCPControl, 0, nil, []byte(mcbp.ControlForceCompress), []byte("true")), mcbp.StatusInvalid)
	set := setFrame(0, "b", "nonsense")
	set.Datatype = mcbp.DatatypeSnappy
	kv.want(set, mcbp.StatusInvalid)
	login(t, n.MemcachedAddr()).want(set, mcbp.StatusInvalid)
}

// A window that ends at a seqno without an item (de-duplicated away) is closed by SEQNO_ADVANCED for consumers that
// support it.
func TestSeqnoAdvanced(t *testing.T) {
	n := nastyNode(t, server.ExactEnd)
	kv := login(t, n.MemcachedAddr())
	for _, key := range []string{"a", "b", "b"} {
		kv.want(setFrame(1, key, "1"), mcbp.StatusOK)
	}
	for _, x := range []struct {
		features []mcbp.Feature
		lines    []string
	}{
		{nil, []string{"snapshot 0-2 2 <nil>", "mutation 1 a=1 <nil>", "end ok <nil>"}},
		{[]mcbp.Feature{mcbp.FeatureCollections}, []string{"snapshot 0-2 2 <nil>", "mutation 1 \x00a=1 <nil>",
			"advanced 2 <nil>", "end ok <nil>"}},
	} {
		c := login(t, n.MemcachedAddr(), x.features...)
		c.want(request(mcbp.OpDCPOpen, 0, mcbp.Open{Flags: mcbp.OpenProducer}.AppendExtras(nil),
			fmt.Append(nil, "c", len(x.features)), nil), mcbp.StatusOK)
		c.want(streamFrame(1, mcbp.StreamRequest{End: 2}), mcbp.StatusOK)
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
		eventually(t, func() error { // a stream unregisters its listener right after its END
			if got := n.buckets()[0].store.VBucket(vb).Listeners(); got != 0 {
				return fmt.Errorf("%d listeners are left on vbucket %d", got, vb)
			}
			return nil
		})
	}
	c.want(fromZero(0), mcbp.StatusOK)
	c.lines("snapshot 0-1 2 <nil>", "mutation 1 a=1 <nil>")
}

// Headers that announce large bodies take no memory before the bytes arrive: 64 connections announce 1.3 GB together.
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
	// By then the node must have read the headers; the requests of another connection show that it makes progress.
	other := login(t, n.MemcachedAddr())
	for range 50 {
		other.want(setFrame(1, "b", "1"), mcbp.StatusOK)
		time.Sleep(time.Millisecond)
	}
	if grown := int64(used()) - int64(before); grown > 64<<20 && !raced.On {
		t.Fatalf("%d bytes for bodies that never came", grown)
	}
}
