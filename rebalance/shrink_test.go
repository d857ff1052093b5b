package rebalance

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"tidemark/index"
)

// ground holds an index's load by cells of its keys: a slice of a range has adjacent cells, a slice of a hash every
// n-th.
type ground struct {
	bytes, rates []uint64 // per cell
	starts       []int    // of a range: the first cell of each slice except the first
	slices       int
	ranges       bool
}

// of returns the sums of the cells per slice.
func (g *ground) of(cells []uint64) []uint64 {
	all := make([]uint64, g.slices)
	for cell, n := range cells {
		slice := cell % g.slices
		if g.ranges {
			slice, _ = slices.BinarySearch(g.starts, cell+1)
		}
		all[slice] += n
	}
	return all
}

// become carries out a split or merge; it returns the slices created by merges, for a hash all slices.
func (g *ground) become(s *Split) {
	switch {
	case !g.ranges:
		g.slices = int(s.Partitions)
	case s.Joins != nil:
		for _, slice := range slices.Backward(s.Joins) {
			g.starts = slices.Delete(g.starts, int(slice)-1, int(slice))
		}
		g.slices -= len(s.Joins)
	case s.Hot != nil:
		for _, h := range s.Hot {
			first, end := 0, len(g.rates)
			if h.Slice > 0 {
				first = g.starts[h.Slice-1]
			}
			if int(h.Slice) < g.slices-1 {
				end = g.starts[h.Slice]
			}
			g.starts = append(g.starts, quantiles(g.rates, first, end, h.Parts)...)
		}
	default:
		g.starts = quantiles(g.bytes, 0, len(g.bytes), int(s.Partitions))
	}
	if g.ranges {
		slices.Sort(g.starts)
		g.starts = slices.Compact(g.starts)
		g.slices = len(g.starts) + 1
	}
}

// quantiles cuts cells into at most n parts of about equal size.
func quantiles(of []uint64, first, end, n int) (starts []int) {
	total, sum := uint64(0), uint64(0)
	for _, x := range of[first:end] {
		total += x
	}
	for cell := first + 1; cell < end && len(starts) < n-1; cell++ {
		if sum += of[cell-1]; sum*uint64(n) >= total*uint64(len(starts)+1) {
			starts = append(starts, cell)
		}
	}
	return starts
}

// Whatever loads an index has, and however they vary by less than Slack, or by more for less time than slices have to
// be calm, no slice created by a merge is ever above its bounds, and there are never fewer slices than requested.
// Where nothing varies, splits and merges come to an end, all splits first.
func TestSplitsAndMergesDoNotChaseEachOther(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cells := rapid.IntRange(1, 48).Draw(t, "cells")
		loads := rapid.SliceOfN(rapid.Uint64Range(0, 60), cells, cells)
		g := &ground{bytes: loads.Draw(t, "bytes"), rates: loads.Draw(t, "rates"), slices: rapid.IntRange(1, 6).Draw(t,
			"asked"), ranges: rapid.Bool().Draw(t, "ranges")}
		if g.ranges {
			g.starts = quantiles(g.bytes, 0, cells, g.slices)
			g.slices = len(g.starts) + 1
		}
		least := g.slices // it had more from the beginning: otherwise nothing constant is merged
		if g.ranges {
			least = rapid.IntRange(1, g.slices).Draw(t, "least")
		} else {
			g.slices <<= rapid.IntRange(0, 2).Draw(t, "doubled")
		}
		bounds := GrowthBounds{Above: rapid.Uint64Range(0, 400).Draw(t, "above"), Rate: rapid.Uint64Range(0, 400).Draw(t,
			"rate"), After: 3, Rest: 6, Calm: 6}
		switch rapid.IntRange(0, 2).Draw(t, "by") { // with one bound only, more slices can be merged
		case 0:
			bounds.Rate = 0
		case 1:
			bounds.Above = 0
		}
		how := rapid.SampledFrom([]string{"steady", "swings", "pulses"}).Draw(t, "how")
		run := &chase{t: t, g: g, growing: &Growing{}, bounds: bounds, least: least}
		swings := how != "steady"
		times := uint64(10)
		for i := range 400 {
			switch {
			case how == "pulses": // one within the time that slices have to be calm
				times = 10 + 400*uint64(i%5/4)
			case swings && i%20 == 0:
				times = rapid.SampledFrom([]uint64{10, 20, 10*Slack - 1}).Draw(t, "times")
			}
			run.look(times)
			if !swings && run.splits > 0 && run.lastSplit > run.firstMerge && run.firstMerge > 0 {
				t.Fatalf("a split at %d, after a merge at %d, of what does not change", run.lastSplit, run.firstMerge)
			}
		}
		if !swings && max(run.lastSplit, run.lastMerge) > 300 {
			t.Fatalf("still at work: split at %d, merge at %d", run.lastSplit, run.lastMerge)
		}
	})
}

type chase struct {
	t                                *rapid.T
	g                                *ground
	growing                          *Growing
	bounds                           GrowthBounds
	least, splits                    int
	now, made                        int64
	firstMerge, lastMerge, lastSplit int64
	merged                           []bool // per cell: it is in a slice created by a merge
}

// look makes an observation at which every load is times/10 of its minimum.
func (c *chase) look(times uint64) {
	scaled := func(cells []uint64) []uint64 {
		all := c.g.of(cells)
		for i := range all {
			all[i] = all[i] * times / 10
		}
		return all
	}
	c.now++
	s := Sizes{Index: 1, Known: true, Ranges: c.g.ranges, Folds: !c.g.ranges, Least: uint16(c.least),
		AgeMS: c.now - c.made, Bytes: scaled(c.g.bytes), Rates: scaled(c.g.rates)}
	c.check(&s)
	next, _ := c.growing.Look(c.now, c.bounds, []Sizes{s}, "")
	busy := ""
	if next != nil {
		busy = "it is to be split"
	}
	merge, _ := c.growing.Shrink(c.now, c.bounds, []Sizes{s}, busy)
	switch {
	case next != nil && merge != nil:
		c.t.Fatalf("both: %+v and %+v", next, merge)
	case next != nil:
		before, starts := c.g.slices, slices.Clone(c.g.starts)
		// It is cut at the same values: the search for values refuses that.
		if c.g.become(next); c.g.slices == before && slices.Equal(c.g.starts, starts) {
			return
		}
		c.splits, c.lastSplit, c.made, c.merged = c.splits+1, c.now, c.now, nil
	case merge != nil:
		before := c.g.slices
		c.note(merge)
		if c.g.become(merge); c.g.slices != int(merge.Partitions) || c.g.slices >= before || c.g.slices < c.least {
			c.t.Fatalf("%d slices, of %d, asked for %d: %+v", c.g.slices, before, c.least, merge)
		}
		if c.lastMerge, c.made = c.now, c.now; c.firstMerge == 0 {
			c.firstMerge = c.now
		}
	}
}

// note records which cells are in slices created by a merge.
func (c *chase) note(m *Split) {
	if c.merged == nil {
		c.merged = make([]bool, len(c.g.bytes))
	}
	for cell := range c.merged {
		slice, _ := slices.BinarySearch(c.g.starts, cell+1)
		joined := slices.Contains(m.Joins, index.SliceID(slice)) || slices.Contains(m.Joins, index.SliceID(slice+1))
		c.merged[cell] = c.merged[cell] || !c.g.ranges || joined
	}
}

// check finds a slice above its bounds that was created by a merge.
func (c *chase) check(s *Sizes) {
	for cell, merged := range c.merged {
		slice := cell % c.g.slices
		if c.g.ranges {
			slice, _ = slices.BinarySearch(c.g.starts, cell+1)
		}
		if merged && (c.bounds.Above > 0 && s.Bytes[slice] > c.bounds.Above ||
			c.bounds.Rate > 0 && s.Rates[slice] > c.bounds.Rate) {
			c.t.Fatalf("slice %d was made by a merge, and has %d bytes, %d entries a second: %+v", slice, s.Bytes[slice],
				s.Rates[slice], c.bounds)
		}
	}
}
