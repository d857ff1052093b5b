// Package oracle computes the expected contents of indexes, straight from the documents, and the expected results of
// scans. The sample indexes are written out by hand; any other index comes from its definition and the slow
// interpreter of expressions. The package also generates random definitions, documents and scans. Apart from the
// syntax tree of a definition, and the length of an encoded key, it shares no code with the product beyond the
// standard library's JSON parser: package collatetest's model compares values. Tests compare scans with it row by
// row, in order.
package oracle

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"sort"
	"sync"

	"tidemark/collate/collatetest"
	"tidemark/expression"
	"tidemark/expression/expressiontest"
	"tidemark/index"
)

// Op is one write: a document's value at a sequence number; nil is a deletion.
type Op struct {
	Seqno uint64
	Key   string
	Value []byte
}

// History holds every write of a bucket, by vbucket. It is safe for concurrent use.
type History struct {
	mu  sync.Mutex
	ops [][]Op
}

// NewHistory returns an empty history of n vbuckets.
func NewHistory(n int) *History { return &History{ops: make([][]Op, n)} }

// Record adds an acknowledged write.
func (h *History) Record(vbucket uint16, op Op) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops[vbucket] = append(h.ops[vbucket], op)
}

// At returns the documents at a timestamp: per vbucket the effect of every write at or below the seqno.
func (h *History) At(seqnos []uint64) map[string][]byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	docs := map[string][]byte{}
	for v, ops := range h.ops {
		bySeqno := func(a, b Op) int { return cmp.Compare(a.Seqno, b.Seqno) }
		if !slices.IsSortedFunc(ops, bySeqno) { // after writes whose answers came in another order
			slices.SortFunc(ops, bySeqno)
		}
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

// High returns the highest seqno of each vbucket.
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

// Row is an index entry: the key's components, nil for NULL, see IsMissing, and the document's id.
type Row struct {
	Key []any
	ID  string
}

// Index is an index written by hand: the direction of each component, and the key of a document (nil: not indexed).
// Keys, if set, replaces Key, for indexes in which a document has several keys or need not be an object.
type Index struct {
	Desc []bool
	Key  func(id string, doc map[string]any) []any
	Keys func(id string, doc any) [][]any
	// Primary is set if documents that are not JSON have an entry as well; Keys gets nil for them.
	Primary bool
}

// OfDefinition returns the index of any definition, including array keys and functions. A document has no entry if an
// expression fails on it, or if a key is too long or too deep.
func OfDefinition(d *index.Definition) Index {
	if d.IsPrimary {
		return Index{Primary: true, Desc: []bool{false}, Keys: func(id string,
			_ any) [][]any {
			return [][]any{{string([]rune(id))}}
		}}
	}
	def := Index{Keys: func(id string, doc any) [][]any {
		entries, err := expressiontest.Entries(expressiontest.Doc{ID: id, Value: doc}, d.Keys, d.Where)
		if err != nil {
			return nil
		}
		for _, e := range entries {
			if k, err := expressiontest.Encode(e, d.Keys); err != nil || len(k) > expression.DefaultKeyBytes {
				return nil
			}
		}
		return entries
	}}
	for _, k := range d.Keys {
		def.Desc = append(def.Desc, k.Desc)
	}
	return def
}

// keysOf returns the keys of a document.
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

// Field returns a field of a document, or a special value if the field is missing, see IsMissing.
func Field(doc map[string]any, name string) any {
	v, ok := doc[name]
	if !ok {
		return expressiontest.Missing
	}
	return v
}

// IsMissing reports whether v is Field's value for a missing field.
func IsMissing(v any) bool { return v == expressiontest.Missing }

// defs returns a sample index by name.
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

// Rows returns all entries of a sample index over these documents, in index order.
func Rows(name string, docs map[string][]byte) ([]Row, error) {
	def, ok := defs(name)
	if !ok {
		return nil, fmt.Errorf("the oracle knows no index %q", name)
	}
	return def.Rows(docs)
}

// Rows returns all entries of an index over these documents, in index order.
func (def Index) Rows(docs map[string][]byte) ([]Row, error) {
	var rows []Row
	for id, text := range docs {
		doc, ok := decode(text)
		if !ok && !def.Primary {
			continue
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
			if c := collatetest.Compare(rows[a].Key[i], rows[b].Key[i]); c != 0 {
				return (c < 0) != desc
			}
		}
		return rows[a].ID < rows[b].ID
	})
	return rows, nil
}

// Limits of the cache of decoded values.
const (
	mostDecoded    = 64 << 20 // bytes of cached texts
	longestDecoded = 8 << 10  // bytes of the longest cached text
)

// decoded caches decoded values: hundreds of scans are compared with states that differ in few documents, and
// decoding them all for each scan took most of the time of such tests. The values must not be modified.
var decoded struct {
	sync.Mutex
	values map[string]decodedValue
	bytes  int
}

type decodedValue struct {
	v  any
	ok bool
}

// decode is collatetest.Decode with the cache.
func decode(text []byte) (any, bool) {
	if len(text) > longestDecoded {
		return collatetest.Decode(text)
	}
	decoded.Lock()
	defer decoded.Unlock()
	if d, known := decoded.values[string(text)]; known {
		return d.v, d.ok
	}
	v, ok := collatetest.Decode(text)
	if decoded.values == nil || decoded.bytes > mostDecoded {
		decoded.values, decoded.bytes = map[string]decodedValue{}, 0
	}
	decoded.values[string(text)] = decodedValue{v, ok}
	decoded.bytes += len(text)
	return v, ok
}

// Diff compares a scan's rows with the oracle's and describes the first difference, "" if they are equal. keys and
// ids are the scan's, in their order.
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
			v, ok := decode(raw)
			if !ok {
				return fmt.Sprintf("row %d: key %s is no JSON", i, raw)
			}
			w := want[i].Key[k]
			if IsMissing(w) { // JSON has no MISSING: a row shows null
				w = nil
			}
			if collatetest.Compare(v, w) != 0 {
				return fmt.Sprintf("row %d (%s): component %d is %s, want %v", i, ids[i], k, raw, w)
			}
		}
	}
	return ""
}
