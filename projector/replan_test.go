package projector

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"tidemark/expression"
	"tidemark/index"
	"tidemark/keyversion"
	"tidemark/partition"
	"tidemark/wire"
)

// manyIndexes returns definitions of n indexes on each of these buckets, in eight slices on three nodes.
func manyIndexes(n int, buckets ...string) *wire.Definitions {
	d := &wire.Definitions{Revision: 1}
	for node := range index.NodeID(3) {
		d.Indexers = append(d.Indexers, wire.Endpoint{Node: node + 1, Maintenance: fmt.Sprintf("h%d:1", node)})
	}
	for _, bucket := range buckets {
		for range n {
			addIndex(d, bucket)
		}
	}
	return d
}

// addIndex adds one.
func addIndex(d *wire.Definitions, bucket string) {
	i := len(d.Indexes)
	d.Indexes = append(d.Indexes, index.Definition{ID: index.ID(i + 1), Bucket: bucket, State: index.Maintenance,
		Keys:  []index.KeyExpr{{Expr: benchFields[i%len(benchFields)]}, {Expr: fmt.Sprintf("LOWER(`f%d`)", i%100)}},
		Where: fmt.Sprintf("`kind` = %d", i%50)})
	p := partition.Topology{Index: index.ID(i + 1), Layout: partition.Layout{Scheme: partition.HashDocID, Partitions: 8}}
	for s := range index.SliceID(8) {
		p.Copies = append(p.Copies, partition.Copy{ID: index.CopyID(8*i+int(s)) + 1, Slice: s,
			Node: index.NodeID(s%3) + 1, State: partition.Allocated})
	}
	d.Topologies = append(d.Topologies, p)
}

// next returns the next revision of definitions; changing it does not affect the previous one.
func next(d *wire.Definitions, change func(d *wire.Definitions)) *wire.Definitions {
	n := *d
	n.Revision++
	n.Indexes, n.Topologies, n.Indexers = slices.Clone(d.Indexes), slices.Clone(d.Topologies), slices.Clone(d.Indexers)
	for i := range n.Topologies {
		n.Topologies[i].Copies = slices.Clone(d.Topologies[i].Copies)
	}
	change(&n)
	return &n
}

// replanned applies definitions as a projector does, for one of its buckets.
func (a *assessor) replanned(t testing.TB, was *plan, d *wire.Definitions) *plan {
	t.Helper()
	a.assess(d)
	pl, bad, err := a.plan(was, d, "b", keyversion.ClassMaintenance, maintenanceEndpoints(d), nil)
	if err != nil || len(bad) > 0 {
		t.Fatal(err, bad)
	}
	return pl
}

// Unchanged parts are neither parsed nor compiled again, and the result equals a plan that is made from the
// definitions alone.
func TestOnlyChangedPartsAreCompiled(t *testing.T) {
	type change = func(d *wire.Definitions)
	const program, all = 1, 2 // what is kept
	for name, tt := range map[string]struct {
		change change
		read   int // number of indexes whose expressions are read
		keeps  int
	}{
		"a revision":          {func(*wire.Definitions) {}, 0, all},
		"an index comes":      {func(d *wire.Definitions) { addIndex(d, "b") }, 1, 0},
		"one comes elsewhere": {func(d *wire.Definitions) { addIndex(d, "other") }, 1, all},
		"a copy moves":        {func(d *wire.Definitions) { d.Topologies[3].Copies[0].Node = 2 }, 0, program},
		"one moves elsewhere": {func(d *wire.Definitions) { d.Topologies[23].Copies[0].Node = 2 }, 0, all},
		"a copy is not there": {func(d *wire.Definitions) {
			d.Topologies[3].Copies[0].State = partition.Placed
		}, 0, program},
		"an indexer moves":      {func(d *wire.Definitions) { d.Indexers[0].Maintenance = "elsewhere:1" }, 0, program},
		"an index goes":         {func(d *wire.Definitions) { d.Indexes[4].State = index.Dropping }, 0, 0},
		"an index is split":     {func(d *wire.Definitions) { d.Topologies[3].Layout.Partitions = 16 }, 0, program},
		"one has a new meaning": {func(d *wire.Definitions) { d.Indexes[4].Where = "a = 1" }, 1, 0},
		"one of a collection comes": {func(d *wire.Definitions) {
			addIndex(d, "b")
			d.Indexes[40].Member.ID = 9
		}, 1, program},
		"one has a new meaning elsewhere": {func(d *wire.Definitions) { d.Indexes[24].Where = "a = 1" }, 1, all},
		"two have each other's meaning": {func(d *wire.Definitions) {
			d.Indexes[4].Keys, d.Indexes[5].Keys = d.Indexes[5].Keys, d.Indexes[4].Keys
		}, 2, 0},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAssessor()
			read := 0
			a.read = func(s expression.Source) (*expression.Parsed, error) {
				read++
				return expression.ParseSource(s)
			}
			d := manyIndexes(20, "b", "other")
			was := a.replanned(t, nil, d)
			if read != 40 {
				t.Fatalf("%d were read first", read)
			}
			read = 0
			d = next(d, tt.change)
			is := a.replanned(t, was, d)
			if read != tt.read {
				t.Errorf("%d are read, want %d", read, tt.read)
			}
			if kept := is.program == was.program; kept != (tt.keeps >= program) {
				t.Errorf("the program is kept: %v", kept)
			}
			if same := is.alike == was.alike; same != (tt.keeps == all) {
				t.Errorf("the plan counts as the same: %v", same)
			}
			anew := newAssessor().replanned(t, nil, d)
			if got, want := is.does(), anew.does(); got != want {
				t.Errorf("the plan is %s, made anew %s", got, want)
			}
		})
	}
}

// does returns a plan's behaviour as text.
func (pl *plan) does() string {
	s := fmt.Sprintf("%d %d %v %d %v", pl.revision, pl.view.Revision(), pl.ids, pl.view.Sources(), pl.view.Nodes())
	for _, n := range pl.view.Nodes() {
		s += fmt.Sprint(pl.view.Copies(n))
	}
	pl.each(func(m *part) { s += fmt.Sprint(m.sources, m.program.Sources()) })
	return s
}

// A revision without changes for a bucket is applied to its running streams without any event for the indexers; the
// streams continue, and the next index joins as usual.
func TestRevisionWithoutChangesForABucket(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	w := newWorldAt(t, e.Addr())
	applied := func(revision uint64) {
		t.Helper()
		w.eventually("the revision is applied", func() bool {
			s, err := w.client.State(context.Background(), w.url)
			return err == nil && s.Revision == revision
		})
	}
	w.define(1, 1)
	w.startAt(3, 1, 0)
	e.stream(3).write(0, 2)
	w.expect(3, "1:STREAM_BEGIN@0", "1:INSERT@1", "1:INSERT@2")
	was := w.p.bucket(testBucket).plan.Load()
	w.define(2, 1)
	applied(2)
	if is := w.p.bucket(testBucket).plan.Load(); is.alike != was.alike || is == was {
		t.Errorf("the plan counts as another one")
	}
	e.stream(3).write(2, 3)
	w.expect(3, "1:STREAM_BEGIN@0", "1:INSERT@1", "1:INSERT@2", "1:INSERT@3")
	w.define(3, 1, 2)
	applied(3)
	w.expect(3, "1:STREAM_BEGIN@0", "1:INSERT@1", "1:INSERT@2", "1:INSERT@3", "1:ACTIVATE@3")
}

// BenchmarkOneIndexComes measures a projector's work for CREATE INDEX besides many others, in the same bucket or not.
func BenchmarkOneIndexComes(b *testing.B) {
	for _, bucket := range []string{"b", "other"} {
		for _, n := range []int{10, 1000, expression.MaxSources - 1} {
			b.Run(fmt.Sprintf("bucket=%s/others=%d", bucket, n), func(b *testing.B) {
				a := newAssessor()
				d := manyIndexes(n, "b")
				one := next(d, func(d *wire.Definitions) { addIndex(d, bucket) })
				b.ReportAllocs()
				for b.Loop() {
					b.StopTimer()
					was := a.replanned(b, nil, d)
					b.StartTimer()
					a.replanned(b, was, one)
				}
			})
		}
	}
}
