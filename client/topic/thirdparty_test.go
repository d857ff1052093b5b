package topic_test

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// This subscriber is written from docs/projector.md and docs/protocol.md alone, and uses nothing of this module: an
// HTTP/2 server, the frames byte by byte, the keys byte by byte.

var errFormat = errors.New("not as in docs/protocol.md")

// cursor reads a body; err holds the first error.
type cursor struct {
	b   []byte
	err error
}

func (c *cursor) fail(what string) {
	if c.err == nil {
		c.err = fmt.Errorf("%w: %s, %d bytes are left", errFormat, what, len(c.b))
	}
	c.b = nil
}

func (c *cursor) take(n uint64) []byte {
	if n > uint64(len(c.b)) {
		c.fail(fmt.Sprintf("%d bytes are needed", n))
		return nil
	}
	out := c.b[:n]
	c.b = c.b[n:]
	return out
}

func (c *cursor) one() byte {
	if b := c.take(1); len(b) == 1 {
		return b[0]
	}
	return 0
}

func (c *cursor) n() uint64 {
	v, size := binary.Uvarint(c.b)
	if size <= 0 {
		c.fail("no varint")
		return 0
	}
	c.b = c.b[size:]
	return v
}

func (c *cursor) z() int64 {
	v := c.n()
	return int64(v>>1) ^ -int64(v&1)
}

func (c *cursor) text() string { return string(c.take(c.n())) }

func (c *cursor) u64() uint64 {
	if b := c.take(8); len(b) == 8 {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// opened checks and removes a frame's header.
func opened(frame []byte) (kind byte, number uint64, body *cursor, err error) {
	castagnoli := crc32.MakeTable(crc32.Castagnoli)
	le := binary.LittleEndian
	switch {
	case len(frame) < 24 || frame[0] != 'T' || frame[1] != 'K' || frame[3] != 1:
		return 0, 0, nil, fmt.Errorf("%w: header %x", errFormat, frame[:min(24, len(frame))])
	case int(le.Uint32(frame[4:])) != len(frame)-24:
		return 0, 0, nil, fmt.Errorf("%w: body of %d bytes, the header says %d", errFormat, len(frame)-24,
			le.Uint32(frame[4:]))
	case le.Uint32(frame[16:]) != crc32.Checksum(frame[24:], castagnoli) ||
		le.Uint32(frame[20:]) != crc32.Checksum(frame[:20], castagnoli):
		return 0, 0, nil, fmt.Errorf("%w: checksums", errFormat)
	}
	return frame[2], le.Uint64(frame[8:]), &cursor{b: frame[24:]}, nil
}

// acknowledgement returns an acknowledgement.
func acknowledgement(number uint64) []byte {
	castagnoli := crc32.MakeTable(crc32.Castagnoli)
	body := append(binary.AppendUvarint(nil, number), 0)
	frame := append([]byte{'T', 'K', 3, 1}, make([]byte, 20)...)
	binary.LittleEndian.PutUint32(frame[4:], uint32(len(body)))
	binary.LittleEndian.PutUint32(frame[16:], crc32.Checksum(body, castagnoli))
	binary.LittleEndian.PutUint32(frame[20:], crc32.Checksum(frame[:20], castagnoli))
	return append(frame, body...)
}

// wireEvent is an event of a batch.
type wireEvent struct {
	kind             byte
	vbucket          uint64
	vbuuid           uint64
	incarnation      [3]uint64 // epoch, term, counter
	seqno            uint64
	start, end       uint64 // window
	doc              string
	keys             map[uint64][]string // by index
	after            uint64              // BEGIN
	branch, branched uint64              // newest entry of BEGIN's log
}

// Kinds of events.
const (
	kInsert, kDelete, kSync, kBegin, kEnd, kUpsertDeletion, kDropData, kActivate, kDeactivate = 1, 2, 4, 5, 6, 7, 8, 9, 10
)

// events decodes a batch's body.
func events(c *cursor, desc map[uint64][]bool) (all []wireEvent, err error) {
	var run wireEvent
	var lists [][]uint64
	for len(c.b) > 0 && c.err == nil {
		tag := c.one()
		if tag&0x80 != 0 {
			was := run.incarnation
			run = wireEvent{vbucket: c.n(), incarnation: was}
			flags := c.one()
			if run.vbuuid = c.u64(); flags&^1 != 0 {
				c.fail("flags of a run")
			}
			if flags&1 != 0 {
				run.incarnation = [3]uint64{c.n(), c.n(), c.n()}
			}
		} else if len(all) == 0 {
			c.fail("no run header in the first event")
		}
		run.seqno += uint64(c.z())
		e := run
		e.kind = tag & 0x0f
		windows := e.kind == kInsert || e.kind == kDelete || e.kind == kEnd || e.kind == kUpsertDeletion
		if tag&0x40 != 0 {
			if !windows {
				c.fail(fmt.Sprintf("kind %d with a window", e.kind))
			}
			run.start = run.seqno - uint64(c.z())
			run.end = run.start + c.n()
		}
		if windows {
			e.start, e.end = run.start, run.end
		}
		switch e.kind {
		case kInsert, kDelete, kUpsertDeletion:
			e.doc, e.keys = c.text(), map[uint64][]string{}
			for left := c.n(); left > 0 && c.err == nil; left-- {
				id, slice, keys := c.n(), c.n(), []string{}
				if slice != 1 {
					c.fail(fmt.Sprintf("a subscriber gets slice+1 = %d, want slice 0", slice))
				}
				for k := c.n(); k > 0 && c.err == nil; k-- {
					key, kerr := composite([]byte(c.text()), desc[id])
					if kerr != nil && c.err == nil {
						c.err = kerr
					}
					keys = append(keys, key)
				}
				e.keys[id] = keys
			}
			for _, id := range rest(c, &lists) {
				if e.keys[id] == nil {
					e.keys[id] = []string{}
				}
			}
		case kActivate, kDeactivate:
			for left := c.n(); left > 0 && c.err == nil; left-- {
				c.n()
			}
		case kBegin:
			e.after = c.n()
			for left, first := c.n(), true; left > 0 && c.err == nil; left, first = left-1, false {
				if id, from := c.u64(), c.n(); first {
					e.branch, e.branched = id, from
				}
			}
			c.n() // purge
			c.n() // epoch of the map
			c.n() // its revision
			for left := c.n(); left > 0 && c.err == nil; left-- {
				c.n()
			}
		case kSync, kEnd, kDropData:
		default:
			c.fail(fmt.Sprintf("kind %d", e.kind))
		}
		all = append(all, e)
	}
	return all, c.err
}

// rest reads an event's list, new or by reference; it returns the indexes of its places.
func rest(c *cursor, lists *[][]uint64) []uint64 {
	no := c.n()
	if no == 0 || c.err != nil {
		return nil
	}
	if no == uint64(len(*lists))+1 {
		in, ids := &cursor{b: []byte(c.text())}, []uint64{}
		for left := in.n(); left > 0 && in.err == nil; left-- {
			id, slice := in.n(), in.n()
			if slice != 1 {
				c.fail(fmt.Sprintf("a subscriber gets slice+1 = %d in a list, want slice 0", slice))
			}
			ids = append(ids, id)
		}
		if in.err != nil || len(in.b) > 0 {
			c.fail("a list")
		}
		*lists = append(*lists, ids)
	}
	if no > uint64(len(*lists)) {
		c.fail(fmt.Sprintf("list %d", no))
		return nil
	}
	return (*lists)[no-1]
}

// thirdParty is a subscriber that records what it receives, and what contradicts the docs.
type thirdParty struct {
	t       *testing.T
	topic   string
	counter uint64
	desc    map[uint64][]bool
	addr    string

	mu       sync.Mutex
	wrong    []string
	docs     map[string]map[uint64][]string
	handled  map[uint64]uint64 // last seqno of each vbucket
	complete map[uint64]uint64 // by SYNC
	begun    int
	hellos   int
	bytes    int64 // of unacknowledged batches, all connections
	most     int64 // largest value of bytes, without the newest frame
	fullest  int64 // largest value of one connection
	beats    int
	pause    time.Duration // the longest between two heartbeats of a connection: 0.5 s, or more on a busy machine
	hold     bool          // nothing is acknowledged
	cut      map[uint64]bool
}

const servicePath, contentType = "/tidemark.Data/Stream", "application/grpc+tidemark-frame"

// newThirdParty listens. Connections in cut are closed at their first batch with a document, before it is
// acknowledged.
func newThirdParty(t *testing.T, topic string, counter uint64, desc map[uint64][]bool, cut ...uint64) *thirdParty {
	s := &thirdParty{t: t, topic: topic, counter: counter, desc: desc, docs: map[string]map[uint64][]string{},
		handled: map[uint64]uint64{}, complete: map[uint64]uint64{}, cut: map[uint64]bool{}}
	for _, n := range cut {
		s.cut[n] = true
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.addr = l.Addr().String()
	server := &http.Server{Handler: s, Protocols: new(http.Protocols), ReadHeaderTimeout: hangLimit}
	server.Protocols.SetUnencryptedHTTP2(true)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(l) // it ends when it is closed
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-served
	})
	return s
}

func (s *thirdParty) report(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.wrong) < 20 {
		s.wrong = append(s.wrong, fmt.Sprintf(format, args...))
	}
}

// message reads a gRPC message: a byte (0: not compressed), its length in 4 bytes big-endian, and the message.
func message(r io.Reader) ([]byte, error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	if head[0] != 0 {
		return nil, fmt.Errorf("%w: a compressed message", errFormat)
	}
	b := make([]byte, binary.BigEndian.Uint32(head[1:]))
	_, err := io.ReadFull(r, b)
	return b, err
}

// wireStream is one connection.
type wireStream struct {
	s          *thirdParty
	mu         sync.Mutex
	w          http.ResponseWriter
	acked      uint64
	last       uint64 // highest number seen
	unacked    int64
	connection uint64
	begun      map[uint64]bool
	beat       time.Time // when it last sent a heartbeat
}

// acknowledge sends what may be acknowledged: it is also the heartbeat.
func (c *wireStream) acknowledge() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.s.mu.Lock()
	if !c.s.hold {
		c.acked = c.last
		c.s.bytes -= c.unacked
		c.unacked = 0
	}
	c.s.beats++
	now := time.Now()
	if !c.beat.IsZero() {
		c.s.pause = max(c.s.pause, now.Sub(c.beat))
	}
	c.beat = now
	c.s.mu.Unlock()
	frame := acknowledgement(c.acked)
	// The reader gets the error.
	_, _ = c.w.Write(append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(frame))), frame...))
	_ = http.NewResponseController(c.w).Flush()
}

// ServeHTTP is the gRPC method.
func (s *thirdParty) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor != 2 || r.Method != http.MethodPost || r.URL.Path != servicePath ||
		r.Header.Get("Content-Type") != contentType {
		s.report("%s %s %s of %q", r.Proto, r.Method, r.URL.Path, r.Header.Get("Content-Type"))
	}
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Trailer", "Grpc-Status")
	defer w.Header().Set("Grpc-Status", "0")
	c := &wireStream{s: s, w: w, begun: map[uint64]bool{}}
	hello, err := message(r.Body)
	if err == nil {
		err = c.hello(hello)
	}
	if err != nil {
		s.report("hello: %v", err)
		return
	}
	c.acknowledge()
	done := make(chan struct{})
	var beats sync.WaitGroup
	beats.Go(func() {
		tick := time.NewTicker(500 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				c.acknowledge()
			case <-done:
				return
			}
		}
	})
	defer func() { // what was not acknowledged is sent again
		close(done)
		beats.Wait()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.bytes -= c.unacked
	}()
	for {
		frame, err := message(r.Body)
		if err != nil {
			if errors.Is(err, errFormat) {
				s.report("%v", err)
			}
			return
		}
		proceed, err := c.batch(frame)
		if err != nil {
			s.report("batch: %v", err)
			return
		}
		if !proceed {
			return
		}
	}
}

func (c *wireStream) hello(frame []byte) error {
	kind, number, b, err := opened(frame)
	if err != nil {
		return err
	}
	cluster, projector, boot, topic, of, id := b.text(), b.text(), b.text(), b.text(), b.text(), b.text()
	node, connections := b.one(), uint64(0)
	c.connection, connections = b.n(), b.n()
	if b.err != nil || len(b.b) > 0 || kind != 2 || number != 0 || cluster != "c1" || projector != "p1" || boot == "" ||
		topic != c.s.topic || of != bucket || id != uuid || node != 0 ||
		c.connection >= connections {
		return fmt.Errorf("%w: %x: %w", errFormat, frame, b.err)
	}
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.s.hellos++
	return nil
}

// batch processes a batch; it returns false if the connection is to be closed before acknowledging it.
func (c *wireStream) batch(frame []byte) (proceed bool, err error) {
	kind, number, body, err := opened(frame)
	if err != nil {
		return false, err
	}
	if kind != 1 {
		return false, fmt.Errorf("%w: type %d in place of a batch", errFormat, kind)
	}
	all, err := events(body, c.s.desc)
	if err != nil {
		return false, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if number != 0 {
		if c.last != 0 && number != c.last+1 {
			return false, fmt.Errorf("%w: batch %d after %d", errFormat, number, c.last)
		}
		if c.s.cut[c.connection] && all[len(all)-1].doc != "" {
			delete(c.s.cut, c.connection)
			return false, nil
		}
		c.last = number
		c.s.most = max(c.s.most, c.s.bytes)
		c.unacked += int64(len(frame))
		c.s.bytes += int64(len(frame))
		c.s.fullest = max(c.s.fullest, c.unacked)
	}
	for i := range all {
		if number == 0 && all[i].kind != kBegin {
			return false, fmt.Errorf("%w: kind %d in batch 0", errFormat, all[i].kind)
		}
		if err := c.event(&all[i]); err != nil {
			return false, err
		}
	}
	return true, nil
}

// event processes an event; the caller holds both locks.
func (c *wireStream) event(e *wireEvent) error {
	s := c.s
	if e.incarnation != [3]uint64{0, 0, s.counter} {
		return fmt.Errorf("%w: incarnation %v, the request's counter is %d", errFormat, e.incarnation, s.counter)
	}
	if e.kind == kBegin {
		if e.vbuuid == 0 || e.branch != e.vbuuid || e.branched > e.after && e.after > 0 || e.after > s.handled[e.vbucket] {
			return fmt.Errorf("%w: %+v after %d", errFormat, *e, s.handled[e.vbucket])
		}
		c.begun[e.vbucket] = true
		s.begun++
		return nil
	}
	if !c.begun[e.vbucket] {
		return fmt.Errorf("%w: kind %d before STREAM_BEGIN of vbucket %d on connection %d", errFormat, e.kind, e.vbucket,
			c.connection)
	}
	switch e.kind {
	case kSync:
		s.complete[e.vbucket] = max(s.complete[e.vbucket], e.seqno)
	case kInsert, kDelete:
		if e.start > e.seqno || e.seqno > e.end {
			return fmt.Errorf("%w: seqno %d outside its window %d to %d", errFormat, e.seqno, e.start, e.end)
		}
		if e.seqno <= s.handled[e.vbucket] {
			return nil // it was not acknowledged
		}
		if s.handled[e.vbucket] = e.seqno; e.kind == kDelete {
			delete(s.docs, e.doc)
		} else {
			s.docs[e.doc] = e.keys
		}
	default:
		return fmt.Errorf("%w: kind %d in a stream without an end", errFormat, e.kind)
	}
	return nil
}

// await waits for a condition that reads s under its lock.
func (s *thirdParty) await(what string, ok func() bool) {
	s.t.Helper()
	for deadline := time.Now().Add(hangLimit); ; time.Sleep(5 * time.Millisecond) {
		s.mu.Lock()
		done, wrong := ok(), s.wrong
		s.mu.Unlock()
		if len(wrong) > 0 {
			s.t.Fatal(strings.Join(wrong, "\n"))
		}
		if done {
			return
		}
		if time.Now().After(deadline) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.t.Fatalf("not within %s: %s; %d hellos, %d begun, %d documents, %d bytes", hangLimit, what, s.hellos, s.begun,
				len(s.docs), s.bytes)
		}
	}
}

// subscribe sends POST /v1/topics in JSON.
func (s *thirdParty) subscribe(w *world, id, index string) {
	s.t.Helper()
	urls, _ := w.projectors(s.t.Context())
	body := fmt.Sprintf(`{"id":%q,"bucket":%q,"indexes":[%s],"endpoint":%q,"counter":%d}`, id, bucket, index, s.addr, s.counter)
	resp, err := http.Post(urls[0]+"/v1/topics", "application/json", strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	defer http.DefaultClient.CloseIdleConnections()
	var answer struct {
		Topic    string `json:"topic"`
		VBuckets int    `json:"vbuckets"`
		Results  []struct {
			Outcome string `json:"outcome"`
		} `json:"results"`
	}
	text, err := io.ReadAll(resp.Body)
	if err = errors.Join(err, json.Unmarshal(text, &answer)); err != nil || resp.StatusCode != http.StatusOK ||
		answer.Topic != s.topic || answer.VBuckets != vbuckets || len(answer.Results) != vbuckets {
		s.t.Fatalf("%d %s %v", resp.StatusCode, text, err)
	}
	for _, r := range answer.Results {
		if r.Outcome != "begun" {
			s.t.Errorf("%s", text)
		}
	}
}
