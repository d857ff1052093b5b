package scan

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"tidemark/collate"
	"tidemark/errcode"
	"tidemark/expression"
	"tidemark/index"
	"tidemark/indexer/scan/aggregate"
)

// MaxAggregates bounds the aggregates of a request.
const MaxAggregates = 32

// Documents is the op of an Aggregate that counts documents. A document of an array index may have several rows and
// is counted once. The other ops are those of package aggregate.
const Documents = "documents"

// Aggregate is an aggregate of a request, computed for each group over its rows or over one component of their keys.
// Without a component, it counts rows or documents.
type Aggregate struct {
	Op        string `json:"op"` // count, sum, avg, min, max, documents
	Component *int   `json:"component"`
	Distinct  bool   `json:"distinct"` // with count, sum and avg: each value once
}

// Grouping makes nodes return cells instead of rows, in the order of the cells' keys. A cell's key has the components
// of By in stored form, followed by the component Each, or the document's id, if set. So within a group, the distinct
// values of Each are consecutive, whichever slices they come from.
type Grouping struct {
	By   []int     `json:"by"`
	Each int       `json:"each"` // a component, EachNone or EachDocument
	Of   []Partial `json:"of"`   // aggregates of a cell's rows
}

// Values of Each other than a component.
const (
	EachNone     = -1
	EachDocument = -2
)

// Partial is a part of an aggregate. For Rows the component is ignored, but must be valid.
type Partial struct {
	Op        aggregate.Op `json:"op"`
	Component int          `json:"component"`
}

// groups is a Grouping together with the derivation of the requested results.
type groups struct {
	Grouping
	results []outcome // one for each requested aggregate
}

// outcome defines how to compute the result of an aggregate: from a partial of the cells, or over their distinct
// values.
type outcome struct {
	partial int          // index into Grouping.Of; below 0: over distinct values
	op      aggregate.Op // for distinct values
}

// grouped reports whether the request is for groups instead of rows.
func (r *Request) grouped() bool { return r.GroupBy != nil || len(r.Aggregates) > 0 }

// checkGroups refuses options that cannot be combined with groups.
func (r *Request) checkGroups() error {
	switch {
	case !r.grouped():
		return nil
	case len(r.GroupBy) == 0 && len(r.Aggregates) == 0:
		return Errorf(errcode.BadRequest, "neither group_by nor aggregates is given: give one of them")
	case len(r.Aggregates) > MaxAggregates:
		return Errorf(errcode.BadRequest, "%d aggregates, want at most %d", len(r.Aggregates), MaxAggregates)
	case r.Distinct || r.Project != nil:
		return Errorf(errcode.BadRequest, "distinct and project apply to rows: groups have the components of group_by, and "+
			"an aggregate has a distinct of its own")
	case r.Stability == NoStability:
		return Errorf(errcode.BadRequest, "aggregates need one timestamp: omit stability none")
	}
	return nil
}

// group sets s.Groups if the request is for groups.
func (s *Spec) group(r *Request, def *index.Definition) error {
	if !r.grouped() {
		return nil
	}
	g := &groups{Grouping: Grouping{By: r.GroupBy, Each: EachNone}}
	for i, c := range g.By {
		if err := s.checkComponent(fmt.Sprintf("group_by[%d]", i), c); err != nil {
			return err
		}
		if slices.Contains(g.By[:i], c) {
			return Errorf(errcode.BadRequest, "group_by names component %d twice", c)
		}
	}
	for i := range r.Aggregates {
		a := r.Aggregates[i]
		if err := s.checkAggregate(i, &a); err != nil {
			return err
		}
		if err := g.add(i, &a, s.documentsAreRows(def, g.By)); err != nil {
			return err
		}
	}
	s.Groups = g
	return nil
}

func (s *Spec) checkComponent(what string, c int) error {
	if c < 0 || c >= len(s.Desc) {
		return Errorf(errcode.BadRequest, "%s is %d: a key of this index has the components 0 to %d", what, c,
			len(s.Desc)-1)
	}
	return nil
}

func (s *Spec) checkAggregate(i int, a *Aggregate) error {
	name := fmt.Sprintf("aggregates[%d]", i)
	op := aggregate.Op(a.Op)
	switch {
	case a.Op == Documents && (a.Component != nil || a.Distinct):
		return Errorf(errcode.BadRequest, "%s: documents accepts neither component nor distinct", name)
	case a.Op == Documents:
		return nil
	case op == aggregate.Rows || !op.Valid():
		return Errorf(errcode.BadRequest, "%s: op %q: want count, sum, avg, min, max or documents", name, a.Op)
	case a.Component != nil:
		return s.checkComponent(name+".component", *a.Component)
	case op != aggregate.Count || a.Distinct:
		return Errorf(errcode.BadRequest, "%s: %s needs a component, counted from 0; count without one counts rows", name,
			strings.TrimSpace(a.Op+" "+map[bool]string{true: "distinct"}[a.Distinct]))
	}
	return nil
}

// add adds a checked aggregate. rows is set if each row of a group is a different document.
func (g *groups) add(i int, a *Aggregate, rows bool) error {
	op, each := aggregate.Op(a.Op), EachNone
	p := Partial{Op: op}
	switch {
	case a.Op == Documents && rows, a.Component == nil && a.Op != Documents:
		p.Op = aggregate.Rows
	case a.Op == Documents:
		op, each = aggregate.Count, EachDocument
	case a.Distinct && op != aggregate.Min && op != aggregate.Max: // distinct makes no difference to min and max
		each = *a.Component
	default:
		p.Component = *a.Component
	}
	if each == EachNone {
		g.results = append(g.results, outcome{partial: len(g.Of)})
		g.Of = append(g.Of, p)
		return nil
	}
	if g.Each != EachNone && g.Each != each {
		return Errorf(errcode.BadRequest, "aggregates[%d] is over the distinct values of %s, and an earlier one over those "+
			"of %s: a request allows one of them; send one request for each, at one state with stability query and timestamp", i,
			eachName(each), eachName(g.Each))
	}
	g.Each = each
	g.results = append(g.results, outcome{partial: -1, op: op})
	return nil
}

func eachName(each int) string {
	if each == EachDocument {
		return "the documents' ids"
	}
	return fmt.Sprintf("component %d", each)
}

// documentsAreRows reports whether each row of a group is another document. That is so if a document has one row, and
// in an array index if all rows of a group have the same key.
func (s *Spec) documentsAreRows(def *index.Definition, by []int) bool {
	if len(by) == len(s.Desc) {
		return true
	}
	return !slices.ContainsFunc(def.Keys, func(k index.KeyExpr) bool {
		x, err := expression.ParseKey(k.Expr)
		_, array := x.(*expression.ArrayKey)
		return err == nil && array
	})
}

// check refuses a Grouping that no coordinator sends.
func (g *Grouping) check(components int) error {
	bad := g.Each < EachDocument || g.Each >= components || len(g.Of) > MaxAggregates || len(g.By) > components
	has := func(c int) bool { return c >= 0 && c < components }
	for _, c := range g.By {
		bad = bad || !has(c)
	}
	for _, p := range g.Of {
		bad = bad || !p.Op.Valid() || !has(p.Component)
	}
	if bad {
		return Errorf(errcode.BadRequest, "groups %+v of keys of %d components", *g, components)
	}
	return nil
}

// accs returns the accumulators of an empty cell.
func (g *Grouping) accs() []aggregate.Acc {
	all := make([]aggregate.Acc, len(g.Of))
	for i := range all {
		all[i].Op = g.Of[i].Op
	}
	return all
}

// components returns the components of a cell's key: components of stored keys, and EachDocument.
func (g *Grouping) components() []int {
	if g.Each == EachNone {
		return g.By
	}
	return append(slices.Clip(g.By), g.Each)
}

// desc returns the directions of a cell's components.
func (g *Grouping) desc(stored []bool) (all []bool) {
	for _, c := range g.components() {
		all = append(all, c >= 0 && stored[c])
	}
	return all
}

// order returns how far the order of cells follows the order of rows: rows with different values in the first lead
// components of their keys belong to cells in the same order; and if whole is set, rows with equal values in them
// belong to the same cell. These lead components are a prefix of the cell's components, in order, interleaved with
// components that the ranges fix.
func (g *Grouping) order(stored, fixed int) (lead int, whole bool) {
	of, at := g.components(), 0
	for lead < stored || at < len(of) {
		switch {
		case at < len(of) && of[at] >= 0 && of[at] < lead: // equal in all of them
			at++
		case lead == stored:
			return lead, false
		case at < len(of) && of[at] == lead:
			at++
			lead++
		case lead < fixed:
			lead++
		default:
			return lead, at == len(of)
		}
	}
	return lead, at == len(of)
}

// fixedParts returns the components that are equal in all keys of the ranges.
func fixedParts(ranges []Range, desc []bool) (parts [][]byte) {
	if len(ranges) == 0 || ranges[0].Low == nil || ranges[len(ranges)-1].High == nil {
		return nil
	}
	low, high := ranges[0].Low, ranges[len(ranges)-1].High
	for rest, end := low, 0; len(rest) > 0 && len(parts) < len(desc); {
		part, behind, err := collate.Next(rest, desc[len(parts)])
		if err != nil { // a bound need not be a complete key
			break
		}
		end += len(part)
		if above := collate.PrefixEnd(low[:end]); above != nil && bytes.Compare(high, above) > 0 {
			break
		}
		parts, rest = append(parts, part), behind
	}
	return parts
}

// behind cuts off, in the direction of the scan, the rows of cells up to and including those whose keys begin with
// after, as far as the order of rows permits. The caller must still filter the cells.
func (g *Grouping) behind(ranges []Range, after []byte, desc []bool, reverse bool) ([]Range, error) {
	fixed := fixedParts(ranges, desc)
	lead, _ := g.order(len(desc), len(fixed))
	cell := g.desc(desc)
	var parts [][]byte
	for rest := after; len(rest) > 0 && len(parts) < len(cell); {
		part, behind, err := collate.Next(rest, cell[len(parts)])
		if err != nil {
			return nil, Errorf(errcode.BadRequest, "a cell's key: %w", err)
		}
		parts, rest = append(parts, part), behind
	}
	of := g.components()[:len(parts)]
	var prefix []byte
	known := 0 // number of the lead's components that prefix has
	for ; known < lead; known++ {
		if i := slices.Index(of, known); i >= 0 {
			prefix = append(prefix, parts[i]...)
		} else if known < len(fixed) {
			prefix = append(prefix, fixed[known]...)
		} else {
			break
		}
	}
	stay := slices.ContainsFunc(of, func(c int) bool { return c < 0 || c >= known })
	return from(ranges, prefix, stay, reverse), nil
}

// from cuts off what precedes the rows whose keys begin with prefix, in the direction of the scan. It also cuts off
// these rows, unless stay is set.
func from(ranges []Range, prefix []byte, stay, reverse bool) (out []Range) {
	low, high := prefix, collate.PrefixEnd(prefix)
	if !stay {
		if low, high = high, low; !reverse && low == nil || reverse && len(high) == 0 {
			return nil // nothing follows
		}
	}
	one := Range{Low: low}
	if reverse {
		one = Range{High: high}
	}
	return intersect(ranges, []Range{one})
}

// briefGroups returns a short description of the requested groups.
func (r *Request) briefGroups() string {
	if !r.grouped() {
		return ""
	}
	by, _ := json.Marshal(r.GroupBy) // of numbers: no error
	if r.GroupBy == nil {
		by = []byte("[]")
	}
	return fmt.Sprintf(", %d aggregates by %s", len(r.Aggregates), by)
}
