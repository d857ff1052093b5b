package statecontext

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"

	"tidemark/index"
)

func newReader(b []byte) *bufio.Reader { return bufio.NewReader(bytes.NewReader(b)) }
func newDigest() *xxhash.Digest        { return xxhash.New() }

// large returns the state for the targets in docs/performance.md: 10,000 indexes over 100 buckets of 1024 vbuckets, 8
// indexers, ledger half full.
func large(tb testing.TB) *State {
	s := New()
	at := uint64(0)
	apply := func(commands ...Command) {
		at++
		next, results, _ := ApplyCommands(s, at, commands)
		for _, r := range results {
			if r.Rejection != nil {
				tb.Fatal(r.Rejection)
			}
		}
		s = next
	}
	apply(Command{Body: &LeaderStarted{Term: 1, Manager: Manager{ID: "m"}}},
		Command{Body: &BootstrapCluster{ClusterID: "c", Epoch: 1}})
	for i := range 8 {
		apply(Command{Body: &RegisterIndexer{Indexer: Indexer{UUID: fmt.Sprint("u", i), Admin: "http://127.0.0.1:1234"}}})
	}
	for i := range 100 {
		apply(Command{Body: &SetBucket{Name: fmt.Sprintf("bucket%03d", i), UUID: fmt.Sprint("uuid", i), VBuckets: 1024}})
		apply(Command{Body: promotion(s, fmt.Sprintf("bucket%03d", i), 1_000_000, 1)})
	}
	for i := range 10_000 {
		c := create(fmt.Sprintf("index_%05d", i), 1, 0, 1, 2, 3, 4, 5, 6, 7)
		c.Definition.Bucket = fmt.Sprintf("bucket%03d", i%100)
		c.Definition.BucketUUID = fmt.Sprint("uuid", i%100)
		apply(Command{Body: c, Request: &Request{Principal: "p", Key: fmt.Sprint("key", i)}})
	}
	return s
}

// promotion raises one vbucket out of `every`.
func promotion(s *State, bucket string, by uint64, every int) *AdvanceStability {
	b := s.Bucket(bucket)
	v := b.Stability.Vector.Clone()
	for i := 0; i < v.Len(); i += every {
		v.Seqnos[i] += by
		v.VBUUIDs[i] = 0x1234567890abcdef
	}
	a, err := NewBucketAdvance(b, v, v, nil)
	if err != nil {
		panic(err)
	}
	return &AdvanceStability{Buckets: []BucketAdvance{a}}
}

func BenchmarkApply(b *testing.B) {
	base := large(b)
	run := func(name string, body func(s *State, i int) Body, request bool) {
		b.Run(name, func(b *testing.B) {
			s := base
			took := make([]time.Duration, 0, b.N)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				c := Command{TimeMS: int64(i), Body: body(s, i)}
				if request {
					c.Request = &Request{Principal: "p", Key: fmt.Sprint("bench", i)}
				}
				data, err := Encode(c)
				if err != nil {
					b.Fatal(err)
				}
				start := time.Now()
				next, results, _, err := Apply(s, uint64(i), data)
				took = append(took, time.Since(start))
				if err != nil || results[0].Rejection != nil {
					b.Fatal(err, results[0].Rejection)
				}
				s = next
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
			b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1000, "p50-µs")
		})
	}
	run("create", func(_ *State, i int) Body {
		c := create(fmt.Sprintf("new_%07d", i), 1, 0, 1, 2, 3, 4, 5, 6, 7)
		// The number of indexes per bucket is limited.
		c.Definition.Bucket, c.Definition.BucketUUID = fmt.Sprintf("bucket%03d", i%100), fmt.Sprint("uuid", i%100)
		return c
	}, true)
	run("promote", func(s *State, _ int) Body { return promotion(s, "bucket007", 3, 10) }, false)
	run("promote100", func(s *State, _ int) Body {
		all := &AdvanceStability{}
		for i := range 100 {
			all.Buckets = append(all.Buckets, promotion(s, fmt.Sprintf("bucket%03d", i), 3, 10).Buckets...)
		}
		return all
	}, false)
}

// BenchmarkAllocated measures the command that records all copies of an index as allocated.
func BenchmarkAllocated(b *testing.B) {
	for _, slices := range []int{16, 256, 1024} {
		b.Run(strconv.Itoa(slices), func(b *testing.B) {
			s, c := created(b, slices)
			b.ReportAllocs()
			for i := uint64(0); b.Loop(); i++ {
				if _, results, _ := ApplyCommands(s, i, []Command{{Body: c}}); results[0].Rejection != nil {
					b.Fatal(results[0].Rejection)
				}
			}
		})
	}
}

// created returns a state with an index of the given number of slices and three replicas, and the command that
// records all of its copies as allocated.
func created(t testing.TB, slices int) (*State, *AllocateCopies) {
	t.Helper()
	s, at := New(), uint64(0)
	apply := func(body Body) {
		at++
		var results []Result
		if s, results, _ = ApplyCommands(s, at, []Command{{Body: body}}); results[0].Rejection != nil {
			t.Fatal(results[0].Rejection)
		}
	}
	apply(&LeaderStarted{Term: 1, Manager: Manager{ID: "m"}})
	apply(&BootstrapCluster{ClusterID: "c", Epoch: 1})
	for i := range 4 {
		apply(&RegisterIndexer{Indexer: Indexer{UUID: fmt.Sprint("u", i), Admin: "http://127.0.0.1:1234"}})
	}
	apply(&SetBucket{Name: "b", UUID: "bu1", VBuckets: 4})
	var nodes []index.NodeID
	for n := range 4 * slices {
		nodes = append(nodes, index.NodeID(n/slices))
	}
	apply(create("i", 3, nodes...))
	made := &AllocateCopies{Revision: s.DefinitionsRevision()}
	for x := range s.Indexes() {
		made.ID = x.Definition.ID
		for _, o := range x.Topology.Copies {
			made.Copies = append(made.Copies, o.ID)
		}
	}
	return s, made
}

func BenchmarkSnapshot(b *testing.B) {
	s := large(b)
	data := snapshot(b, s)
	b.Run("write", func(b *testing.B) {
		b.SetBytes(int64(len(data)))
		for b.Loop() {
			if err := WriteSnapshot(io.Discard, s); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("read", func(b *testing.B) {
		b.SetBytes(int64(len(data)))
		for b.Loop() {
			if _, err := ReadSnapshot(bytes.NewReader(data)); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkMemory measures the memory of a state with 10,000 indexes and 100 buckets of 1024 vbuckets, after a
// restore.
func BenchmarkMemory(b *testing.B) {
	data := snapshot(b, large(b))
	held := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	for b.Loop() {
		before := held()
		s, err := ReadSnapshot(bytes.NewReader(data))
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(held()-before)/1e6, "MB")
		runtime.KeepAlive(s)
	}
}
