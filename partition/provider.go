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

// MaxPartitions is the most slices an index may have.
const MaxPartitions = 1024

// MaxBound is the most bytes of one bound of a layout.
const MaxBound = 4096

var (
	// ErrLayout is wrapped when a layout cannot be used.
	ErrLayout = errors.New("bad partition layout")
	// ErrDefinition is wrapped when a definition says something about partitions that no layout can do.
	ErrDefinition = errors.New("bad partition definition")
)

// KeyVersion is what a provider looks at: the document id and, for layouts by key, the secondary key.
type KeyVersion struct {
	DocID []byte
	Key   []byte
}

// TopologyProvider is IM-5: the partition algorithm of one index, made of its layout. Routers ask it where an entry
// goes, scans where entries may be; which nodes hold a slice is in the Topology. All answers follow from the layout and
// the arguments alone. It may be shared.
type TopologyProvider interface {
	// ByKey reports whether entries of one document may lie in several slices, and move between them when the document
	// changes; if not, the slice follows from the document's id.
	ByKey() bool
	// Ordered reports whether the slices stand one behind the other in the order of the index.
	Ordered() bool
	// Slice returns the slice of an entry. What is no key has a slice, too.
	Slice(kv KeyVersion) index.SliceID
	// MayHold marks, of one element per slice, those that may hold an entry whose key followed by its document id lies in
	// [low, high); nil is open.
	MayHold(marked []bool, low, high []byte)
}

// Kind is a partition algorithm: how a definition asks for it, and the provider of a layout.
type Kind struct {
	Scheme Scheme // part of the stored format
	Name   string // in messages
	// By is the word of PARTITION BY, in lower case; "" for an index without.
	By index.PartitionScheme
	// Leading tells that PARTITION BY takes one expression, the leading key. Else it takes any: those that are no keys
	// become the last ones.
	Leading bool
	// Values tells that PARTITION BY takes ascending VALUES, one less than there are slices.
	Values bool
	// Folds tells that of 2n slices, i and n+i hold together what slice i of n slices holds.
	Folds bool
	// LayOut says in a layout what the definition, whose expressions are canonical, asks for; Scheme and Partitions stand
	// there already. Errors wrap ErrDefinition.
	LayOut func(l *Layout, d *index.Definition) error
	// Provider checks a layout of this scheme and makes its provider. Errors wrap ErrLayout.
	Provider func(l *Layout) (TopologyProvider, error)
}

// kinds are the algorithms of this program, by scheme. They are there before the program begins, and stay.
var kinds [256]*Kind

// Register adds an algorithm, once, while package variables are made: managers of one version must know the same ones.
func Register(k Kind) Kind {
	if _, taken := KindBy(k.By); taken || kinds[k.Scheme] != nil {
		panic(fmt.Sprintf("partition: scheme %d or %q of %s is taken", k.Scheme, k.By, k.Name))
	}
	kinds[k.Scheme] = &k
	return k
}

// KindBy returns the algorithm that PARTITION BY names with this word; "" is an index without it.
func KindBy(word index.PartitionScheme) (Kind, bool) {
	for _, k := range kinds {
		if k != nil && k.By == word {
			return *k, true
		}
	}
	return Kind{}, false
}

// String returns the name used in messages.
func (s Scheme) String() string {
	if k := kinds[s]; k != nil {
		return k.Name
	}
	return fmt.Sprintf("scheme(%d)", uint8(s))
}

// By returns the word of PARTITION BY that asks for the scheme; false when this version does not know it.
func (s Scheme) By() (index.PartitionScheme, bool) {
	if k := kinds[s]; k != nil {
		return k.By, true
	}
	return "", false
}

// Layout is the concrete, replicated form of a TopologyProvider: a scheme with what its algorithm needs, as data. Two
// layouts are compared by Equal.
type Layout struct {
	Scheme     Scheme `json:"scheme"`
	Partitions uint16 `json:"partitions"`
	// Components are those components of the key, ascending from 0, that hash(key) hashes.
	Components []uint16 `json:"components,omitempty"`
	// Desc returns the direction of each component of the key up to the last one that is hashed.
	Desc []bool `json:"desc,omitempty"`
	// Bounds cut the keys of range(key), in the order of the index and ascending: slice 0 holds the keys below the first
	// one, slice i those from Bounds[i-1] (included) to Bounds[i] (excluded), the last one all others.
	Bounds [][]byte `json:"bounds,omitempty"`
}

// LayoutOf returns the layout that a definition asks for. Its expressions are canonical. Errors wrap ErrDefinition or
// ErrLayout.
func LayoutOf(d *index.Definition) (Layout, error) {
	k, known := KindBy(d.PartitionBy.Scheme)
	if !known {
		return Layout{}, fmt.Errorf("%w: scheme %q, known: %s", ErrDefinition, d.PartitionBy.Scheme, words())
	}
	l := Layout{Scheme: k.Scheme, Partitions: d.Partitions}
	err := k.LayOut(&l, d)
	if err == nil {
		err = l.Check()
	}
	return l, err
}

// words lists what PARTITION BY may say, for people.
func words() (all string) {
	for _, k := range kinds {
		if k != nil && k.By != "" {
			all += fmt.Sprintf("%q ", string(k.By))
		}
	}
	return all[:len(all)-1]
}

// Provider returns the algorithm of the layout, as data made callable. Errors wrap ErrLayout: the layout is not one
// that this version knows.
func (l *Layout) Provider() (TopologyProvider, error) {
	if l.Partitions == 0 || l.Partitions > MaxPartitions {
		return nil, fmt.Errorf("%w: %d partitions, want 1 to %d", ErrLayout, l.Partitions, MaxPartitions)
	}
	k := kinds[l.Scheme]
	if k == nil {
		return nil, fmt.Errorf("%w: scheme %d is not known to this version", ErrLayout, l.Scheme)
	}
	return k.Provider(l)
}

// Check returns an error wrapping ErrLayout when the layout is not one this version knows.
func (l *Layout) Check() error {
	_, err := l.Provider()
	return err
}

// has refuses a layout that carries what its algorithm does not read: two that place alike are equal.
func (l *Layout) has(components, bounds bool) error {
	if !components && len(l.Components)+len(l.Desc) > 0 || !bounds && len(l.Bounds) > 0 {
		return fmt.Errorf("%w: %s with %d components, %d directions and %d bounds", ErrLayout, l.Scheme, len(l.Components),
			len(l.Desc), len(l.Bounds))
	}
	return nil
}

// Equal reports whether both place everything alike.
func (l *Layout) Equal(o *Layout) bool {
	return l.Scheme == o.Scheme && l.Partitions == o.Partitions && slices.Equal(l.Components, o.Components) &&
		slices.Equal(l.Desc, o.Desc) &&
		slices.EqualFunc(l.Bounds, o.Bounds, bytes.Equal)
}
