package kv

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"tidemark/kv/mcbp"
	"tidemark/kv/store"
)

func counterFrame(op mcbp.Opcode, key string, a mcbp.Arithmetic) mcbp.Frame {
	return request(op, 0, a.AppendExtras(nil), []byte(key), nil)
}

func TestCounters(t *testing.T) {
	clock := newClock()
	config := testConfig(t.TempDir())
	config.Now = clock.now
	n, _ := runNode(t, config)
	c := login(t, n.MemcachedAddr(), mcbp.FeatureMutationToken)
	const up, down = mcbp.OpIncrement, mcbp.OpDecrement
	for _, x := range []struct {
		name   string
		op     mcbp.Opcode
		key    string
		before string // stored first, unless empty
		a      mcbp.Arithmetic
		status mcbp.Status
		answer uint64
	}{
		{"not to be created", up, "a", "", mcbp.Arithmetic{Delta: 1, Initial: 5, Expiry: mcbp.NoCreate},
			mcbp.StatusKeyNotFound, 0},
		{"created with the initial value", up, "a", "", mcbp.Arithmetic{Delta: 1, Initial: 5}, mcbp.StatusOK, 5},
		{"added", up, "a", "", mcbp.Arithmetic{Delta: 3, Initial: 5}, mcbp.StatusOK, 8},
		{"subtracted", down, "a", "", mcbp.Arithmetic{Delta: 3, Expiry: mcbp.NoCreate}, mcbp.StatusOK, 5},
		{"not below nothing", down, "a", "", mcbp.Arithmetic{Delta: 6}, mcbp.StatusOK, 0},
		{"a document", up, "a", "41", mcbp.Arithmetic{Delta: 1}, mcbp.StatusOK, 42},
		{"wraps around", up, "a", "18446744073709551615", mcbp.Arithmetic{Delta: 2}, mcbp.StatusOK, 1},
		{"no number", up, "a", "x", mcbp.Arithmetic{Delta: 1}, mcbp.StatusBadDelta, 0},
		{"a negative number", up, "a", "-1", mcbp.Arithmetic{Delta: 1}, mcbp.StatusBadDelta, 0},
		{"too many digits", up, "a", "18446744073709551616", mcbp.Arithmetic{Delta: 1}, mcbp.StatusBadDelta, 0},
		{"a long document", down, "a", strings.Repeat("1", 21), mcbp.Arithmetic{Delta: 1}, mcbp.StatusBadDelta, 0},
	} {
		if x.before != "" {
			c.want(setFrame(0, x.key, x.before), mcbp.StatusOK)
		}
		a := c.call(counterFrame(x.op, x.key, x.a))
		if a.Status() != x.status {
			t.Fatalf("%s: %v, want %v", x.name, a.Status(), x.status)
		}
		if x.status != mcbp.StatusOK {
			continue
		}
		if got, err := mcbp.DecodeCounter(a.Value); err != nil || got != x.answer || a.CAS == 0 || len(a.Extras) != 16 {
			t.Fatalf("%s: %d %v, want %d; cas %d, extras %v", x.name, got, err, x.answer, a.CAS, a.Extras)
		}
	}
	c.want(request(mcbp.OpIncrement, 0, make([]byte, 19), []byte("a"), nil), mcbp.StatusInvalid)

	// The CAS of the document is honoured, and its flags and expiry stay: those of the counter's request do not apply.
	s := c.want(request(mcbp.OpSet, 0, mcbp.Store{Flags: 7, Expiry: 100}.AppendExtras(nil), []byte("b"), []byte("1")),
		mcbp.StatusOK)
	f := counterFrame(up, "b", mcbp.Arithmetic{Delta: 1, Expiry: 5})
	f.CAS = s.CAS + 1
	c.want(f, mcbp.StatusKeyExists)
	f.CAS = s.CAS
	c.want(f, mcbp.StatusOK)
	f = counterFrame(up, "new", mcbp.Arithmetic{Initial: 9, Expiry: 5})
	c.want(f, mcbp.StatusOK)
	clock.add(10 * time.Second)
	if g := c.want(request(mcbp.OpGet, 0, nil, []byte("b"), nil), mcbp.StatusOK); string(g.Value) != "2" ||
		binary.BigEndian.Uint32(g.Extras) != 7 {
		t.Fatalf("%q, flags %v", g.Value, g.Extras)
	}
	c.want(request(mcbp.OpGet, 0, nil, []byte("new"), nil), mcbp.StatusKeyNotFound)
	clock.add(100 * time.Second)
	c.want(request(mcbp.OpGet, 0, nil, []byte("b"), nil), mcbp.StatusKeyNotFound)
	c.send(counterFrame(mcbp.OpIncrementQ, "q", mcbp.Arithmetic{Initial: 3}),
		counterFrame(mcbp.OpDecrementQ, "q", mcbp.Arithmetic{Delta: 1}), request(mcbp.OpGet, 0, nil, []byte("q"), nil))
	if g := c.read(); g.Op != mcbp.OpGet || string(g.Value) != "2" {
		t.Fatalf("%v %q", g.Op, g.Value)
	}
}

func TestAppendAndPrepend(t *testing.T) {
	t.Parallel()
	n, _ := runNode(t, testConfig(t.TempDir()))
	c := login(t, n.MemcachedAddr(), mcbp.FeatureJSON, mcbp.FeatureXattr)
	add := func(op mcbp.Opcode, key, value string) mcbp.Frame {
		return request(op, 0, nil, []byte(key), []byte(value))
	}
	get := func(key, value string, datatype mcbp.Datatype) {
		t.Helper()
		if g := c.want(request(mcbp.OpGet, 0, nil, []byte(key), nil), mcbp.StatusOK); string(g.Value) != value ||
			g.Datatype != datatype {
			t.Fatalf("%q %v, want %q %v", g.Value, g.Datatype, value, datatype)
		}
	}
	c.want(add(mcbp.OpAppend, "a", "x"), mcbp.StatusNotStored)
	c.want(add(mcbp.OpPrepend, "a", "x"), mcbp.StatusNotStored)
	s := c.want(setFrame(0, "a", `1`), mcbp.StatusOK)
	f := add(mcbp.OpAppend, "a", `,2]`)
	f.CAS = s.CAS + 1
	c.want(f, mcbp.StatusKeyExists)
	f.CAS = s.CAS
	c.want(f, mcbp.StatusOK)
	get("a", `1,2]`, 0)
	c.want(add(mcbp.OpPrepend, "a", `[`), mcbp.StatusOK)
	get("a", `[1,2]`, mcbp.DatatypeJSON)

	x := setFrame(0, "x", string(mcbp.AppendXattrs(nil, []byte("attr")))+"2")
	x.Datatype = mcbp.DatatypeXattr
	c.want(x, mcbp.StatusOK)
	c.want(add(mcbp.OpPrepend, "x", "1"), mcbp.StatusOK)
	c.want(add(mcbp.OpAppend, "x", "3"), mcbp.StatusOK)
	c.want(counterFrame(mcbp.OpIncrement, "x", mcbp.Arithmetic{Delta: 1}), mcbp.StatusOK)
	get("x", "124", mcbp.DatatypeJSON)
	d, err := n.buckets()[0].store.VBucket(0).Get([]byte("x"))
	if err != nil || string(d.Doc.Value) != "\x00\x00\x00\x04attr124" || d.Doc.Datatype != 5 {
		t.Fatalf("%q %d %v", d.Doc.Value, d.Doc.Datatype, err)
	}

	c.want(setFrame(0, "big", strings.Repeat("x", store.MaxValueBytes-1)), mcbp.StatusOK)
	c.want(add(mcbp.OpAppend, "big", "xx"), mcbp.StatusTooBig)
	c.want(add(mcbp.OpAppend, "big", "x"), mcbp.StatusOK)
	c.send(add(mcbp.OpAppendQ, "a", " "), add(mcbp.OpPrependQ, "a", " "), add(mcbp.OpAppendQ, "none", " "))
	if q := c.read(); q.Op != mcbp.OpAppendQ || q.Status() != mcbp.StatusNotStored {
		t.Fatalf("%v %v", q.Op, q.Status())
	}
	get("a", ` [1,2] `, mcbp.DatatypeJSON)
	c.want(request(mcbp.OpAppend, 0, make([]byte, 8), []byte("a"), nil), mcbp.StatusInvalid)
}

// Every write honours CAS, and every answer to a write that made a version carries its CAS.
func TestCasEverywhere(t *testing.T) {
	n, _ := runNode(t, testConfig(t.TempDir()))
	c := login(t, n.MemcachedAddr())
	touch := func(op mcbp.Opcode) mcbp.Frame { return request(op, 0, mcbp.AppendTouch(nil, 100), []byte("a"), nil) }
	with := func(f mcbp.Frame, cas uint64) mcbp.Frame { f.CAS = cas; return f }
	replace := setFrame(0, "a", "2")
	replace.Op = mcbp.OpReplace
	add := setFrame(0, "a", "2")
	add.Op = mcbp.OpAdd
	cas := c.want(setFrame(0, "a", "1"), mcbp.StatusOK).CAS
	for _, f := range []mcbp.Frame{
		setFrame(0, "a", "2"), replace, touch(mcbp.OpTouch), touch(mcbp.OpGAT), request(mcbp.OpAppend, 0, nil, []byte("a"),
			[]byte("0")),
		request(mcbp.OpPrepend, 0, nil, []byte("a"), []byte("0")), counterFrame(mcbp.OpIncrement, "a", mcbp.Arithmetic{}),
		request(mcbp.OpDelete, 0, nil, []byte("a"), nil),
	} {
		c.want(with(f, cas+1), mcbp.StatusKeyExists)
		next := c.want(with(f, cas), mcbp.StatusOK).CAS
		if next <= cas {
			t.Fatalf("%v: cas %d after %d", f.Op, next, cas)
		}
		cas = next
	}
	c.want(with(setFrame(0, "a", "2"), cas), mcbp.StatusKeyNotFound)
	c.want(with(replace, cas), mcbp.StatusKeyNotFound)
	c.want(with(add, cas), mcbp.StatusInvalid) // a missing document has no CAS
	c.want(with(counterFrame(mcbp.OpIncrement, "a", mcbp.Arithmetic{}), cas), mcbp.StatusKeyNotFound)
	c.want(add, mcbp.StatusOK)
	c.want(add, mcbp.StatusKeyExists)
}

func TestGetsWithKeys(t *testing.T) {
	n, _ := runNode(t, testConfig(t.TempDir()))
	c := login(t, n.MemcachedAddr())
	if a := c.want(request(mcbp.OpGetK, 0, nil, []byte("a"), nil), mcbp.StatusKeyNotFound); string(a.Key) != "a" {
		t.Fatalf("key %q of what is not there", a.Key)
	}
	c.want(setFrame(0, "a", "1"), mcbp.StatusOK)
	if a := c.want(request(mcbp.OpGetK, 0, nil, []byte("a"), nil), mcbp.StatusOK); string(a.Key) != "a" ||
		string(a.Value) != "1" {
		t.Fatalf("%q %q", a.Key, a.Value)
	}
	for _, f := range []mcbp.Frame{
		request(mcbp.OpGet, 0, []byte{0, 0, 0, 0}, []byte("a"), nil), request(mcbp.OpGet, 0, nil, []byte("a"), []byte("1")),
		request(mcbp.OpDelete, 0, []byte{0, 0, 0, 0}, []byte("a"), nil), request(mcbp.OpDelete, 0, nil, []byte("a"),
			[]byte("1")),
		request(mcbp.OpGAT, 0, mcbp.AppendTouch(nil, 1), []byte("a"), []byte("1")),
	} {
		c.want(f, mcbp.StatusInvalid)
	}
	c.send(request(mcbp.OpGATQ, 0, mcbp.AppendTouch(nil, 1), []byte("none"), nil),
		request(mcbp.OpGATQ, 0, mcbp.AppendTouch(nil, 0), []byte("a"), nil))
	if a := c.read(); string(a.Value) != "1" || len(a.Extras) != 4 {
		t.Fatalf("%v %q", a.Op, a.Value)
	}
}

// Unsupported requests are refused, with a reason for clients that negotiated it, and the connection stays open.
func TestRefusedByName(t *testing.T) {
	n, _ := runNode(t, testConfig(t.TempDir()))
	c := login(t, n.MemcachedAddr(), mcbp.FeatureXerror, mcbp.FeatureJSON)
	plain := login(t, n.MemcachedAddr())
	reason := func(f mcbp.Frame, status mcbp.Status, says string) {
		t.Helper()
		var body struct{ Error struct{ Context string } }
		a := c.want(f, status)
		if err := json.Unmarshal(a.Value, &body); err != nil || !strings.Contains(body.Error.Context, says) ||
			a.Datatype != mcbp.DatatypeJSON {
			t.Errorf("%v: %q %v", f.Op, a.Value, a.Datatype)
		}
		if a := plain.want(f, status); len(a.Value) != 0 {
			t.Errorf("%v: %q for a client that did not ask", f.Op, a.Value)
		}
	}
	for op, says := range map[mcbp.Opcode]string{
		mcbp.OpGetLocked: "CAS", mcbp.OpUnlockKey: "CAS", mcbp.OpFlush: "delete", mcbp.OpGetReplica: "replicas",
		mcbp.OpObserve:     "OBSERVE_SEQNO",
		mcbp.OpSetWithMeta: "replication", mcbp.OpGetRandomKey: "index", mcbp.OpSubdocMultiLookup: "sub-document",
	} {
		reason(request(op, 0, nil, []byte("a"), nil), mcbp.StatusNotSupported, says)
	}
	for _, x := range []struct {
		extras string
		status mcbp.Status
		says   string
	}{
		{"\x11\x01", mcbp.StatusDurabilityImpossible, "durability"}, {"\x13\x03\x00\x10", mcbp.StatusDurabilityImpossible,
			"durability"},
		{"\x11\x00", mcbp.StatusDurabilityInvalid, "level"}, {"\x11\x04", mcbp.StatusDurabilityInvalid, "level"},
		{"\x12\x01\x01", mcbp.StatusInvalid, "bytes"},
		{"\x22\x00\x01", mcbp.StatusNotSupported, "stream id"}, {"\x41x", mcbp.StatusNotSupported, "impersonated"},
		{"\x50", mcbp.StatusNotSupported, "expiry"},
		{"\x60", mcbp.StatusUnknownFrameInfo, "known"}, {"\xf0\x10", mcbp.StatusUnknownFrameInfo, "known"},
		{"\x35", mcbp.StatusInvalid, "malformed"}, {"\xf0", mcbp.StatusInvalid, "malformed"},
		{"\x00\x11\x01", mcbp.StatusDurabilityImpossible, "durability"},
	} {
		f := setFrame(0, "a", "1")
		f.FrameExtras = []byte(x.extras)
		reason(f, x.status, x.says)
	}
	for _, extras := range []string{"\x00", "\x31x", "\x3f\x01" + strings.Repeat("x", 16)} {
		f := setFrame(0, "a", "1")
		f.FrameExtras = []byte(extras)
		c.want(f, mcbp.StatusOK)
	}
	for _, op := range []mcbp.Opcode{0x77, 0x23, 0xff} {
		c.want(request(op, 0, nil, nil, nil), mcbp.StatusUnknownCommand)
	}
	c.want(request(mcbp.OpVerbosity, 0, []byte{0, 0, 0, 1}, nil, nil), mcbp.StatusOK)
	c.want(request(mcbp.OpGet, 0, nil, []byte("a"), nil), mcbp.StatusOK)
}

// A request somewhat beyond the protocol's size limit is answered and its body skipped; one far beyond it is answered
// and the connection closed.
func TestOversizedRequests(t *testing.T) {
	n, _ := runNode(t, testConfig(t.TempDir()))
	c := login(t, n.MemcachedAddr())
	frame, err := mcbp.Append(nil, setFrame(0, "a", ""))
	if err != nil {
		t.Fatal(err)
	}
	announce := func(body uint32) { binary.BigEndian.PutUint32(frame[8:], body) }
	announce(mcbp.MaxBody + 1)
	rest := make([]byte, 1<<20)
	if _, err := c.nc.Write(frame); err != nil {
		t.Fatal(err)
	}
	for left := mcbp.MaxBody + 1 - (len(frame) - mcbp.HeaderSize); left > 0; left -= len(rest) {
		if _, err := c.nc.Write(rest[:min(left, len(rest))]); err != nil {
			t.Fatal(err)
		}
	}
	if a := c.read(); a.Op != mcbp.OpSet || a.Status() != mcbp.StatusTooBig || a.Opaque != 7 {
		t.Fatalf("%v %v %d", a.Op, a.Status(), a.Opaque)
	}
	c.want(setFrame(0, "a", "1"), mcbp.StatusOK)
	announce(1 << 31)
	if _, err := c.nc.Write(frame[:mcbp.HeaderSize]); err != nil {
		t.Fatal(err)
	}
	if a := c.read(); a.Status() != mcbp.StatusTooBig {
		t.Fatalf("%v", a.Status())
	}
	c.closed("a body of 2 GiB")
}

// clock is the wall clock plus an offset that tests advance.
type clock struct{ ahead atomic.Int64 }

func newClock() *clock { return &clock{} }

func (c *clock) now() time.Time      { return time.Now().Add(time.Duration(c.ahead.Load())) }
func (c *clock) add(d time.Duration) { c.ahead.Add(int64(d)) }

// stats requests a group of statistics.
func (c *rawClient) stats(group string) map[string]string {
	c.t.Helper()
	c.send(request(mcbp.OpStat, 0, nil, []byte(group), nil))
	out := map[string]string{}
	for {
		f := c.read()
		if f.Status() != mcbp.StatusOK {
			c.t.Fatalf("stats %s: %v", group, f.Status())
		}
		if len(f.Key) == 0 {
			return out
		}
		out[string(f.Key)] = string(f.Value)
	}
}

func TestStatGroups(t *testing.T) {
	n, _ := runNode(t, testConfig(t.TempDir()))
	c := login(t, n.MemcachedAddr())
	set := c.want(request(mcbp.OpSet, 3, mcbp.Store{Flags: 9}.AppendExtras(nil), []byte("a b"), []byte("1")),
		mcbp.StatusOK)
	one := openDCP(t, n.MemcachedAddr(), "one", 0)
	one.want(fromZero(3), mcbp.StatusOK)
	one.lines("snapshot 0-1 2 <nil>", "mutation 1 a b=1 <nil>") // the counters change when the item is sent
	uuid := fmt.Sprint(n.buckets()[0].store.VBucket(3).Info().Failover[0].VBUUID)
	for group, want := range map[string]map[string]string{
		"":                  {"curr_items": "1", "vb_active_num": "16", "version": Version},
		"uuid":              {"uuid": n.config.Buckets[0].UUID},
		"warmup":            {"ep_warmup_state": "done", "ep_warmup_thread": "complete"},
		"memory":            {"ep_max_size": fmt.Sprint(int64(store.DefaultQuotaBytes))},
		"settings":          {"item_size_max": fmt.Sprint(store.MaxValueBytes)},
		"collections":       {"0x0:0x0:name": "_default", "0x0:0x0:items": "1"},
		"scopes":            {"0x0:name": "_default"},
		"dcp":               {"eq_dcpq:one:num_streams": "1", "eq_dcpq:one:type": "producer"},
		"dcpagg":            {":total:producer_count": "1", ":total:num_streams": "1"},
		"vbucket":           {"vb_15": "active"},
		"vbucket-seqno 3":   {"vb_3:high_seqno": "1", "vb_3:uuid": uuid, "vb_3:purge_seqno": "0"},
		"vbucket-details 3": {"vb_3": "active", "vb_3:num_items": "1"},
		"failovers 3":       {"vb_3:num_entries": "1", "vb_3:0:id": uuid, "vb_3:0:seq": "0"},
		"key a b 3":         {"key_cas": fmt.Sprint(set.CAS), "key_flags": "9"},
		"reset":             {},
	} {
		got := c.stats(group)
		for k, v := range want {
			if got[k] != v {
				t.Errorf("%s: %s is %q, want %q", group, k, got[k], v)
			}
		}
	}
	for group, status := range map[string]mcbp.Status{
		"nonsense": mcbp.StatusKeyNotFound, "vbucket-seqno x": mcbp.StatusInvalid,
		"vbucket-seqno 16": mcbp.StatusNotMyVBucket,
		"key a 3":          mcbp.StatusKeyNotFound, "key 3": mcbp.StatusInvalid, "vkey a 99": mcbp.StatusNotMyVBucket,
		"key ": mcbp.StatusInvalid,
	} {
		c.want(request(mcbp.OpStat, 0, nil, []byte(group), nil), status)
	}
}
