package feed_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"tidemark/kv/kvclient/kvclienttest"
	"tidemark/kv/mcbp"
	"tidemark/projector/feed"
	"tidemark/timestamp"
)

// What engines of the 5.1 and 6.0 lines do, byte by byte, by a scripted node.

// oldNode is an engine of the 5.1 line: few features (no collections, no snappy, no JSON), few controls, a config
// without an epoch and with placeholders, and statistics with additional lines.
func oldNode(t *testing.T, endOnClose bool) *node {
	n := startNode(t, nil)
	n.Features = []mcbp.Feature{mcbp.FeatureTCPNoDelay, mcbp.FeatureMutationToken, mcbp.FeatureXattr, mcbp.FeatureXerror,
		mcbp.FeatureSelectBucket}
	n.refuse[mcbp.ControlEndOnClose] = !endOnClose
	n.Config = func(s *kvclienttest.Server) []byte {
		return fmt.Appendf(nil, `{"rev":24,"name":"b","nodes":[{"couchApiBase":"http://$HOST:8092/b","hostname":"$HOST:8091","ports":{"proxy":11211,"direct":%[1]d}}],
			"nodesExt":[{"services":{"mgmt":8091,"kv":%[1]d,"capi":8092},"thisNode":true}],"nodeLocator":"vbucket","uuid":"0a1b2c3d","ddocs":{"uri":"/ddocs"},
			"vBucketServerMap":{"hashAlgorithm":"CRC","numReplicas":1,"serverList":["$HOST:%[1]d"],"vBucketMap":[[0,-1],[0,-1],[0,-1],[0,-1]]},
			"bucketCapabilitiesVer":"","bucketCapabilities":["touch","couchapi","cccp","nodesExt","dcp","xattr"]}`, s.Port())
	}
	return n
}

// flexible returns an answer with frame extras, which engines send once tracing is negotiated, or without
// negotiation.
func flexible(p *kvclienttest.Peer, f mcbp.Frame, value []byte) {
	h := mcbp.Response(f.Header, mcbp.StatusOK)
	h.Magic = mcbp.MagicFlexResponse
	p.Send(mcbp.Frame{Header: h, FrameExtras: []byte{0x02, 0x00, 0x0f}, Value: value})
}

// oldMutation returns a document without a collection prefix.
func oldMutation(vb uint16, opaque uint32, seqno uint64, key, value string) mcbp.Frame {
	return mcbp.Frame{Header: request(mcbp.OpDCPMutation, vb, opaque),
		Extras: mcbp.Mutation{Seqno: seqno, RevSeqno: 1}.AppendExtras(nil), Key: []byte(key), Value: []byte(value)}
}

// Everything that a projector needs works with an engine of the 5.1 line: map, seqnos, statistics, streams whose
// snapshots have gaps and are not contiguous, JSON that is not flagged as such, deletions of 18 bytes, answers with
// frame extras.
func TestEngineOfThe51Line(t *testing.T) {
	for _, x := range []struct {
		name string
		dial feed.Dialer
	}{{"native", feed.DialFeed}, {"gocbcore", implementations[1].dial}} {
		t.Run(x.name, func(t *testing.T) {
			n := oldNode(t, x.name == "gocbcore") // gocbcore crashes if that control is refused
			n.request = func(p *kvclienttest.Peer, f mcbp.Frame) bool {
				switch f.Op {
				case mcbp.OpNoop:
					p.Reply(f, mcbp.StatusOK, mcbp.Frame{})
				case mcbp.OpStat:
					for _, s := range []string{"vb_0=active", "vb_0:num_items=7", "vb_0:high_seqno=8", "vb_0:uuid=77",
						"vb_0:purge_seqno=2", "vb_0:bloom_filter=DOES NOT EXIST",
						"vb_1=replica", "vb_1:high_seqno=3", "vb_1:uuid=78", "vb_1:purge_seqno=0", "vb_0:topology=null",
						"ep_something=x"} {
						key, value, _ := strings.Cut(s, "=")
						p.Reply(f, mcbp.StatusOK, mcbp.Frame{Key: []byte(key), Value: []byte(value)})
					}
					p.Reply(f, mcbp.StatusOK, mcbp.Frame{})
				case mcbp.OpGetAllVBSeqnos:
					flexible(p, f, mcbp.AppendVBSeqno(nil, mcbp.VBucketSeqno{VBucket: 0, Seqno: 8}))
				case mcbp.OpDCPFailoverLog:
					flexible(p, f, mcbp.AppendFailoverLog(nil, timestamp.FailoverLog{{VBUUID: 77, Seqno: 3}, {VBUUID: 66}}))
				case mcbp.OpDCPStreamReq:
					flexible(p, f, mcbp.AppendFailoverLog(nil, timestamp.FailoverLog{{VBUUID: 77, Seqno: 3}, {VBUUID: 66}}))
					deletion := mcbp.Frame{Header: request(mcbp.OpDCPDeletion, 0, f.Opaque),
						Extras: mcbp.Deletion{Seqno: 8, RevSeqno: 2}.AppendExtras(nil), Key: []byte("a")}
					for _, m := range []mcbp.Frame{marker(0, f.Opaque, 0, 1), oldMutation(0, f.Opaque, 1, "a", `{"n":1}`),
						marker(0, f.Opaque, 3, 5), oldMutation(0, f.Opaque, 3, "b", `{"n":3}`), oldMutation(0, f.Opaque, 5, "c", "\x00\xff"),
						marker(0, f.Opaque, 7, 8), deletion} {
						p.Send(m)
					}
				default:
					return false
				}
				return true
			}
			conf := config(n)
			conf.Xattrs = true
			c := dialWith(t, x.dial, conf)
			ctx := within(t, time.Minute)
			if m, err := c.ClusterConfig(ctx); err != nil || m.RevEpoch != 0 || m.Rev != 24 || m.UUID != "0a1b2c3d" ||
				m.NumVBuckets() != 4 || m.ThisNode() != 0 {
				t.Fatalf("map %+v %v", m, err)
			}
			if highs, err := c.HighSeqnos(ctx); err != nil || !slices.Equal(highs, []mcbp.VBucketSeqno{{VBucket: 0, Seqno: 8}}) {
				t.Fatalf("seqnos %v %v", highs, err)
			}
			if purges, err := c.Purges(ctx, nil); err != nil || !maps.Equal(purges, map[uint16]uint64{0: 2, 1: 0}) {
				t.Fatalf("purge seqnos %v %v", purges, err)
			}
			if log, err := c.FailoverLog(ctx, 0); err != nil || len(log) != 2 || log[0].VBUUID != 77 {
				t.Fatalf("failover log %v %v", log, err)
			}
			if _, err := c.OpenStream(ctx, feed.StreamRequest{VBucket: 0, End: mcbp.EndOfTime}); err != nil {
				t.Fatal(err)
			}
			tracker := feed.NewTracker(feed.Position{})
			var seen []string
			for at := uint64(0); at < 8; {
				b, err := c.Next(ctx)
				if err != nil {
					t.Fatalf("%v after %v", err, seen)
				}
				for i := range b.Events {
					e := &b.Events[i]
					p, err := tracker.Observe(e)
					if err != nil {
						t.Fatal(err)
					}
					if e.Kind.IsDocument() {
						seen = append(seen, fmt.Sprintf("%v %d %s=%q window %d-%d complete %d", e.Kind, e.Seqno, e.Key, e.Value,
							p.SnapStart, p.SnapEnd, p.Complete))
						at = e.Seqno
					}
				}
				b.Release()
			}
			want := []string{`Mutation 1 a="{\"n\":1}" window 0-1 complete 1`, `Mutation 3 b="{\"n\":3}" window 3-5 complete 1`,
				`Mutation 5 c="\x00\xff" window 3-5 complete 5`, `Deletion 8 a="" window 7-8 complete 8`}
			if !slices.Equal(seen, want) {
				t.Fatalf("%q\nwant\n%q", seen, want)
			}
		})
	}
}

// During warmup an engine may refuse any request temporarily. Each refusal is ErrTemporary and nothing else; dialling
// again, or repeating the request on the same connection, then works.
func TestTemporaryAtEveryStep(t *testing.T) {
	for _, x := range []struct {
		name string
		op   mcbp.Opcode
		key  string // name of a control
		ask  func(c *feed.Conn) error
	}{
		{name: "HELLO", op: mcbp.OpHello},
		{name: "SASL", op: mcbp.OpSASLAuth},
		{name: "SELECT_BUCKET", op: mcbp.OpSelectBucket},
		{name: "OPEN", op: mcbp.OpDCPOpen},
		{name: "CONTROL of noops", op: mcbp.OpDCPControl, key: mcbp.ControlEnableNoop},
		{name: "CONTROL of flow control", op: mcbp.OpDCPControl, key: mcbp.ControlBufferSize},
		{name: "CONTROL of ends", op: mcbp.OpDCPControl, key: mcbp.ControlEndOnClose},
		{name: "STREAM_REQ", op: mcbp.OpDCPStreamReq, ask: func(c *feed.Conn) error {
			_, err := c.OpenStream(within(t, time.Minute), feed.StreamRequest{VBucket: 0, End: mcbp.EndOfTime})
			return err
		}},
		{name: "FAILOVER_LOG", op: mcbp.OpDCPFailoverLog, ask: func(c *feed.Conn) error {
			_, err := c.FailoverLog(within(t, time.Minute), 0)
			return err
		}},
		{name: "seqnos", op: mcbp.OpGetAllVBSeqnos, ask: func(c *feed.Conn) error {
			_, err := c.HighSeqnos(within(t, time.Minute))
			return err
		}},
		{name: "map", op: mcbp.OpGetClusterConfig, ask: func(c *feed.Conn) error {
			_, err := c.ClusterConfig(within(t, time.Minute))
			return err
		}},
		{name: "statistics", op: mcbp.OpStat, ask: func(c *feed.Conn) error {
			_, err := c.Details(within(t, time.Minute))
			return err
		}},
	} {
		t.Run(x.name, func(t *testing.T) {
			n := startNode(t, nil)
			refusals := 2
			n.Before = func(p *kvclienttest.Peer, f mcbp.Frame) bool { // one connection at a time
				if f.Op != x.op || f.Magic.IsResponse() || x.key != "" && string(f.Key) != x.key {
					return false
				}
				if refusals--; refusals >= 0 {
					p.Reply(f, mcbp.StatusTemporary, mcbp.Frame{})
					return true
				}
				switch f.Op {
				case mcbp.OpGetAllVBSeqnos, mcbp.OpStat:
					p.Reply(f, mcbp.StatusOK, mcbp.Frame{})
					return true
				}
				return false
			}
			temporary := func(err error) {
				t.Helper()
				if !errors.Is(err, feed.ErrTemporary) || errors.Is(err, feed.ErrNotSupported) || errors.Is(err, feed.ErrAuth) {
					t.Fatalf("%v, want ErrTemporary", err)
				}
			}
			if x.ask == nil {
				for range 2 {
					_, err := feed.Dial(within(t, time.Minute), config(n))
					temporary(err)
				}
				dial(t, config(n))
				return
			}
			c := dial(t, config(n))
			for range 2 {
				temporary(x.ask(c))
			}
			if err := x.ask(c); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// A user without the permission for DCP gets that error, not one about the password.
func TestRightToDCP(t *testing.T) {
	n := startNode(t, func(p *kvclienttest.Peer, f mcbp.Frame) bool {
		if f.Op == mcbp.OpDCPOpen {
			p.Reply(f, mcbp.StatusNoAccess, mcbp.Frame{Value: []byte(`{"error":{"ref":"4711"}}`)})
		}
		return f.Op == mcbp.OpDCPOpen
	})
	_, err := feed.Dial(within(t, time.Minute), config(n))
	if !errors.Is(err, feed.ErrAuth) || !strings.Contains(err.Error(), "lacks the right") ||
		!strings.Contains(err.Error(), "4711") {
		t.Fatal(err)
	}
}

// The first connection of a name is closed when a second one opens: its streams end with it, and the error states
// that it was lost.
func TestNameOpenedTwice(t *testing.T) {
	n := startNode(t, nil)
	var first atomic.Pointer[kvclienttest.Peer]
	n.request = func(p *kvclienttest.Peer, f mcbp.Frame) bool {
		if f.Op == mcbp.OpDCPOpen {
			if old := first.Swap(p); old != nil {
				_ = old.Close()
			}
		}
		return false
	}
	a := dial(t, config(n))
	if _, err := a.OpenStream(within(t, time.Minute), feed.StreamRequest{VBucket: 1, End: mcbp.EndOfTime}); err != nil {
		t.Fatal(err)
	}
	b := dial(t, config(n))
	<-a.Done()
	if err := a.Err(); !errors.Is(err, feed.ErrClosed) || b.Err() != nil {
		t.Fatalf("the first connection: %v; the second: %v", err, b.Err())
	}
}

// Some answers mean that the connection has lost its user or its bucket for good: the caller gets the answer, and the
// connection ends, so that the next one authenticates again.
func TestLapsedConnections(t *testing.T) {
	for status, want := range map[mcbp.Status]error{mcbp.StatusAuthStale: feed.ErrAuth,
		mcbp.StatusNoBucket: feed.ErrNoBucket} {
		t.Run(status.String(), func(t *testing.T) {
			either(t, func(t *testing.T, dial feed.Dialer) {
				n := startNode(t, nil)
				var lapsed atomic.Bool
				lapsed.Store(true)
				n.request = func(p *kvclienttest.Peer, f mcbp.Frame) bool {
					if f.Op != mcbp.OpGetAllVBSeqnos {
						return f.Op == mcbp.OpNoop
					}
					if lapsed.Load() {
						p.Reply(f, status, mcbp.Frame{})
					} else {
						p.Reply(f, mcbp.StatusOK, mcbp.Frame{})
					}
					return true
				}
				c := dialWith(t, dial, config(n))
				if _, err := c.HighSeqnos(within(t, time.Minute)); !errors.Is(err, want) {
					t.Fatalf("%v, want %v", err, want)
				}
				<-c.Done()
				if err := c.Err(); !errors.Is(err, feed.ErrClosed) || !errors.Is(err, want) {
					t.Fatalf("the connection has ended with %v", err)
				}
				lapsed.Store(false)
				if _, err := dialWith(t, dial, config(n)).HighSeqnos(within(t, time.Minute)); err != nil {
					t.Fatal(err)
				}
			})
		})
	}
}

// On a connection without collections, an engine reports the seqno of the default collection only, which is lower
// than that of the streams: both feeds query on a connection with collections.
func TestSeqnosOfAllCollections(t *testing.T) {
	either(t, func(t *testing.T, dial feed.Dialer) {
		n := startNode(t, nil)
		n.request = func(p *kvclienttest.Peer, f mcbp.Frame) bool {
			if f.Op != mcbp.OpGetAllVBSeqnos {
				return false
			}
			high := uint64(3)
			if slices.Contains(p.Features, mcbp.FeatureCollections) {
				high = 8
			}
			p.Reply(f, mcbp.StatusOK, mcbp.Frame{Value: mcbp.AppendVBSeqno(nil, mcbp.VBucketSeqno{VBucket: 1, Seqno: high})})
			return true
		}
		highs, err := dialWith(t, dial, config(n)).HighSeqnos(within(t, time.Minute))
		if err != nil || !slices.Equal(highs, []mcbp.VBucketSeqno{{VBucket: 1, Seqno: 8}}) {
			t.Fatalf("%v %v", highs, err)
		}
	})
}

// One event reports that all documents of the default collection are gone; the same kind of event reports that for
// other collections and scopes.
func TestDefaultCollectionEmptied(t *testing.T) {
	value := func(scope, collection byte) []byte {
		return []byte{0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, scope, 0, 0, 0, collection}
	}
	want := map[string]bool{}
	var script []mcbp.Frame
	for i, x := range []struct {
		what    string
		event   uint32
		version uint8
		value   []byte
		empties bool
	}{
		{"default dropped", 1, 0, value(0, 0), true},
		{"default emptied", 0, 1, append(value(0, 0), 0, 0, 0, 60), true},
		{"another dropped", 1, 0, value(0, 8), false},
		{"another made", 0, 0, value(0, 8), false},
		{"scope dropped", 4, 0, value(0, 0)[:12], false},
		{"short", 1, 0, value(0, 0)[:15], false},
	} {
		want[x.what] = x.empties
		script = append(script, mcbp.Frame{Header: request(mcbp.OpDCPSystemEvent, 1, 0), Key: []byte(x.what), Value: x.value,
			Extras: mcbp.SystemEvent{Seqno: uint64(i + 1), Event: x.event, Version: x.version}.AppendExtras(nil)})
	}
	n := startNode(t, nil)
	n.request = func(p *kvclienttest.Peer, f mcbp.Frame) bool {
		if f.Op != mcbp.OpDCPStreamReq {
			return false
		}
		p.Reply(f, mcbp.StatusOK, mcbp.Frame{Value: mcbp.AppendFailoverLog(nil, timestamp.FailoverLog{{VBUUID: 77}})})
		for _, m := range append([]mcbp.Frame{marker(1, 0, 0, uint64(len(script)))}, script...) {
			m.Opaque = f.Opaque
			p.Send(m)
		}
		return true
	}
	c := dial(t, config(n))
	if _, err := c.OpenStream(within(t, time.Minute), feed.StreamRequest{VBucket: 1, End: mcbp.EndOfTime}); err != nil {
		t.Fatal(err)
	}
	events, blocks := take(t, c, 2+len(script))
	for _, e := range events[2:] {
		if got := string(e.Key); e.EmptiesDefault != want[got] {
			t.Errorf("%s: %t", got, e.EmptiesDefault)
		}
	}
	releaseAll(blocks)
}

// Engines of the 7.x line send some sixty statistics of each vbucket: the last one counts like the first.
func TestManyStatistics(t *testing.T) {
	const each, vbuckets = 60, 1024
	either(t, func(t *testing.T, dial feed.Dialer) {
		n := startNode(t, nil)
		n.request = func(p *kvclienttest.Peer, f mcbp.Frame) bool {
			if f.Op != mcbp.OpStat {
				return false
			}
			var all []byte
			add := func(key, value string) {
				all, _ = mcbp.Append(all, mcbp.Frame{Header: mcbp.Response(f.Header, mcbp.StatusOK), Key: []byte(key),
					Value: []byte(value)})
			}
			for vb := range vbuckets {
				add(fmt.Sprintf("vb_%d", vb), "active")
				for i := range each - 2 {
					add(fmt.Sprintf("vb_%d:statistic_%d", vb, i), "4711")
				}
				add(fmt.Sprintf("vb_%d:purge_seqno", vb), fmt.Sprint(vb+1))
			}
			add("", "")
			p.Raw(all)
			return true
		}
		purges, err := dialWith(t, dial, config(n)).Purges(within(t, time.Minute), nil)
		if err != nil || len(purges) != vbuckets || purges[vbuckets-1] != vbuckets {
			t.Fatalf("%d vbuckets, of the last one %d, %v", len(purges), purges[vbuckets-1], err)
		}
	})
}
