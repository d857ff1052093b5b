package rebalance

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"tidemark/index"
	"tidemark/partition"
)

// GrowthBounds defines when an index is split automatically. Times are milliseconds.
type GrowthBounds struct {
	Above uint64 // bytes that a slice may hold; 0: unlimited
	Rate  uint64 // entries written to and read from a slice per second; 0: unlimited
	After int64  // how long a slice has to be above either bound
	Rest  int64  // how long an index is left alone after its creation, its split, or a failed split of it
	Calm  int64  // how long slices have to be small and cold before they are merged
}

// Sizes describes an index that may have to be split.
type Sizes struct {
	Index  index.ID
	Bytes  []uint64 // per slice
	Rates  []uint64 // entries written and read per second, per slice; nil: none
	Ranges bool     // the slices are ranges, which can be cut anywhere; otherwise their number is doubled
	Folds  bool     // of 2n slices, i and n+i hold what slice i of n slices would hold
	Least  uint16   // minimum number of slices: as many as the user requested
	AgeMS  int64    // since it was created or its newest split began; below 0: measured by a wrong clock
	Rests  bool     // a split of it failed a short while ago
	// Known reports whether each slice has a whole copy on an indexer that answers; otherwise Bytes and Rates are
	// invalid.
	Known   bool
	Blocked string // why it cannot be split now, "" if it can
}

// largest returns the largest slice, its size, and the total of all slices.
func largest(of []uint64) (slice int, most, total uint64) {
	for i, n := range of {
		if total += n; n > most {
			slice, most = i, n
		}
	}
	return slice, most, total
}

// Over returns the largest ratio of a slice's bytes to its bound, and of a slice's rate to its bound. If both are at
// most 1, no slice is above its bounds.
func (b *GrowthBounds) Over(s *Sizes) (bytes, rate float64) {
	if _, most, _ := largest(s.Bytes); b.Above > 0 {
		bytes = float64(most) / float64(b.Above)
	}
	if _, most, _ := largest(s.Rates); b.Rate > 0 {
		rate = float64(most) / float64(b.Rate)
	}
	return bytes, rate
}

// Growing decides which indexes are split automatically, and which get fewer slices again. The zero value has no
// observations.
type Growing struct {
	overMS map[index.ID]int64 // since when every observation with known sizes has found a slice above its bounds
	calm   map[index.ID]*calm // for indexes with more slices than were requested
}

// Split describes what an index is to become.
type Split struct {
	Index          index.ID
	Partitions     uint16
	Cause          string // for display
	Largest, Total uint64 // bytes of the largest slice, and of all slices
	// Hot lists, for ranges that are cut because of their load, the slices to cut; nil: the whole index is cut anew by
	// the number of its entries.
	Hot []Hot
	// Joins lists, for ranges that are merged, the slices that are joined with the slice before them.
	Joins []index.SliceID
	over  float64
	gone  int // number of slices that a merge removes
}

// Hot is a range that is written and read too often.
type Hot struct {
	Slice index.SliceID
	Rate  uint64 // entries per second
	Parts int    // approximate number of parts to cut it into
}

// MaxHot bounds the slices of one index that are cut because of their load at one time.
const MaxHot = 64

// Look evaluates an observation of all indexes that may be split, in their order. busy is why no split may begin now,
// "" if one may. It returns the index to split now, nil for none, and for every other index with a slice above its
// bounds why it is not split.
func (g *Growing) Look(nowMS int64, bounds GrowthBounds, all []Sizes, busy string) (next *Split,
	waits map[index.ID]string) {
	before := g.overMS
	g.overMS = map[index.ID]int64{}
	waits = map[index.ID]string{}
	for i := range all {
		s := &all[i]
		since, over := before[s.Index]
		if !s.Known && over { // temporary: a copy is being filled, or its indexer is away
			g.overMS[s.Index], waits[s.Index] = since, "one of its slices has no complete copy on an indexer that answers: "+
				"its size is unknown"
			continue
		}
		if bytes, rate := bounds.Over(s); !s.Known || max(bytes, rate) <= 1 {
			continue
		}
		if !over || since > nowMS {
			since = nowMS
		}
		g.overMS[s.Index] = since
		split, why := bounds.judge(s, nowMS-since, over, busy)
		switch {
		case split == nil:
			waits[s.Index] = why
		case next == nil:
			next = split
		case split.over > next.over:
			waits[next.Index] = split.first()
			next = split
		default:
			waits[s.Index] = next.first()
		}
	}
	return next, waits
}

func (s *Split) first() string {
	return fmt.Sprintf("index %d, which has a slice further above its bound, is split first", s.Index)
}

// judge returns what an index with a slice above its bounds becomes, or why it stays as it is.
func (b *GrowthBounds) judge(s *Sizes, forMS int64, steady bool, busy string) (split *Split, why string) {
	split = &Split{Index: s.Index}
	_, split.Largest, split.Total = largest(s.Bytes)
	if bytes, rate := b.Over(s); bytes > 1 { // even if it is hot, too: bytes come first
		split.over = bytes
		why = b.byBytes(s, split)
	} else {
		split.over = rate
		why = b.byRate(s, split)
	}
	if why != "" {
		return nil, why
	}
	switch {
	case s.Blocked != "":
		return nil, s.Blocked
	case s.Rests:
		return nil, fmt.Sprintf("its last split failed; the next one starts %s later at the earliest",
			duration(b.Rest))
	case s.AgeMS >= 0 && s.AgeMS < b.Rest:
		return nil, fmt.Sprintf("it was made or split less than %s ago", duration(b.Rest))
	case !steady || forMS < b.After:
		return nil, fmt.Sprintf("%s: it is split once that has lasted for %s", split.Cause, duration(b.After))
	case busy != "":
		return nil, busy
	}
	return split, ""
}

func duration(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }

// uneven is the ratio of the largest slice to the mean from which more slices do not help an index partitioned by
// hash: a few keys have most of the entries.
const uneven = 4

// byBytes sets what an index with a too large slice becomes, or returns why more slices do not help.
func (b *GrowthBounds) byBytes(s *Sizes, split *Split) (why string) {
	slice, most, total := largest(s.Bytes)
	split.Cause = fmt.Sprintf("slice %d of %d has %d bytes, more than the %d of --split-above", slice, len(s.Bytes), most,
		b.Above)
	if !s.Ranges {
		split.Partitions, why = double(s.Bytes, b.Above, "bytes", "the entries")
		return why
	}
	slices := uint64(len(s.Bytes))
	// Aim at half the bound per slice, so that the next split adds only about one slice.
	wanted := max(slices+1, total/max(b.Above/2, 1)+1)
	wanted = max(min(wanted, partition.MaxPartitions), slices+1)
	if wanted > partition.MaxPartitions {
		return tooMany(most, "bytes", wanted)
	}
	split.Partitions = uint16(wanted)
	return ""
}

// byRate sets what an index with a too busy slice becomes, or returns why more slices do not help. Ranges are cut
// only within the busy slices.
func (b *GrowthBounds) byRate(s *Sizes, split *Split) (why string) {
	const unit = "entries written and read per second"
	slice, most, _ := largest(s.Rates)
	split.Cause = fmt.Sprintf("slice %d of %d has %d %s, more than the %d of --split-above-rate", slice, len(s.Rates),
		most, unit, b.Rate)
	if !s.Ranges {
		split.Partitions, why = double(s.Rates, b.Rate, unit, "the writes and reads")
		return why
	}
	for i, rate := range s.Rates {
		if rate > b.Rate {
			split.Hot = append(split.Hot, Hot{Slice: index.SliceID(i), Rate: rate})
		}
	}
	slices.SortStableFunc(split.Hot, func(x, y Hot) int { return cmp.Compare(y.Rate, x.Rate) })
	split.Hot = split.Hot[:min(len(split.Hot), MaxHot)]
	n := len(s.Rates)
	for i := range split.Hot {
		h := &split.Hot[i]
		wanted := max(2, int(min(h.Rate/max(b.Rate/2, 1)+1, partition.MaxPartitions)))
		if h.Parts = min(wanted, 1+max(partition.MaxPartitions-n, 0)); h.Parts < 2 {
			split.Hot = split.Hot[:i]
			break
		}
		n += h.Parts - 1
	}
	if len(split.Hot) == 0 {
		return tooMany(most, unit, uint64(n+1))
	}
	split.Partitions = uint16(n)
	return ""
}

func tooMany(most uint64, unit string, wanted uint64) string {
	return fmt.Sprintf("its largest slice has %d %s, but it would need %d slices; the limit is %d", most, unit, wanted,
		partition.MaxPartitions)
}

// double returns how many slices an index partitioned by hash needs, or why more do not help.
func double(of []uint64, bound uint64, unit, what string) (n uint16, why string) {
	_, most, total := largest(of)
	slices := uint64(len(of))
	if slices == 0 {
		return 0, "it has no slice"
	}
	wanted := 2 * slices
	switch {
	case wanted > partition.MaxPartitions:
		return 0, tooMany(most, unit, wanted)
	case slices >= uneven && most >= uneven*(total/slices):
		return 0, fmt.Sprintf("its largest slice has %d %s, at least %d times the mean: few keys have most of %s, so more "+
			"slices do not help; partition it by another key", most, unit, uneven, what)
	}
	for total/wanted > bound && 2*wanted <= partition.MaxPartitions {
		wanted *= 2
	}
	return uint16(wanted), ""
}
