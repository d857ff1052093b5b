package partition

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"tidemark/index"
)

// Scheme is the number of a partition algorithm in the stored format.
type Scheme uint8

// MaxPartitions is the maximum number of slices of an index.
const MaxPartitions = 1024

// MaxBound is the maximum size of one bound of a layout, in bytes.
const MaxBound = 4096

var (
	// ErrLayout is wrapped if a layout is invalid.
	ErrLayout = errors.New("bad partition layout")
	// ErrDefinition is wrapped if the partitioning in a definition is not possible in any layout.
	ErrDefinition = errors.New("bad partition definition")
)

// KeyVersion is the input of a provider: the document id and, for layouts by key, the secondary key.
type KeyVersion struct {
	DocID []byte
	Key   []byte
}

// TopologyProvider is IM-5: the partition algorithm of one index, created from its layout. Routers ask it for the
// slice of an entry, scans for the slices that may have entries; the Topology has the nodes of a slice. All results
// depend on the layout and the arguments alone. It is safe for concurrent use.
type TopologyProvider interface {
	// ByKey reports whether entries of one document may be in several slices, and move between them when the document
	// changes. Otherwise the document's id determines the slice.
	ByKey() bool
	// Ordered reports whether the slices are consecutive ranges in the order of the index.
	Ordered() bool
	// Slice returns the slice of an entry. Invalid keys have a slice, too.
	Slice(kv KeyVersion) index.SliceID
	// MayHold marks the slices that may have an entry whose key followed by its document id is in [low, high); nil is
	// open. marked has one element per slice.
	MayHold(marked []bool, low, high []byte)
}

// Kind is a partition algorithm: its form in a definition, and the provider of a layout.
type Kind struct {
	Scheme Scheme // part of the stored format
	Name   string // in messages
	// By is the word of PARTITION BY, in lower case; "" for an index without one.
	By index.PartitionScheme
	// Leading is set if PARTITION BY takes one expression, the leading key. Otherwise it takes any: those that are not
	// keys are appended to the keys.
	Leading bool
	// Values is set if PARTITION BY takes ascending VALUES, one less than there are slices.
	Values bool
	// Folds is set if slices i and n+i of 2n slices together have the entries of slice i of n slices.
	Folds bool
	// LayOut sets the fields of a layout according to the definition, whose expressions are canonical. Scheme and
	// Partitions are set already. Errors wrap ErrDefinition.
	LayOut func(l *Layout, d *index.Definition) error
	// Provider checks a layout of this scheme and returns its provider. Errors wrap ErrLayout.
	Provider func(l *Layout) (TopologyProvider, error)
}

// kinds has the algorithms of this program, by scheme. It is complete before main starts, and does not change
// afterwards.
var kinds [256]*Kind

// Register adds an algorithm. It is called from package variables only: all managers of one version must have the
// same ones.
func Register(k Kind) Kind {
	if _, taken := KindBy(k.By); taken || kinds[k.Scheme] != nil {
		panic(fmt.Sprintf("partition: scheme %d or %q of %s is already registered", k.Scheme, k.By, k.Name))
	}
	kinds[k.Scheme] = &k
	return k
}

// KindBy returns the algorithm with this word in PARTITION BY; "" is an index without it.
func KindBy(word index.PartitionScheme) (Kind, bool) {
	for _, k := range kinds {
		if k != nil && k.By == word {
			return *k, true
		}
	}
	return Kind{}, false
}

// String returns the name in messages.
func (s Scheme) String() string {
	if k := kinds[s]; k != nil {
		return k.Name
	}
	return fmt.Sprintf("scheme(%d)", uint8(s))
}

// By returns the word of PARTITION BY for the scheme; ok is false if this version does not support it.
func (s Scheme) By() (index.PartitionScheme, bool) {
	if k := kinds[s]; k != nil {
		return k.By, true
	}
	return "", false
}

// Layout is the concrete, replicated form of a TopologyProvider: a scheme and the parameters of its algorithm.
// Layouts are compared by Equal.
type Layout struct {
	Scheme     Scheme `json:"scheme"`
	Partitions uint16 `json:"partitions"`
	// Components are the components of the key that hash(key) hashes, ascending from 0.
	Components []uint16 `json:"components,omitempty"`
	// Desc has the direction of each component of the key up to the last one that is hashed.
	Desc []bool `json:"desc,omitempty"`
	// Bounds divide the keys of range(key), ascending in the order of the index: slice 0 holds the keys below the first
	// one, slice i those from Bounds[i-1] (inclusive) to Bounds[i] (exclusive), the last slice all others.
	Bounds [][]byte `json:"bounds,omitempty"`
}

// LayoutOf returns the layout for a definition, whose expressions must be canonical. Errors wrap ErrDefinition or
// ErrLayout.
func LayoutOf(d *index.Definition) (Layout, error) {
	k, known := KindBy(d.PartitionBy.Scheme)
	if !known {
		return Layout{}, fmt.Errorf("%w: scheme %q is unknown; supported are "+
			"%s", ErrDefinition, d.PartitionBy.Scheme, words())
	}
	l := Layout{Scheme: k.Scheme, Partitions: d.Partitions}
	err := k.LayOut(&l, d)
	if err == nil {
		err = l.Check()
	}
	return l, err
}

// words returns the schemes that PARTITION BY accepts, for people.
func words() (all string) {
	for _, k := range kinds {
		if k != nil && k.By != "" {
			all += fmt.Sprintf("%q ", string(k.By))
		}
	}
	return all[:len(all)-1]
}

// Provider returns the algorithm of the layout. Errors wrap ErrLayout: this version does not support the layout.
func (l *Layout) Provider() (TopologyProvider, error) {
	if l.Partitions == 0 || l.Partitions > MaxPartitions {
		return nil, fmt.Errorf("%w: %d partitions, want 1 to %d", ErrLayout, l.Partitions, MaxPartitions)
	}
	k := kinds[l.Scheme]
	if k == nil {
		return nil, fmt.Errorf("%w: this version does not support scheme %d", ErrLayout, l.Scheme)
	}
	return k.Provider(l)
}

// Check returns an error wrapping ErrLayout if this version does not support the layout.
func (l *Layout) Check() error {
	_, err := l.Provider()
	return err
}

// has refuses a layout with parameters that its algorithm does not use, so that equivalent layouts are equal.
func (l *Layout) has(components, bounds bool) error {
	if !components && len(l.Components)+len(l.Desc) > 0 || !bounds && len(l.Bounds) > 0 {
		return fmt.Errorf("%w: %s with %d components, %d directions and %d bounds", ErrLayout, l.Scheme, len(l.Components),
			len(l.Desc), len(l.Bounds))
	}
	return nil
}

// Equal reports whether l and o assign every entry to the same slice.
func (l *Layout) Equal(o *Layout) bool {
	return l.Scheme == o.Scheme && l.Partitions == o.Partitions && slices.Equal(l.Components, o.Components) &&
		slices.Equal(l.Desc, o.Desc) &&
		slices.EqualFunc(l.Bounds, o.Bounds, bytes.Equal)
}
