package v1

import (
	"encoding/json"

	"tidemark/index"
)

// IndexStatistics is the distribution of the values of an index's components, from a sample of its entries.
type IndexStatistics struct {
	Index   index.ID `json:"index"`
	Items   uint64   `json:"items"`   // entries of the index
	Sampled uint64   `json:"sampled"` // entries examined
	// Exact is set if these are all entries: then every number is exact, of one state of each slice.
	Exact bool `json:"exact"`
	// Error is the largest likely error in the position of a value, as a fraction of all entries; 0 if Exact.
	Error      float64               `json:"error"`
	Components []ComponentStatistics `json:"components"`
}

// ComponentStatistics is the distribution of the values of one component. Numbers of entries are estimates, unless
// IndexStatistics.Exact.
type ComponentStatistics struct {
	Expression string `json:"expression"`
	Missing    uint64 `json:"missing"` // entries
	Null       uint64 `json:"null"`    // entries
	// Distinct is the number of different values, without MISSING and NULL.
	Distinct uint64 `json:"distinct"`
	// Least and Greatest are those of the sample, in the order of values, without MISSING and NULL; a value of more than
	// 4096 bytes is left out.
	Least    json.RawMessage `json:"least,omitempty"`
	Greatest json.RawMessage `json:"greatest,omitempty"`
	// Common holds the values with most entries, at most 10, each with more than 1.25 times the mean.
	Common []CommonValue `json:"common"`
	// Histogram has bins of about equal numbers of entries, ascending, of all values but MISSING and NULL.
	Histogram []Bin `json:"histogram"`
}

// CommonValue is a value with many entries.
type CommonValue struct {
	Value json.RawMessage `json:"value"`
	Items uint64          `json:"items"`
}

// Bin is a part of a histogram: the values above the previous bin's To, up to its own. To is absent from the last bin
// if the greatest value has more than 4096 bytes.
type Bin struct {
	To    json.RawMessage `json:"to,omitempty"`
	Items uint64          `json:"items"`
}

// StatisticsRequest requests IndexStatistics. The zero value has defaults for all fields.
type StatisticsRequest struct {
	// Bins is the number of bins per histogram, at most 256; 0: 32.
	Bins int `json:"bins,omitempty"`
	// Sample is the number of entries to examine, at most 262144; 0: 32768. At most 4096 of one slice are.
	Sample int `json:"sample,omitempty"`
}
