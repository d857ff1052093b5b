package copies

import (
	"fmt"
	"testing"

	"tidemark/index"
	"tidemark/indexer/storage"
	"tidemark/ingest"
	"tidemark/keyversion"
	"tidemark/timestamp"
)

// BenchmarkBucket measures a mutation from the decoded batch through the queue into two copies in the store, with a
// stability timestamp every 10,000 mutations: updates of 100,000 documents. One operation is one mutation.
func BenchmarkBucket(b *testing.B) {
	const docs, every, vbs = 100_000, 10_000, 2
	k := benchBucket(b)
	ids := []index.CopyID{1, 2}
	log := timestamp.FailoverLog{{VBUUID: 7}}
	inc := index.Incarnation{Counter: 1}
	src := ingest.Source{Connection: 1}
	for v := range uint16(vbs) {
		k.st.Accept(src, &keyversion.Event{Kind: keyversion.StreamBegin, VBucket: v, Incarnation: inc,
			Begin: &keyversion.Begin{Log: log, Copies: ids}})
	}
	at := timestamp.New(vbs)
	e := keyversion.Event{Kind: keyversion.Insert, Incarnation: inc,
		Statements: []keyversion.Statement{{Index: 1, Keys: [][]byte{nil}}, {Index: 2, Keys: [][]byte{nil}}}}
	number := uint64(0)
	flush := func() {
		for v := range vbs {
			k.st.Accept(src, &keyversion.Event{Kind: keyversion.Sync, VBucket: uint16(v), Incarnation: inc, Seqno: at.Seqnos[v]})
		}
		number++
		k.st.Publish(timestamp.Stability{Ref: timestamp.Ref{Number: number}, Vector: at.Clone(),
			Logs: []timestamp.FailoverLog{log, log}})
		t, _ := k.st.Flush()
		if t == nil || !t.Copies[1].Exact {
			b.Fatal("not flushed")
		}
		writeNow(b, k, t)
	}
	mutate := func(n int) {
		v := n % vbs
		at.VBUUIDs[v] = 7
		at.Seqnos[v]++
		q := at.Seqnos[v]
		e.VBucket, e.Seqno, e.Window = uint16(v), q, timestamp.Window{Start: q - 1, End: q}
		e.DocID = fmt.Appendf(e.DocID[:0], "document-%08d", (n*7919)%docs)
		key := fmt.Appendf(nil, "secondary key %d", n)
		e.Statements[0].Keys[0], e.Statements[1].Keys[0] = key, key
		k.st.Accept(src, &e)
	}
	for n := range docs {
		if mutate(n); n%every == every-1 {
			flush()
		}
	}
	b.ReportAllocs()
	b.ResetTimer()
	for n := range b.N {
		if mutate(docs + n); n%every == every-1 || n == b.N-1 {
			flush()
		}
	}
	b.StopTimer()
	k.node.Snapshots.CloseAll()
}

func benchBucket(b *testing.B) *Bucket {
	b.Helper()
	k := testBucketLoop(b)
	k.node.Marks = noMarks(b)
	st, err := storage.Open(storage.Options{Dir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := st.Close(); err != nil {
			b.Error(err)
		}
	})
	for id := range index.CopyID(2) {
		s, err := st.Create(storage.Meta{Copy: id + 1, Index: index.ID(id) + 1, Bucket: "b", BucketUUID: "u", VBuckets: 2,
			Desc: []bool{false}})
		if err != nil {
			b.Fatal(err)
		}
		if err := k.st.Add(ingest.Copy{ID: id + 1, Index: index.ID(id) + 1}); err != nil {
			b.Fatal(err)
		}
		k.slices[id+1] = s
	}
	return k
}
