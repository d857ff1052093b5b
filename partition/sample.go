package partition

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"sort"

	"tidemark/collate"
)

// Limits of the sample of one copy while its entries are read. Beyond either, half of the sample is discarded.
const (
	MaxSamples     = 1 << 17
	maxSampleBytes = 16 << 20
)

// Samples is a uniform random sample of the leading components of the keys of entries, which are added in any order.
// The zero value is empty.
type Samples struct {
	kept  [][]byte
	bytes int
	skip  uint64 // a component is kept if that many bits of the next draw are 0
	drawn uint64
}

// Add adds a copy of a component, collated and not complemented. If it is too long for a bound, it is truncated to
// what determines its order.
func (s *Samples) Add(component []byte) { s.AddWhole(component[:min(len(component), MaxBound)]) }

// AddWhole adds a copy of a key.
func (s *Samples) AddWhole(key []byte) {
	if s.skip > 0 && s.draw()&(1<<s.skip-1) != 0 {
		return
	}
	k := bytes.Clone(key)
	s.kept, s.bytes = append(s.kept, k), s.bytes+len(k)
	for len(s.kept) > MaxSamples || s.bytes > maxSampleBytes && len(s.kept) > 1 {
		s.skip++
		kept := s.kept[:0]
		s.bytes = 0
		for _, k := range s.kept {
			if s.draw()&1 == 0 { // random, as every second one may be the same array element of each document
				kept, s.bytes = append(kept, k), s.bytes+len(k)
			}
		}
		clear(s.kept[len(kept):])
		s.kept = kept
	}
}

// draw returns the next number of a fixed pseudo-random sequence (SplitMix64).
func (s *Samples) draw() uint64 {
	s.drawn += 0x9e3779b97f4a7c15
	z := s.drawn
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// Spread returns quantiles of the sample: at most n components of at most most bytes in total, ascending, the lowest
// first. Each stands for the same number of entries, starting with itself. of is the size of the sample. Samples is
// empty afterwards.
func (s *Samples) Spread(n, most int) (keys [][]byte, of int) {
	all := s.kept
	*s = Samples{}
	slices.SortFunc(all, bytes.Compare)
	for n = min(n, len(all)); n > 0; n /= 2 {
		size := 0
		keys = make([][]byte, n)
		for i := range keys {
			keys[i] = all[i*len(all)/n]
			size += len(keys[i])
		}
		if size <= most {
			return keys, len(all)
		}
	}
	return nil, len(all)
}

// Some returns at most n random elements of the sample, of at most most bytes in total. of is the size of the sample.
// Samples is empty afterwards.
func (s *Samples) Some(n, most int) (keys [][]byte, of int) {
	all := s.kept
	of = len(all)
	for i := range min(n, of) {
		j := i + int(s.draw()%uint64(of-i))
		all[i], all[j] = all[j], all[i]
		if most -= len(all[i]); most < 0 {
			n = i
			break
		}
	}
	*s = Samples{}
	return all[:min(n, of)], of
}

// Sample has the known leading keys of a slice.
type Sample struct {
	Rows int64    // number of its entries
	Of   int64    // number of entries of which the keys are quantiles
	Keys [][]byte // result of Samples.Spread
}

// doubt is the accepted probability that an error exceeds its bound.
const doubt = 1e-6

// off returns the maximum error of a quantile of Keys, as a fraction of the slice's entries: half the distance
// between two of them, plus the Dvoretzky-Kiefer-Wolfowitz bound for a sample.
func (s *Sample) off() float64 {
	if s.Rows == 0 {
		return 0
	}
	if len(s.Keys) == 0 || s.Of <= 0 {
		return 1
	}
	off := 0.0
	if s.Of > int64(len(s.Keys)) {
		off = 0.5 / float64(len(s.Keys))
	}
	if s.Of < s.Rows {
		off += math.Sqrt(math.Log(2/doubt) / 2 / float64(s.Of))
	}
	return min(off, 1)
}

// Cuts are values at which a range is divided.
type Cuts struct {
	Values []json.RawMessage
	// Largest is the fraction of the entries in the largest of the resulting slices, 0 to 1.
	Largest float64
	// Error is the maximum deviation of each value from its target, as a fraction of all entries.
	Error float64
	// Of is the total number of entries.
	Of int64
}

// weighted is a component with the number of entries for which it stands, and the number of those before it.
type weighted struct {
	key            []byte
	weight, before float64
}

// merged returns the keys of all slices in order; off is Cuts.Error.
func merged(of []Sample) (all []weighted, total, off float64) {
	for i := range of {
		s := &of[i]
		for _, k := range s.Keys {
			all = append(all, weighted{key: k, weight: float64(s.Rows) / float64(len(s.Keys))})
		}
		total += float64(s.Rows)
		off = max(off, float64(s.Rows)*s.off())
	}
	slices.SortFunc(all, func(a, b weighted) int { return bytes.Compare(a.key, b.key) })
	before := 0.0
	for i := range all {
		all[i].before = before
		before += all[i].weight
	}
	return all, before, off / max(total, 1)
}

// Quantiles returns the values that divide the sampled entries into n parts of equal size, ascending and without
// duplicates. There are fewer than n-1 if one value has more entries than a part; it is separated from what follows
// it. The lowest value is not included, since no entry precedes it. Errors wrap ErrDefinition: a key is invalid.
func Quantiles(of []Sample, n int) (c Cuts, err error) {
	all, total, off := merged(of)
	for i := range of {
		c.Of += of[i].Rows
	}
	if len(all) == 0 {
		return c, nil
	}
	last, first, most := 0, 0.0, 0.0
	for i := 1; i < n; i++ {
		target := float64(i) * total / float64(n)
		at := sort.Search(len(all), func(i int) bool { return all[i].before+all[i].weight/2 >= target })
		// skip the previous cut, and keys that are too long for a bound
		for at < len(all) && (bytes.Equal(all[at].key, all[last].key) || len(all[at].key) >= MaxBound) {
			at++
		}
		if at == len(all) || bytes.Compare(all[at].key, all[last].key) <= 0 { // the previous cut was moved beyond it
			continue
		}
		text, err := collate.Decode(nil, all[at].key)
		if err != nil {
			return Cuts{}, fmt.Errorf("%w: a split value: %w", ErrDefinition, err)
		}
		from := sort.Search(at, func(i int) bool { return bytes.Equal(all[i].key, all[at].key) })
		most, first = max(most, all[from].before-first), all[from].before
		c.Values, last = append(c.Values, text), at
	}
	c.Largest, c.Error = max(most, total-first)/total, off
	return c, nil
}
