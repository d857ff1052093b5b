// Package oracle computes what indexes must hold, straight from the documents: the sample's by their idea written out by
// hand, any other by its definition and the slow interpreter of expressions. Beside the syntax tree of a definition it shares
// no code with the product beyond the standard library's JSON parser: it has its own comparison. Tests compare scans with
// it, row by row, in order.
package oracle

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"sort"
	"strings"
	"sync"

	"tidemark/expression/expressiontest"
	"tidemark/index"
)

// Op is one write: a document's value as of a sequence number; nil is a deletion.
type Op struct {
	Seqno uint64
	Key   string
	Value []byte
}

// History is every write of a bucket, by vbucket. It is safe for use by several goroutines.
type History struct {
	mu  sync.Mutex
	ops [][]Op
}

// NewHistory makes one of n vbuckets.
func NewHistory(n int) *History { return &History{ops: make([][]Op, n)} }

// Record adds a write that the KV store has acknowledged.
func (h *History) Record(vbucket uint16, op Op) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops[vbucket] = append(h.ops[vbucket], op)
}

// At gives the documents as of a timestamp: per vbucket every write at or below the seqno.
func (h *History) At(seqnos []uint64) map[string][]byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	docs := map[string][]byte{}
	for v, ops := range h.ops {
		sort.Slice(ops, func(a, b int) bool { return ops[a].Seqno < ops[b].Seqno })
		for _, op := range ops {
			if op.Seqno > seqnos[v] {
				break
			}
			if op.Value == nil {
				delete(docs, op.Key)
			} else {
				docs[op.Key] = op.Value
			}
		}
	}
	return docs
}

// High gives the highest seqno of each vbucket.
func (h *History) High() []uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	high := make([]uint64, len(h.ops))
	for v, ops := range h.ops {
		for _, op := range ops {
			high[v] = max(high[v], op.Seqno)
		}
	}
	return high
}

// Row is an index entry: the key's components (nil is MISSING) and the document's id.
type Row struct {
	Key []any
	ID  string
}

// missing marks a field that is not there.
type missing struct{}

// Index is an index by hand: the direction of each component, and the key of a document (nil: not indexed). Keys, where it is
// set, is used instead of Key, for indexes in which a document has several keys or need not be an object.
type Index struct {
	Desc []bool
	Key  func(id string, doc map[string]any) []any
	Keys func(id string, doc any) [][]any
}

// OfDefinition gives the index of any definition, array keys and functions included. A document on which an expression
// fails has no entry.
func OfDefinition(d *index.Definition) Index {
	if d.IsPrimary {
		return Index{Desc: []bool{false}, Keys: func(id string, _ any) [][]any { return [][]any{{id}} }}
	}
	def := Index{Keys: func(id string, doc any) [][]any {
		entries, err := expressiontest.Entries(expressiontest.Doc{ID: id, Value: doc}, d.Keys, d.Where)
		if err != nil {
			return nil
		}
		for _, e := range entries {
			for i, v := range e {
				if v == expressiontest.Missing {
					e[i] = missing{}
				}
			}
		}
		return entries
	}}
	for _, k := range d.Keys {
		def.Desc = append(def.Desc, k.Desc)
	}
	return def
}

// keysOf gives the keys of a document.
func (def Index) keysOf(id string, value any) ([][]any, error) {
	if def.Keys != nil {
		return def.Keys(id, value), nil
	}
	doc, ok := value.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("document %s is no object", id)
	}
	if key := def.Key(id, doc); key != nil {
		return [][]any{key}, nil
	}
	return nil, nil
}

// Field gives a field of a document, with a value of its own when it is not there.
func Field(doc map[string]any, name string) any {
	v, ok := doc[name]
	if !ok {
		return missing{}
	}
	return v
}

// IsMissing tells whether Field has found nothing.
func IsMissing(v any) bool { _, ok := v.(missing); return ok }

// defs are the sample indexes.
func defs(name string) (Index, bool) {
	switch name {
	case "world_ids":
		return Index{Desc: []bool{false}, Key: func(id string, _ map[string]any) []any { return []any{id} }}, true
	case "airports_by_country":
		return Index{Desc: []bool{false, false}, Key: func(_ string, d map[string]any) []any {
			if d["kind"] != "airport" || IsMissing(Field(d, "iso_country")) {
				return nil
			}
			return []any{Field(d, "iso_country"), Field(d, "name")}
		}}, true
	case "places_by_name":
		return Index{Desc: []bool{false}, Key: func(_ string, d map[string]any) []any {
			if IsMissing(Field(d, "name")) {
				return nil
			}
			return []any{Field(d, "name")}
		}}, true
	case "airports_by_elevation":
		return Index{Desc: []bool{true}, Key: func(_ string, d map[string]any) []any {
			if d["kind"] != "airport" || d["scheduled_service"] != true || IsMissing(Field(d, "elevation_ft")) {
				return nil
			}
			return []any{Field(d, "elevation_ft")}
		}}, true
	}
	return Index{}, false
}

// Rows gives all entries of a sample index over these documents, in index order.
func Rows(name string, docs map[string][]byte) ([]Row, error) {
	def, ok := defs(name)
	if !ok {
		return nil, fmt.Errorf("the oracle knows no index %q", name)
	}
	return def.Rows(docs)
}

// Rows gives all entries of an index over these documents, in index order.
func (def Index) Rows(docs map[string][]byte) ([]Row, error) {
	var rows []Row
	for id, text := range docs {
		dec := json.NewDecoder(bytes.NewReader(text))
		dec.UseNumber()
		var doc any
		if err := dec.Decode(&doc); err != nil {
			return nil, fmt.Errorf("document %s: %w", id, err)
		}
		keys, err := def.keysOf(id, doc)
		if err != nil {
			return nil, err
		}
		for _, key := range keys {
			rows = append(rows, Row{Key: key, ID: id})
		}
	}
	sort.Slice(rows, func(a, b int) bool {
		for i, desc := range def.Desc {
			if c := compare(rows[a].Key[i], rows[b].Key[i]); c != 0 {
				return (c < 0) != desc
			}
		}
		return rows[a].ID < rows[b].ID
	})
	return rows, nil
}

// rank orders types: missing < null < false < true < numbers < strings < arrays < objects.
func rank(v any) int {
	switch v := v.(type) {
	case missing:
		return 0
	case nil:
		return 1
	case bool:
		if v {
			return 3
		}
		return 2
	case json.Number:
		return 4
	case string:
		return 5
	case []any:
		return 6
	}
	return 7
}

func compare(a, b any) int {
	if ra, rb := rank(a), rank(b); ra != rb {
		return ra - rb
	}
	switch a := a.(type) {
	case json.Number:
		x, y := number(a), number(b.(json.Number))
		return x.Cmp(y)
	case string:
		return strings.Compare(a, b.(string))
	case []any:
		b := b.([]any)
		for i := range min(len(a), len(b)) {
			if c := compare(a[i], b[i]); c != 0 {
				return c
			}
		}
		return len(a) - len(b)
	case map[string]any:
		return compareObjects(a, b.(map[string]any))
	}
	return 0
}

// compareObjects looks at the number of members, then at each in the order of their names: first the name, then the value.
func compareObjects(a, b map[string]any) int {
	if len(a) != len(b) {
		return len(a) - len(b)
	}
	x, y := slices.Sorted(maps.Keys(a)), slices.Sorted(maps.Keys(b))
	for i := range x {
		if c := strings.Compare(x[i], y[i]); c != 0 {
			return c
		}
		if c := compare(a[x[i]], b[y[i]]); c != 0 {
			return c
		}
	}
	return 0
}

// number is the exact integer, or the nearest float64 where there is one.
func number(n json.Number) *big.Rat {
	if strings.ContainsAny(n.String(), ".eE") {
		if f, err := n.Float64(); err == nil {
			return new(big.Rat).SetFloat64(f)
		}
	}
	r, ok := new(big.Rat).SetString(n.String())
	if !ok {
		return new(big.Rat)
	}
	return r
}

// Diff compares what a scan gave with what the oracle says and describes the first difference, "" when equal. got is
// the scan's keys and ids in the order in which they came.
func Diff(want []Row, keys [][]json.RawMessage, ids []string) string {
	for i := range max(len(want), len(ids)) {
		switch {
		case i >= len(want):
			return fmt.Sprintf("row %d of %d is too many: %s %s", i, len(ids), keys[i], ids[i])
		case i >= len(ids):
			return fmt.Sprintf("row %d of %d is missing: %v %s", i, len(want), want[i].Key, want[i].ID)
		case ids[i] != want[i].ID:
			return fmt.Sprintf("row %d: got %s %s, want %v %s", i, keys[i], ids[i], want[i].Key, want[i].ID)
		case len(keys[i]) != len(want[i].Key):
			return fmt.Sprintf("row %d: got %s, want %v", i, keys[i], want[i].Key)
		}
		for k, raw := range keys[i] {
			dec := json.NewDecoder(bytes.NewReader(raw))
			dec.UseNumber()
			var v any
			if err := dec.Decode(&v); err != nil {
				return fmt.Sprintf("row %d: key %s is no JSON: %v", i, raw, err)
			}
			w := want[i].Key[k]
			if IsMissing(w) { // JSON has no MISSING: a row shows null
				w = nil
			}
			if compare(v, w) != 0 {
				return fmt.Sprintf("row %d (%s): component %d is %s, want %v", i, ids[i], k, raw, w)
			}
		}
	}
	return ""
}
