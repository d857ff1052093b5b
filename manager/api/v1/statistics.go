package v1

import (
	"encoding/json"

	"tidemark/index"
)

// IndexStatistics is how the values of an index's components are spread, by a sample of its entries.
type IndexStatistics struct {
	Index   index.ID `json:"index"`
	Items   uint64   `json:"items"`   // entries of the index
	Sampled uint64   `json:"sampled"` // so many of them were looked at
	// Exact tells that these are all: then every number is exact, of one state of each slice.
	Exact bool `json:"exact"`
	// Error is by which part of all entries the place of a value may be off, as good as never more; 0 if Exact.
	Error      float64               `json:"error"`
	Components []ComponentStatistics `json:"components"`
}

// ComponentStatistics is how the values of one component are spread. Numbers of entries are estimates, unless
// IndexStatistics.Exact.
type ComponentStatistics struct {
	Expression string `json:"expression"`
	Missing    uint64 `json:"missing"` // entries
	Null       uint64 `json:"null"`    // entries
	// Distinct is how many different values there are beside MISSING and NULL.
	Distinct uint64 `json:"distinct"`
	// Least and Greatest are of the sample, in the order of values; MISSING and NULL do not count, and a value of more
	// than 4096 bytes is left out.
	Least    json.RawMessage `json:"least,omitempty"`
	Greatest json.RawMessage `json:"greatest,omitempty"`
	// Common are the values that have most entries, those alone that have more than a quarter more than the mean, at most
	// 10.
	Common []CommonValue `json:"common"`
	// Histogram has bins of about as many entries each, ascending, of all values but MISSING and NULL.
	Histogram []Bin `json:"histogram"`
}

// CommonValue is a value that many entries have.
type CommonValue struct {
	Value json.RawMessage `json:"value"`
	Items uint64          `json:"items"`
}

// Bin is a part of a histogram: the values above the bin's before it, up to To. The last one has none where the
// greatest value has more than 4096 bytes.
type Bin struct {
	To    json.RawMessage `json:"to,omitempty"`
	Items uint64          `json:"items"`
}

// StatisticsRequest asks for IndexStatistics. The zero value asks for as much as most want.
type StatisticsRequest struct {
	// Bins of each histogram, at most 256; 0: 32.
	Bins int `json:"bins,omitempty"`
	// Sample is how many entries are to be looked at, at most 262144; 0: 32768. No more than 4096 of a slice are.
	Sample int `json:"sample,omitempty"`
}
