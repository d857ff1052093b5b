package v1

import "encoding/json"

// Aggregate is computed of the rows of a group. CountRows and the others make one.
type Aggregate struct {
	// Op is count, sum, avg, min, max or documents. NULL and MISSING count nowhere but where rows are counted; sum and avg
	// are of numbers only, min and max in the order of values, and all four null where there is nothing to take.
	Op string `json:"op"`
	// Component of the key, from 0. Without one count counts rows; documents takes none.
	Component *int `json:"component,omitempty"`
	// Distinct has count, sum and avg take each value once. All aggregates of a request that are distinct, and documents
	// of an array index, are of the values of one component, or of the documents.
	Distinct bool `json:"distinct,omitempty"`
}

// Group is one of a scan with GroupBy or Aggregates: the components that its rows agree in, and a value for each of the
// Aggregates. A sum or mean of integers has all its digits, which may be more than 64 bits have.
type Group struct {
	Key    []json.RawMessage `json:"key"`
	Values []json.RawMessage `json:"values"`
}

// CountRows counts the rows of a group.
func CountRows() Aggregate { return Aggregate{Op: "count"} }

// CountDocuments counts the documents of a group's rows: of an array index a document may have several rows.
func CountDocuments() Aggregate { return Aggregate{Op: "documents"} }

// Count counts the values of a component that are neither NULL nor MISSING.
func Count(component int) Aggregate { return Aggregate{Op: "count", Component: &component} }

// Sum adds the numbers of a component.
func Sum(component int) Aggregate { return Aggregate{Op: "sum", Component: &component} }

// Avg is the mean of the numbers of a component.
func Avg(component int) Aggregate { return Aggregate{Op: "avg", Component: &component} }

// Min is the first value of a component.
func Min(component int) Aggregate { return Aggregate{Op: "min", Component: &component} }

// Max is the last value of a component.
func Max(component int) Aggregate { return Aggregate{Op: "max", Component: &component} }

// OfDistinct is the aggregate with each value taken once.
func (a Aggregate) OfDistinct() Aggregate {
	a.Distinct = true
	return a
}

// Grouped reports whether the request asks for groups instead of rows.
func (r *ScanRequest) Grouped() bool { return r.GroupBy != nil || len(r.Aggregates) > 0 }
