package scan

import (
	"bytes"
	"encoding/json"
	"sort"

	"tidemark/collate"
	"tidemark/errcode"
)

// MaxIn bounds the values of a condition.
const MaxIn = 1024

// Condition is a condition on one component of the key: it is one of In, equals Equal, or lies between Low and High.
// null is NULL; a missing bound is open.
type Condition struct {
	Component int               `json:"component"` // from 0
	Equal     json.RawMessage   `json:"equal"`
	In        []json.RawMessage `json:"in"`
	Low       json.RawMessage   `json:"low"`
	High      json.RawMessage   `json:"high"`
	Inclusion Inclusion         `json:"inclusion"`
}

// Filter is a condition in the form that nodes check: the component's bytes, as stored, are in one of the ranges. No
// encoded component is a prefix of another, so what holds for a component's bytes holds for all keys that continue
// from there.
type Filter struct {
	Component int     `json:"component"`
	Ranges    []Range `json:"ranges"` // sorted and disjoint; none: no row matches
}

// where checks and encodes the conditions, sorted by component.
func (s *Spec) where(all []Condition) error {
	for i := range all {
		c := &all[i]
		if c.Component < 0 || c.Component >= len(s.Desc) {
			return Errorf(errcode.BadRequest, "where[%d] has component %d: a key of this index has the components 0 to %d", i,
				c.Component, len(s.Desc)-1)
		}
		for _, f := range s.Where {
			if f.Component == c.Component {
				return Errorf(errcode.BadRequest, "where has two conditions on component %d: give one, with in, or with low and "+
					"high", c.Component)
			}
		}
		ranges, err := c.compile(s.Desc[c.Component])
		if err != nil {
			return Errorf(errcode.BadRequest, "where[%d]: %s", i, AsError(err).Detail)
		}
		s.Where = append(s.Where, Filter{Component: c.Component, Ranges: ranges})
	}
	sort.Slice(s.Where, func(i, j int) bool { return s.Where[i].Component < s.Where[j].Component })
	return nil
}

// narrow intersects the ranges with a condition on the first component, whose ranges are also ranges of keys. If a
// condition cannot be met, no row is read.
func (s *Spec) narrow() {
	for _, f := range s.Where {
		if len(f.Ranges) == 0 {
			s.Ranges, s.Where = nil, nil
			return
		}
	}
	if len(s.Where) == 0 || s.Where[0].Component != 0 {
		return
	}
	if both := intersect(s.Ranges, s.Where[0].Ranges); len(both) <= MaxRanges {
		s.Ranges, s.Where = both, s.Where[1:]
	}
}

// compile returns the bytes that the component may have.
func (c *Condition) compile(desc bool) ([]Range, error) {
	switch given := howMany(c.Equal != nil, c.In != nil, c.Low != nil || c.High != nil); {
	case given != 1:
		return nil, Errorf(errcode.BadRequest, "want one of equal, in, or low with high; %d are given", given)
	case c.Inclusion != "" && c.Low == nil && c.High == nil:
		return nil, Errorf(errcode.BadRequest, "inclusion requires low and high")
	case len(c.In) > MaxIn:
		return nil, Errorf(errcode.BadRequest, "%d values in in, want at most %d", len(c.In), MaxIn)
	}
	if c.Low != nil || c.High != nil {
		return compileBounds(&Bounds{Low: oneBound(c.Low), High: oneBound(c.High), Inclusion: c.Inclusion}, desc)
	}
	values := c.In
	if c.Equal != nil {
		values = []json.RawMessage{c.Equal}
	}
	ranges := make([]Range, 0, len(values))
	for _, v := range values {
		one, err := compileBounds(&Bounds{Low: oneBound(v), High: oneBound(v)}, desc)
		if err != nil {
			return nil, err
		}
		ranges = append(ranges, one...)
	}
	return mergeRanges(ranges), nil
}

func oneBound(v json.RawMessage) []json.RawMessage {
	if v == nil {
		return nil
	}
	return []json.RawMessage{v}
}

// compileBounds encodes bounds of one component; it returns none if no value lies between them.
func compileBounds(b *Bounds, desc bool) ([]Range, error) {
	r, some, err := b.compile([]bool{desc})
	if err != nil || !some {
		return nil, err
	}
	return []Range{r}, nil
}

func checkFilters(filters []Filter, components int) error {
	before := -1
	for _, f := range filters {
		if f.Component <= before || f.Component >= components || len(f.Ranges) > MaxIn {
			return Errorf(errcode.BadRequest, "a filter of component %d behind %d, of %d, with %d ranges", f.Component, before,
				components, len(f.Ranges))
		}
		before = f.Component
	}
	return nil
}

// sieve checks whether rows meet the conditions, and where the next one may be that does.
type sieve struct {
	filters []Filter
	desc    []bool // of the key's components
	reverse bool
}

// far is derived from a row that fails the conditions: no row before bound meets them (in reverse: no row at or above
// bound).
type far struct {
	bound []byte
	none  bool // no further row meets them
}

// takes reports whether a row's key meets the conditions, and if not, where to continue. It returns an error for a
// damaged key.
func (s *sieve) takes(key []byte) (bool, far, error) {
	rest, at := key, 0
	for i := range s.filters {
		f := &s.filters[i]
		var component []byte
		for ; at <= f.Component; at++ {
			var err error
			if component, rest, err = collate.Next(rest, at < len(s.desc) && s.desc[at]); err != nil {
				return false, far{}, Errorf(errcode.Damaged, "a stored key: %w", err)
			}
		}
		prefix := key[:len(key)-len(rest)-len(component)]
		if s.reverse {
			if in, to := f.below(component, prefix); !in {
				return false, to, nil
			}
		} else if in, to := f.above(component, prefix); !in {
			return false, to, nil
		}
	}
	return true, far{}, nil
}

// above reports whether a component is in the ranges, and if not, the low bound of the next keys that may match.
func (f *Filter) above(component, prefix []byte) (bool, far) {
	i := sort.Search(len(f.Ranges), func(i int) bool {
		return f.Ranges[i].High == nil || bytes.Compare(component, f.Ranges[i].High) < 0
	})
	if i == len(f.Ranges) { // with this prefix there is nothing left
		end := collate.PrefixEnd(prefix)
		return false, far{bound: end, none: end == nil}
	}
	if low := f.Ranges[i].Low; bytes.Compare(component, low) < 0 {
		return false, far{bound: join(prefix, low)}
	}
	return true, far{}
}

// below is above for a reverse scan: it returns the high bound, which is exclusive.
func (f *Filter) below(component, prefix []byte) (bool, far) {
	i := sort.Search(len(f.Ranges), func(i int) bool { return bytes.Compare(component, f.Ranges[i].Low) < 0 }) - 1
	if i < 0 {
		return false, far{bound: bytes.Clone(prefix), none: len(prefix) == 0}
	}
	if high := f.Ranges[i].High; high != nil && bytes.Compare(component, high) >= 0 {
		return false, far{bound: join(prefix, high)}
	}
	return true, far{}
}

func join(a, b []byte) []byte { return append(append(make([]byte, 0, len(a)+len(b)), a...), b...) }

// passed reports whether a key lies where no row meets the conditions.
func (t *far) passed(key []byte, reverse bool) bool {
	if reverse {
		return t.none || bytes.Compare(key, t.bound) >= 0
	}
	return t.none || bytes.Compare(key, t.bound) < 0
}

// rest returns what remains of a range there; false if nothing.
func (t *far) rest(r Range, reverse bool) (Range, bool) {
	switch {
	case t.none:
		return r, false
	case reverse:
		if r.High == nil || bytes.Compare(t.bound, r.High) < 0 {
			r.High = t.bound
		}
	case bytes.Compare(t.bound, r.Low) > 0:
		r.Low = t.bound
	}
	return r, r.Low == nil || r.High == nil || bytes.Compare(r.Low, r.High) < 0
}
