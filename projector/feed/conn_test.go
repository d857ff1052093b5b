package feed_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/golang/snappy"

	"tidemark/kv/kvclient"
	"tidemark/kv/kvclient/kvclienttest"
	"tidemark/kv/mcbp"
	"tidemark/projector/feed"
	"tidemark/timestamp"
)

func TestDialNegotiates(t *testing.T) {
	n := startNode(t, nil)
	conf := config(n)
	conf.Xattrs, conf.BufferBytes, conf.NoopInterval = true, 1<<20, 1500*time.Millisecond
	dial(t, conf)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ops[0] != mcbp.OpDCPOpen {
		t.Fatalf("the first request is %v: real nodes hang up on anything before DCP_OPEN", n.ops[0])
	}
	if n.name != "test" || n.flags != mcbp.OpenProducer|mcbp.OpenXattrs {
		t.Fatalf("opened %q with flags %#x", n.name, n.flags)
	}
	want := map[string]string{"enable_noop": "true", "set_noop_interval": "2", "connection_buffer_size": "1048576",
		"send_stream_end_on_client_close_stream": "true"}
	if !reflect.DeepEqual(n.controls, want) {
		t.Fatalf("controls %v, want %v", n.controls, want)
	}
}

func TestDialRefuses(t *testing.T) {
	tests := []struct {
		name   string
		refuse string
		edit   func(*feed.Config)
		want   error
		says   string
	}{
		{name: "noop unknown", refuse: mcbp.ControlEnableNoop, want: feed.ErrNotSupported, says: "enable_noop"},
		{name: "stream end on close unknown is fine", refuse: mcbp.ControlEndOnClose},
		{name: "password", edit: func(c *feed.Config) { c.Password = "x" }, want: feed.ErrAuth},
		{name: "bucket", edit: func(c *feed.Config) { c.Bucket = "x" }, want: feed.ErrNoBucket, says: `"x"`},
		{name: "no name", edit: func(c *feed.Config) { c.Name = "" }, says: "name"},
		{name: "long name", edit: func(c *feed.Config) { c.Name = strings.Repeat("n", 201) }, says: "201 bytes"},
		{name: "tiny buffer", edit: func(c *feed.Config) { c.BufferBytes = 10 }, says: "BufferBytes"},
		{name: "hasty noops", edit: func(c *feed.Config) { c.NoopInterval = time.Millisecond }, says: "NoopInterval"},
		{name: "nothing listens", edit: func(c *feed.Config) { c.Addr = "127.0.0.1:1" }, says: "127.0.0.1:1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n := startNode(t, nil)
			n.refuse[tt.refuse] = true
			conf := config(n)
			if tt.edit != nil {
				tt.edit(&conf)
			}
			c, err := feed.Dial(within(t, time.Minute), conf)
			if c != nil {
				_ = c.Close()
			}
			if good := tt.want == nil && tt.says == ""; good != (err == nil) || tt.want != nil && !errors.Is(err, tt.want) {
				t.Fatalf("got %v, want %v", err, tt.want)
			}
			if err != nil && !strings.Contains(err.Error(), tt.says) {
				t.Fatalf("%q does not say %q", err, tt.says)
			}
		})
	}
}

// Each kind of message, in both forms if there are two, and its event.
func TestEvents(t *testing.T) {
	log := timestamp.FailoverLog{{VBUUID: 77, Seqno: 3}, {VBUUID: 66, Seqno: 0}}
	n := startNode(t, func(p *kvclienttest.Peer, f mcbp.Frame) bool {
		if f.Op != mcbp.OpDCPStreamReq {
			return false
		}
		req, err := mcbp.DecodeStreamRequest(f.Extras)
		want := mcbp.StreamRequest{Flags: mcbp.StreamActiveOnly, Start: 3, End: mcbp.EndOfTime, VBUUID: 77, SnapStart: 2,
			SnapEnd: 4}
		if err != nil || req != want || f.VBucket() != 9 {
			p.Reply(f, mcbp.StatusInvalid, mcbp.Frame{Value: []byte(fmt.Sprint(req, err))})
			return true
		}
		// With frame extras, as nodes answer once tracing is negotiated.
		p.Reply(f, mcbp.StatusOK, mcbp.Frame{FrameExtras: []byte{0x02, 0, 7}, Value: mcbp.AppendFailoverLog(nil, log)})
		o := f.Opaque
		key := func(c uint32, k string) []byte { return mcbp.AppendCollectionKey(nil, c, []byte(k)) }
		p.Send(marker(9, o, 3, 20))
		p.Send(mcbp.Frame{Header: request(mcbp.OpDCPSnapshotMarker, 9, o), Extras: []byte{0},
			Value: mcbp.SnapshotMarker{V2: true, Start: 4, End: 21, Flags: mcbp.SnapshotDisk}.AppendValue(nil)})
		m := mcbp.Mutation{Seqno: 4, RevSeqno: 5, Flags: 6, Expiry: 7}.AppendExtras(nil)
		h := request(mcbp.OpDCPMutation, 9, o)
		h.CAS, h.Datatype = 99, mcbp.DatatypeJSON
		p.Send(mcbp.Frame{Header: h, Extras: m, Key: key(0, "k"), Value: []byte("{}")})
		p.Send(mcbp.Frame{Header: h, FrameExtras: []byte{1}, Extras: m, Key: key(300, "flex"), Value: []byte("{}")})
		m = mcbp.Mutation{Seqno: 4, MetaLen: 3}.AppendExtras(nil)
		p.Send(mcbp.Frame{Header: request(mcbp.OpDCPMutation, 9, o), Extras: m, Key: key(0, "meta"), Value: []byte("{}xyz")})
		p.Send(mcbp.Frame{Header: request(mcbp.OpDCPDeletion, 9, o),
			Extras: mcbp.Deletion{Seqno: 5, RevSeqno: 1}.AppendExtras(nil), Key: key(0, "d1")})
		p.Send(mcbp.Frame{Header: request(mcbp.OpDCPDeletion, 9, o),
			Extras: mcbp.Deletion{Seqno: 6, WithTime: true}.AppendExtras(nil), Key: key(0, "d2")})
		p.Send(mcbp.Frame{Header: request(mcbp.OpDCPExpiration, 9, o),
			Extras: mcbp.Deletion{Seqno: 7}.AppendExpirationExtras(nil), Key: key(0, "x")})
		p.Send(mcbp.Frame{Header: request(mcbp.OpDCPSystemEvent, 9, o),
			Extras: mcbp.SystemEvent{Seqno: 8, Event: 1}.AppendExtras(nil), Key: []byte("coll"), Value: []byte("v")})
		p.Send(mcbp.Frame{Header: request(mcbp.OpDCPSeqnoAdvanced, 9, o), Extras: mcbp.AppendSeqnoAdvanced(nil, 21)})
		p.Send(mcbp.Frame{Header: request(mcbp.OpDCPOSOSnapshot, 9, o), Extras: mcbp.AppendOSOSnapshot(nil, 2)})
		p.Send(mcbp.Frame{Header: request(0x5b, 9, o), Extras: []byte{1}}) // SET_VBUCKET_STATE: unknown here
		p.Send(streamEnd(9, o, mcbp.EndStateChanged))
		return true
	})
	c := dial(t, config(n))
	id := c.NewStreamID()
	got, err := c.OpenStream(within(t, time.Minute), feed.StreamRequest{VBucket: 9, ID: id, Start: 3, End: mcbp.EndOfTime,
		VBUUID: 77, SnapStart: 2, SnapEnd: 4})
	if err != nil || !reflect.DeepEqual(got, log) {
		t.Fatalf("%v, %v", got, err)
	}
	events, blocks := take(t, c, 13)
	if l, err := events[0].FailoverLog(); err != nil || !reflect.DeepEqual(l, log) {
		t.Fatalf("log of the StreamBegin: %v, %v", l, err)
	}
	events[0].Value = nil
	want := []feed.Event{
		{Kind: feed.StreamBegin},
		{Kind: feed.SnapshotMarker, SnapStart: 3, SnapEnd: 20, SnapFlags: mcbp.SnapshotMemory},
		{Kind: feed.SnapshotMarker, SnapStart: 4, SnapEnd: 21, SnapFlags: mcbp.SnapshotDisk},
		{Kind: feed.Mutation, Seqno: 4, RevSeqno: 5, Flags: 6, Expiry: 7, CAS: 99, Datatype: mcbp.DatatypeJSON,
			Key: []byte("k"), Value: []byte("{}")},
		{Kind: feed.Mutation, Seqno: 4, RevSeqno: 5, Flags: 6, Expiry: 7, CAS: 99, Datatype: mcbp.DatatypeJSON,
			Collection: 300, Key: []byte("flex"), Value: []byte("{}")},
		{Kind: feed.Mutation, Seqno: 4, Key: []byte("meta"), Value: []byte("{}")},
		{Kind: feed.Deletion, Seqno: 5, RevSeqno: 1, Key: []byte("d1"), Value: []byte{}},
		{Kind: feed.Deletion, Seqno: 6, Key: []byte("d2"), Value: []byte{}},
		{Kind: feed.Expiration, Seqno: 7, Key: []byte("x"), Value: []byte{}},
		{Kind: feed.SystemEvent, Seqno: 8, Flags: 1, Key: []byte("coll"), Value: []byte("v")},
		{Kind: feed.SeqnoAdvanced, Seqno: 21},
		{Kind: feed.OSO, Flags: 2},
		{Kind: feed.StreamEnd, EndReason: mcbp.EndStateChanged},
	}
	for i := range want {
		want[i].VBucket, want[i].Stream = 9, id
		if !reflect.DeepEqual(events[i], want[i]) {
			t.Errorf("event %d:\n got %+v\nwant %+v", i, events[i], want[i])
		}
	}
	releaseAll(blocks)
	if err := c.CloseStream(within(t, time.Minute), 9); err != nil {
		t.Fatal(err)
	}
}

// Each refusal of a request, and its error.
func TestRefusals(t *testing.T) {
	nmvb := kvclienttest.ClusterMap
	tests := []struct {
		name   string
		status mcbp.Status
		value  []byte
		want   error
	}{
		{"rollback", mcbp.StatusRollback, mcbp.AppendRollback(nil, 41), feed.ErrRollback},
		{"rollback without a seqno", mcbp.StatusRollback, nil, mcbp.ErrMalformed},
		{"stream exists", mcbp.StatusKeyExists, nil, feed.ErrStreamExists},
		{"not my vbucket", mcbp.StatusNotMyVBucket, nil, feed.ErrNotMyVBucket},
		{"range", mcbp.StatusRange, nil, feed.ErrRange},
		{"warmup", mcbp.StatusTemporary, nil, feed.ErrTemporary},
		{"no memory", mcbp.StatusNoMemory, nil, feed.ErrTemporary},
		{"xattrs without noop", mcbp.StatusNotSupported, nil, feed.ErrNotSupported},
		{"unknown", mcbp.Status(0x1234), nil, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n := startNode(t, nil)
			n.request = func(p *kvclienttest.Peer, f mcbp.Frame) bool {
				if f.Op == mcbp.OpDCPStreamReq {
					value := tt.value
					if tt.status == mcbp.StatusNotMyVBucket {
						value = nmvb(5, []*kvclienttest.Server{&n.Server}, [][]int{{0}})
					}
					p.Reply(f, tt.status, mcbp.Frame{Value: value})
				}
				return f.Op == mcbp.OpDCPStreamReq
			}
			c := dial(t, config(n))
			_, err := c.OpenStream(within(t, time.Minute), feed.StreamRequest{VBucket: 3, End: mcbp.EndOfTime})
			if err == nil || tt.want != nil && !errors.Is(err, tt.want) {
				t.Fatalf("got %v, want %v", err, tt.want)
			}
			var rb *feed.RollbackError
			if tt.name == "rollback" && (!errors.As(err, &rb) || *rb != feed.RollbackError{VBucket: 3, Seqno: 41}) {
				t.Fatalf("%v does not say where to", err)
			}
			var se *kvclient.StatusError
			if tt.status == mcbp.StatusNotMyVBucket && (!errors.As(err, &se) || se.Config == nil || se.Config.Rev != 5) {
				t.Fatalf("%v does not carry the map", err)
			}
			if n.seen(mcbp.OpDCPCloseStream) != 0 || c.Err() != nil {
				t.Fatal("a refusal must not end anything")
			}
		})
	}
}

// What is released is acknowledged: the sum never exceeds what was received, each acknowledgement is at least a fifth
// of the window, and noops do not count.
func TestFlowControl(t *testing.T) {
	const buffer = 100_000
	n := startNode(t, nil)
	conf := config(n)
	conf.BufferBytes = buffer
	c := dial(t, conf)
	if _, err := c.OpenStream(within(t, time.Minute), feed.StreamRequest{End: mcbp.EndOfTime}); err != nil {
		t.Fatal(err)
	}
	sent := 0
	value := strings.Repeat("v", 1000)
	for i := range 90 {
		f := mutation(0, 1, uint64(i+1), "key", value)
		if i == 0 {
			f = marker(0, 1, 0, 100)
		}
		sent += size(f)
		n.to().Send(f)
		n.to().Send(noop(uint32(i)))
	}
	_, blocks := take(t, c, 91)
	for i := range 90 {
		if got := <-n.noops; got != uint32(i) {
			t.Fatalf("noop %d was answered with the opaque %d", i, got)
		}
	}
	if sum, _ := n.acked(); sum != 0 || c.Held() != int64(sent) {
		t.Fatalf("%d bytes acknowledged before any release, %d held of %d", sum, c.Held(), sent)
	}
	blocks[0].Retain(1)
	releaseAll(blocks)
	blocks[0].Release()
	blocks[0].Release() // an extra Release must not count twice
	eventually(t, "acknowledgements", func() bool { sum, _ := n.acked(); return sum > sent-buffer/5 })
	sum, each := n.acked()
	if sum > sent || c.Held() != 0 {
		t.Fatalf("acknowledged %d of %d received; %d held", sum, sent, c.Held())
	}
	for _, a := range each {
		if a < buffer/5 {
			t.Fatalf("an acknowledgement of %d bytes, want at least %d", a, buffer/5)
		}
	}
}

// A consumer that takes nothing: noops are still answered, and what the node may send ahead is bounded; a node that
// ignores the window is disconnected.
func TestConsumerThatDoesNothing(t *testing.T) {
	n := startNode(t, nil)
	conf := config(n)
	conf.BufferBytes = feed.MinBufferBytes
	c := dial(t, conf)
	if _, err := c.OpenStream(within(t, time.Minute), feed.StreamRequest{End: mcbp.EndOfTime}); err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		n.to().Send(mutation(0, 1, uint64(i+1), "key", strings.Repeat("v", 600)))
		n.to().Send(noop(uint32(i)))
		if got := <-n.noops; got != uint32(i) {
			t.Fatalf("noop %d was answered with %d", i, got)
		}
	}
	big := mutation(0, 1, 1000, "big", strings.Repeat("v", mcbp.MaxValue))
	for range 3 {
		n.to().Send(big)
	}
	select {
	case <-c.Done():
	case <-time.After(time.Minute):
		t.Fatal("a node that ignores flow control is tolerated")
	}
	if err := c.Err(); !errors.Is(err, feed.ErrProtocol) || !strings.Contains(err.Error(), "flow control") {
		t.Fatal(err)
	}
	// Earlier blocks are still there, then comes the error.
	_, blocks := take(t, c, 101)
	releaseAll(blocks)
	for {
		b, err := c.Next(within(t, time.Minute))
		if err != nil {
			if !errors.Is(err, feed.ErrProtocol) {
				t.Fatal(err)
			}
			break
		}
		b.Release()
	}
}

// The largest documents pass, even through a smaller window.
func TestLargeDocuments(t *testing.T) {
	n := startNode(t, nil)
	conf := config(n)
	conf.BufferBytes = feed.MinBufferBytes
	c := dial(t, conf)
	if _, err := c.OpenStream(within(t, time.Minute), feed.StreamRequest{End: mcbp.EndOfTime}); err != nil {
		t.Fatal(err)
	}
	value := strings.Repeat("0123456789abcdef", mcbp.MaxValue/16)
	for i := range 3 {
		n.to().Send(mutation(0, 1, uint64(2*i+1), "big", value))
		n.to().Send(mutation(0, 1, uint64(2*i+2), "small", "s"))
		want := 2
		if i == 0 {
			want = 3
		}
		events, blocks := take(t, c, want)
		last := events[len(events)-2:]
		if string(last[0].Value) != value || string(last[1].Value) != "s" {
			t.Fatalf("round %d: values of %d and %d bytes", i, len(last[0].Value), len(last[1].Value))
		}
		releaseAll(blocks)
	}
	eventually(t, "acknowledgements", func() bool { sum, _ := n.acked(); return sum > 3*mcbp.MaxValue })
}

// Values are decompressed and extended attributes split off; a value that is flagged as such but does not decode is
// delivered as undecodable, never dropped.
func TestDecoding(t *testing.T) {
	doc := []byte(`{"a":"` + strings.Repeat("x", 5000) + `"}`)
	xattrs := append(mcbp.AppendXattrs(nil, []byte("sync\x00{}\x00")), doc...)
	bomb := append([]byte{0xff, 0xff, 0xff, 0xff, 0x0f}, make([]byte, 10)...) // claims 4 GiB
	frames := []struct {
		datatype mcbp.Datatype
		value    []byte
	}{
		{mcbp.DatatypeSnappy | mcbp.DatatypeJSON, snappy.Encode(nil, doc)},
		{mcbp.DatatypeXattr | mcbp.DatatypeJSON, xattrs},
		{mcbp.DatatypeXattr | mcbp.DatatypeSnappy, snappy.Encode(nil, xattrs)},
		{mcbp.DatatypeSnappy, []byte("not snappy at all")},
		{mcbp.DatatypeSnappy, bomb},
		{mcbp.DatatypeXattr, []byte{0, 0, 0, 200, 1}},
		{mcbp.DatatypeXattr | mcbp.DatatypeSnappy, snappy.Encode(nil, []byte{1})},
		{mcbp.DatatypeSnappy, nil},
	}
	n := startNode(t, nil)
	conf := config(n)
	conf.Xattrs = true
	c := dial(t, conf)
	if _, err := c.OpenStream(within(t, time.Minute), feed.StreamRequest{End: mcbp.EndOfTime}); err != nil {
		t.Fatal(err)
	}
	for i, f := range frames {
		m := mutation(0, 1, uint64(i+1), fmt.Sprint(i), string(f.value))
		m.Datatype = f.datatype
		n.to().Send(m)
	}
	events, blocks := take(t, c, len(frames)+1)
	for i, e := range events[1:] {
		bad := i >= 3 && i <= 6
		if e.Undecodable != bad || e.Seqno != uint64(i+1) || string(e.Key) != fmt.Sprint(i) ||
			e.Datatype.Has(mcbp.DatatypeSnappy) {
			t.Errorf("event %d: undecodable %v, %s", i, e.Undecodable, describe(e))
		}
		if i < 3 && !bytes.Equal(e.Value, doc) || i >= 3 && len(e.Value) != 0 {
			t.Errorf("event %d: value of %d bytes", i, len(e.Value))
		}
		if (i == 1 || i == 2) != (string(e.Xattrs) == "sync\x00{}\x00") {
			t.Errorf("event %d: extended attributes %q", i, e.Xattrs)
		}
	}
	releaseAll(blocks)
}

// The consumer owns memory until it releases it: blocks that are held while much more data flows, some of it
// compressed, are unchanged at the end.
func TestBlocksKeepTheirMemory(t *testing.T) {
	n := startNode(t, nil)
	conf := config(n)
	conf.BufferBytes = 64 << 20
	c := dial(t, conf)
	if _, err := c.OpenStream(within(t, time.Minute), feed.StreamRequest{End: mcbp.EndOfTime}); err != nil {
		t.Fatal(err)
	}
	value := func(i uint64) string { return strings.Repeat(fmt.Sprint(i, ","), 100) }
	const count = 20_000
	done := make(chan struct{})
	go func() {
		defer close(done)
		var buf []byte
		for i := uint64(1); i <= count; i++ {
			f := mutation(0, 1, i, fmt.Sprint(i), value(i))
			if i%3 == 0 {
				f.Datatype, f.Value = mcbp.DatatypeSnappy, snappy.Encode(nil, f.Value)
			}
			buf, _ = mcbp.Append(buf, f)
			if len(buf) > 10_000 {
				n.to().Raw(buf)
				buf = buf[:0]
			}
		}
		n.to().Raw(buf)
	}()
	var keep []*feed.Block
	next := uint64(1)
	check := func(b *feed.Block, from uint64) uint64 {
		for i := range b.Events {
			e := &b.Events[i]
			if e.Kind != feed.Mutation {
				continue
			}
			if e.Seqno != from || string(e.Key) != fmt.Sprint(from) || string(e.Value) != value(from) {
				t.Fatalf("want seqno %d, got %s", from, describe(*e))
			}
			from++
		}
		return from
	}
	for next <= count {
		b, err := c.Next(within(t, time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		first := next
		next = check(b, next)
		if first%5 == 0 {
			b.Release()
			continue
		}
		keep = append(keep, b)
	}
	<-done
	for _, b := range keep {
		for i := range b.Events {
			if b.Events[i].Kind == feed.Mutation {
				check(b, b.Events[i].Seqno)
				break
			}
		}
	}
	releaseAll(keep)
	if c.Held() != 0 {
		t.Fatalf("%d bytes held", c.Held())
	}
}

// A connection to a node that breaks the protocol ends with an error that states why.
func TestProtocolViolations(t *testing.T) {
	enc := func(f mcbp.Frame) []byte { b, _ := mcbp.Append(nil, f); return b }
	lying := enc(mutation(0, 1, 1, "k", "v"))
	lying[8] = 0xff
	keyless := mutation(0, 1, 1, "", "v")
	keyless.Key = nil
	for name, raw := range map[string][]byte{
		"magic":        []byte("HTTP/1.1 200 OK\r\n\r\n......................"),
		"lying length": lying,
		"short mutation": enc(mcbp.Frame{Header: request(mcbp.OpDCPMutation, 0, 1), Extras: make([]byte, 30),
			Key: []byte("\x00k")}),
		"short deletion": enc(mcbp.Frame{Header: request(mcbp.OpDCPDeletion, 0, 1), Extras: make([]byte, 17),
			Key: []byte("\x00k")}),
		"no collection prefix": enc(keyless),
		"metadata too long": enc(mcbp.Frame{Header: request(mcbp.OpDCPMutation, 0, 1),
			Extras: mcbp.Mutation{Seqno: 1, MetaLen: 9}.AppendExtras(nil), Key: []byte("\x00k"), Value: []byte("v")}),
		"marker":         enc(marker(0, 1, 5, 4)),
		"stream end":     enc(mcbp.Frame{Header: request(mcbp.OpDCPStreamEnd, 0, 1)}),
		"seqno advanced": enc(mcbp.Frame{Header: request(mcbp.OpDCPSeqnoAdvanced, 0, 1), Extras: []byte{1}}),
		"answer without a request": enc(mcbp.Frame{Header: mcbp.Header{Magic: mcbp.MagicResponse, Op: mcbp.OpDCPStreamReq,
			Opaque: 999}}),
	} {
		t.Run(name, func(t *testing.T) {
			n := startNode(t, nil)
			c := dial(t, config(n))
			n.to().Raw(raw)
			_, err := c.Next(within(t, time.Minute))
			if !errors.Is(err, feed.ErrProtocol) && !errors.Is(err, feed.ErrClosed) || errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("got %v", err)
			}
		})
	}
}
