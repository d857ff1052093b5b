package snapshots

// mostVersions bounds the buckets with a version of their own, including those that are gone; beyond it the versions
// of all buckets are raised once.
const mostVersions = 1024

// Versions holds numbers that change whenever the state of a bucket changes. The zero value is the version before any
// change.
type Versions struct {
	last, all uint64
	of        map[string]uint64
}

// Raise records that the state of a bucket has changed.
func (v *Versions) Raise(bucket string) {
	if _, known := v.of[bucket]; !known && len(v.of) >= mostVersions {
		v.RaiseAll()
	}
	if v.of == nil {
		v.of = map[string]uint64{}
	}
	v.last++
	v.of[bucket] = v.last
}

// RaiseAll records that the state of all buckets has changed.
func (v *Versions) RaiseAll() {
	v.last++
	v.all = v.last
	clear(v.of)
}

// At returns the version of a bucket. A version is never returned again once it was raised.
func (v *Versions) At(bucket string) uint64 { return max(v.all, v.of[bucket]) }
