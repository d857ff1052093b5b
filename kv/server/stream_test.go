package server

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"tidemark/kv/store"
)

// A snapshot that is overtaken before its next items are taken is not finished: the rest of it was not sent.
func TestCursorOfAnOvertakenSnapshot(t *testing.T) {
	t.Parallel()
	const large = 4 << 20
	b, _, err := store.Open(store.Options{Dir: t.TempDir(), Name: "b", UUID: "u", VBuckets: 1, Random: rand.Uint64,
		Now: time.Now, Quota: store.NewQuota(16 * large)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = b.Abandon() }()
	vb := b.VBucket(0)
	set := func(key string, size int) {
		t.Helper()
		r, err := vb.Apply(store.Change{Key: []byte(key), Value: make([]byte, size)})
		if err == nil {
			err = r.Ticket.Wait()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for i := range 2 * stepItems {
		set(fmt.Sprint("k", i), 1)
	}
	snap, _ := vb.SnapshotAfter(0, math.MaxUint64)
	c := cursor{snap: snap, upTo: snap.End}
	if !c.take() || snap.Overtaken() {
		t.Fatal("nothing is taken")
	}
	for range 20 { // 64 MiB are held for snapshots of a vbucket
		set("hot", large)
	}
	if !snap.Overtaken() {
		t.Fatal("the snapshot is not overtaken")
	}
	if c.take() || c.snap == nil || c.last == c.upTo {
		t.Fatalf("an overtaken snapshot is over at %d", c.last)
	}
	snap.Close()
}
