package statecontext

// bucketNumbers are the highest numbers that buckets had which were forgotten. Those of a new bucket begin above: an
// indexer may remember a stability timestamp of a bucket of the same name, and must never take it for one of the new
// one.
type bucketNumbers struct {
	generation, stability, rollback uint64
}

// above returns the higher of each.
func (n bucketNumbers) above(o bucketNumbers) bucketNumbers {
	return bucketNumbers{max(n.generation, o.generation), max(n.stability, o.stability), max(n.rollback, o.rollback)}
}

// forgetBucket forgets a bucket that KV has deleted, once nothing needs it any more: no index is on it, not even one
// whose hosts still have to let go of it, and nothing is set of it. Components have not been told of it since it is
// gone.
func (t *tx) forgetBucket(name string) {
	b := t.s.Bucket(name)
	if b == nil || !b.Gone {
		return
	}
	for x := range t.s.Indexes() {
		if x.Definition.Bucket == name {
			return
		}
	}
	t.dropBucket(b)
}

// forgetBuckets is forgetBucket for all of them.
func (t *tx) forgetBuckets() {
	needed := make(map[string]bool)
	for x := range t.s.Indexes() {
		needed[x.Definition.Bucket] = true
	}
	var gone []*Bucket
	for b := range t.s.Buckets() {
		if b.Gone && !needed[b.Name] {
			gone = append(gone, b)
		}
	}
	for _, b := range gone {
		t.dropBucket(b)
	}
}

// dropBucket takes a bucket away, unless something is set of it.
func (t *tx) dropBucket(b *Bucket) {
	if _, set := t.s.settings.Get(b.Name); set {
		return
	}
	own(&t.s.buckets, &t.owned.buckets).Delete(b.Name)
	t.s.passed = t.s.passed.above(bucketNumbers{b.Generation, b.Stability.Number, b.lastRollback()})
}
