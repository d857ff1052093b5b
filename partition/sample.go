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

// Bounds of what is kept of one copy while its entries are read. Beyond either, half of what is kept goes.
const (
	MaxSamples     = 1 << 17
	maxSampleBytes = 16 << 20
)

// Samples takes leading components of the keys of entries, in any order, and keeps some of them, as likely one as any
// other. The zero value has none.
type Samples struct {
	kept  [][]byte
	bytes int
	skip  uint64 // how many bits of the next draw have to be 0 for a component to be kept
	drawn uint64
}

// Add takes a component, collated and upright, which it copies: of one that is too long to be a bound no more than is
// needed to order it.
func (s *Samples) Add(component []byte) { s.AddWhole(component[:min(len(component), MaxBound)]) }

// AddWhole takes a key, which it copies.
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
			if s.draw()&1 == 0 { // every second one would be the same place of the array of each document
				kept, s.bytes = append(kept, k), s.bytes+len(k)
			}
		}
		clear(s.kept[len(kept):])
		s.kept = kept
	}
}

// draw is the next number of a sequence that is the same each time (SplitMix64).
func (s *Samples) draw() uint64 {
	s.drawn += 0x9e3779b97f4a7c15
	z := s.drawn
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// Spread returns quantiles of what has come: at most n of the components, of at most so many bytes together, ascending,
// the lowest first. Each stands for as many entries, from it on, as any other. of is how many were kept to choose from;
// Samples has none afterwards.
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

// Some returns at most n of what has come, of at most so many bytes together, as likely one as any other. of is how
// many were kept to choose from; Samples has none afterwards.
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

// Sample is what is known of the leading keys of a slice.
type Sample struct {
	Rows int64    // entries that it has
	Of   int64    // of so many the keys are quantiles
	Keys [][]byte // as Samples.Spread gives them
}

// doubt is how likely it may be that an error is larger than it is said to be.
const doubt = 1e-6

// off is by which part of the slice's entries a quantile of Keys may be off: half a step between two of them, and what
// Dvoretzky, Kiefer and Wolfowitz say of a sample.
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

// Cuts are values to cut a range at.
type Cuts struct {
	Values []json.RawMessage
	// Largest is which part of the entries the largest slice has then, 0 to 1.
	Largest float64
	// Error is by which part of all entries each value may be off from where it should be.
	Error float64
	// Of is how many entries there are in all.
	Of int64
}

// weighted is a component that stands for so many entries, with all those before it.
type weighted struct {
	key            []byte
	weight, before float64
}

// merged puts the keys of all slices in order; off is as Cuts.Error.
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

// Quantiles returns the values that cut what samples are of into n parts of as many
// entries: ascending and each once, fewer than n-1 where one value has more entries than a part, which is cut off from
// what follows it. None of them is the lowest, before which no entry would be. Errors wrap ErrDefinition: a key that is
// none.
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
		// not the one before, nor one that is too long to be a bound
		for at < len(all) && (bytes.Equal(all[at].key, all[last].key) || len(all[at].key) >= MaxBound) {
			at++
		}
		if at == len(all) || bytes.Compare(all[at].key, all[last].key) <= 0 { // before where the last cut was moved to
			continue
		}
		text, err := collate.Decode(nil, all[at].key)
		if err != nil {
			return Cuts{}, fmt.Errorf("%w: a key to cut at: %w", ErrDefinition, err)
		}
		from := sort.Search(at, func(i int) bool { return bytes.Equal(all[i].key, all[at].key) })
		most, first = max(most, all[from].before-first), all[from].before
		c.Values, last = append(c.Values, text), at
	}
	c.Largest, c.Error = max(most, total-first)/total, off
	return c, nil
}
