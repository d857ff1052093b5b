package stability

import (
	"testing"

	"tidemark/index"
	"tidemark/timestamp"
)

// TestLongLogs: the failover logs of all vbuckets exceed one command. The first promotions take some vbuckets each,
// with their logs; in the end all vbuckets are at their positions, and no log was sent twice. A bucket in which
// nothing was ever written has its first timestamp at once.
func TestLongLogs(t *testing.T) {
	const n, branches = 1024, 64
	long := func(v int) timestamp.FailoverLog {
		log := make(timestamp.FailoverLog, branches)
		for i := range log {
			log[i] = timestamp.LogEntry{VBUUID: 1<<63 | uint64(v*branches+i), Seqno: uint64(1<<40 + branches - 1 - i)}
		}
		log[branches-1].Seqno = 0
		return log
	}
	begin := func() *Bucket {
		b, err := New(DefaultConfig(), timestamp.Stability{Ref: timestamp.Ref{Generation: 1}, Vector: timestamp.New(n)})
		if err != nil {
			t.Fatal(err)
		}
		for v := range n {
			b.Begin(v, Stream{Projector: "p", Log: long(v)})
		}
		return b
	}
	b := begin()
	for v := range n {
		b.Complete(v, "p", index.Incarnation{}, 1<<40+100)
	}
	promotions, said := 0, map[uint16]bool{}
	for d := b.Next(0); d.Promote; d = b.Next(0) {
		bytes := 0
		for _, g := range d.Logs {
			bytes += len(timestamp.AppendLog(nil, g.Log))
			if said[g.VBucket] || d.Next.Vector.Seqnos[g.VBucket] != 1<<40+100 {
				t.Fatalf("promotion %d: vbucket %d at %d, again %v", promotions, g.VBucket, d.Next.Vector.Seqnos[g.VBucket],
					said[g.VBucket])
			}
			said[g.VBucket] = true
		}
		for v, s := range d.Next.Vector.Seqnos {
			if (s != 0) != said[uint16(v)] || d.Mutation.Seqnos[v] < s {
				t.Fatalf("promotion %d: vbucket %d moves to %d, its log was said: %v; mutation %d", promotions, v, s,
					said[uint16(v)], d.Mutation.Seqnos[v])
			}
		}
		if bytes > maxLogBytes {
			t.Fatalf("promotion %d has %d bytes of logs", promotions, bytes)
		}
		if err := b.Committed(d.Next); err != nil {
			t.Fatal(err)
		}
		if promotions++; promotions > n {
			t.Fatal("it does not end")
		}
	}
	if len(said) != n || promotions < 3 {
		t.Fatalf("%d vbuckets in %d promotions", len(said), promotions)
	}

	b = begin()
	for v := range n {
		b.Complete(v, "p", index.Incarnation{}, 0)
	}
	d := b.Next(0)
	if !d.Promote || d.Next.Number != 1 || len(d.Logs) == 0 || len(d.Logs) == n {
		t.Fatalf("an empty bucket: %v, number %d, %d logs", d.Promote, d.Next.Number, len(d.Logs))
	}
	if err := b.Committed(d.Next); err != nil {
		t.Fatal(err)
	}
	for v := range n {
		b.Complete(v, "p", index.Incarnation{}, 1<<40+7)
	}
	if d = b.Next(0); !d.Promote || len(d.Logs) == 0 {
		t.Fatalf("what was written then: %+v", d)
	}
}
