package clustermap

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ErrBuckets means that a bucket is not made, changed or dropped; the message says why.
var ErrBuckets = errors.New("buckets cannot be changed so")

// What a change of buckets is refused for; all are ErrBuckets.
var (
	// ErrNoBucket names a bucket that there is none of.
	ErrNoBucket = fmt.Errorf("%w: there is no such bucket", ErrBuckets)
	// ErrBucketThere says that there is a bucket of that name.
	ErrBucketThere = fmt.Errorf("%w: a bucket of that name exists already", ErrBuckets)
	// ErrTooManyBuckets says that there are MaxBuckets.
	ErrTooManyBuckets = fmt.Errorf("%w: there are as many buckets as there may be", ErrBuckets)
	// ErrKeepReplicas says that whoever asks may not change the number of replicas.
	ErrKeepReplicas = fmt.Errorf("%w: its number of replicas is not this user's to change", ErrBuckets)
	// ErrFixed says that a bucket keeps what was asked to be changed.
	ErrFixed = fmt.Errorf("%w: that stays as it was made", ErrBuckets)
	// ErrRebalancing says that vbuckets change hands.
	ErrRebalancing = fmt.Errorf("%w: a rebalance is under way: wait for it, or stop it with kv rebalance --stop",
		ErrBuckets)
)

const (
	// MaxBuckets is the most buckets that a cluster has by making more: what Couchbase allows.
	MaxBuckets = 30
	// MaxVBuckets is the most vbuckets of a bucket.
	MaxVBuckets = 1024
	// MaxBucketName is the length of the longest name of a bucket.
	MaxBucketName = 100
)

// maxDropped is how many of the buckets that were made and dropped again are remembered, the newest.
const maxDropped = 256

// Dropped is a bucket that is dropped: nodes remove what they have of it. With one that is configured nodes are still
// started: it is not made again.
type Dropped struct {
	Name string `json:"name"`
	UUID string `json:"uuid"`
	// Made is one that was made while the cluster ran.
	Made bool `json:"made,omitempty"`
}

// HasDropped reports whether a bucket was dropped, as far as the map remembers.
func (m Map) HasDropped(name, uuid string) bool {
	return slices.ContainsFunc(m.Dropped, func(d Dropped) bool { return d.Name == name && d.UUID == uuid })
}

// BucketChange makes a bucket, changes one, or drops one.
type BucketChange struct {
	Name string `json:"name"`
	// UUID of the bucket that is made is the leader's to give; with Drop or Edit it is, unless empty, that of the bucket
	// meant.
	UUID string `json:"uuid,omitempty"`
	// VBuckets, with Edit and unless 0, has to be the number that the bucket has.
	VBuckets int `json:"vbuckets,omitempty"`
	Replicas int `json:"replicas,omitempty"`
	// NoFlush makes a bucket that cannot be flushed.
	NoFlush bool `json:"no_flush,omitempty"`
	Drop    bool `json:"drop,omitempty"`
	// Edit changes the bucket that there is.
	Edit *BucketEdit `json:"edit,omitempty"`
}

// BucketEdit are settings of a bucket that may change; what is nil stays as it is.
type BucketEdit struct {
	Replicas *int  `json:"replicas,omitempty"`
	NoFlush  *bool `json:"no_flush,omitempty"`
	// KeepReplicas refuses other Replicas than the bucket has, with ErrKeepReplicas, and makes none that are missing.
	KeepReplicas bool `json:"-"`
	// Operation is the id of the rebalance that follows from Replicas, the leader's to give.
	Operation string `json:"operation,omitempty"`
}

// BucketOf finds the part of the bucket with this name and uuid; nil when there is none, or another one of that name.
func (m Map) BucketOf(name, uuid string) *Bucket {
	if b := m.Bucket(name); b != nil && b.UUID == uuid {
		return b
	}
	return nil
}

// ChangeBuckets makes a change. A new bucket's vbuckets are spread over the members as in the first map. A change that
// changes nothing gives the map unchanged. Error: ErrBuckets.
func (m Map) ChangeBuckets(c BucketChange) (Map, error) {
	have, old := m.Bucket(c.Name), c.Drop || c.Edit != nil
	switch {
	case old && (have == nil || c.UUID != "" && have.UUID != c.UUID):
		return m, fmt.Errorf("%w: %q", ErrNoBucket, c.Name)
	case c.Edit != nil && !c.Drop:
		return m.editBucket(c)
	case !old && have != nil:
		return m, fmt.Errorf("%w: %q", ErrBucketThere, c.Name)
	case m.Operation != nil:
		return m, ErrRebalancing
	case c.Drop:
		return m.dropBucket(have), nil
	}
	if err := m.mayMake(c); err != nil {
		return m, err
	}
	n := m.next()
	n.Buckets = append(n.Buckets, Bucket{Name: c.Name, UUID: c.UUID, Replicas: c.Replicas, Made: true,
		NoFlush: c.NoFlush, Chains: chains(m.Nodes, c.VBuckets, c.Replicas)})
	return n, nil
}

// mayMake checks what is asked of a new bucket.
func (m Map) mayMake(c BucketChange) error {
	switch {
	case !ValidBucketName(c.Name):
		return fmt.Errorf("%w: bucket name %q: want 1 to %d letters, digits, '.', '_', '%%' or '-', not beginning with '.'",
			ErrBuckets, c.Name, MaxBucketName)
	case c.UUID == "":
		return fmt.Errorf("%w: bucket %q without a uuid", ErrBuckets, c.Name)
	case !validVBuckets(c.VBuckets):
		return fmt.Errorf("%w: bucket %q: %d vbuckets: want a power of two up to %d", ErrBuckets, c.Name, c.VBuckets,
			MaxVBuckets)
	case c.VBuckets < len(m.Nodes):
		return fmt.Errorf("%w: bucket %q: %d vbuckets for %d nodes: want at least one each", ErrBuckets, c.Name, c.VBuckets,
			len(m.Nodes))
	case !validReplicas(c.Replicas):
		return wrongReplicas(c.Name, c.Replicas)
	case len(m.Buckets) >= MaxBuckets:
		return fmt.Errorf("%w (%d): drop one first", ErrTooManyBuckets, MaxBuckets)
	}
	return nil
}

// ValidBucketName reports whether a bucket may have this name.
func ValidBucketName(name string) bool { return Plain(name, MaxBucketName, "._%-") && name[0] != '.' }

// Plain reports whether a text is made of 1 to most ASCII letters, digits and those of others, which are ASCII too.
func Plain(text string, most int, others string) bool {
	return text != "" && len(text) <= most && !strings.ContainsFunc(text, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune(others, r)
	})
}

func validVBuckets(n int) bool { return n > 0 && n <= MaxVBuckets && n&(n-1) == 0 }

func validReplicas(n int) bool { return n >= 0 && n <= MaxReplicas }

func wrongReplicas(bucket string, n int) error {
	return fmt.Errorf("%w: bucket %q: %d replicas: want 0 to %d", ErrBuckets, bucket, n, MaxReplicas)
}

// editBucket is the map with other settings of a bucket that there is.
func (m Map) editBucket(c BucketChange) (Map, error) {
	n, e := m.next(), c.Edit
	b := n.Bucket(c.Name)
	if c.VBuckets != 0 && c.VBuckets != len(b.Chains) {
		return m, fmt.Errorf("%w: bucket %q has %d vbuckets, not %d", ErrFixed, c.Name, len(b.Chains), c.VBuckets)
	}
	changed := false
	if e.NoFlush != nil && *e.NoFlush != b.NoFlush {
		b.NoFlush, changed = *e.NoFlush, true
	}
	if e.Replicas != nil {
		other, err := n.setReplicas(b, e)
		if err != nil {
			return m, err
		}
		changed = changed || other
	}
	if !changed {
		return m, nil
	}
	return n, nil
}

// setReplicas gives a bucket its number of replicas, and reports whether that changes something. It begins an operation
// that makes or removes them, where there are the nodes for it: also for the number that the bucket has where vbuckets
// have another one, as an operation was stopped, or given up by a failover.
func (m *Map) setReplicas(b *Bucket, e *BucketEdit) (changed bool, err error) {
	same, copies := *e.Replicas == b.Replicas, min(*e.Replicas+1, len(m.Nodes))
	has := !slices.ContainsFunc(b.Chains, func(chain []string) bool { return len(chain) != copies })
	switch {
	case !validReplicas(*e.Replicas):
		return false, wrongReplicas(b.Name, *e.Replicas)
	case same && (has || e.KeepReplicas || m.Operation != nil):
		return false, nil
	case e.KeepReplicas:
		return false, fmt.Errorf("%w: bucket %q", ErrKeepReplicas, b.Name)
	case m.Operation != nil:
		return false, ErrRebalancing
	}
	b.Replicas = *e.Replicas
	m.Operation = m.replicate(e.Operation, b)
	return true, nil
}

// dropBucket is the map without a bucket, and without the roles for it: one that is made under its name is another one.
func (m Map) dropBucket(b *Bucket) Map {
	n := m.next()
	n.Dropped = append(slices.Clone(n.Dropped), Dropped{Name: b.Name, UUID: b.UUID, Made: b.Made})
	made, oldest := 0, -1
	for i := range n.Dropped {
		if n.Dropped[i].Made {
			if made++; oldest < 0 {
				oldest = i
			}
		}
	}
	if made > maxDropped {
		n.Dropped = slices.Delete(n.Dropped, oldest, oldest+1)
	}
	n.Buckets = slices.DeleteFunc(n.Buckets, func(x Bucket) bool { return x.Name == b.Name })
	n.takeRoles(b.Name, "", "")
	return n
}

// checkSpecs refuses a map that does not have the buckets that are configured, or has others that were not made later.
func (m Map) checkSpecs(specs []Spec) error {
	configured := 0
	for _, b := range m.Buckets {
		if !b.Made {
			configured++
		}
	}
	wanted := 0
	for _, s := range specs {
		if m.HasDropped(s.Name, s.UUID) {
			continue
		}
		wanted++
		switch b := m.BucketOf(s.Name, s.UUID); {
		case b == nil:
			return fmt.Errorf("%w: the cluster has no bucket %q (%s): a bucket keeps its name and uuid", ErrMap, s.Name, s.UUID)
		case len(b.Chains) != s.VBuckets:
			return fmt.Errorf("%w: bucket %q was made with %d vbuckets, wanted %d: the number cannot change", ErrMap, s.Name,
				len(b.Chains), s.VBuckets)
		}
	}
	if configured != wanted {
		return fmt.Errorf("%w: the cluster has %d buckets, configured are %d: name the same buckets on every node", ErrMap,
			configured, wanted)
	}
	return nil
}
