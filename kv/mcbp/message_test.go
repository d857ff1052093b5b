package mcbp

import (
	"bytes"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"tidemark/timestamp"
)

// Each message's fixed fields survive encoding, and any other size of the section is refused.
func TestMessagesRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		u := func() uint64 { return rapid.Uint64().Draw(t, "u64") }
		w := func() uint32 { return rapid.Uint32().Draw(t, "u32") }
		check := func(name string, enc []byte, decode func([]byte) (any, error), want any) {
			got, err := decode(enc)
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Fatalf("%s: got %+v, %v; want %+v", name, got, err, want)
			}
			if _, err := decode(append(bytes.Clone(enc), 1, 2, 3)); !errors.Is(err, ErrMalformed) && name != "deletion v1" {
				t.Fatalf("%s: three more bytes are accepted: %v", name, err)
			}
			if len(enc) > 0 {
				if _, err := decode(enc[:len(enc)-1]); !errors.Is(err, ErrMalformed) && name != "deletion v2" {
					t.Fatalf("%s: one byte less is accepted: %v", name, err)
				}
			}
		}
		open := Open{Flags: OpenFlags(w())}
		check("open", open.AppendExtras(nil), func(b []byte) (any, error) { return DecodeOpen(b) }, open)
		req := StreamRequest{StreamFlags(w()), u(), u(), u(), u(), u()}
		check("stream request", req.AppendExtras(nil), func(b []byte) (any, error) { return DecodeStreamRequest(b) }, req)
		log := timestamp.FailoverLog{{VBUUID: u(), Seqno: u()}, {VBUUID: u(), Seqno: u()}}
		check("failover log", AppendFailoverLog(nil, log), func(b []byte) (any, error) { return DecodeFailoverLog(b) }, log)
		s := u()
		check("rollback", AppendRollback(nil, s), func(b []byte) (any, error) { return DecodeRollback(b) }, s)
		check("seqno advanced", AppendSeqnoAdvanced(nil, s), func(b []byte) (any, error) { return DecodeSeqnoAdvanced(b) }, s)
		n := w()
		check("stream end", AppendStreamEnd(nil, EndReason(n)), func(b []byte) (any, error) { return DecodeStreamEnd(b) },
			EndReason(n))
		check("buffer ack", AppendBufferAck(nil, n), func(b []byte) (any, error) { return DecodeBufferAck(b) }, n)
		check("oso", AppendOSOSnapshot(nil, n), func(b []byte) (any, error) { return DecodeOSOSnapshot(b) }, n)
		check("touch", AppendTouch(nil, n), func(b []byte) (any, error) { return DecodeTouch(b) }, n)
		check("get", AppendGetReply(nil, n), func(b []byte) (any, error) { return DecodeGetReply(b) }, n)
		mut := Mutation{u(), u(), w(), w(), w(), uint16(w()), byte(w())}
		check("mutation", mut.AppendExtras(nil), func(b []byte) (any, error) { return DecodeMutation(b) }, mut)
		d1 := Deletion{Seqno: u(), RevSeqno: u(), MetaLen: uint16(w())}
		check("deletion v1", d1.AppendExtras(nil), func(b []byte) (any, error) { return DecodeDeletion(b) }, d1)
		d2 := Deletion{Seqno: u(), RevSeqno: u(), DeleteTime: w(), WithTime: true}
		check("deletion v2", d2.AppendExtras(nil), func(b []byte) (any, error) { return DecodeDeletion(b) }, d2)
		check("expiration", d2.AppendExpirationExtras(nil), func(b []byte) (any, error) { return DecodeDeletion(b) }, d2)
		ev := SystemEvent{u(), w(), byte(w())}
		check("system event", ev.AppendExtras(nil), func(b []byte) (any, error) { return DecodeSystemEvent(b) }, ev)
		st := Store{w(), w()}
		check("store", st.AppendExtras(nil), func(b []byte) (any, error) { return DecodeStore(b) }, st)
		ar := Arithmetic{u(), u(), w()}
		check("arithmetic", ar.AppendExtras(nil), func(b []byte) (any, error) { return DecodeArithmetic(b) }, ar)
		check("counter", AppendCounter(nil, s), func(b []byte) (any, error) { return DecodeCounter(b) }, s)
		tok := MutationToken{u(), u()}
		check("token", tok.AppendExtras(nil), func(b []byte) (any, error) { return DecodeMutationToken(b) }, tok)
		ob := ObserveSeqno{VBucket: uint16(w()), VBUUID: u(), Persisted: u(), Current: u()}
		check("observe", ob.AppendValue(nil), func(b []byte) (any, error) { return DecodeObserveSeqno(b) }, ob)
		ob.Failover, ob.OldVBUUID, ob.OldSeqno = true, u(), u()
		check("observe after failover", ob.AppendValue(nil), func(b []byte) (any, error) { return DecodeObserveSeqno(b) }, ob)
		known := KnownConfig{int64(u()), int64(u())}
		check("known config", known.AppendExtras(nil), func(b []byte) (any, error) {
			v, _,
				err := DecodeKnownConfig(b)
			return v, err
		}, known)
		check("collection id", AppendCollectionID(nil, s, n), func(b []byte) (any, error) {
			_, c,
				err := DecodeCollectionID(b)
			return c, err
		}, n)
		seqnos := []VBucketSeqno{{uint16(w()), u()}, {uint16(w()), u()}}
		check("vb seqnos", AppendVBSeqno(AppendVBSeqno(nil, seqnos[0]), seqnos[1]),
			func(b []byte) (any, error) { return DecodeVBSeqnos(b) }, seqnos)
		features := []Feature{Feature(uint16(w())), Feature(uint16(w()))}
		check("features", AppendFeatures(nil, features), func(b []byte) (any, error) { return DecodeFeatures(b) }, features)
	})
}

func TestSnapshotMarkerForms(t *testing.T) {
	for _, m := range []SnapshotMarker{
		{Start: 0, End: 9, Flags: SnapshotMemory | SnapshotCheckpoint},
		{Start: 3, End: 3, Flags: SnapshotDisk, V2: true, MaxVisible: 2, HighCompleted: 1},
		{Start: 3, End: 5, V2: true, MaxVisible: 2, HighCompleted: 1, HasPurge: true, HighPrepared: 7, Purge: 8},
		{Start: 0, End: math.MaxUint64},
	} {
		got, err := DecodeSnapshotMarker(m.AppendExtras(nil), m.AppendValue(nil))
		if err != nil || got != m {
			t.Fatalf("got %+v, %v; want %+v", got, err, m)
		}
	}
	sizes := []int{len(SnapshotMarker{}.AppendExtras(nil)), len(SnapshotMarker{V2: true}.AppendValue(nil)),
		len(SnapshotMarker{V2: true, HasPurge: true}.AppendValue(nil))}
	if want := []int{20, 36, 52}; !reflect.DeepEqual(sizes, want) {
		t.Fatalf("sizes %v, want %v", sizes, want)
	}
	for _, bad := range [][2][]byte{
		{nil, nil}, {{1}, make([]byte, 35)}, {make([]byte, 19), nil}, {make([]byte, 2), make([]byte, 36)},
		{SnapshotMarker{Start: 2, End: 1}.AppendExtras(nil), nil},
	} {
		if _, err := DecodeSnapshotMarker(bad[0], bad[1]); !errors.Is(err, ErrMalformed) {
			t.Fatalf("marker of %d and %d bytes: %v", len(bad[0]), len(bad[1]), err)
		}
	}
}

// Vectors computed with zlib's crc32.
func TestVBucket(t *testing.T) {
	tests := []struct {
		key  string
		n    int
		want uint16
	}{
		{"", 1024, 0}, {"hello", 1024, 528}, {"hello", 128, 16}, {"hello", 1, 0},
		{"airport:EDDF", 128, 73}, {"key", 64, 16}, {"x", 0, 0},
	}
	for _, tt := range tests {
		if got := VBucket([]byte(tt.key), tt.n); got != tt.want {
			t.Errorf("VBucket(%q, %d) = %d, want %d", tt.key, tt.n, got, tt.want)
		}
	}
}

func TestCollectionKey(t *testing.T) {
	for _, c := range []uint32{0, 1, 127, 128, 555, math.MaxUint32} {
		got, doc, err := SplitCollectionKey(AppendCollectionKey(nil, c, []byte("doc")))
		if err != nil || got != c || string(doc) != "doc" {
			t.Fatalf("collection %d: %d %q %v", c, got, doc, err)
		}
	}
	for _, bad := range []string{"", "\x80", "\xff\xff\xff\xff\xff\x01", "\xff\xff\xff\xff\x7f"} {
		if _, _, err := SplitCollectionKey([]byte(bad)); !errors.Is(err, ErrMalformed) {
			t.Fatalf("%x: %v", bad, err)
		}
	}
}

func TestXattrs(t *testing.T) {
	v := append(AppendXattrs(nil, []byte("attrs")), "{}"...)
	x, doc, err := SplitXattrs(v)
	if err != nil || string(x) != "attrs" || string(doc) != "{}" {
		t.Fatalf("%q %q %v", x, doc, err)
	}
	for _, bad := range [][]byte{nil, {0, 0, 0}, {0, 0, 0, 1}, {0xff, 0xff, 0xff, 0xff, 1}} {
		if _, _, err := SplitXattrs(bad); !errors.Is(err, ErrMalformed) {
			t.Fatalf("%x: %v", bad, err)
		}
	}
}

// twoNodes returns a small, complete config.
func twoNodes() *ClusterConfig {
	return &ClusterConfig{
		Rev: 4, RevEpoch: 1, Name: "b", UUID: "u", NodeLocator: "vbucket",
		BucketCapabilities: []string{"dcp"},
		Nodes: []ConfigNode{{Hostname: "127.0.0.1:8091", Ports: map[string]int{"direct": 11}},
			{Hostname: "$HOST:8092", Ports: map[string]int{"direct": 12}}},
		NodesExt: []ConfigNodeExt{{Hostname: "10.0.0.1", ThisNode: true,
			Services: map[string]int{"kv": 11210, "kvSSL": 11207}}, {Services: map[string]int{"kv": 11211}}},
		VBucketServerMap: VBucketServerMap{HashAlgorithm: "CRC", NumReplicas: 1,
			ServerList: []string{"10.0.0.1:11210", "$HOST:11211"}, VBucketMap: [][]int{{0, 1}, {1, -1}, {0}, {-1}}},
	}
}

func TestClusterConfig(t *testing.T) {
	data, err := twoNodes().Marshal()
	if err != nil {
		t.Fatal(err)
	}
	c, err := ParseClusterConfig(data)
	if err != nil || !reflect.DeepEqual(c, twoNodes()) {
		t.Fatalf("%+v, %v", c, err)
	}
	if c.NumVBuckets() != 4 || c.NumNodes() != 2 || c.ThisNode() != 0 {
		t.Fatalf("%d vbuckets, %d nodes, this %d", c.NumVBuckets(), c.NumNodes(), c.ThisNode())
	}
	for vb, want := range []int{0, 1, 0, -1, -1} {
		if got := c.Owner(uint16(vb)); got != want {
			t.Errorf("owner of %d is %d, want %d", vb, got, want)
		}
	}
	if got := c.Owned(0); !reflect.DeepEqual(got, []uint16{0, 2}) {
		t.Errorf("node 0 owns %v", got)
	}
	addr := func(c *ClusterConfig, node int, host string, tls bool) string {
		a, err := c.KVAddr(node, host, tls)
		if err != nil {
			return err.Error()
		}
		return a
	}
	if a := addr(c, 0, "h", false); a != "10.0.0.1:11210" {
		t.Error(a)
	}
	if a := addr(c, 0, "h", true); a != "10.0.0.1:11207" {
		t.Error(a)
	}
	if a := addr(c, 1, "::1", false); a != "[::1]:11211" {
		t.Error(a)
	}
	if a := addr(c, 1, "h", true); !strings.Contains(a, "kvSSL") {
		t.Error(a)
	}
	if a := addr(c, 2, "h", false); !strings.Contains(a, "no node 2") {
		t.Error(a)
	}
	c.NodesExt = nil
	if a := addr(c, 1, "h", false); a != "h:11211" {
		t.Error(a)
	}
	c.VBucketServerMap.ServerList = nil
	if a := addr(c, 1, "h", false); a != "h:12" {
		t.Error(a)
	}
}

func TestClusterConfigNewer(t *testing.T) {
	a, b := &ClusterConfig{RevEpoch: 1, Rev: 9}, &ClusterConfig{RevEpoch: 2, Rev: 1}
	if !b.Newer(a) || a.Newer(b) || a.Newer(a) || !a.Newer(nil) || !(&ClusterConfig{RevEpoch: 1, Rev: 10}).Newer(a) {
		t.Fatal("order of (revEpoch, rev)")
	}
}

func TestClusterConfigRefuses(t *testing.T) {
	tests := []struct {
		name string
		edit func(*ClusterConfig)
		says string
	}{
		{"ketama", func(c *ClusterConfig) { c.NodeLocator = "ketama" }, "nodeLocator"},
		{"three vbuckets", func(c *ClusterConfig) { c.VBucketServerMap.VBucketMap = c.VBucketServerMap.VBucketMap[:3] },
			"power of two"},
		{"no vbuckets", func(c *ClusterConfig) { c.VBucketServerMap.VBucketMap = nil }, "power of two"},
		{"node beyond the list", func(c *ClusterConfig) { c.VBucketServerMap.VBucketMap[1][0] = 2 }, "names node 2"},
		{"node -2", func(c *ClusterConfig) { c.VBucketServerMap.VBucketMap[1][0] = -2 }, "names node -2"},
		{"empty chain", func(c *ClusterConfig) { c.VBucketServerMap.VBucketMap[1] = nil }, "chain"},
		{"port", func(c *ClusterConfig) { c.NodesExt[0].Services["kv"] = 70000 }, "port 70000"},
		{"no nodes", func(c *ClusterConfig) { c.Nodes, c.NodesExt, c.VBucketServerMap.ServerList = nil, nil, nil },
			"0 nodes"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := twoNodes()
			tt.edit(c)
			if _, err := c.Marshal(); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), tt.says) {
				t.Fatalf("got %v, want something about %q", err, tt.says)
			}
		})
	}
	if _, err := ParseClusterConfig([]byte("{")); !errors.Is(err, ErrConfig) {
		t.Fatal(err)
	}
	if _, err := ParseClusterConfig(make([]byte, MaxConfigBytes+1)); !errors.Is(err, ErrConfig) {
		t.Fatal(err)
	}
}

func FuzzClusterConfig(f *testing.F) {
	data, err := twoNodes().Marshal()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte(`{"nodes":[{}],"vBucketServerMap":{"vBucketMap":[[0]]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := ParseClusterConfig(data)
		if err != nil {
			return
		}
		for vb := range c.NumVBuckets() {
			if o := c.Owner(uint16(vb)); o >= 0 {
				_, _ = c.KVAddr(o, "h", false)
			}
		}
		if _, err := c.Marshal(); err != nil {
			t.Fatalf("valid when read, not when written: %v", err)
		}
	})
}
