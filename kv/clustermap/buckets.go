package clustermap

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ErrBuckets means that a bucket cannot be created, changed or dropped; the message gives the reason.
var ErrBuckets = errors.New("invalid change of buckets")

// Reasons for refusing a change of buckets; each wraps ErrBuckets.
var (
	// ErrNoBucket means that the named bucket does not exist.
	ErrNoBucket = fmt.Errorf("%w: there is no such bucket", ErrBuckets)
	// ErrBucketExists means that a bucket of that name already exists.
	ErrBucketExists = fmt.Errorf("%w: a bucket of that name already exists", ErrBuckets)
	// ErrTooManyBuckets means that the cluster already has MaxBuckets buckets.
	ErrTooManyBuckets = fmt.Errorf("%w: the limit of buckets is reached", ErrBuckets)
	// ErrKeepReplicas means that the caller is not permitted to change the number of replicas.
	ErrKeepReplicas = fmt.Errorf("%w: this user may not change its number of replicas", ErrBuckets)
	// ErrFixed means that the change concerns a setting that is fixed when the bucket is created.
	ErrFixed = fmt.Errorf("%w: this setting cannot be changed", ErrBuckets)
	// ErrRebalancing means that a rebalance is moving vbuckets.
	ErrRebalancing = fmt.Errorf("%w: a rebalance is running: wait for it, or stop it with kv rebalance --stop",
		ErrBuckets)
)

const (
	// MaxBuckets is the most buckets that a cluster may have when one more is created at run time: Couchbase's limit.
	MaxBuckets = 30
	// MaxVBuckets is the maximum number of vbuckets of a bucket.
	MaxVBuckets = 1024
	// MaxBucketName is the maximum length of a bucket's name.
	MaxBucketName = 100
)

// maxDropped is the maximum number of buckets, created at run time and dropped again, that the map records; the newest
// are kept.
const maxDropped = 256

// Dropped is a bucket that was dropped: nodes remove its data. A configured bucket stays listed, so that it is not
// created again when a node starts with a configuration that still names it.
type Dropped struct {
	Name string `json:"name"`
	UUID string `json:"uuid"`
	// Made means that the bucket was created while the cluster ran.
	Made bool `json:"made,omitempty"`
}

// HasDropped reports whether the map records that bucket as dropped. The oldest records are deleted (maxDropped).
func (m Map) HasDropped(name, uuid string) bool {
	return slices.ContainsFunc(m.Dropped, func(d Dropped) bool { return d.Name == name && d.UUID == uuid })
}

// BucketChange creates, edits or drops a bucket.
type BucketChange struct {
	Name string `json:"name"`
	// UUID of a new bucket is assigned by the leader; with Drop or Edit a non-empty UUID must be that of the existing
	// bucket.
	UUID string `json:"uuid,omitempty"`
	// VBuckets, with Edit and unless 0, must equal the bucket's number of vbuckets.
	VBuckets int `json:"vbuckets,omitempty"`
	Replicas int `json:"replicas,omitempty"`
	// NoFlush creates a bucket that cannot be flushed.
	NoFlush bool `json:"no_flush,omitempty"`
	Drop    bool `json:"drop,omitempty"`
	// Edit changes the existing bucket.
	Edit *BucketEdit `json:"edit,omitempty"`
}

// BucketEdit holds the settings of a bucket that may change; a nil field leaves the setting as it is.
type BucketEdit struct {
	Replicas *int  `json:"replicas,omitempty"`
	NoFlush  *bool `json:"no_flush,omitempty"`
	// KeepReplicas refuses Replicas that differ from the bucket's, with ErrKeepReplicas, and creates no missing
	// replicas.
	KeepReplicas bool `json:"-"`
	// Operation is the id of the rebalance that a change of Replicas starts; the leader assigns it.
	Operation string `json:"operation,omitempty"`
}

// BucketOf returns the bucket with this name and uuid; nil if there is none, or if the bucket of that name has
// another uuid.
func (m Map) BucketOf(name, uuid string) *Bucket {
	if b := m.Bucket(name); b != nil && b.UUID == uuid {
		return b
	}
	return nil
}

// ChangeBuckets applies a change. A new bucket's vbuckets are spread over the members as in the first map. A change
// without effect returns the map unchanged. Error: ErrBuckets.
func (m Map) ChangeBuckets(c BucketChange) (Map, error) {
	have, old := m.Bucket(c.Name), c.Drop || c.Edit != nil
	switch {
	case old && (have == nil || c.UUID != "" && have.UUID != c.UUID):
		return m, fmt.Errorf("%w: %q", ErrNoBucket, c.Name)
	case c.Edit != nil && !c.Drop:
		return m.editBucket(c)
	case !old && have != nil:
		return m, fmt.Errorf("%w: %q", ErrBucketExists, c.Name)
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

// mayMake checks the request for a new bucket.
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

// ValidBucketName reports whether name is a valid bucket name.
func ValidBucketName(name string) bool { return Plain(name, MaxBucketName, "._%-") && name[0] != '.' }

// Plain reports whether text consists of 1 to most characters, each an ASCII letter, a digit or one of others (also
// ASCII).
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

// editBucket returns the map with changed settings of an existing bucket.
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

// setReplicas sets a bucket's number of replicas, and reports whether that changes anything. It begins an operation
// that creates or removes replicas, as far as there are nodes for them. It does so for an unchanged number, too, if
// some vbuckets have a different number of copies because an earlier operation was stopped, or aborted by a failover.
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

// dropBucket returns the map without the bucket and its roles: a later bucket of that name is a different one.
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

// checkSpecs refuses a map that lacks a configured bucket, or has another bucket that was not created at run time.
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
		return fmt.Errorf("%w: the cluster has %d buckets, %d are configured: configure the same buckets on every "+
			"node", ErrMap,
			configured, wanted)
	}
	return nil
}
