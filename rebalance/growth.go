package rebalance

import (
	"fmt"
	"time"

	"tidemark/index"
	"tidemark/partition"
)

// GrowthBounds say when an index is split by itself. Times are milliseconds.
type GrowthBounds struct {
	Above uint64 // bytes that a slice may have; 0: nothing is split
	After int64  // for which a slice has to have more
	Rest  int64  // for which an index is left alone after it was made or split, or a split of it came to nothing
}

// Sizes is what is known of an index that may have to be split.
type Sizes struct {
	Index  index.ID
	Bytes  []uint64 // of each slice
	Ranges bool     // the slices are ranges, which are cut where the entries say; else there are twice as many
	AgeMS  int64    // since it was made, or its newest split was begun; below 0: by a clock that was wrong
	Rests  bool     // a split of it came to nothing a short while ago
	// Known tells that each slice has a whole copy on an indexer that answers: else Bytes say nothing.
	Known   bool
	Blocked string // why it cannot be split now, "" when it can
}

// largest is the slice with the most bytes.
func (s *Sizes) largest() (slice int, bytes, total uint64) {
	for i, b := range s.Bytes {
		if total += b; b > bytes {
			slice, bytes = i, b
		}
	}
	return slice, bytes, total
}

// Growing decides which indexes are split by themselves. The zero value has looked at nothing.
type Growing struct {
	overMS map[index.ID]int64 // since when each look has found a slice that has too many bytes
}

// Split is what an index is to become.
type Split struct {
	Index          index.ID
	Partitions     uint16
	Cause          string // for people
	Largest, Total uint64 // bytes of its largest slice, and of all
}

// Look takes what is known at a moment of all indexes that may be split, in their order, and what else goes on, ""
// for nothing. It returns the one that is to be split now, nil: none; and of each other that has had a slice of too
// many bytes, why it is not.
func (g *Growing) Look(nowMS int64, bounds GrowthBounds, all []Sizes, busy string) (next *Split,
	waits map[index.ID]string) {
	before := g.overMS
	g.overMS = map[index.ID]int64{}
	waits = map[index.ID]string{}
	for i := range all {
		s := &all[i]
		if _, largest, _ := s.largest(); bounds.Above == 0 || !s.Known || largest <= bounds.Above {
			continue
		}
		since, over := before[s.Index]
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
		case split.Largest > next.Largest:
			waits[next.Index] = split.first()
			next = split
		default:
			waits[s.Index] = next.first()
		}
	}
	return next, waits
}

func (s *Split) first() string {
	return fmt.Sprintf("index %d, which has a larger slice, comes first", s.Index)
}

// judge says what an index that has a slice of too many bytes becomes, or why it stays as it is.
func (b *GrowthBounds) judge(s *Sizes, forMS int64, steady bool, busy string) (split *Split, why string) {
	slice, largest, total := s.largest()
	split = &Split{Index: s.Index, Largest: largest, Total: total, Cause: fmt.Sprintf("slice %d of %d has %d bytes, more "+
		"than the %d of --split-above", slice, len(s.Bytes), largest, b.Above)}
	if split.Partitions, why = b.partitions(s, largest, total); why != "" {
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

// partitions is how many slices an index needs, or why more do not help.
func (b *GrowthBounds) partitions(s *Sizes, largest, total uint64) (n uint16, why string) {
	slices := uint64(len(s.Bytes))
	if slices == 0 {
		return 0, "it has no slice"
	}
	wanted := 2 * slices
	if s.Ranges { // slices of half as much as they may have, so that the next split is one further slice
		wanted = max(slices+1, total/max(b.Above/2, 1)+1)
		wanted = max(min(wanted, partition.MaxPartitions), slices+1)
	}
	switch {
	case wanted > partition.MaxPartitions:
		return 0, fmt.Sprintf("its largest slice has %d bytes, and it would have %d slices then: at most %d", largest, wanted,
			partition.MaxPartitions)
	case !s.Ranges && slices >= uneven && largest >= uneven*(total/slices):
		return 0, fmt.Sprintf("its largest slice has %d bytes, %d times the mean or more: few keys have most of the "+
			"entries, and more slices do not help; partition it by another key", largest, uneven)
	}
	for !s.Ranges && total/wanted > b.Above && 2*wanted <= partition.MaxPartitions {
		wanted *= 2
	}
	return uint16(wanted), ""
}
