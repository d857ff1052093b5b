package v1

import "encoding/json"

// Aggregate is computed over the rows of a group. CountRows and the functions below it return one.
type Aggregate struct {
	// Op is count, sum, avg, min, max or documents. NULL and MISSING are counted only as rows; sum and avg use only
	// numbers, min and max the order of values, and these four are null if there is no such value.
	Op string `json:"op"`
	// Component of the key, counted from 0. Without it count counts rows; documents takes none.
	Component *int `json:"component,omitempty"`
	// Distinct makes count, sum and avg use each value once. All distinct aggregates of a request, and documents of an
	// array index, must be distinct over the same: the values of one component, or the documents.
	Distinct bool `json:"distinct,omitempty"`
}

// Group is one group of a scan with GroupBy or Aggregates: the components in which its rows agree, and a value for
// each of the Aggregates. A sum or mean of integers has all its digits, which may exceed 64 bits.
type Group struct {
	Key    []json.RawMessage `json:"key"`
	Values []json.RawMessage `json:"values"`
}

// CountRows returns an aggregate that counts the rows of a group.
func CountRows() Aggregate { return Aggregate{Op: "count"} }

// CountDocuments returns an aggregate that counts the documents of a group's rows: in an array index a document may
// have several rows.
func CountDocuments() Aggregate { return Aggregate{Op: "documents"} }

// Count returns an aggregate that counts the values of a component that are neither NULL nor MISSING.
func Count(component int) Aggregate { return Aggregate{Op: "count", Component: &component} }

// Sum returns an aggregate that adds the numbers of a component.
func Sum(component int) Aggregate { return Aggregate{Op: "sum", Component: &component} }

// Avg returns an aggregate that is the mean of the numbers of a component.
func Avg(component int) Aggregate { return Aggregate{Op: "avg", Component: &component} }

// Min returns an aggregate that is the least value of a component.
func Min(component int) Aggregate { return Aggregate{Op: "min", Component: &component} }

// Max returns an aggregate that is the greatest value of a component.
func Max(component int) Aggregate { return Aggregate{Op: "max", Component: &component} }

// OfDistinct returns the aggregate with Distinct set.
func (a Aggregate) OfDistinct() Aggregate {
	a.Distinct = true
	return a
}

// Grouped reports whether the request is for groups instead of rows.
func (r *ScanRequest) Grouped() bool { return r.GroupBy != nil || len(r.Aggregates) > 0 }
