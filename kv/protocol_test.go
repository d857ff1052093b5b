package kv

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"tidemark/kv/mcbp"
	"tidemark/kv/store"
)

// closed waits until the server has closed the connection.
func (c *rawClient) closed(what string) {
	c.t.Helper()
	_ = c.nc.SetReadDeadline(time.Now().Add(testTimeout))
	for {
		if _, err := c.tryRead(); err != nil {
			var timeout net.Error
			if errors.As(err, &timeout) && timeout.Timeout() {
				c.t.Fatalf("%s: the connection is still open", what)
			}
			return
		}
	}
}

func TestCommandsBeforeAuthenticationAndSelection(t *testing.T) {
	n, _ := runNode(t, testConfig(t.TempDir()))
	c := dialRaw(t, n.MemcachedAddr())
	c.want(request(mcbp.OpNoop, 0, nil, nil, nil), mcbp.StatusOK)
	if v := c.want(request(mcbp.OpVersion, 0, nil, nil, nil), mcbp.StatusOK); string(v.Value) != Version {
		t.Fatalf("version %q", v.Value)
	}
	if l := c.want(request(mcbp.OpSASLList, 0, nil, nil, nil),
		mcbp.StatusOK); string(l.Value) != "SCRAM-SHA512 SCRAM-SHA256 SCRAM-SHA1" {
		t.Fatalf("mechanisms %q", l.Value)
	}
	if m := c.want(request(mcbp.OpGetErrorMap, 0, nil, nil, []byte{0, 2}), mcbp.StatusOK); !json.Valid(m.Value) {
		t.Fatalf("error map %q", m.Value)
	}
	for _, op := range []mcbp.Opcode{mcbp.OpGet, mcbp.OpSelectBucket, mcbp.OpStat, mcbp.OpDCPOpen, mcbp.OpGetClusterConfig,
		0x77} {
		c.want(request(op, 0, nil, []byte("world"), nil), mcbp.StatusAuthError)
	}
	c.want(request(mcbp.OpSASLStep, 0, nil, []byte("SCRAM-SHA256"), []byte("c=biws,r=x,p=AAAA")), mcbp.StatusAuthError)
	c.want(request(mcbp.OpSASLAuth, 0, nil, []byte("PLAIN"), []byte("\x00"+testUser+"\x00"+testPassword)),
		mcbp.StatusAuthError)
	c.want(request(mcbp.OpSASLAuth, 0, nil, []byte("GSSAPI"), nil), mcbp.StatusAuthError)
	if s := c.scram(testUser, "wrong"); s != mcbp.StatusAuthError {
		t.Fatal(s)
	}
	if s := c.scram("nobody", testPassword); s != mcbp.StatusAuthError {
		t.Fatal(s)
	}
	c.want(request(mcbp.OpSelectBucket, 0, nil, []byte("world"), nil), mcbp.StatusAuthError)
	if s := c.scram(testUser, testPassword); s != mcbp.StatusOK {
		t.Fatal(s)
	}
	for _, op := range []mcbp.Opcode{mcbp.OpGet, mcbp.OpStat, mcbp.OpDCPOpen, mcbp.OpGetClusterConfig} {
		c.want(request(op, 0, nil, []byte("world"), nil), mcbp.StatusNoBucket)
	}
	c.want(request(mcbp.OpSelectBucket, 0, nil, []byte("other"), nil), mcbp.StatusKeyNotFound)
	c.want(request(mcbp.OpSelectBucket, 0, nil, []byte("world"), nil), mcbp.StatusOK)
	c.want(request(mcbp.OpGet, 0, nil, []byte("x"), nil), mcbp.StatusKeyNotFound)
	c.want(request(0x77, 0, nil, nil, nil), mcbp.StatusUnknownCommand)
	c.want(request(mcbp.OpQuit, 0, nil, nil, nil), mcbp.StatusOK)
	c.closed("after QUIT")

	guess := dialRaw(t, n.MemcachedAddr())
	for range 8 {
		guess.want(request(mcbp.OpSASLAuth, 0, nil, []byte("PLAIN"), []byte("\x00a\x00b")), mcbp.StatusAuthError)
	}
	guess.closed("after many failed authentications")
}

func TestPlainWhenAllowed(t *testing.T) {
	config := testConfig(t.TempDir())
	config.AllowPlain = true
	n, _ := runNode(t, config)
	c := dialRaw(t, n.MemcachedAddr())
	c.want(request(mcbp.OpSASLAuth, 0, nil, []byte("PLAIN"), []byte("\x00"+testUser+"\x00wrong")), mcbp.StatusAuthError)
	c.want(request(mcbp.OpSASLAuth, 0, nil, []byte("PLAIN"), []byte("\x00"+testUser+"\x00"+testPassword)), mcbp.StatusOK)
	c.want(request(mcbp.OpSelectBucket, 0, nil, []byte("world"), nil), mcbp.StatusOK)
}

// Answers come in request order; quiet requests are answered only in the unusual case.
func TestPipelinedAndQuietRequests(t *testing.T) {
	n, _ := runNode(t, testConfig(t.TempDir()))
	c := login(t, n.MemcachedAddr())
	const setQ, getQ, getKQ, deleteQ, addQ = 0x11, 0x09, 0x0d, 0x14, 0x12
	extras := mcbp.Store{Flags: 42}.AppendExtras(nil)
	frames := []mcbp.Frame{
		request(setQ, 0, extras, []byte("a"), []byte("1")),
		request(getQ, 0, nil, []byte("missing"), nil),
		request(getKQ, 0, nil, []byte("a"), nil),            // answered
		request(addQ, 0, extras, []byte("a"), []byte("2")),  // answered: exists
		request(mcbp.OpGet, 0, nil, []byte("missing"), nil), // answered: not found
		request(deleteQ, 0, nil, []byte("a"), nil),
		request(deleteQ, 0, nil, []byte("a"), nil), // answered: not found
		request(mcbp.OpNoop, 0, nil, nil, nil),     // answered
	}
	for i := range frames {
		frames[i].Opaque = uint32(i)
	}
	c.send(frames...)
	for _, want := range []struct {
		opaque uint32
		status mcbp.Status
	}{{2, mcbp.StatusOK}, {3, mcbp.StatusKeyExists}, {4, mcbp.StatusKeyNotFound}, {6, mcbp.StatusKeyNotFound},
		{7, mcbp.StatusOK}} {
		f := c.read()
		if f.Opaque != want.opaque || f.Status() != want.status {
			t.Fatalf("answer to %d: %v, want the one to %d: %v", f.Opaque, f.Status(), want.opaque, want.status)
		}
		if f.Opaque == 2 && (string(f.Key) != "a" || string(f.Value) != "1" || !slices.Equal(f.Extras, []byte{0, 0, 0, 42})) {
			t.Fatalf("GETKQ: key %q value %q extras %v", f.Key, f.Value, f.Extras)
		}
	}
	// A client that has sent part of its next request still gets the answer to the previous one.
	whole, _ := mcbp.Append(nil, request(mcbp.OpNoop, 0, nil, nil, nil))
	if _, err := c.nc.Write(append(bytes.Clone(whole), whole[:10]...)); err != nil {
		t.Fatal(err)
	}
	c.read()
	if _, err := c.nc.Write(whole[10:]); err != nil {
		t.Fatal(err)
	}
	c.read()
}

func TestFeaturesChangeAnswers(t *testing.T) {
	n, _ := runNode(t, testConfig(t.TempDir()))
	plain := login(t, n.MemcachedAddr())
	rich := login(t, n.MemcachedAddr(), mcbp.FeatureMutationToken, mcbp.FeatureJSON, mcbp.FeatureXattr,
		mcbp.FeatureCollections, mcbp.FeatureSnappy, mcbp.FeatureUnordered)

	if a := plain.want(setFrame(1, "a", `{"x":1}`), mcbp.StatusOK); len(a.Extras) != 0 || a.CAS == 0 {
		t.Fatalf("plain client: extras %v, cas %d", a.Extras, a.CAS)
	}
	a := rich.want(setFrame(1, "\x00b", `{"x":1}`), mcbp.StatusOK)
	token, err := mcbp.DecodeMutationToken(a.Extras)
	if err != nil || token.Seqno != 2 || token.VBUUID != n.buckets()[0].store.VBucket(1).Info().Failover[0].VBUUID {
		t.Fatalf("token %+v %v", token, err)
	}
	if g := rich.want(request(mcbp.OpGet, 1, nil, []byte("\x00b"), nil), mcbp.StatusOK); g.Datatype != mcbp.DatatypeJSON ||
		g.CAS != a.CAS {
		t.Fatalf("datatype %v", g.Datatype)
	}
	if g := plain.want(request(mcbp.OpGet, 1, nil, []byte("b"), nil), mcbp.StatusOK); g.Datatype != 0 || string(g.Value) != `{"x":1}` {
		t.Fatalf("datatype %v value %q", g.Datatype, g.Value)
	}
	rich.want(setFrame(1, "\x00c", `not json`), mcbp.StatusOK)
	if g := rich.want(request(mcbp.OpGet, 1, nil, []byte("\x00c"), nil), mcbp.StatusOK); g.Datatype != 0 {
		t.Fatalf("datatype of something else: %v", g.Datatype)
	}
	rich.want(setFrame(1, "\x09c", `{}`), mcbp.StatusUnknownCollection)
	rich.want(setFrame(1, "\xff\xff\xff\xff\xff\xff", `{}`), mcbp.StatusInvalid)

	f := setFrame(1, "\x00x", string(mcbp.AppendXattrs(nil, []byte("attributes")))+`{"y":2}`)
	f.Datatype = mcbp.DatatypeXattr
	rich.want(f, mcbp.StatusOK)
	if g := rich.want(request(mcbp.OpGet, 1, nil, []byte("\x00x"), nil), mcbp.StatusOK); string(g.Value) != `{"y":2}` || g.Datatype != mcbp.DatatypeJSON {
		t.Fatalf("document with attributes: %q %v", g.Value, g.Datatype)
	}
	f.Value = []byte{0, 0, 0, 99, 1}
	rich.want(f, mcbp.StatusInvalid)
	f.Datatype = mcbp.DatatypeSnappy // not negotiated by this client
	rich.want(f, mcbp.StatusInvalid)
	f.Datatype = mcbp.DatatypeXattr // not negotiated by this client
	plain.want(f, mcbp.StatusInvalid)

	h := rich.want(request(mcbp.OpHello, 0, nil, nil, mcbp.AppendFeatures(nil,
		[]mcbp.Feature{mcbp.FeatureSnappy, mcbp.FeatureJSON, mcbp.FeatureTracing, mcbp.FeatureSyncReplicate, mcbp.FeatureJSON,
			0x7777})), mcbp.StatusOK)
	if got, _ := mcbp.DecodeFeatures(h.Value); fmt.Sprint(got) != "[snappy JSON]" {
		t.Fatalf("granted %v", got)
	}
	rich.want(request(mcbp.OpHello, 0, nil, nil, []byte{1}), mcbp.StatusInvalid)

	durable := setFrame(1, "d", "{}")
	durable.FrameExtras = []byte{0x11, 1}
	plain.want(durable, mcbp.StatusDurabilityImpossible)
	traced := setFrame(1, "d", "{}")
	traced.FrameExtras = []byte{0x32, 1, 2}
	plain.want(traced, mcbp.StatusOK)
}

func TestTouchGATAndExpiry(t *testing.T) {
	n, _ := runNode(t, testConfig(t.TempDir()))
	c := login(t, n.MemcachedAddr())
	c.want(setFrame(0, "a", "1"), mcbp.StatusOK)
	c.want(request(mcbp.OpTouch, 0, mcbp.AppendTouch(nil, 100), []byte("a"), nil), mcbp.StatusOK)
	if g := c.want(request(0x1d, 0, mcbp.AppendTouch(nil, 0), []byte("a"), nil), mcbp.StatusOK); string(g.Value) != "1" {
		t.Fatalf("%q", g.Value)
	}
	c.want(request(mcbp.OpTouch, 0, []byte{1}, []byte("a"), nil), mcbp.StatusInvalid)
	c.want(request(mcbp.OpTouch, 0, mcbp.AppendTouch(nil, 1_000_000_000), []byte("a"), nil), mcbp.StatusOK) // in the past
	c.want(request(mcbp.OpGet, 0, nil, []byte("a"), nil), mcbp.StatusKeyNotFound)
}

func TestSizes(t *testing.T) {
	t.Parallel()
	n, _ := runNode(t, testConfig(t.TempDir()))
	c := login(t, n.MemcachedAddr())
	big := strings.Repeat("x", store.MaxValueBytes)
	c.want(setFrame(0, "big", big), mcbp.StatusOK)
	if g := c.want(request(mcbp.OpGet, 0, nil, []byte("big"), nil), mcbp.StatusOK); string(g.Value) != big {
		t.Fatal("another value came back")
	}
	c.want(setFrame(0, "big", big+"x"), mcbp.StatusTooBig)
	c.want(setFrame(0, strings.Repeat("k", store.MaxKeyBytes), "1"), mcbp.StatusOK)
	c.want(setFrame(0, strings.Repeat("k", store.MaxKeyBytes+1), "1"), mcbp.StatusInvalid)
	c.want(setFrame(0, "", "1"), mcbp.StatusInvalid)
	c.want(request(mcbp.OpSet, 0, []byte{1, 2}, []byte("k"), nil), mcbp.StatusInvalid)
}

func TestStatisticsAndSeqnos(t *testing.T) {
	n, _ := runNode(t, testConfig(t.TempDir()))
	c := login(t, n.MemcachedAddr())
	c.want(setFrame(5, "a", "1"), mcbp.StatusOK)
	c.want(setFrame(5, "b", "1"), mcbp.StatusOK)
	stat := func(key string) map[string]string {
		c.send(request(mcbp.OpStat, 0, nil, []byte(key), nil))
		out := map[string]string{}
		for {
			f := c.read()
			if f.Status() != mcbp.StatusOK {
				t.Fatalf("stat %q: %v", key, f.Status())
			}
			if len(f.Key) == 0 {
				return out
			}
			out[string(f.Key)] = string(f.Value)
		}
	}
	info := n.buckets()[0].store.VBucket(5).Info()
	uuid := fmt.Sprint(info.Failover[0].VBUUID)
	for _, w := range []struct{ group, key, value string }{
		{"", "curr_items", "2"},
		{"all", "version", Version},
		{"vbucket-details", "vb_5:num_items", "2"},
		{"vbucket-details 5", "vb_5", "active"},
		{"vbucket-seqno 5", "vb_5:high_seqno", "2"},
		{"vbucket-seqno", "vb_5:uuid", uuid},
		{"failovers 5", "vb_5:0:id", uuid},
		{"failovers", "vb_5:num_entries", "1"},
	} {
		if got := stat(w.group)[w.key]; got != w.value {
			t.Errorf("stat %q: %s = %q, want %q", w.group, w.key, got, w.value)
		}
	}
	if got := stat("vbucket-details 5"); len(got) != 7 {
		t.Errorf("one vbucket has %v", got)
	}
	c.want(request(mcbp.OpStat, 0, nil, []byte("nonsense"), nil), mcbp.StatusKeyNotFound)
	c.want(request(mcbp.OpStat, 0, nil, []byte("failovers x"), nil), mcbp.StatusInvalid)
	c.want(request(mcbp.OpStat, 0, nil, []byte("failovers 99"), nil), mcbp.StatusNotMyVBucket)

	for _, w := range []struct {
		state mcbp.VBucketState
		n     int
	}{{mcbp.VBucketAlive, 16}, {mcbp.VBucketActive, 16}, {mcbp.VBucketReplica, 0}, {mcbp.VBucketDead, 0}} {
		a := c.want(request(mcbp.OpGetAllVBSeqnos, 0, mcbp.AppendVBSeqnosRequest(nil, w.state), nil, nil), mcbp.StatusOK)
		got, err := mcbp.DecodeVBSeqnos(a.Value)
		if err != nil || len(got) != w.n || w.n > 5 && got[5] != (mcbp.VBucketSeqno{VBucket: 5, Seqno: 2}) {
			t.Errorf("seqnos of state %d: %v %v", w.state, got, err)
		}
	}
	c.want(request(mcbp.OpGetAllVBSeqnos, 0, []byte{1}, nil, nil), mcbp.StatusInvalid)

	a := c.want(request(mcbp.OpObserveSeqno, 5, nil, nil, mcbp.AppendRollback(nil, info.Failover[0].VBUUID)),
		mcbp.StatusOK)
	if o, err := mcbp.DecodeObserveSeqno(a.Value); err != nil || o.Current != 2 || o.Persisted != 2 ||
		o.VBUUID != info.Failover[0].VBUUID {
		t.Errorf("observe: %+v %v", o, err)
	}
	c.want(request(mcbp.OpObserveSeqno, 5, nil, nil, mcbp.AppendRollback(nil, 1)), mcbp.StatusKeyNotFound)
	c.want(request(mcbp.OpObserveSeqno, 99, nil, nil, mcbp.AppendRollback(nil, 1)), mcbp.StatusNotMyVBucket)
	c.want(request(mcbp.OpGetCollectionID, 0, nil, nil, []byte("_default._default")), mcbp.StatusOK)
	c.want(request(mcbp.OpGetCollectionID, 0, nil, nil, []byte("a.b")), mcbp.StatusUnknownScope)
	c.want(request(mcbp.OpGetCollectionID, 0, nil, nil, []byte("_default.b")), mcbp.StatusUnknownCollection)
	c.want(request(mcbp.OpGetCollectionsManifest, 0, nil, nil, nil), mcbp.StatusOK)
}

// Wrong lengths and garbage end the connection without taking memory; the node serves on.
func TestViolationsEndTheConnection(t *testing.T) {
	t.Parallel()
	config := testConfig(t.TempDir())
	config.FrameTimeout, config.AuthTimeout, config.IdleTimeout = 300*time.Millisecond, authTime, authTime
	n, _ := runNode(t, config)
	header := func(change func(h []byte)) []byte {
		h, _ := mcbp.AppendHeader(nil, request(mcbp.OpSet, 0, nil, nil, nil))
		change(h)
		return h
	}
	for _, v := range []struct {
		what string
		send []byte
	}{
		{"a body of 4 GiB", header(func(h []byte) { copy(h[8:], "\xff\xff\xff\xff") })},
		{"a key longer than the body", header(func(h []byte) { h[3], h[11] = 200, 10 })},
		{"extras longer than the body", header(func(h []byte) { h[4], h[11] = 200, 10 })},
		{"an unknown magic", []byte("GET / HTTP/1.1\r\n\r\n")},
		{"half a header", header(func([]byte) {})[:11]},
		{"an announced body that never comes", header(func(h []byte) { copy(h[8:], "\x01\x40\x00\x00") })},
		{"nothing", nil},
	} {
		for _, authed := range []bool{false, true} {
			c := dialRaw(t, n.MemcachedAddr())
			if authed {
				c = login(t, n.MemcachedAddr())
			}
			if _, err := c.nc.Write(v.send); err != nil {
				t.Fatal(err)
			}
			c.closed(v.what)
		}
	}
	login(t, n.MemcachedAddr()).want(setFrame(0, "a", "1"), mcbp.StatusOK)
	// Four kinds in both states, and the large body before authentication.
	if got := n.server.Counters().ProtocolErrors.Load(); got != 9 {
		t.Errorf("%d protocol errors counted, want 9", got)
	}
}

// authTime is long enough to authenticate on a busy machine.
const authTime = 3 * time.Second

// A connection that does not authenticate in time is closed, however many requests it sends meanwhile. A connection
// that authenticates once more gets the time anew.
func TestForeignProtocolsAreRefused(t *testing.T) {
	t.Parallel()
	config := testConfig(t.TempDir())
	config.AuthTimeout = authTime
	n, _ := runNode(t, config)
	known := login(t, n.MemcachedAddr())
	c := dialRaw(t, n.MemcachedAddr())
	for {
		c.send(request(mcbp.OpNoop, 0, nil, nil, nil))
		if _, err := c.tryRead(); err != nil {
			var timeout net.Error
			if errors.As(err, &timeout) && timeout.Timeout() {
				t.Fatal("a connection without authentication stays open")
			}
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	known.want(setFrame(0, "a", "1"), mcbp.StatusOK)
	known.want(request(mcbp.OpSASLAuth, 0, nil, []byte("SCRAM-SHA256"), []byte("n,,n=u,r=b")), mcbp.StatusAuthContinue)
}

func TestTooManyConnections(t *testing.T) {
	config := testConfig(t.TempDir())
	config.MaxConnections = 3
	n, _ := runNode(t, config)
	var open []*rawClient
	for range 3 {
		c := dialRaw(t, n.MemcachedAddr())
		c.want(request(mcbp.OpNoop, 0, nil, nil, nil), mcbp.StatusOK)
		open = append(open, c)
	}
	dialRaw(t, n.MemcachedAddr()).closed("a fourth connection")
	_ = open[0].nc.Close()
	deadline := time.Now().Add(testTimeout)
	for {
		c := dialRaw(t, n.MemcachedAddr())
		c.send(request(mcbp.OpNoop, 0, nil, nil, nil))
		if _, err := c.tryRead(); err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("no connection after one has ended")
		}
	}
}

// A client that requests much and reads nothing is disconnected; until then the memory for it is bounded.
func TestSlowReader(t *testing.T) {
	t.Parallel()
	config := testConfig(t.TempDir())
	config.WriteTimeout = 300 * time.Millisecond
	n, _ := runNode(t, config)
	login(t, n.MemcachedAddr()).want(setFrame(0, "a", strings.Repeat("x", 1<<20)), mcbp.StatusOK)
	c := login(t, n.MemcachedAddr())
	ask, _ := mcbp.Append(nil, request(mcbp.OpGet, 0, nil, []byte("a"), nil))
	_ = c.nc.SetDeadline(time.Now().Add(testTimeout))
	for i := 0; ; i++ {
		if _, err := c.nc.Write(ask); err != nil {
			var timeout net.Error
			if errors.As(err, &timeout) && timeout.Timeout() {
				t.Fatal("the connection is still open")
			}
			return
		}
		if i > 1<<20 {
			t.Fatal("the server takes requests without end")
		}
	}
}

// FuzzPort sends arbitrary bytes to the port of a running node, before and after authentication; after any input the
// node answers the next client.
func FuzzPort(f *testing.F) {
	config := testConfig(f.TempDir())
	config.AllowPlain = true // SCRAM would take most of the time, and other tests cover it
	n, _ := runNode(f, config)
	known, _ := mcbp.Append(nil, request(mcbp.OpSASLAuth, 0, nil, []byte("PLAIN"),
		[]byte("\x00"+testUser+"\x00"+testPassword)))
	known, _ = mcbp.Append(known, request(mcbp.OpHello, 0, nil, []byte("test"), nil))
	known, _ = mcbp.Append(known, request(mcbp.OpSelectBucket, 0, nil, []byte("world"), nil))
	seed := func(frames ...mcbp.Frame) {
		var b []byte
		for _, x := range frames {
			b, _ = mcbp.Append(b, x)
		}
		f.Add(b, true)
		f.Add(b, false)
	}
	seed(setFrame(0, "a", "1"), request(mcbp.OpGet, 0, nil, []byte("a"), nil))
	seed(request(mcbp.OpDCPOpen, 0, mcbp.Open{Flags: 1}.AppendExtras(nil), []byte("fuzz"), nil), fromZero(0),
		request(mcbp.OpDCPCloseStream, 0, nil, nil, nil))
	seed(request(mcbp.OpHello, 0, nil, nil, []byte{0, 0x12, 0, 0x0b}), request(mcbp.OpStat, 0, nil, []byte("dcp"), nil),
		request(mcbp.OpQuit, 0, nil, nil, nil))
	seed(request(mcbp.OpSASLAuth, 0, nil, []byte("SCRAM-SHA1"), []byte("n,,n=a,r=b")),
		request(mcbp.OpSASLStep, 0, nil, []byte("SCRAM-SHA1"), []byte("c=biws,r=b,p=AA==")))
	f.Add([]byte("\x80\x01\xff\xff\xff\x00\x00\x00\xff\xff\xff\xff"), true)
	f.Fuzz(func(t *testing.T, b []byte, authed bool) {
		nc, err := net.Dial("tcp", n.MemcachedAddr())
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		_ = nc.SetDeadline(time.Now().Add(testTimeout))
		if authed {
			b = append(slices.Clip(known), b...)
		}
		_, _ = nc.Write(b)
		_ = nc.(*net.TCPConn).CloseWrite()
		answers := bufio.NewReader(nc)
		if authed { // everything is one write: read the login's answers first
			for range 3 {
				if f, err := (&rawClient{t: t, nc: nc, r: answers}).tryRead(); err != nil || f.Status() != mcbp.StatusOK {
					t.Fatalf("%v before the input is answered %v, %v", f.Op, f.Status(), err)
				}
			}
		}
		if _, err := io.Copy(io.Discard, answers); err != nil {
			var timeout net.Error
			if errors.As(err, &timeout) && timeout.Timeout() {
				t.Fatal("the server neither answers nor closes")
			}
		}
	})
}
