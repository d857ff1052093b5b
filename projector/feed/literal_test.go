package feed_test

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"tidemark/kv/kvclient"
	"tidemark/kv/mcbp"
	"tidemark/projector/feed"
	"tidemark/timestamp"
)

// The bytes between a consumer and an engine, written down from the protocol's tables, not with our own encoder: a
// mistake that encoder and decoder share shows here and nowhere else.

// step is one message: what the consumer must send, or what the engine sends. Bytes are hexadecimal, text is in
// quotes. In wanted bytes ".." is any byte, "OO" the opaque, which later bytes repeat; "SS" is the opaque of the
// newest STREAM_REQ.
type step struct {
	want, send string
}

// player plays steps on one connection.
type player struct {
	nc             net.Conn
	opaque, stream string
}

// play runs a script for the first connection and returns the address; the result is checked at the end of the test.
func play(t *testing.T, script []step) (addr string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	over := make(chan error, 1)
	go func() {
		nc, err := ln.Accept()
		if err != nil {
			over <- err
			return
		}
		defer func() { _ = nc.Close() }()
		_ = nc.SetDeadline(time.Now().Add(time.Minute))
		p := &player{nc: nc}
		for i, s := range script {
			if err := p.step(s); err != nil {
				over <- fmt.Errorf("step %d (%.60s%.60s): %w", i, s.want, s.send, err)
				return
			}
		}
		over <- nil
		_, _ = io.Copy(io.Discard, nc) // until the consumer hangs up
	}()
	t.Cleanup(func() {
		_ = ln.Close()
		if err := <-over; err != nil {
			t.Error(err)
		}
	})
	return ln.Addr().String()
}

func (p *player) step(s step) error {
	if s.want != "" {
		if err := p.take(spell(s.want)); err != nil {
			return err
		}
	}
	if s.send == "" {
		return nil
	}
	b, err := hex.DecodeString(strings.NewReplacer("OOOOOOOO", p.opaque, "SSSSSSSS", p.stream).Replace(spell(s.send)))
	if err != nil {
		return err
	}
	_, err = p.nc.Write(b)
	return err
}

// take reads as many bytes as wanted and compares them.
func (p *player) take(want string) error {
	got := make([]byte, len(want)/2)
	if n, err := io.ReadFull(p.nc, got); err != nil {
		return fmt.Errorf("got % x, then %w", got[:n], err)
	}
	have := hex.EncodeToString(got)
	for i := range len(want) / 2 {
		w, h := want[2*i:2*i+2], have[2*i:2*i+2]
		if w != h && w != ".." && w != "OO" && w != "SS" {
			return fmt.Errorf("byte %d is %s, want %s: got %s, want %s", i, h, w, have, want)
		}
	}
	if at := strings.Index(want, "OO"); at >= 0 {
		p.opaque = have[at : at+8]
	}
	if at := strings.Index(want, "SS"); at >= 0 {
		p.stream = have[at : at+8]
	}
	return nil
}

// spell converts quoted text to hexadecimal and removes blanks.
func spell(s string) string {
	var out strings.Builder
	for i, part := range strings.Split(s, "'") {
		if i%2 == 1 {
			out.WriteString(hex.EncodeToString([]byte(part)))
		} else {
			out.WriteString(strings.Join(strings.Fields(part), ""))
		}
	}
	return out.String()
}

const (
	opaque = " OOOOOOOO 0000000000000000 " // and no CAS
	ofThat = " SSSSSSSS 0000000000000000 "
)

// bootstrap51 is the exchange before the first stream with an engine of the 5.1 line: it grants neither collections
// nor snappy nor JSON, and does not know the control for stream ends. The window is 65536 bytes.
func bootstrap51(open string) []step {
	return []step{
		// HELLO: magic, opcode, key length, extras length, datatype, vbucket, body length; the client's name; xerror, select
		// bucket, JSON, no delay, xattr, snappy, collections
		{`801f 000c 00 00 0000 0000001a` + opaque + `'{"a":"test"}' 0007 0008 000b 0003 0006 000a 0012`,
			`811f 0000 00 00 0000 00000008` + opaque + `0007 0008 0003 0006`},
		{`8020 0000 00 00 0000 00000000` + opaque, `8120 0000 00 00 0000 00000005` + opaque + `'PLAIN'`},
		{`8021 0005 00 00 0000 00000009` + opaque + `'PLAIN' 00'u'00'p'`, `8121 0000 00 00 0000 0000000d` + opaque + `'Authenticated'`},
		{`8089 0001 00 00 0000 00000001` + opaque + `'b'`, `8189 0000 00 00 0000 00000000` + opaque},
		{`8050 0004 08 00 0000 0000000c` + opaque + `00000000 ` + open + `'test'`, `8150 0000 00 00 0000 00000000` + opaque},
		{`805e 000b 00 00 0000 0000000f` + opaque + `'enable_noop' 'true'`, `815e 0000 00 00 0000 00000000` + opaque},
		{`805e 0011 00 00 0000 00000012` + opaque + `'set_noop_interval' '5'`, `815e 0000 00 00 0000 00000000` + opaque},
		{`805e 0016 00 00 0000 0000001b` + opaque + `'connection_buffer_size' '65536'`, `815e 0000 00 00 0000 00000000` + opaque},
		{`805e 0026 00 00 0000 0000002a` + opaque + `'send_stream_end_on_client_close_stream' 'true'`,
			`815e 0000 00 00 0004 00000029` + opaque + `'{"error":{"context":"unknown parameter"}}'`},
	}
}

// literalConf is the configuration that bootstrap51 expects.
func literalConf(addr string) feed.Config {
	return feed.Config{Addr: addr, Bucket: "b", User: "u", Password: "p", Name: "test", AllowPlain: true,
		BufferBytes: 1 << 16, RequestTimeout: time.Minute,
		NoopInterval: 5 * time.Second, DeadAfter: time.Minute}
}

// literalEvents collects n events as lines, lets trackers observe them, and also returns their blocks.
func literalEvents(t *testing.T, c *feed.Conn, n int, trackers ...*feed.Tracker) []string {
	t.Helper()
	events, blocks := take(t, c, n)
	var out []string
	for i := range events {
		e := &events[i]
		for _, tr := range trackers {
			if _, err := tr.Observe(e); err != nil {
				t.Fatal(err)
			}
		}
		line := fmt.Sprintf("%v vb=%d", e.Kind, e.VBucket)
		switch {
		case e.Kind == feed.StreamBegin:
			log, err := e.FailoverLog()
			line += fmt.Sprintf(" %x %v", log, err)
		case e.Kind == feed.SnapshotMarker:
			line += fmt.Sprintf(" %d-%d flags=%d", e.SnapStart, e.SnapEnd, e.SnapFlags)
		case e.Kind == feed.StreamEnd:
			line += fmt.Sprintf(" %v", e.EndReason)
		case e.Kind.IsDocument():
			line += fmt.Sprintf(" seqno=%d rev=%d cas=%#x flags=%#x expiry=%d time=%d collection=%d datatype=%d key=%q "+
				"value=%.20q xattrs=%q undecodable=%v",
				e.Seqno, e.RevSeqno, e.CAS, e.Flags, e.Expiry, e.DeleteTime, e.Collection, e.Datatype, e.Key, e.Value, e.Xattrs,
				e.Undecodable)
		default:
			line += fmt.Sprintf(" seqno=%d flags=%d key=%q", e.Seqno, e.Flags, e.Key)
		}
		out = append(out, line)
	}
	releaseAll(blocks)
	return out
}

func wantLines(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// One conversation with an engine of the 5.1 line.
func TestBytesOf51(t *testing.T) {
	large := strings.Repeat("78", 13000) // a fifth of the window is 13107 bytes
	script := append(bootstrap51("00000005"),
		// FAILOVER_LOG of vbucket 513
		step{`8054 0000 00 00 0201 00000000` + opaque, `8154 0000 00 00 0000 00000020` + opaque +
			`0000d00d0000beef 0000000000000007  0000000000001234 0000000000000000`},
		// GET_ALL_VB_SEQNOS, active ones
		step{`8048 0000 04 00 0000 00000004` + opaque + `00000001`, `8148 0000 00 00 0000 00000014` + opaque + `0201 000000000000000c  03ff 0000000000000000`},
		// STAT, one answer each, and the one without a key
		step{`8010 000f 00 00 0000 0000000f` + opaque + `'vbucket-details'`,
			`8110 0006 00 00 0000 0000000c` + opaque + `'vb_513' 'active'` +
				`8110 0011 00 00 0000 00000013` + opaque + `'vb_513:high_seqno' '12'` +
				`8110 0012 00 00 0000 00000013` + opaque + `'vb_513:purge_seqno' '3'` +
				`8110 0011 00 00 0000 00000016` + opaque + `'vb_513:hlc_drift_' 'hello'` +
				`8110 0000 00 00 0000 00000000` + opaque},
		// STREAM_REQ: flags (active only), reserved, start, end, vbuuid, window
		step{`8053 0000 30 00 0201 00000030` + ofThat + `00000010 00000000 0000000000000008 ffffffffffffffff 0000d00d0000beef 0000000000000006 000000000000000a`,
			`8153 0000 00 00 0000 00000020` + ofThat + `0000d00d0000beef 0000000000000007  0000000000001234 0000000000000000`},
		// SNAPSHOT_MARKER, of disk: start, end, type
		step{send: `8056 0000 14 00 0201 00000014` + ofThat + `0000000000000006 000000000000000e 00000002`},
		// MUTATION: seqno, revision, flags, expiry, lock time, length of metadata, nru; extended attributes before the
		// document
		step{send: `8057 0001 1f 04 0201 00000034 SSSSSSSS 15d5c0ffee000001` +
			`0000000000000009 0000000000000003 02000006 5f5e1000 00000000 0000 00 'k' 00000009 00000005'_s'00'1'00 '{"n":1}'`},
		// NOOP between, answered with the same opaque
		step{send: `805c 0000 00 00 0000 00000000 deadbeef 0000000000000000`},
		step{want: `815c 0000 00 00 0000 00000000 deadbeef 0000000000000000`},
		// MUTATION with two bytes of metadata behind the document, a key that is no text, unmarked JSON
		step{send: `8057 0002 1f 00 0201 0000002a SSSSSSSS 0000000000000002` +
			`000000000000000b 0000000000000001 00000000 00000000 00000000 0002 00 'k'ff '{"n":2}' 0101`},
		// DELETION: seqno, revision, length of metadata
		step{send: `8058 0001 12 00 0201 00000013 SSSSSSSS 0000000000000003 000000000000000c 0000000000000004 0000 'k'`},
		// DELETION with extended attributes of the system
		step{send: `8058 0001 12 04 0201 0000001f SSSSSSSS 0000000000000004 000000000000000e 0000000000000004 0000 'j' 00000008 00000004'_s'0000`},
		step{send: `8056 0000 14 00 0201 00000014` + ofThat + `000000000000000f 000000000000000f 00000005`},
		// An unknown message is counted and ignored.
		step{send: `805b 0000 01 00 0201 00000001` + ofThat + `01`},
		step{send: `8057 0001 1f 00 0201 000032e8 SSSSSSSS 0000000000000005` +
			`000000000000000f 0000000000000001 00000000 00000000 00000000 0000 00 'l'` + large},
		// BUFFER_ACK of everything except the noop: 44+76+66+43+55+44+25+13056
		step{want: `805d 0000 04 00 0000 00000004` + opaque + `00003461`},
		// CLOSE_STREAM: no end follows.
		step{`8052 0000 00 00 0201 00000000` + opaque, `8152 0000 00 00 0000 00000000` + opaque},
	)
	conf := literalConf(play(t, script))
	conf.Xattrs = true
	c := dial(t, conf)
	ctx := within(t, time.Minute)
	log, err := c.FailoverLog(ctx, 513)
	if err != nil || !slices.Equal(log, timestamp.FailoverLog{{VBUUID: 0xd00d0000beef, Seqno: 7}, {VBUUID: 0x1234}}) {
		t.Fatalf("%v %v", log, err)
	}
	highs, err := c.HighSeqnos(ctx)
	if err != nil || !slices.Equal(highs, []mcbp.VBucketSeqno{{VBucket: 513, Seqno: 12}, {VBucket: 1023}}) {
		t.Fatalf("%v %v", highs, err)
	}
	details, err := c.Details(ctx)
	if err != nil || len(details) != 1 || details[513] != (feed.VBucketDetails{State: "active", HighSeqno: 12,
		PurgeSeqno: 3, HasPurge: true}) {
		t.Fatalf("%v %v", details, err)
	}
	if _, err := c.OpenStream(ctx, feed.StreamRequest{VBucket: 513, Start: 8, End: mcbp.EndOfTime, VBUUID: 0xd00d0000beef,
		SnapStart: 6, SnapEnd: 10}); err != nil {
		t.Fatal(err)
	}
	got := literalEvents(t, c, 8)
	wantLines(t, got,
		`StreamBegin vb=513 [{d00d0000beef 7} {1234 0}] <nil>`,
		`SnapshotMarker vb=513 6-14 flags=2`,
		`Mutation vb=513 seqno=9 rev=3 cas=0x15d5c0ffee000001 flags=0x2000006 expiry=1600000000 time=0 collection=0 datatype=4 key="k" value="{\"n\":1}" xattrs="\x00\x00\x00\x05_s\x001\x00" undecodable=false`,
		`Mutation vb=513 seqno=11 rev=1 cas=0x2 flags=0x0 expiry=0 time=0 collection=0 datatype=0 key="k\xff" value="{\"n\":2}" xattrs="" undecodable=false`,
		`Deletion vb=513 seqno=12 rev=4 cas=0x3 flags=0x0 expiry=0 time=0 collection=0 datatype=0 key="k" value="" xattrs="" undecodable=false`,
		`Deletion vb=513 seqno=14 rev=4 cas=0x4 flags=0x0 expiry=0 time=0 collection=0 datatype=4 key="j" value="" xattrs="\x00\x00\x00\x04_s\x00\x00" undecodable=false`,
		`SnapshotMarker vb=513 15-15 flags=5`,
		`Mutation vb=513 seqno=15 rev=1 cas=0x5 flags=0x0 expiry=0 time=0 collection=0 datatype=0 key="l" value="xxxxxxxxxxxxxxxxxxxx" xattrs="" undecodable=false`)
	if err := c.CloseStream(ctx, 513); err != nil {
		t.Fatal(err)
	}
	wantLines(t, literalEvents(t, c, 1), `StreamEnd vb=513 closed`)
}

// Every answer that an engine gives to a stream request.
func TestBytesOfRefusals(t *testing.T) {
	request := `8053 0000 30 00 0005 00000030` + ofThat + `00000010 00000000 0000000000000008 ffffffffffffffff 000000000000beef 0000000000000008 0000000000000008`
	config := `{"rev":9,"nodes":[{"hostname":"$HOST:8091"}],"nodesExt":[{"services":{"kv":11210}}],"nodeLocator":"vbucket","vBucketServerMap":{"serverList":["$HOST:11210"],"vBucketMap":[[-1,-1],[0,-1]]}}`
	var script []step
	answers := []struct {
		name, bytes string
		check       func(err error) bool
	}{
		{"rollback", `8153 0000 00 00 0023 00000008` + ofThat + `0000000000000005`, func(err error) bool {
			var r *feed.RollbackError
			return errors.As(err, &r) && r.Seqno == 5 && r.VBucket == 5
		}},
		{"rollback without a seqno", `8153 0000 00 00 0023 00000000` + ofThat, func(err error) bool {
			return errors.Is(err, feed.ErrProtocol) && !errors.Is(err, feed.ErrRollback)
		}},
		{"range", `8153 0000 00 00 0022 00000000` + ofThat, func(err error) bool { return errors.Is(err, feed.ErrRange) }},
		{"there is one", `8153 0000 00 00 0002 00000000` + ofThat, func(err error) bool { return errors.Is(err, feed.ErrStreamExists) }},
		{"not mine, with a map", `8153 0000 00 00 0007 ` + fmt.Sprintf("%08x", len(config)) + ofThat + `'` + config + `'`, func(err error) bool {
			var s *kvclient.StatusError
			return errors.Is(err, feed.ErrNotMyVBucket) && errors.As(err, &s) && s.Config != nil && s.Config.Rev == 9 &&
				s.Config.Owner(0) == -1
		}},
		{"not mine, without", `8153 0000 00 00 0007 00000000` + ofThat, func(err error) bool {
			var s *kvclient.StatusError
			return errors.Is(err, feed.ErrNotMyVBucket) && errors.As(err, &s) && s.Config == nil
		}},
		{"not mine, with half a map", `8153 0000 00 00 0007 00000007` + ofThat + `'{"rev":'`, func(err error) bool { return errors.Is(err, feed.ErrNotMyVBucket) }},
		{"temporary", `8153 0000 00 00 0086 00000000` + ofThat, temporary},
		{"no memory", `8153 0000 00 00 0082 00000000` + ofThat, temporary},
		{"busy", `8153 0000 00 00 0085 00000000` + ofThat, temporary},
		{"not initialized", `8153 0000 00 00 0025 00000000` + ofThat, temporary},
		{"invalid", `8153 0000 00 00 0004 00000000` + ofThat, func(err error) bool {
			return !temporary(err) && !errors.Is(err, feed.ErrRange) && strings.Contains(err.Error(), "INVALID_ARGUMENTS")
		}},
		{"not supported", `8153 0000 00 00 0083 00000000` + ofThat, func(err error) bool { return errors.Is(err, feed.ErrNotSupported) }},
		{"no right, and why", `8153 0000 00 01 0024 00000017` + ofThat + `'{"error":{"ref":"ab1"}}'`, func(err error) bool {
			return errors.Is(err, feed.ErrAuth) && strings.Contains(err.Error(), "ab1")
		}},
		{"no manifest of collections yet", `8153 0000 00 00 0089 00000000` + ofThat, temporary},
		{"a vbucket behind the manifest", `8153 0000 00 00 008b 00000000` + ofThat, temporary},
		{"unknown collection", `8153 0000 00 00 0088 00000000` + ofThat, func(err error) bool { return strings.Contains(err.Error(), "UNKNOWN_COLLECTION") }},
		{"an unknown status", `8153 0000 00 00 00fa 00000000` + ofThat, func(err error) bool { return strings.Contains(err.Error(), "0x00fa") }},
		{"with frame extras", `1853 03 00 00 00 0023 0000000b` + ofThat + `02002a 0000000000000003`, func(err error) bool {
			var r *feed.RollbackError
			return errors.As(err, &r) && r.Seqno == 3
		}},
	}
	for _, a := range answers {
		script = append(script, step{request, a.bytes})
	}
	c := dial(t, literalConf(play(t, append(bootstrap51("00000001"), script...))))
	ctx := within(t, time.Minute)
	for _, a := range answers {
		_, err := c.OpenStream(ctx, feed.StreamRequest{VBucket: 5, Start: 8, End: mcbp.EndOfTime, VBUUID: 0xbeef,
			SnapStart: 8, SnapEnd: 8})
		if err == nil || !a.check(err) {
			t.Errorf("%s: %v", a.name, err)
		}
	}
	if err := c.Err(); err != nil {
		t.Fatalf("a refusal has ended the connection: %v", err)
	}
}

func temporary(err error) bool { return errors.Is(err, feed.ErrTemporary) }

// One conversation with a later engine: JSON, snappy and collections granted, stream ends on close, the second form
// of the markers, expirations, and messages about other collections.
func TestBytesOfLaterEngines(t *testing.T) {
	script := bootstrap51("00000001")
	script[0].send = `811f 0000 00 00 0000 0000000e` + opaque + `0007 0008 000b 0003 0006 000a 0012`
	script[len(script)-1].send = `815e 0000 00 00 0000 00000000` + opaque
	script = append(script,
		step{`8053 0000 30 00 0001 00000030` + ofThat + `00000010 00000000 0000000000000000 ffffffffffffffff 0000000000000000 0000000000000000 0000000000000000`,
			`8153 0000 00 00 0000 00000010` + ofThat + `0000000000000077 0000000000000000`},
		// SNAPSHOT_MARKER 2.0: version; start, end, type (memory, checkpoint), newest visible, highest completed
		step{send: `8056 0000 01 00 0001 00000025` + ofThat + `00  0000000000000000 0000000000000008 00000005 0000000000000008 0000000000000000`},
		// SYSTEM_EVENT: seqno, event (a collection begins), version; its name
		step{send: `805f 0004 0d 00 0001 00000021` + ofThat + `0000000000000001 00000000 00 'beer' 0000000000000001 00000000 00000008`},
		// MUTATION, JSON and snappy, of the default collection: length 7, a literal of 7 bytes
		step{send: `8057 0002 1f 03 0001 0000002a SSSSSSSS 0000000000000002` +
			`0000000000000002 0000000000000001 00000000 00000000 00000000 0000 00 00'k' 07 18 '{"n":1}'`},
		// MUTATION of collection 8 and of collection 1000 (two bytes)
		step{send: `8057 0002 1f 01 0001 00000023 SSSSSSSS 0000000000000003` +
			`0000000000000003 0000000000000001 00000000 00000000 00000000 0000 00 08'k' '{}'`},
		step{send: `8057 0003 1f 01 0001 00000024 SSSSSSSS 0000000000000004` +
			`0000000000000004 0000000000000001 00000000 00000000 00000000 0000 00 e807'k' '{}'`},
		// EXPIRATION: seqno, revision, time
		step{send: `8059 0002 14 00 0001 00000016 SSSSSSSS 0000000000000005 0000000000000005 0000000000000002 5f5e1000 00'k'`},
		// DELETION of the second form: seqno, revision, time, unused
		step{send: `8058 0002 15 00 0001 00000017 SSSSSSSS 0000000000000006 0000000000000006 0000000000000003 5f5e1001 00 00'j'`},
		// MUTATION with an invalid snappy value: it announces 2^31 bytes
		step{send: `8057 0002 1f 02 0001 00000026 SSSSSSSS 0000000000000007` +
			`0000000000000007 0000000000000001 00000000 00000000 00000000 0000 00 00'm' 8080808008`},
		// SEQNO_ADVANCED to the window's end
		step{send: `8064 0000 08 00 0001 00000008` + ofThat + `0000000000000008`},
		// SNAPSHOT_MARKER 2.2
		step{send: `8056 0000 01 00 0001 00000035` + ofThat + `02  0000000000000009 0000000000000009 00000002 0000000000000009 0000000000000000 0000000000000000 0000000000000004`},
		// a MUTATION with a stream id before its extras: magic 08
		step{send: `0857 03 02 1f 00 0001 00000024 SSSSSSSS 0000000000000009` +
			`22 0001 0000000000000009 0000000000000001 00000000 00000000 00000000 0000 00 00'z'`},
		step{`8052 0000 00 00 0001 00000000` + opaque, `8152 0000 00 00 0000 00000000` + opaque + `8055 0000 04 00 0001 00000004` + ofThat + `00000001`},
	)
	c := dial(t, literalConf(play(t, script)))
	ctx := within(t, time.Minute)
	if _, err := c.OpenStream(ctx, feed.StreamRequest{VBucket: 1, End: mcbp.EndOfTime}); err != nil {
		t.Fatal(err)
	}
	tracker := feed.NewTracker(feed.Position{})
	wantLines(t, literalEvents(t, c, 12, &tracker),
		`StreamBegin vb=1 [{77 0}] <nil>`,
		`SnapshotMarker vb=1 0-8 flags=5`,
		`SystemEvent vb=1 seqno=1 flags=0 key="beer"`,
		`Mutation vb=1 seqno=2 rev=1 cas=0x2 flags=0x0 expiry=0 time=0 collection=0 datatype=1 key="k" value="{\"n\":1}" xattrs="" undecodable=false`,
		`Mutation vb=1 seqno=3 rev=1 cas=0x3 flags=0x0 expiry=0 time=0 collection=8 datatype=1 key="k" value="{}" xattrs="" undecodable=false`,
		`Mutation vb=1 seqno=4 rev=1 cas=0x4 flags=0x0 expiry=0 time=0 collection=1000 datatype=1 key="k" value="{}" xattrs="" undecodable=false`,
		`Expiration vb=1 seqno=5 rev=2 cas=0x5 flags=0x0 expiry=0 time=1600000000 collection=0 datatype=0 key="k" value="" xattrs="" undecodable=false`,
		`Deletion vb=1 seqno=6 rev=3 cas=0x6 flags=0x0 expiry=0 time=1600000001 collection=0 datatype=0 key="j" value="" xattrs="" undecodable=false`,
		`Mutation vb=1 seqno=7 rev=1 cas=0x7 flags=0x0 expiry=0 time=0 collection=0 datatype=0 key="m" value="" xattrs="" undecodable=true`,
		`SeqnoAdvanced vb=1 seqno=8 flags=0 key=""`,
		`SnapshotMarker vb=1 9-9 flags=2`,
		`Mutation vb=1 seqno=9 rev=1 cas=0x9 flags=0x0 expiry=0 time=0 collection=0 datatype=0 key="z" value="" xattrs="" undecodable=false`)
	if p := tracker.Progress(); p.Complete != 9 {
		t.Fatalf("complete up to %d, want 9", p.Complete)
	}
	if err := c.CloseStream(ctx, 1); err != nil {
		t.Fatal(err)
	}
	wantLines(t, literalEvents(t, c, 1), `StreamEnd vb=1 closed`)
}
