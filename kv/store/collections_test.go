package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	_ "tidemark/internal/testing/draws"
	"tidemark/kv/mcbp"
)

// manifest returns a manifest with the default collection, and scopes with collections as "scope/8=name/9".
func manifest(uid uint64, scopes ...string) *mcbp.Manifest {
	m := mcbp.DefaultManifest()
	m.UID = uid
	for _, text := range scopes {
		var s mcbp.Scope
		for i, part := range strings.Split(text, "=") {
			var id uint32
			name, number, _ := strings.Cut(part, "/")
			_, _ = fmt.Sscan(number, &id)
			if i == 0 {
				s = mcbp.Scope{Name: name, ID: id}
			} else {
				s.Collections = append(s.Collections, mcbp.Collection{Name: name, ID: id})
			}
		}
		m.Scopes = append(m.Scopes, s)
	}
	return m
}

func (w *world) follow(m *mcbp.Manifest) {
	w.t.Helper()
	if err := w.b.SetManifest(m); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) put(collection uint32, key, value string) {
	w.t.Helper()
	if _, err := w.apply(0, Change{Collection: collection, Key: []byte(key), Value: []byte(value)}); err != nil {
		w.t.Fatal(err)
	}
}

// all lists a vbucket's versions with their collections.
func (w *world) all() string {
	s, _ := w.b.VBucket(0).SnapshotAfter(0, all)
	if s == nil {
		return ""
	}
	return collected(s)
}

func collected(s *Snapshot) string {
	var out []string
	for {
		docs := s.Next(nil, 2)
		if len(docs) == 0 {
			return strings.Join(out, ", ")
		}
		for _, d := range docs {
			if d.Collection != SystemCollection {
				out = append(out, fmt.Sprintf("%d %x/%s=%s", d.Seqno, d.Collection, d.Key, d.Value))
				continue
			}
			event, what, name, err := d.EventOf()
			out = append(out, fmt.Sprintf("%d event %d of %d.%d %s %v", d.Seqno, event, what.Scope, what.Collection, name, err))
			out[len(out)-1] = strings.TrimSpace(strings.TrimSuffix(out[len(out)-1], "<nil>"))
		}
	}
}

func (w *world) want(what string) {
	w.t.Helper()
	if got := w.all(); got != what {
		w.t.Fatalf("vbucket has\n%s, want\n%s", got, what)
	}
}

// Collections are created and dropped by versions of their own; a drop supersedes the collection's documents for
// later snapshots.
func TestCollectionsComeAndGo(t *testing.T) {
	w := newWorld(t, 1)
	defer func() { _ = w.b.Close() }()
	v := w.b.VBucket(0)
	w.set(0, "k", "1")
	if _, err := w.apply(0, Change{Collection: 9, Key: []byte("k")}); !errors.Is(err, ErrNoCollection) {
		t.Fatalf("a write to a collection that is not there: %v", err)
	}
	m := manifest(1, "s/8=a/9=b/10")
	w.follow(m)
	w.follow(m) // has an effect only once
	w.put(9, "k", "2")
	w.put(10, "k", "3")
	const both = "1 0/k=1, 2 event 3 of 8.0 s, 3 event 0 of 8.9 a, 4 event 0 of 8.10 b, 5 9/k=2, 6 a/k=3"
	w.want(both)
	r, err := v.Lookup(9, []byte("k"))
	if err != nil || string(r.Doc.Value) != "2" || v.HighOf(9) != 5 || v.HighOf(0) != 1 || v.Info().Items != 3 {
		t.Fatalf("%v %v, seqnos %d %d, %d items", r.Doc, err, v.HighOf(9), v.HighOf(0), v.Info().Items)
	}
	held, _ := v.SnapshotAfter(0, all)
	w.follow(manifest(2, "s/8=b/10"))
	if got := collected(held); got != both {
		t.Fatalf("a snapshot of before shows\n%s", got)
	}
	const one = "1 0/k=1, 2 event 3 of 8.0 s, 4 event 0 of 8.10 b, 6 a/k=3, 7 event 1 of 8.9"
	w.want(one)
	if _, err := v.Lookup(9, []byte("k")); !errors.Is(err, ErrNoCollection) || v.Info().Items != 2 || v.HighOf(9) != 0 {
		t.Fatalf("of the dropped collection: %v, %d items, seqno %d", err, v.Info().Items, v.HighOf(9))
	}
	sums := map[uint32]int{}
	if v.CollectionItems(sums); len(sums) != 2 || sums[0] != 1 || sums[10] != 1 {
		t.Fatalf("items %v", sums)
	}
	for _, orderly := range []bool{true, false} {
		w.restart(orderly)
		v = w.b.VBucket(0)
		w.want(one)
		if _, ok := v.HasCollection(9); ok || v.HighOf(10) != 6 {
			t.Fatalf("after a restart: collection 9 is there: %v, seqno of 10: %d", ok, v.HighOf(10))
		}
	}
	w.follow(manifest(3)) // a scope is dropped with its collections
	w.want("1 0/k=1, 7 event 1 of 8.9, 8 event 1 of 8.10, 9 event 4 of 8.0")
	if ids, ok := v.CollectionsOf(8); ok || len(ids) > 0 {
		t.Fatalf("scope 8 has %v", ids)
	}
}

// Compaction keeps the documents of collections, and purges the end of a collection with its documents, never before
// them.
func TestCollectionsAndCompaction(t *testing.T) {
	w := newWorld(t, 1)
	w.opts.PurgeAfter = time.Hour
	w.restart(true)
	defer func() { _ = w.b.Close() }()
	w.follow(manifest(1, "s/8=a/9=b/10"))
	w.put(9, "k", "1")
	w.put(10, "k", "2")
	w.follow(manifest(2, "s/8=b/10"))
	w.set(0, "last", "3")
	if err := w.b.PurgeTombstones(context.Background(), time.Hour); err != nil {
		t.Fatal(err)
	}
	const kept = "1 event 3 of 8.0 s, 3 event 0 of 8.10 b, 5 a/k=2, 6 event 1 of 8.9, 7 0/last=3"
	w.restart(false)
	w.want(kept)
	w.now = w.now.Add(3 * time.Hour)
	if err := w.b.PurgeTombstones(context.Background(), time.Hour); err != nil {
		t.Fatal(err)
	}
	w.restart(false)
	w.want(strings.Replace(kept, "6 event 1 of 8.9, ", "", 1))
	if v := w.b.VBucket(0); v.Purged() != 6 {
		t.Fatalf("purge seqno %d", v.Purged())
	}
}

// What the disk has not stored has not happened: neither the end of a collection nor its creation.
func TestCollectionsOnAFullDisk(t *testing.T) {
	w := newWorld(t, 1)
	defer func() { _ = w.b.Close() }()
	w.follow(manifest(1, "s/8=a/9"))
	w.put(9, "k", "1")
	before := w.all()
	w.full = true
	if err := w.b.SetManifest(manifest(2, "t/10=b/11")); !errors.Is(err, ErrTemporary) {
		t.Fatalf("with a full disk: %v", err)
	}
	w.full = false
	w.now = w.now.Add(time.Second)
	w.want(before)
	v := w.b.VBucket(0)
	if _, ok := v.HasCollection(9); !ok || v.Info().Items != 1 || v.HighOf(9) != 3 {
		t.Fatalf("collection 9 is there: %v, %d items, seqno %d", ok, v.Info().Items, v.HighOf(9))
	}
	if _, ok := v.HasCollection(11); ok {
		t.Fatal("collection 11 is there")
	}
	w.follow(manifest(2, "t/10=b/11"))
	w.put(11, "k", "2")
	w.restart(false)
	w.want("4 event 1 of 8.9, 5 event 4 of 8.0, 6 event 3 of 10.0 t, 7 event 0 of 10.11 b, 8 b/k=2")
}

// A replica applies the events with the documents, and a vbucket that becomes active catches up with the manifest;
// one that is emptied starts over with it.
func TestCollectionsOfReplicas(t *testing.T) {
	w := newWorld(t, 2)
	defer func() { _ = w.b.Close() }()
	replica := w.b.VBucket(1)
	if err := replica.SetState(Replica); err != nil {
		t.Fatal(err)
	}
	w.follow(manifest(1, "s/8=a/9"))
	w.put(9, "k", "1")
	s, _ := w.b.VBucket(0).SnapshotAfter(0, all)
	for _, d := range s.Next(nil, 10) {
		x := *d
		x.next = 0
		if _, err := replica.Replicate(&x, SnapshotRange{0, s.End}); err != nil {
			t.Fatal(err)
		}
	}
	w.follow(manifest(2, "s/8=b/10"))
	if _, ok := replica.HasCollection(9); !ok {
		t.Fatal("a replica follows the manifest by itself")
	}
	if err := replica.SetState(Active); err != nil {
		t.Fatal(err)
	}
	w.follow(manifest(2, "s/8=b/10"))
	if ids, _ := replica.CollectionsOf(8); !slices.Equal(ids, []uint32{10}) {
		t.Fatalf("after the takeover scope 8 has %v", ids)
	}
	if err := replica.Flush(); err != nil {
		t.Fatal(err)
	}
	w.follow(manifest(2, "s/8=b/10"))
	if ids, _ := replica.CollectionsOf(8); !slices.Equal(ids, []uint32{10}) || replica.Info().High != 2 {
		t.Fatalf("after a flush scope 8 has %v, seqno %d", ids, replica.Info().High)
	}
}

// The end of a scope reaches a replica as the end of each of its collections: one pass finds the documents of all of
// them, and its result is discarded when a document has changed.
func TestScopeEndsAtAReplicaInOneWalk(t *testing.T) {
	w := newWorld(t, 2)
	defer func() { _ = w.b.Close() }()
	replica := w.b.VBucket(1)
	if err := replica.SetState(Replica); err != nil {
		t.Fatal(err)
	}
	const collections = 20
	seqno := uint64(0)
	install := func(d *Doc) {
		t.Helper()
		seqno++
		d.Seqno, d.Cas = seqno, seqno
		if _, err := replica.Replicate(d, SnapshotRange{Start: seqno, End: seqno}); err != nil {
			t.Fatal(err)
		}
	}
	event := func(event uint32, id int) {
		t.Helper()
		install(NewEvent(event, mcbp.CollectionEvent{Scope: 8, Collection: uint32(id)}, nil))
	}
	for id := 9; id < 9+collections; id++ {
		event(mcbp.EventCollectionBegins, id)
		install(&Doc{Collection: uint32(id), Key: "k", Value: []byte("1")})
		install(&Doc{Collection: uint32(id), Key: "l", Value: []byte("1")})
	}
	left := 2 * collections
	ends := func(id, docs int) {
		t.Helper()
		event(mcbp.EventCollectionEnds, id)
		left -= docs
		if n := replica.Info().Items; n != left {
			t.Fatalf("%d documents after the end of %d, want %d", n, id, left)
		}
	}
	ends(9, 2)
	install(&Doc{Collection: 10, Key: "m", Value: []byte("1")}) // the result of the pass is stale now
	left++
	ends(10, 3)
	found := replica.collections.leaving
	found[0] = nil // discarded after another pass
	for id := 11; id < 9+collections; id++ {
		ends(id, 2)
	}
	if _, same := replica.collections.leaving[0]; !same || len(replica.collections.leaving) != 1 {
		t.Errorf("more than one walk: %d collections are kept", len(replica.collections.leaving))
	}
	w.restart(false)
	if n := w.b.VBucket(1).Info().Items; n != 0 {
		t.Errorf("%d documents after a restart", n)
	}
}

// The newest version of each collection stays, even if it is an old tombstone: its seqno is what a stream of the
// collection has to reach.
func TestNewestSeqnoOfACollectionIsKept(t *testing.T) {
	w := newWorld(t, 1)
	w.opts.PurgeAfter = time.Hour
	w.restart(true)
	defer func() { _ = w.b.Close() }()
	w.follow(manifest(1, "s/8=a/9"))
	w.put(9, "k", "1")
	w.set(0, "j", "1")
	for _, id := range []uint32{9, 9, 0} {
		w.put(id, "gone", "1")
		if _, err := w.apply(0, Change{Kind: Delete, Collection: id, Key: []byte("gone")}); err != nil {
			t.Fatal(err)
		}
	}
	w.follow(manifest(2, "s/8=a/9=b/10"))
	high := func(when string) {
		t.Helper()
		if v := w.b.VBucket(0); v.HighOf(0) != 10 || v.HighOf(9) != 8 || v.HighOf(10) != 11 {
			t.Fatalf("%s the newest seqnos are %d %d %d", when, v.HighOf(0), v.HighOf(9), v.HighOf(10))
		}
		w.want("1 event 3 of 8.0 s, 2 event 0 of 8.9 a, 3 9/k=1, 4 0/j=1, 8 9/gone=, 10 0/gone=, 11 event 0 of 8.10 b")
	}
	high("before")
	w.now = w.now.Add(3 * time.Hour)
	if err := w.b.PurgeTombstones(context.Background(), time.Hour); err != nil {
		t.Fatal(err)
	}
	if err := w.b.VBucket(0).ForgetTombstones(); err != nil {
		t.Fatal(err)
	}
	high("after compaction")
	w.restart(false)
	high("after a restart")
	w.put(9, "k", "2")
	w.set(0, "j", "2")
	if err := w.b.VBucket(0).ForgetTombstones(); err != nil {
		t.Fatal(err)
	}
	w.want("1 event 3 of 8.0 s, 2 event 0 of 8.9 a, 11 event 0 of 8.10 b, 12 9/k=2, 13 0/j=2") // not the newest now
}

// A write that is taken back leaves each collection its previous newest seqno; so does the end of a collection whose
// last versions reached the log before the end was taken back.
func TestNewestSeqnoOfACollectionAfterAFailedWrite(t *testing.T) {
	w := newWorld(t, 1)
	defer func() { _ = w.b.Close() }()
	v := w.b.VBucket(0)
	w.follow(manifest(1, "s/8=a/9"))
	w.set(0, "k", "1")
	w.put(9, "x", "1")
	w.put(9, "y", "1")
	high := func(when string, standard, member uint64) {
		t.Helper()
		if v.HighOf(0) != standard || v.HighOf(9) != member {
			t.Fatalf("%s the newest seqnos are %d and %d, want %d and %d", when, v.HighOf(0), v.HighOf(9), standard, member)
		}
	}
	write := func(collection uint32, key string) {
		t.Helper()
		if _, err := v.Apply(Change{Collection: collection, Key: []byte(key), Value: []byte("1")}); err != nil {
			t.Fatal(err)
		}
	}
	fail := func() {
		t.Helper()
		w.full = true
		if err := w.b.commit.current().Wait(); !errors.Is(err, ErrTemporary) {
			t.Fatal(err)
		}
		w.full = false
		w.now = w.now.Add(retryAfterFailure)
	}
	write(0, "lost")
	high("on the way", 3, 5)
	fail()
	high("taken back", 3, 5)
	write(9, "lost")
	write(0, "lost")
	write(9, "lost")
	fail()
	high("several taken back", 3, 5)

	write(9, "last")
	w.writing = func() { // the end waits for the next write
		if _, err := v.follow(manifest(2)); err != nil {
			t.Error(err)
		}
	}
	if err := w.b.commit.current().Wait(); err != nil {
		t.Fatal(err)
	}
	if _, ok := v.HasCollection(9); ok {
		t.Fatal("collection 9 has not ended")
	}
	fail()
	high("its end taken back", 3, 6)
}

// lacking returns the vbuckets that do not have collection 9.
func (w *world) lacking() (ids []uint16) {
	for _, v := range w.b.vbs {
		if _, ok := v.HasCollection(9); !ok {
			ids = append(ids, v.id)
		}
	}
	return ids
}

// A vbucket whose events were taken back by another goroutine's write, while other events were still to come, does
// not count as having the manifest.
func TestManifestWhoseFirstEventsFail(t *testing.T) {
	w := newWorld(t, 2)
	armed := false
	w.opts.Now = func() time.Time {
		first := w.b.VBucket(0)
		if !armed || !first.mu.TryLock() { // it is writing its events
			return w.now
		}
		told := first.high > first.written
		first.mu.Unlock()
		if armed = !told; armed {
			return w.now
		}
		w.full = true
		if err := w.b.commit.current().Wait(); !errors.Is(err, ErrTemporary) {
			t.Error(err)
		}
		w.full = false
		w.now = w.now.Add(retryAfterFailure)
		return w.now
	}
	w.restart(true)
	defer func() { _ = w.b.Close() }()
	armed = true
	if err := w.b.SetManifest(manifest(1, "s/8=a/9")); !errors.Is(err, ErrTemporary) || armed {
		t.Fatalf("%v, and a write failed: %v", err, !armed)
	}
	w.follow(manifest(1, "s/8=a/9"))
	if ids := w.lacking(); len(ids) > 0 {
		t.Fatalf("vbuckets %d do not have the collection", ids)
	}
}

// A vbucket that cannot apply the manifest does not block the others.
func TestManifestWhileAVBucketIsSealed(t *testing.T) {
	w := newWorld(t, 4)
	defer func() { _ = w.b.Close() }()
	if _, err := w.b.VBucket(1).Seal(time.Hour); err != nil {
		t.Fatal(err)
	}
	m := manifest(1, "s/8=a/9")
	for range 2 {
		if err := w.b.SetManifest(m); !errors.Is(err, ErrSealed) {
			t.Fatal(err)
		}
		if ids := w.lacking(); !slices.Equal(ids, []uint16{1}) {
			t.Fatalf("vbuckets %d do not have the collection", ids)
		}
	}
	w.b.VBucket(1).Unseal()
	w.follow(m)
	if ids := w.lacking(); len(ids) > 0 || w.b.VBucket(0).Info().High != 2 {
		t.Fatalf("vbuckets %d do not have the collection, the first is at %d", ids, w.b.VBucket(0).Info().High)
	}
}

// The documents of a collection leave memory with the write that ends it, even if most of the vbucket stays; an
// earlier snapshot still contains them.
func TestEndedCollectionLeavesMemory(t *testing.T) {
	w := newWorld(t, 1)
	defer func() { _ = w.b.Close() }()
	w.follow(manifest(1, "s/8=a/9"))
	for i := range 20 {
		w.set(0, fmt.Sprint("k", i), "1")
	}
	w.put(9, "k", "1")
	w.put(9, "j", "1")
	v := w.b.VBucket(0)
	held, _ := v.SnapshotAfter(21, all)
	w.follow(manifest(2, "s/8"))
	v.mu.Lock()
	if len(v.list) != len(v.docs) || v.stale != 0 {
		t.Errorf("%d versions are held for %d documents", len(v.list), len(v.docs))
	}
	v.mu.Unlock()
	if got := collected(held); got != "22 0/k19=1, 23 9/k=1, 24 9/j=1" {
		t.Errorf("a snapshot of before shows %s", got)
	}
}

// Property: whatever happens to collections, the recorded sums of each match its documents, and nothing of an ended
// one stays.
func TestSumsOfCollections(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(t, 1)
		defer func() { _ = w.b.Abandon() }()
		w.opts.PurgeAfter = time.Hour
		w.restart(true)
		uid := uint64(1)
		w.follow(manifest(uid, "s/8=a/9"))
		write := func() {
			c := Change{Collection: rapid.SampledFrom([]uint32{0, 9, 10, 11}).Draw(rt, "collection"),
				Key: []byte(rapid.SampledFrom([]string{"a", "b", "c"}).Draw(rt, "key"))}
			if rapid.Bool().Draw(rt, "delete") {
				c.Kind = Delete
			}
			if _, err := w.b.VBucket(0).Apply(c); err != nil && !errors.Is(err, ErrNoCollection) &&
				!errors.Is(err, ErrNotFound) {
				rt.Fatal(err)
			}
		}
		follow := func() {
			uid++
			text := rapid.SampledFrom([]string{"s/8", "s/8=a/9", "s/8=b/10=c/11", "s/8=a/9=b/10=c/11"}).Draw(rt, "manifest")
			if _, err := w.b.VBucket(0).follow(manifest(uid, text)); err != nil {
				rt.Fatal(err)
			}
		}
		for range rapid.IntRange(1, 30).Draw(rt, "steps") {
			switch rapid.IntRange(0, 9).Draw(rt, "do") {
			case 0, 1, 2, 3:
				write()
			case 4, 5:
				follow()
			case 6: // the write is made while more events are appended
				w.writing = func() { write(); follow(); write() }
			case 7:
				w.full = true
				_ = w.b.commit.current().Wait()
				w.full = false
				w.now = w.now.Add(retryAfterFailure)
			case 8:
				if err := w.b.commit.current().Wait(); err != nil {
					rt.Fatal(err)
				}
				w.writing = nil
				w.restart(rapid.Bool().Draw(rt, "orderly"))
			case 9:
				w.now = w.now.Add(2 * time.Hour)
				if err := w.b.PurgeTombstones(t.Context(), time.Hour); err != nil {
					rt.Fatal(err)
				}
			}
		}
		w.writing = nil
		if err := w.b.commit.current().Wait(); err != nil {
			rt.Fatal(err)
		}
		w.checkSums(rt)
	})
}

func (w *world) checkSums(rt *rapid.T) {
	v := w.b.VBucket(0)
	type sums struct{ docs, items, last uint64 }
	said, found := map[uint32]sums{0: {}}, map[uint32]sums{}
	var newest, listed int64
	v.mu.Lock()
	for id, m := range v.collections.members {
		said[id] = sums{docs: uint64(m.docs), items: uint64(m.items)}
		begins := NewEvent(mcbp.EventCollectionBegins, mcbp.CollectionEvent{Collection: id}, nil)
		found[id] = sums{last: v.docs[begins.id()].Seqno}
	}
	found[0] = sums{}
	for _, d := range v.docs {
		newest += d.memory()
		if d.Collection == SystemCollection {
			continue
		}
		s := found[d.Collection]
		s.docs++
		if !d.Deleted {
			s.items++
		}
		s.last = max(s.last, d.Seqno)
		found[d.Collection] = s
	}
	for _, d := range v.list {
		listed += d.memory()
	}
	if used := w.opts.Quota.Used(); len(v.list)-v.stale != len(v.docs) || used != newest || v.bytes != newest ||
		v.bytes+v.staleBytes != listed {
		rt.Errorf("%d versions, %d superseded, of %d documents; %d bytes are used, %d and %d counted, of %d and %d",
			len(v.list), v.stale, len(v.docs), used, v.bytes, v.staleBytes, newest, listed)
	}
	v.mu.Unlock()
	items := map[uint32]int{}
	v.CollectionItems(items)
	for id, s := range said {
		if s.last = v.HighOf(id); id == 0 { // versions of the default collection are not counted
			s.docs, s.items = found[0].docs, uint64(items[0])
		}
		said[id] = s
	}
	if !maps.Equal(said, found) {
		rt.Errorf("known %v, found %v", said, found)
	}
}

// BenchmarkEndOfCollections drops a scope with 1,000 empty collections in a vbucket with 10,000 documents.
func BenchmarkEndOfCollections(b *testing.B) {
	text := "s/8"
	for i := range 1000 {
		text += fmt.Sprintf("=c%d/%d", i, 9+i)
	}
	for b.Loop() {
		b.StopTimer()
		w := newWorld(b, 1)
		w.follow(manifest(1, text))
		for i := range 10_000 {
			if _, err := w.b.VBucket(0).Apply(Change{Key: fmt.Append(nil, "k", i)}); err != nil {
				b.Fatal(err)
			}
		}
		_ = w.b.commit.current().Wait()
		b.StartTimer()
		w.follow(manifest(2))
		b.StopTimer()
		_ = w.b.Close()
		b.StartTimer()
	}
}
