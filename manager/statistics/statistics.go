// Package statistics estimates from a sample of an index's entries how the values of its components are distributed:
// the number of distinct values, the most common ones, and a histogram. It is pure. A sample of all entries gives
// exact numbers. The bins are adjacent and contain all values except MISSING and NULL. A value of which the sample
// has only the beginning is counted, but never shown.
package statistics

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"tidemark/collate"
	"tidemark/manager/api/v1"
	"tidemark/partition"
	"tidemark/wire"
)

const (
	// MaxBins bounds the bins of a histogram.
	MaxBins = 256
	// DefaultBins is the number of bins unless a request sets it.
	DefaultBins = 32
	// mostCommon bounds the number of common values.
	mostCommon = 10
	// common is the factor by which a common value has more entries than the mean value.
	common = 1.25
	// doubt is the probability that an estimated place is further off than the reported error.
	doubt = 1e-6
)

// Of returns the statistics of an index with these components, with at most bins bins (1 to MaxBins) in each
// histogram, from the sample of each of its slices (SampleRequest.Whole). The caller sets Index. It fails if the
// sample contains an invalid entry or value.
func Of(expressions []string, samples []*wire.SampleReply, bins int) (*v1.IndexStatistics, error) {
	s := &v1.IndexStatistics{Exact: true, Components: make([]v1.ComponentStatistics, len(expressions))}
	for _, of := range samples {
		s.Items += uint64(of.Rows)
		s.Sampled += uint64(len(of.Entries))
		s.Exact = s.Exact && int64(len(of.Entries)) == of.Rows
	}
	if !s.Exact {
		s.Error = min(1, math.Sqrt(math.Log(2/doubt)/2/float64(max(s.Sampled, 1))))
	}
	for i := range s.Components {
		values, err := valuesOf(samples, i)
		if err != nil {
			return nil, err
		}
		c, err := component(values, bins, s.Exact)
		if err != nil {
			return nil, err
		}
		c.Expression = expressions[i]
		s.Components[i] = c
	}
	return s, nil
}

// value is a distinct value of a component, with the number of sampled entries that have it.
type value struct {
	collated []byte
	hash     uint64
	seen     int
	items    float64 // entries of the index that the sampled ones represent
}

// cut reports whether only the beginning of the value is known.
func (v *value) cut() bool { return len(v.collated) >= partition.MaxBound }

func (v *value) compare(o *value) int {
	return cmp.Or(bytes.Compare(v.collated, o.collated), cmp.Compare(v.hash, o.hash))
}

// valuesOf returns the distinct values of a component, in ascending order.
func valuesOf(of []*wire.SampleReply, component int) ([]value, error) {
	var all []value
	for _, slice := range of {
		weight := float64(slice.Rows) / float64(max(len(slice.Entries), 1))
		for _, e := range slice.Entries {
			if component >= len(e) || len(e[component].Value) == 0 {
				return nil, fmt.Errorf("an entry of the sample has %d components, but component %d was "+
					"requested", len(e), component)
			}
			all = append(all, value{e[component].Value, e[component].Hash, 1, weight})
		}
	}
	slices.SortFunc(all, func(a, b value) int { return a.compare(&b) })
	different := all[:0]
	for _, v := range all {
		if n := len(different); n > 0 && different[n-1].compare(&v) == 0 {
			different[n-1].seen++
			different[n-1].items += v.items
			continue
		}
		different = append(different, v)
	}
	return different, nil
}

// component returns the statistics of one component from its distinct values, in ascending order.
func component(values []value, bins int, exact bool) (c v1.ComponentStatistics, err error) {
	c.Common, c.Histogram = []v1.CommonValue{}, []v1.Bin{}
	for len(values) > 0 && collate.Kind(values[0].collated[0]) <= collate.Null {
		if n := whole(values[0].items); collate.Kind(values[0].collated[0]) == collate.Missing {
			c.Missing = n
		} else {
			c.Null = n
		}
		values = values[1:]
	}
	if len(values) == 0 {
		return c, nil
	}
	total, seen, once := 0.0, 0, 0
	for i := range values {
		total += values[i].items
		seen += values[i].seen
		if values[i].seen == 1 {
			once++
		}
	}
	c.Distinct = distinct(len(values), once, seen, total, exact)
	if c.Least, err = shown(&values[0]); err == nil {
		c.Greatest, err = shown(&values[len(values)-1])
	}
	if err == nil {
		c.Common, err = mostOf(values, total/float64(c.Distinct), exact)
	}
	if err == nil {
		c.Histogram, err = histogram(values, total, bins)
	}
	return c, err
}

// distinct estimates the number of distinct values of total entries. Of the seen sampled entries, values are
// distinct, once of them seen only once. It uses the estimator Duj1 of Haas and Stokes.
func distinct(values, once, seen int, total float64, exact bool) uint64 {
	d, n := float64(values), float64(seen)
	if exact || n >= total {
		return uint64(values)
	}
	return whole(min(max(n*d/(n-float64(once)+float64(once)*n/total), d), total))
}

// mostOf returns the values with the most entries: more than common times the mean, and seen more than once unless
// the sample is exact.
func mostOf(values []value, mean float64, exact bool) ([]v1.CommonValue, error) {
	var some []value
	for _, v := range values {
		if v.items > common*mean && (exact || v.seen > 1) && !v.cut() {
			some = append(some, v)
		}
	}
	slices.SortStableFunc(some, func(a, b value) int { return cmp.Compare(b.items, a.items) })
	some = some[:min(len(some), mostCommon)]
	out := make([]v1.CommonValue, len(some))
	for i := range some {
		text, err := shown(&some[i])
		if err != nil {
			return nil, err
		}
		out[i] = v1.CommonValue{Value: text, Items: whole(some[i].items)}
	}
	return out, nil
}

// histogram returns bins with about equal numbers of entries. Each value is in one bin, and a value that cannot be
// shown ends no bin except the last.
func histogram(values []value, total float64, bins int) ([]v1.Bin, error) {
	out := []v1.Bin{}
	before, given, next := 0.0, uint64(0), 1 // next: the bin whose share of the entries ends at the value or after it
	for i := range values {
		v := &values[i]
		before += v.items
		last := i == len(values)-1
		if !last && (v.cut() || before < total*float64(next)/float64(bins)) {
			continue
		}
		to, err := shown(v)
		if err != nil {
			return nil, err
		}
		out = append(out, v1.Bin{To: to, Items: whole(before) - given}) // rounded so that bins lose no entry
		for given = whole(before); next < bins && before >= total*float64(next)/float64(bins); {
			next++ // skips all shares that a common value fills
		}
	}
	return out, nil
}

// shown returns a value as JSON; nil if only its beginning is known.
func shown(v *value) (json.RawMessage, error) {
	if v.cut() {
		return nil, nil
	}
	text, err := collate.Decode(nil, v.collated)
	if err != nil {
		return nil, fmt.Errorf("a value of the sample: %w", err)
	}
	return text, nil
}

func whole(items float64) uint64 { return uint64(math.Round(items)) }
