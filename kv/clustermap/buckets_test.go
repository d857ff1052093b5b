package clustermap

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestBucketChangesRefused checks which changes a map refuses, and with what error.
func TestBucketChangesRefused(t *testing.T) {
	t.Parallel()
	m := Derive(nodes(3), specs(8, 1))
	name := m.Buckets[0].Name
	fits := BucketChange{Name: "new", UUID: "u", VBuckets: 16, Replicas: 1}
	full := m
	for i := len(full.Buckets); i < MaxBuckets; i++ {
		var err error
		if full, err = full.ChangeBuckets(BucketChange{Name: fmt.Sprint("b", i), UUID: "u", VBuckets: 4}); err != nil {
			t.Fatal(err)
		}
	}
	moving, err := m.StartRebalance("op", []Node{{ID: "kv4", Memcached: "h:1", Admin: "h:2"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for what, x := range map[string]struct {
		m    Map
		edit func(*BucketChange)
		want error
	}{
		"its name":     {m, func(c *BucketChange) { c.Name = ".x" }, ErrBuckets},
		"long":         {m, func(c *BucketChange) { c.Name = strings.Repeat("x", MaxBucketName+1) }, ErrBuckets},
		"no name":      {m, func(c *BucketChange) { c.Name = "" }, ErrBuckets},
		"a folder":     {m, func(c *BucketChange) { c.Name = "a/b" }, ErrBuckets},
		"no uuid":      {m, func(c *BucketChange) { c.UUID = "" }, ErrBuckets},
		"vbuckets":     {m, func(c *BucketChange) { c.VBuckets = 12 }, ErrBuckets},
		"too few":      {m, func(c *BucketChange) { c.VBuckets = 2 }, ErrBuckets},
		"replicas":     {m, func(c *BucketChange) { c.Replicas = 4 }, ErrBuckets},
		"there":        {m, func(c *BucketChange) { c.Name = name }, ErrBucketExists},
		"too many":     {full, func(*BucketChange) {}, ErrTooManyBuckets},
		"rebalancing":  {moving, func(*BucketChange) {}, ErrRebalancing},
		"drop nothing": {m, func(c *BucketChange) { c.Drop = true }, ErrNoBucket},
		"drop another": {m, func(c *BucketChange) { *c = BucketChange{Name: name, UUID: "x", Drop: true} }, ErrNoBucket},
		"drop moving":  {moving, func(c *BucketChange) { *c = BucketChange{Name: name, Drop: true} }, ErrRebalancing},
		"edit nothing": {m, func(c *BucketChange) { c.Edit = &BucketEdit{} }, ErrNoBucket},
		"edit another": {m, func(c *BucketChange) { *c = BucketChange{Name: name, UUID: "x", Edit: &BucketEdit{}} }, ErrNoBucket},
		"edit fixed": {m, func(c *BucketChange) { *c = BucketChange{Name: name, VBuckets: 16, Edit: &BucketEdit{}} },
			ErrFixed},
		"edit replicas": {m, func(c *BucketChange) { *c = BucketChange{Name: name, Edit: &BucketEdit{Replicas: new(4)}} },
			ErrBuckets},
		"edit moving": {moving, func(c *BucketChange) { *c = BucketChange{Name: name, Edit: &BucketEdit{Replicas: new(2)}} },
			ErrRebalancing},
		"edit kept": {m, func(c *BucketChange) {
			*c = BucketChange{Name: name, Edit: &BucketEdit{Replicas: new(2), KeepReplicas: true}}
		}, ErrKeepReplicas},
	} {
		c := fits
		x.edit(&c)
		if n, err := x.m.ChangeBuckets(c); !errors.Is(err, x.want) || n.Newer(x.m) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := m.ChangeBuckets(fits); err != nil {
		t.Error(err)
	}
}

// TestEditBucket checks that settings other than replicas can change at any time, and that setting the present
// value is no change.
func TestEditBucket(t *testing.T) {
	t.Parallel()
	m := Derive(nodes(3), specs(8, 1))
	name := m.Buckets[0].Name
	moving, err := m.StartRebalance("op", []Node{{ID: "kv4", Memcached: "h:1", Admin: "h:2"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	edit := BucketChange{Name: name, UUID: m.Buckets[0].UUID, VBuckets: 8,
		Edit: &BucketEdit{NoFlush: new(true), Replicas: new(1)}}
	off, err := moving.ChangeBuckets(edit)
	if err != nil || !off.Newer(moving) || !off.Buckets[0].NoFlush || moving.Buckets[0].NoFlush ||
		off.Operation != moving.Operation {
		t.Errorf("%+v %v", off, err)
	}
	if again, err := off.ChangeBuckets(edit); err != nil || again.Newer(off) {
		t.Errorf("once more: %d.%d %v", again.RevEpoch, again.Rev, err)
	}
	edit.Edit = &BucketEdit{NoFlush: new(false)}
	if on, err := off.ChangeBuckets(edit); err != nil || on.Buckets[0].NoFlush || on.Check(specs(8, 1)) != nil {
		t.Errorf("%+v %v", on, err)
	}
}

// TestEditCreatesMissingReplicas sets the present number of replicas: that creates the replicas that a stopped
// operation has left out, and does nothing if none is missing or an operation is in progress.
func TestEditCreatesMissingReplicas(t *testing.T) {
	t.Parallel()
	m := Derive(nodes(3), specs(8, 0))
	change := func(m Map, operation string) Map {
		t.Helper()
		n, err := m.ChangeBuckets(BucketChange{Name: m.Buckets[0].Name,
			Edit: &BucketEdit{Replicas: new(2), Operation: operation}})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	m = change(m, "a")
	if n := change(m, "b"); n.Newer(m) {
		t.Errorf("while they are made: %+v", n.Operation)
	}
	m = m.Finish() // like a stop, and a failover
	if n, err := m.ChangeBuckets(BucketChange{Name: m.Buckets[0].Name,
		Edit: &BucketEdit{Replicas: new(2), KeepReplicas: true}}); err != nil || n.Newer(m) {
		t.Errorf("without permission: %+v %v", n.Operation, err)
	}
	n := change(m, "b")
	if !n.Newer(m) || n.Operation == nil || n.Operation.ID != "b" || n.Operation.VBuckets != 8 {
		t.Fatalf("after a stop: %+v", n.Operation)
	}
	for v := range n.Buckets[0].Chains {
		n.Buckets[0].Chains[v] = n.Operation.Targets[0][v]
	}
	n = n.Finish()
	if again := change(n, "c"); again.Newer(n) {
		t.Errorf("where none is missing: %+v", again.Operation)
	}
}

// TestDroppedBucketsAreRecorded checks that a map records dropped buckets: all configured ones, and the newest of the
// others. The map fits the configuration throughout; a map with a bucket that was never created does not.
func TestDroppedBucketsAreRecorded(t *testing.T) {
	t.Parallel()
	configured := specs(8, 1)
	first := Derive(nodes(3), configured)
	m := first
	change := func(c BucketChange) {
		t.Helper()
		n, err := m.ChangeBuckets(c)
		if err != nil {
			t.Fatal(err)
		}
		if err := n.Check(configured); err != nil || !n.Newer(m) {
			t.Fatal(n.Rev, err)
		}
		m = n
	}
	name := configured[0].Name
	change(BucketChange{Name: name, Drop: true})
	change(BucketChange{Name: name, UUID: "other", VBuckets: 4, NoFlush: true})
	if b := m.Bucket(name); !b.Made || !b.NoFlush || b.UUID != "other" || len(b.Chains) != 4 || len(b.Chains[3]) != 1 {
		t.Errorf("%+v", b)
	}
	change(BucketChange{Name: name, Drop: true})
	change(BucketChange{Name: name, UUID: "third", VBuckets: 4, Replicas: 2})
	want := []Dropped{{Name: name, UUID: configured[0].UUID}, {Name: name, UUID: "other", Made: true}}
	if !slices.Equal(m.Dropped, want) || len(first.Dropped) > 0 {
		t.Errorf("dropped are %v, want %v", m.Dropped, want)
	}
	long := m
	for i := range maxDropped + 3 {
		long = long.dropBucket(&Bucket{Name: "b", UUID: fmt.Sprint(i), Made: true})
	}
	if n := len(long.Dropped); n != maxDropped+1 || long.Dropped[0] != want[0] || long.HasDropped("b", "1") ||
		!long.HasDropped("b", fmt.Sprint(maxDropped+2)) {
		t.Errorf("%d dropped buckets are recorded, from %+v on", n, long.Dropped[:2])
	}
	if m.Check(nil) != nil {
		t.Error("nodes that are not started with a dropped bucket any more:", m.Check(nil))
	}
	again := append(slices.Clone(configured), Spec{Name: "new", UUID: "u", VBuckets: 8})
	if m.Check(again) == nil {
		t.Error("a map that lacks a configured bucket passes")
	}
	strange := first.Clone()
	strange.Buckets = append(strange.Buckets, Bucket{Name: "s", UUID: "u", Chains: strange.Buckets[0].Chains})
	if strange.Check(configured) == nil {
		t.Error("a map with a bucket that was never created passes")
	}
	twice := m.Clone()
	twice.Buckets = append(twice.Buckets, twice.Buckets[0])
	if twice.Check(configured) == nil {
		t.Error("a map with two buckets of one name passes")
	}
}

// TestBucketNames checks each ASCII character, at the start and after it; other characters are never valid.
func TestBucketNames(t *testing.T) {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_%-"
	for c := range 256 {
		one := string([]byte{byte(c)})
		first, later := strings.Contains(letters, one), strings.Contains(letters+".", one)
		if ValidBucketName(one) != first || ValidBucketName("b"+one) != later {
			t.Errorf("%q: %v and %v, want %v and %v", one, ValidBucketName(one), ValidBucketName("b"+one), first, later)
		}
	}
	longest := strings.Repeat("b", MaxBucketName)
	for name, want := range map[string]bool{longest: true, longest + "b": false, "": false, "b\n": false,
		"bücket": false} {
		if ValidBucketName(name) != want {
			t.Errorf("%q: want %v", name, want)
		}
	}
}
