package kv

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/go-hclog"

	"tidemark/kv/mcbp"
	"tidemark/kv/store"
	"tidemark/projector/feed"
	"tidemark/timestamp"
)

// TestAMapThatCannotBeStored checks that the log has a map once that cannot be stored, though each poll tries it
// again.
func TestAMapThatCannotBeStored(t *testing.T) {
	var log bytes.Buffer
	config := testConfig(t.TempDir())
	config.Logger = hclog.New(&hclog.LoggerOptions{Output: &log, Mutex: &sync.Mutex{}, Level: hclog.Error})
	n, stop := runNode(t, config)
	if err := os.Mkdir(filepath.Join(config.Dir, "cluster.json.tmp"), 0o700); err != nil { // no map can be stored
		t.Fatal(err)
	}
	next := n.cluster.current()
	for range 3 {
		next.Rev = n.cluster.current().Rev + 1
		n.cluster.take(next)
	}
	stop()
	if said := strings.Count(log.String(), "newer map cannot be used"); said != 1 {
		t.Errorf("the log has it %d times: %s", said, log.String())
	}
}

// A replica keeps a document's value and datatype as the active copy sent them, byte by byte, with attributes or
// without.
func TestDocumentOfAReplica(t *testing.T) {
	for _, value := range []string{"", "\x00\x00\x00\x00", "\x00\x00\x00\x00{}", "\x00\x00\x00\x04attr",
		"\x00\x00\x00\x04attr{}", "{}"} {
		e := feed.Event{Kind: feed.Mutation, Key: []byte("k"), Value: []byte(value)}
		if len(value) >= 4 {
			e.Datatype = mcbp.DatatypeXattr
		}
		e.Decode()
		if d := document(&e); !bytes.Equal(d.Value, []byte(value)) || d.Datatype != byte(e.Datatype) {
			t.Errorf("%q became %q of datatype %d, want %d", value, d.Value, d.Datatype, e.Datatype)
		}
	}
}

// replicaOf returns a replica with one document, in a node whose map makes that vbucket active but which does not
// apply its map, and a session of a source that has another history.
func replicaOf(t *testing.T, vb uint16) (*session, *replica) {
	t.Helper()
	n, err := Open(testConfig(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Abandon)
	if err := n.Load(); err != nil {
		t.Fatal(err)
	}
	b := n.buckets()[0]
	v := b.store.VBucket(vb)
	if err := v.SetState(store.Replica); err != nil {
		t.Fatal(err)
	}
	ticket, err := v.Replicate(&store.Doc{Key: "a", Seqno: 1, Rev: 1, Cas: 1}, store.SnapshotRange{End: 1})
	if err == nil {
		err = ticket.Wait()
	}
	if err != nil {
		t.Fatal(err)
	}
	l := &link{r: n.replicator, id: linkID{b.id(), "former"}, wake: make(chan struct{}, 1)}
	p := &replica{id: 1, vb: vb, v: v, tracker: feed.NewTracker(feed.Position{Seqno: 1, SnapStart: 1, SnapEnd: 1})}
	return &session{l: l, b: b, streams: map[feed.StreamID]*replica{1: p}, open: map[uint16]*replica{vb: p}}, p
}

// When a source refuses a replica's history, the replica is emptied only if the map still has that source: otherwise
// it may become the active copy in a moment.
func TestFormerSourceCannotEmptyAReplica(t *testing.T) {
	s, p := replicaOf(t, 3)
	if err := s.refused(p, 1, feed.ErrRollback); err != nil {
		t.Fatal(err)
	}
	if _, high := p.v.Status(); high != 1 {
		t.Fatalf("a vbucket that the map makes active is at seqno %d, was at 1", high)
	}
}

// A link ignores messages of a vbucket that is not its goal any more, even while the stream is open: another link
// replicates it.
func TestLinkIgnoresVBucketsThatAreNotItsGoals(t *testing.T) {
	for _, c := range []struct {
		name string
		keep map[uint16]bool
		high uint64
	}{{"kept", map[uint16]bool{3: true, 4: true}, 2}, {"given to another link", map[uint16]bool{4: true}, 1}} {
		t.Run(c.name, func(t *testing.T) {
			s, p := replicaOf(t, 3)
			s.l.want(map[uint16]bool{3: true})
			s.l.keep(c.keep)
			before, _, _ := p.v.Position()
			ticket, err := s.block(&feed.Block{Events: []feed.Event{
				{Kind: feed.StreamBegin, VBucket: 3, Stream: 1,
					Value: mcbp.AppendFailoverLog(nil, timestamp.FailoverLog{{VBUUID: 99}})},
				{Kind: feed.SnapshotMarker, VBucket: 3, Stream: 1, SnapStart: 2, SnapEnd: 2},
				{Kind: feed.Mutation, VBucket: 3, Stream: 1, Seqno: 2, RevSeqno: 1, CAS: 2, Key: []byte("b")},
			}})
			if err == nil {
				err = ticket.Wait()
			}
			if err != nil {
				t.Fatal(err)
			}
			branch, _, _ := p.v.Position()
			if _, high := p.v.Status(); high != c.high || (branch != before) != (c.high > 1) {
				t.Fatalf("the vbucket is at seqno %d of branch %x, was at 1 of %x", high, branch, before)
			}
		})
	}
}

// What is known of a replica's current source stays when a caller looks it up with the former map, or when the former
// source's link notes something.
func TestOnlyTheCurrentSourceIsTracked(t *testing.T) {
	r := newReplicator(nil)
	id := bucketID{"world", "u"}
	links := map[string]*link{}
	for _, source := range []string{"former", "new"} {
		links[source] = &link{r: r, id: linkID{id, source}, wake: make(chan struct{}, 1)}
		links[source].want(map[uint16]bool{3: true})
		links[source].note(3, func(x *seen) { x.joined, x.known = true, 5 })
		links[source].keep(map[uint16]bool{3: source == "new"})
	}
	if s := r.look(id, 3, "former"); s.joined || s.known > 0 {
		t.Errorf("of the source of before is known: %+v", s)
	}
	links["former"].note(3, func(x *seen) { x.known = 9 })
	if s := r.look(id, 3, "new"); !s.joined || s.known != 5 {
		t.Errorf("of the source of now is known: %+v", s)
	}
	if len(r.known) != 1 {
		t.Errorf("%d replicas are known", len(r.known))
	}
}

// A copy that is filled from the beginning takes over the active copy's purge seqno before its first document: it may
// become active at any moment, and consumers must learn which deletions it lacks.
func TestReplicaPurgesAsItsActiveCopy(t *testing.T) {
	n, _ := runNode(t, testConfig(t.TempDir()))
	kv := login(t, n.MemcachedAddr())
	for _, f := range []mcbp.Frame{setFrame(0, "a", "1"), setFrame(0, "b", "1"),
		request(mcbp.OpDelete, 0, nil, []byte("b"), nil), setFrame(0, "c", "1")} {
		kv.want(f, mcbp.StatusOK)
	}
	if err := n.buckets()[0].store.VBucket(0).ForgetTombstones(); err != nil {
		t.Fatal(err)
	}
	conn, err := feed.Dial(t.Context(), feed.Config{Addr: n.MemcachedAddr(), Bucket: n.buckets()[0].name, Name: "replica",
		User: n.config.User, Password: n.config.Password, Tombstones: true})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.OpenStream(t.Context(), feed.StreamRequest{VBucket: 0, End: mcbp.EndOfTime}); err != nil {
		t.Fatal(err)
	}
	keepStates(t, n)
	copied := n.buckets()[0].store.VBucket(1)
	if err := copied.SetState(store.Replica); err != nil {
		t.Fatal(err)
	}
	r := newReplicator(n)
	s := &session{l: &link{r: r, id: linkID{n.buckets()[0].id(), "other"}}, conn: conn}
	p := &replica{vb: 1, v: copied, tracker: feed.NewTracker(feed.Position{})}
	for docs := 0; docs < 1; {
		block, err := conn.Next(within(t))
		if err != nil {
			t.Fatal(err)
		}
		for i := range block.Events {
			e := &block.Events[i]
			switch {
			case e.Kind == feed.StreamBegin || docs > 0:
				continue
			case e.Kind.IsDocument():
				if docs++; copied.Purged() != 3 {
					t.Errorf("at its first document the copy says that deletions up to %d are forgotten, want 3", copied.Purged())
				}
			}
			if _, err := s.event(p, e, false); err != nil {
				t.Fatal(err)
			}
		}
		block.Release()
	}
	if err := copied.SetState(store.Active); err != nil { // in the middle of its first snapshot
		t.Fatal(err)
	}
	if info := copied.Info(); info.High != 1 || info.Purge != 1 {
		t.Errorf("it is active at %d, and lacks deletions up to %d", info.High, info.Purge)
	}
}
