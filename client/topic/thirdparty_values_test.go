package topic_test

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"tidemark/kv/kvclient"
)

// A subscriber that was written from the documents alone gets every key of every document, of all types and both
// directions, exactly, whatever connections it loses before it has acknowledged anything.
func TestThirdPartySubscriber(t *testing.T) {
	w := newWorld(t)
	// Values of f1, as JSON and as the subscriber prints them.
	values := map[string]string{
		`null`: "null", `false`: "false", `true`: "true", `0`: "0", `-0.0`: "0", `1`: "1", `-1`: "-1", `0.5`: "1/2", `-2.75`: "-11/4", `1e3`: "1000",
		`9007199254740991`: "9007199254740991", `9007199254740992`: "9007199254740992", `9007199254740993`: "9007199254740993", `-9007199254740993`: "-9007199254740993",
		`9223372036854775807`: "9223372036854775807", `-9223372036854775808`: "-9223372036854775808", // Beyond 64 bits an integer is the nearest float64 in keys, as it is in bounds and arithmetic.
		`123456789012345678901234567890`:  "123456789012345677877719597056",
		`-123456789012345678901234567891`: "-123456789012345677877719597056", `1.25e400`: "125" + strings.Repeat("0", 398), `-3e310`: "-3" + strings.Repeat("0", 310),
		`""`: `""`, `"a"`: `"a"`, `"a\u0000b"`: `"a\x00b"`, `"\u0000"`: `"\x00"`, `"Île 日本"`: `"Île 日本"`, `[]`: "[]", `[[],[1,"x"],null]`: `[[],[1,"x"],null]`,
		`{}`: "{}", `{"b":1,"a":[true]}`: `{"a":[true],"b":1}`,
	}
	want := map[string]map[uint64][]string{}
	put := func(id, doc string) {
		t.Helper()
		if _, err := w.kv.Set(t.Context(), id, []byte(doc), kvclient.StoreOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	n := 0
	write := func(gone bool) {
		for v, shown := range values {
			id := fmt.Sprint("doc", n)
			n++
			put(id, fmt.Sprintf(`{"f1":%s,"f2":"x"}`, v))
			want[id] = map[uint64][]string{1: {shown}, 3: {`"x" ` + shown}}
			if gone {
				if _, err := w.kv.Delete(t.Context(), id, 0); err != nil {
					t.Fatal(err)
				}
				delete(want, id)
			}
		}
	}
	write(false)
	put("half", `{"f2":[1]}`)
	want["half"] = map[uint64][]string{1: {}, 3: {"[1] ?"}}
	put("none", `{"f3":[1]}`)
	want["none"] = map[uint64][]string{1: {}, 3: {}}
	put("text", `no JSON`)
	want["text"] = map[uint64][]string{1: {}, 3: {}}

	s := newThirdParty(t, "/backfill/thirdparty", 1<<40+3, map[uint64][]bool{3: {false, true}}, 0, 1)
	s.subscribe(w, "thirdparty", `"by_f1","3"`)
	has := func() bool {
		kept := maps.Clone(s.docs)
		for id, keys := range kept { // a document without keys may or may not be sent
			if len(keys[1])+len(keys[3]) == 0 {
				delete(kept, id)
			}
		}
		wanted := maps.Clone(want)
		delete(wanted, "none")
		delete(wanted, "text")
		return reflect.DeepEqual(kept, wanted)
	}
	wait := func(what string) {
		t.Helper()
		defer func() {
			if t.Failed() {
				s.mu.Lock()
				defer s.mu.Unlock()
				for id := range want {
					if !reflect.DeepEqual(s.docs[id], want[id]) {
						t.Logf("%s: %v, want %v", id, s.docs[id], want[id])
					}
				}
			}
		}()
		s.await(what, has)
	}
	wait("the existing documents")
	write(true)
	write(false)
	put("doc0", `{"f1":"again"}`)
	want["doc0"] = map[uint64][]string{1: {`"again"`}, 3: {}}
	wait("the new documents")
	s.await("everything is complete", func() bool {
		for vb, seqno := range s.handled {
			if s.complete[vb] < seqno {
				return false
			}
		}
		return true
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.cut) != 0 || s.hellos < 4 {
		t.Errorf("%d connections, %v were not cut: want 2 and 2 more", s.hellos, s.cut)
	}
}

// A subscriber that acknowledges nothing but sends heartbeats is not given up; at most 8 MiB are in flight to it,
// and when it continues nothing is missing.
func TestSlowThirdPartySubscriber(t *testing.T) {
	t.Parallel()
	const documents, size, most, connections = 5000, 4000, 8 << 20, 2
	w := newWorld(t)
	var g errgroup.Group
	g.SetLimit(8)
	long := strings.Repeat("x", size)
	for i := range documents {
		g.Go(func() error {
			_, err := w.kv.Set(t.Context(), fmt.Sprint("doc", i), fmt.Appendf(nil, `{"f1":"%d%s"}`, i, long), kvclient.StoreOptions{})
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	s := newThirdParty(t, "/backfill/slow", 5, nil)
	s.hold = true
	s.subscribe(w, "slow", `"by_f1"`)
	// Each connection has its share of the bound; when one share is full, nothing is read for the others, whose shares
	// may be as empty as the order of vbuckets makes them.
	s.await("a full connection", func() bool { return s.fullest > most/connections*3/4 })
	s.mu.Lock()
	beats := s.beats
	s.mu.Unlock()
	s.await("twelve heartbeats", func() bool { return s.beats >= beats+12 })
	s.mu.Lock()
	// A connection that was silent for seconds, because the process got no processor time, may be given up.
	if s.most > most || s.hellos != connections && s.pause < 2*time.Second {
		t.Errorf("%d bytes were in flight, want at most %d; %d connections, want %d; at most %v between heartbeats",
			s.most, most, s.hellos, connections, s.pause)
	}
	s.hold = false
	s.mu.Unlock()
	s.await("all documents", func() bool { return len(s.docs) == documents })
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range documents {
		id := fmt.Sprint("doc", i)
		if keys := s.docs[id][1]; len(keys) != 1 || keys[0] != fmt.Sprintf(`"%d%s"`, i, long) {
			t.Errorf("%s: %d keys", id, len(keys))
		}
	}
}

// The frames in docs/protocol.md are what the page describes.
func TestThirdPartyReadsTheDocuments(t *testing.T) {
	doc, err := os.ReadFile("../../docs/protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	shown := func(name string) []byte {
		t.Helper()
		_, block, _ := strings.Cut(string(doc), "```frame "+name+"\n")
		block, _, found := strings.Cut(block, "```")
		text := ""
		for line := range strings.Lines(block) {
			frame, _, _ := strings.Cut(line, ";")
			text += strings.Join(strings.Fields(frame), "")
		}
		b, err := hex.DecodeString(text)
		if err != nil || !found {
			t.Fatalf("frame %s: %v", name, err)
		}
		return b
	}
	kind, number, body, err := opened(shown("batch"))
	if err != nil || kind != 1 || number != 7 {
		t.Fatal(kind, number, err)
	}
	all, err := events(body, nil)
	if err != nil || len(all) != 3 {
		t.Fatal(all, err)
	}
	at := wireEvent{vbucket: 5, vbuuid: 0x77, incarnation: [3]uint64{0, 0, 1}}
	begin, insert, sync := at, at, at
	begin.kind, begin.branch = kBegin, 0x77
	insert.kind, insert.seqno, insert.start, insert.end, insert.doc, insert.keys = kInsert, 9, 4, 12, "doc1", map[uint64][]string{300: {`"FR"`}}
	sync.kind, sync.seqno = kSync, 12
	for i, want := range []wireEvent{begin, insert, sync} {
		got := all[i]
		if got.kind == kSync {
			got.start, got.end = 0, 0 // of the run
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("event %d: %+v, want %+v", i, got, want)
		}
	}
	if kind, _, body, err := opened(shown("hello")); err != nil || kind != 2 || body.text() != "c1" {
		t.Error(kind, err)
	}
	if got, want := acknowledgement(7), shown("acknowledgement"); !bytes.Equal(got, want) {
		t.Errorf("an acknowledgement is %x, shown is %x", got, want)
	}
}
