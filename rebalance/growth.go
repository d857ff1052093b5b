package rebalance

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"tidemark/index"
	"tidemark/partition"
)

// GrowthBounds say when an index is split by itself. Times are milliseconds.
type GrowthBounds struct {
	Above uint64 // bytes that a slice may have; 0: any number
	Rate  uint64 // entries that may be written to and read from a slice in a second; 0: any number
	After int64  // for which a slice has to have more of either
	Rest  int64  // for which an index is left alone after it was made or split, or a split of it came to nothing
	Calm  int64  // for which slices have to be small and cold that are merged
}

// Sizes is what is known of an index that may have to be split.
type Sizes struct {
	Index  index.ID
	Bytes  []uint64 // of each slice
	Rates  []uint64 // entries of each that are written and read in a second; nil: none
	Ranges bool     // the slices are ranges, which are cut where the entries say; else there are twice as many
	Folds  bool     // of 2n slices, i and n+i hold what slice i of n slices would
	Least  uint16   // slices that it keeps at least: that were asked for
	AgeMS  int64    // since it was made, or its newest split was begun; below 0: by a clock that was wrong
	Rests  bool     // a split of it came to nothing a short while ago
	// Known tells that each slice has a whole copy on an indexer that answers: else Bytes and Rates say nothing.
	Known   bool
	Blocked string // why it cannot be split now, "" when it can
}

// largest is the slice of which there is most, and how much that is, and all.
func largest(of []uint64) (slice int, most, total uint64) {
	for i, n := range of {
		if total += n; n > most {
			slice, most = i, n
		}
	}
	return slice, most, total
}

// Over reports by how many times the slice of an index that is furthest above its bounds is at them, of its bytes and
// of its rate; up to 1 none is.
func (b *GrowthBounds) Over(s *Sizes) (bytes, rate float64) {
	if _, most, _ := largest(s.Bytes); b.Above > 0 {
		bytes = float64(most) / float64(b.Above)
	}
	if _, most, _ := largest(s.Rates); b.Rate > 0 {
		rate = float64(most) / float64(b.Rate)
	}
	return bytes, rate
}

// Growing decides which indexes are split by themselves, and which get fewer slices again. The zero value has
// looked at nothing.
type Growing struct {
	overMS map[index.ID]int64 // since when each look at which sizes were known has found a slice above its bounds
	calm   map[index.ID]*calm // of indexes that have more slices than were asked for
}

// Split is what an index is to become.
type Split struct {
	Index          index.ID
	Partitions     uint16
	Cause          string // for people
	Largest, Total uint64 // bytes of its largest slice, and of all
	// Hot are, of ranges that are cut where their load is, the slices that are; nil: all of it is cut anew, by its
	// entries.
	Hot []Hot
	// Joins are, of ranges that are merged, the slices that each becomes one with the one before.
	Joins []index.SliceID
	over  float64
	gone  int // slices, of a merge
}

// Hot is a range that is written and read too often.
type Hot struct {
	Slice index.SliceID
	Rate  uint64 // entries a second
	Parts int    // that it is to be cut into, about
}

// MaxHot bounds the slices of one index that are cut where their load is at a time.
const MaxHot = 64

// Look takes what is known at a moment of all indexes that may be split, in their order, and what else goes on, ""
// for nothing. It returns the one that is to be split now, nil: none; and of each other that has a slice above its
// bounds, why it is not.
func (g *Growing) Look(nowMS int64, bounds GrowthBounds, all []Sizes, busy string) (next *Split,
	waits map[index.ID]string) {
	before := g.overMS
	g.overMS = map[index.ID]int64{}
	waits = map[index.ID]string{}
	for i := range all {
		s := &all[i]
		since, over := before[s.Index]
		if !s.Known && over { // for a while: a copy is being filled, or its indexer is away
			g.overMS[s.Index], waits[s.Index] = since, "some slice of it has no whole copy on an indexer that answers: "+
				"nobody knows how large it is"
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
	return fmt.Sprintf("index %d, which has a slice further above its bound, comes first", s.Index)
}

// judge says what an index that has a slice above its bounds becomes, or why it stays as it is.
func (b *GrowthBounds) judge(s *Sizes, forMS int64, steady bool, busy string) (split *Split, why string) {
	split = &Split{Index: s.Index}
	_, split.Largest, split.Total = largest(s.Bytes)
	if bytes, rate := b.Over(s); bytes > 1 { // also when it is hot: cut anew by bytes first
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
		return nil, fmt.Sprintf("its newest split came to nothing; the next one begins %s later at the earliest",
			duration(b.Rest))
	case s.AgeMS >= 0 && s.AgeMS < b.Rest:
		return nil, fmt.Sprintf("it was made or split less than %s ago", duration(b.Rest))
	case !steady || forMS < b.After:
		return nil, fmt.Sprintf("%s: it is split when that is so for %s", split.Cause, duration(b.After))
	case busy != "":
		return nil, busy
	}
	return split, ""
}

func duration(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }

// uneven is how many times the mean the largest slice of an index by hash has at least that more slices do not help:
// few keys have most of the entries.
const uneven = 4

// byBytes says what an index becomes that has too large a slice, or why more slices do not help.
func (b *GrowthBounds) byBytes(s *Sizes, split *Split) (why string) {
	slice, most, total := largest(s.Bytes)
	split.Cause = fmt.Sprintf("slice %d of %d has %d bytes, more than the %d of --split-above", slice, len(s.Bytes), most,
		b.Above)
	if !s.Ranges {
		split.Partitions, why = double(s.Bytes, b.Above, "bytes", "the entries")
		return why
	}
	slices := uint64(len(s.Bytes))
	// of half as much as they may have, so that the next split is one further slice
	wanted := max(slices+1, total/max(b.Above/2, 1)+1)
	wanted = max(min(wanted, partition.MaxPartitions), slices+1)
	if wanted > partition.MaxPartitions {
		return tooMany(most, "bytes", wanted)
	}
	split.Partitions = uint16(wanted)
	return ""
}

// byRate says what an index becomes that has a slice which is written and read too often, or why more slices do not
// help. Ranges are cut within those slices alone.
func (b *GrowthBounds) byRate(s *Sizes, split *Split) (why string) {
	const unit = "entries written and read in a second"
	slice, most, _ := largest(s.Rates)
	split.Cause = fmt.Sprintf("slice %d of %d has %d %s, more than the %d of --split-above-rate", slice, len(s.Rates),
		most, unit, b.Rate)
	if !s.Ranges {
		split.Partitions, why = double(s.Rates, b.Rate, unit, "what is written and read")
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
	return fmt.Sprintf("its largest slice has %d %s, and it would have %d slices then: at most %d", most, unit, wanted,
		partition.MaxPartitions)
}

// double is how many slices an index by hash needs, or why more do not help.
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
		return 0, fmt.Sprintf("its largest slice has %d %s, %d times the mean or more: few keys have most of %s, and more "+
			"slices do not help; partition it by another key", most, unit, uneven, what)
	}
	for total/wanted > bound && 2*wanted <= partition.MaxPartitions {
		wanted *= 2
	}
	return uint16(wanted), ""
}
