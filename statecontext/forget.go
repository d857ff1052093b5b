package statecontext

// bucketNumbers holds the highest numbers of the buckets that were forgotten. The numbers of a new bucket begin above
// them: an indexer may still hold a stability timestamp of an older bucket with the same name, and must never take it
// for one of the new bucket.
type bucketNumbers struct {
	generation, stability, rollback uint64
}

// above returns the maximum of each number.
func (n bucketNumbers) above(o bucketNumbers) bucketNumbers {
	return bucketNumbers{max(n.generation, o.generation), max(n.stability, o.stability), max(n.rollback, o.rollback)}
}

// forgetBucket removes a bucket that KV has deleted, once nothing refers to it: it has no settings and no index, not
// even an index whose hosts are still deleting copies. Components do not receive a bucket that is gone, so the
// definitions revision stays.
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

// forgetBuckets is forgetBucket for all buckets.
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

// dropBucket removes a bucket, unless it has settings.
func (t *tx) dropBucket(b *Bucket) {
	if _, set := t.s.settings.Get(b.Name); set {
		return
	}
	own(&t.s.buckets, &t.owned.buckets).Delete(b.Name)
	t.s.passed = t.s.passed.above(bucketNumbers{b.Generation, b.Stability.Number, b.lastRollback()})
}
