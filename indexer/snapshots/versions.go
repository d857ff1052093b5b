package snapshots

// mostVersions bounds the buckets that have a version of their own, those that are gone included; beyond it all are
// raised once.
const mostVersions = 1024

// Versions are numbers that say when what is known of a bucket has changed. The zero value is of a time before any
// change.
type Versions struct {
	last, all uint64
	of        map[string]uint64
}

// Raise says that what is known of a bucket has changed.
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

// RaiseAll says it of all buckets.
func (v *Versions) RaiseAll() {
	v.last++
	v.all = v.last
	clear(v.of)
}

// At is the version of a bucket until it is raised, and never again.
func (v *Versions) At(bucket string) uint64 { return max(v.all, v.of[bucket]) }
