package scan

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"tidemark/collate"
	"tidemark/errcode"
	"tidemark/index"
	"tidemark/indexer/scanport"
	"tidemark/internal/rpc"
	"tidemark/wire"
)

// Limits of a request.
const (
	MaxLimit    = 1 << 40 // rows; without a limit, all rows
	MaxRanges   = 1024
	MaxTokens   = scanport.MaxTokens
	MaxKeyBytes = 64 << 10 // of one encoded bound
)

// Consistency determines which stability timestamps a scan may use.
type Consistency string

// Consistency levels.
const (
	Any     Consistency = "any"     // the newest one that is held everywhere
	AtPlus  Consistency = "at_plus" // one that covers the tokens
	Session Consistency = "session" // one at or above what KV has when the scan begins
)

// Token identifies a write that the scan must see.
type Token struct {
	VBucket uint16 `json:"vbucket"`
	VBUUID  uint64 `json:"vbuuid,string"`
	Seqno   uint64 `json:"seqno"`
}

// Inclusion determines which bounds belong to a range.
type Inclusion string

// Inclusions; an empty one means both.
const (
	Both    Inclusion = "both"
	LowOnly Inclusion = "low"
	HiOnly  Inclusion = "high"
	Neither Inclusion = "neither"
)

// Bounds is one range of a request. A bound is an array of JSON values for the first components of the key; null, no
// bound and an empty array mean open.
type Bounds struct {
	Low       []json.RawMessage `json:"low"`
	High      []json.RawMessage `json:"high"`
	Inclusion Inclusion         `json:"inclusion"`
}

// Request is the body of a scan or a count.
type Request struct {
	Limit         int64             `json:"limit"`
	Consistency   Consistency       `json:"consistency"`
	Tokens        []Token           `json:"tokens"`
	Equal         []json.RawMessage `json:"equal"`
	Range         *Bounds           `json:"range"`
	Ranges        []Bounds          `json:"ranges"`
	Reverse       bool              `json:"reverse"`
	WantTimestamp bool              `json:"want_timestamp"`
	Explain       bool              `json:"explain"` // report how the scan was carried out, with its end
	// Offset is the number of rows that are skipped.
	Offset int64 `json:"offset"`
	// Distinct keeps one row, the first, of those with the same key, or with the same Project.
	Distinct bool `json:"distinct"`
	// Project lists the components of the key that rows have, from 0; null: all; empty: none, rows are document ids.
	Project []int `json:"project"`
	// Where lists conditions on single components: only rows that meet all of them are returned.
	Where []Condition `json:"where"`
	// GroupBy and Aggregates request groups instead of rows. Rows with equal components GroupBy form a group.
	GroupBy    []int       `json:"group_by"`
	Aggregates []Aggregate `json:"aggregates"`
	// Stability determines what the rows have in common. Timestamp is that of an earlier scan, and goes with
	// QueryStability.
	Stability RowStability `json:"stability"`
	Timestamp string       `json:"timestamp"`
	// ScanVectors are tokens in the form of Couchbase SDKs: {"bucket":{"vbucket":[seqno,"vbuuid"]}}. Other buckets
	// than the index's are ignored.
	ScanVectors map[string]map[string][]json.RawMessage `json:"scan_vectors"`
	// Session has tokens of what the client has seen, as returned by earlier answers (package scanport): the scan
	// returns nothing older. Tokens of other buckets than the index's are ignored.
	Session string `json:"session"`
	// WantCursor requests a page of Limit rows and a cursor behind it. Cursor is that of the previous page. With
	// Newer the scan continues behind the cursor in the newest state instead of the cursor's.
	WantCursor bool   `json:"want_cursor"`
	Cursor     string `json:"cursor"`
	Newer      bool   `json:"newer"`
	// Resume is what came with the last rows of an answer to be continued. It is not part of the body.
	Resume []byte `json:"-"`

	seen []scanport.Seen // of Session
}

// Spec is a request that has been checked against an index.
type Spec struct {
	Index         index.ID
	Limit         int64 // 0: none
	Consistency   Consistency
	Tokens        []Token
	Ranges        []Range // sorted and disjoint; none: no row matches
	Reverse       bool
	WantTimestamp bool
	Explain       bool
	Desc          []bool
	Offset        int64
	Distinct      int   // rows whose keys agree in that many leading components count as one; 0: every row counts
	Project       []int // components that rows have; nil: all
	Where         []Filter
	Groups        *groups // nil for rows
	Stability     RowStability
	At            *wire.StabilityRef // the timestamp that the caller has named
	Resume        *Resume            // rest of an answer whose indexer was lost; nil: a whole answer
	Page          *Page              // nil: not a page
	Seen          []scanport.Seen    // of the bucket: the scan returns nothing older
	Progress      *Progress          // nil: not observed
}

// ParseRequest parses a request strictly: an unknown field is an error, and so is one that occurs twice, or anything
// after the JSON object. Values of keys may be any JSON. An empty body selects all rows. Errors are *Error with code
// BAD_REQUEST and name the field or the position.
func ParseRequest(body []byte) (Request, error) {
	r := Request{Consistency: Any}
	if len(bytes.TrimSpace(body)) == 0 {
		return r, nil
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&r); err != nil {
		return r, badJSON(err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return r, Errorf(errcode.BadRequest, "the body has more data after the JSON object, at byte %d", dec.InputOffset())
	}
	if twice := rpc.Repeated(body, &r); twice != "" {
		return r, Errorf(errcode.BadRequest, "JSON body: %s", twice)
	}
	return r, r.check()
}

// Continue adds a session's tokens to those of the body: the answer then shows nothing older than either.
func (r *Request) Continue(session string) error {
	seen, err := scanport.ParseSession(session)
	if err != nil {
		return Errorf(errcode.BadRequest, "session: %w", err)
	}
	r.seen = append(r.seen, seen...)
	return nil
}

func badJSON(err error) *Error {
	var syntax *json.SyntaxError
	var typ *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		return Errorf(errcode.BadRequest, "the body is not JSON: %w at byte %d", err, syntax.Offset)
	case errors.As(err, &typ):
		return Errorf(errcode.BadRequest, "JSON body: %s", rpc.WrongType(typ))
	case errors.Is(err, io.ErrUnexpectedEOF):
		return Errorf(errcode.BadRequest, "the body ends in the middle of the JSON object")
	}
	text := strings.TrimPrefix(err.Error(), "json: ")
	if strings.Contains(text, ",string struct tag") {
		text = "a vbuuid must be a string of decimal digits, up to 18446744073709551615: ids are strings, because they may " +
			"exceed 2^53"
	}
	if strings.HasPrefix(text, "unknown field") {
		text += ": allowed are limit, consistency, tokens, equal, range {low, high, inclusion}, ranges, reverse, " +
			"want_timestamp, explain, offset, distinct, project, where [{component, equal, in, low, high, inclusion}], " +
			"group_by, aggregates [{op, component, distinct}], stability, timestamp, scan_vectors, session, want_cursor, " +
			"cursor, newer"
	}
	return Errorf(errcode.BadRequest, "%s", text)
}

func (r *Request) check() error {
	r.Consistency = cmp.Or(r.Consistency, Any)
	switch {
	case r.Limit < 0 || r.Limit > MaxLimit:
		return Errorf(errcode.BadRequest, "limit %d: want 1 to %d, or none for all rows", r.Limit, int64(MaxLimit))
	case r.Offset < 0 || r.Offset > MaxLimit:
		return Errorf(errcode.BadRequest, "offset %d: want 0 to %d", r.Offset, int64(MaxLimit))
	}
	if err := r.checkConsistency(); err != nil {
		return err
	}
	if err := r.Continue(r.Session); err != nil {
		return err
	}
	if err := r.checkRanges(); err != nil {
		return err
	}
	if err := r.checkStability(); err != nil {
		return err
	}
	if err := r.checkGroups(); err != nil {
		return err
	}
	return r.checkPages()
}

// howMany returns how many arguments are true.
func howMany(are ...bool) (n int) {
	for _, is := range are {
		if is {
			n++
		}
	}
	return n
}

func (r *Request) checkRanges() error {
	if len(r.Ranges) > MaxRanges {
		return Errorf(errcode.BadRequest, "%d ranges, want at most %d", len(r.Ranges), MaxRanges)
	}
	if given := howMany(r.Equal != nil, r.Range != nil, r.Ranges != nil); given > 1 {
		return Errorf(errcode.BadRequest, "equal, range and ranges exclude each other: %d of them are given", given)
	}
	return nil
}

// checkConsistency refuses an invalid consistency, and tokens that cannot be combined with it.
func (r *Request) checkConsistency() error {
	switch {
	case r.Consistency != Any && r.Consistency != AtPlus && r.Consistency != Session:
		return Errorf(errcode.BadRequest, "consistency %q: want any, at_plus or session", r.Consistency)
	case len(r.ScanVectors) > 0 && len(r.Tokens) > 0:
		return Errorf(errcode.BadRequest, "tokens and scan_vectors exclude each other: give one of them")
	case len(r.ScanVectors) > 0 && r.Consistency != AtPlus:
		return Errorf(errcode.BadRequest, "scan_vectors require consistency at_plus, not %s", r.Consistency)
	case r.Consistency == AtPlus && len(r.Tokens) == 0 && len(r.ScanVectors) == 0:
		return Errorf(errcode.BadRequest, "consistency at_plus needs tokens or scan_vectors")
	case r.Consistency != AtPlus && len(r.Tokens) > 0:
		return Errorf(errcode.BadRequest, "tokens require consistency at_plus, not %s", r.Consistency)
	case len(r.Tokens) > MaxTokens:
		return Errorf(errcode.BadRequest, "%d tokens, want at most %d", len(r.Tokens), MaxTokens)
	}
	return nil
}

// tokensOf returns the tokens of a bucket.
func (r *Request) tokensOf(bucket string) ([]Token, error) {
	if len(r.ScanVectors) == 0 {
		return r.Tokens, nil
	}
	var all []Token
	for vb, pairs := range r.ScanVectors[bucket] {
		of, err := vectorTokens(vb, pairs)
		if err != nil {
			return nil, Errorf(errcode.BadRequest, "scan_vectors of %q, vbucket %q: want {\"vbucket\":[seqno,\"vbuuid\"]}: "+
				"a vbucket's number up to %d, a seqno, and the vbuuid's decimal digits as a string; pairs of other "+
				"branches may follow", bucket, vb, math.MaxUint16)
		}
		all = append(all, of...)
	}
	if len(all) > MaxTokens {
		return nil, Errorf(errcode.BadRequest, "%d tokens, want at most %d", len(all), MaxTokens)
	}
	return all, nil
}

// errPair is the error for a scan vector without pairs.
var errPair = errors.New("want pairs")

// vectorTokens parses a scan vector's entry for a vbucket.
func vectorTokens(vbucket string, pairs []json.RawMessage) (all []Token, err error) {
	v, err := strconv.ParseUint(vbucket, 10, 16)
	if len(pairs) == 0 || len(pairs)%2 != 0 {
		err = errPair
	}
	for i := 0; i < len(pairs) && err == nil; i += 2 {
		t := Token{VBucket: uint16(v)}
		var id string
		if err = errors.Join(json.Unmarshal(pairs[i], &t.Seqno), json.Unmarshal(pairs[i+1], &id)); err == nil {
			t.VBUUID, err = strconv.ParseUint(id, 10, 64)
		}
		all = append(all, t)
	}
	return all, err
}

// since sets what the rows must cover, from those parts of the request that concern the index's bucket.
func (s *Spec) since(r *Request, bucket string) (err error) {
	if s.Tokens, err = r.tokensOf(bucket); err != nil {
		return err
	}
	if s.Consistency == AtPlus && len(s.Tokens) == 0 { // all tokens are of other buckets: there is nothing to wait for
		s.Consistency = Any
	}
	for _, seen := range r.seen {
		if seen.Bucket == bucket {
			s.Seen = append(s.Seen, seen)
		}
	}
	return nil
}

// Compile checks the request against an index and encodes its bounds. Errors are *Error with code BAD_REQUEST.
func (r *Request) Compile(def *index.Definition) (Spec, error) {
	s := Spec{
		Index: def.ID, Limit: r.Limit, Consistency: r.Consistency, Tokens: r.Tokens, Reverse: r.Reverse,
		WantTimestamp: r.WantTimestamp, Explain: r.Explain, Desc: def.Desc(), Offset: r.Offset, Project: r.Project,
		Stability: r.Stability,
	}
	err := s.since(r, def.Bucket)
	if err != nil {
		return s, err
	}
	if r.Timestamp != "" {
		at, err := ParseTimestampID(def.Bucket, r.Timestamp)
		if err != nil {
			return s, err
		}
		s.At = &at
	}
	if err := s.project(r.Distinct); err != nil {
		return s, err
	}
	if err := s.group(r, def); err != nil {
		return s, err
	}
	if err := s.where(r.Where); err != nil {
		return s, err
	}
	if s.Ranges, err = r.ranges(s.Desc); err != nil {
		return s, err
	}
	s.narrow()
	if err := s.page(r, def); err != nil {
		return s, err
	}
	if len(r.Resume) > 0 {
		return s, s.resume(def, r.Resume)
	}
	return s, nil
}

// ranges encodes the bounds, sorted and disjoint.
func (r *Request) ranges(desc []bool) ([]Range, error) {
	var bounds []Bounds
	switch {
	case len(r.Equal) > len(desc):
		return nil, Errorf(errcode.BadRequest, "equal has %d values, but a key of this index has %d components", len(r.Equal),
			len(desc))
	case r.Equal != nil:
		bounds = []Bounds{{Low: r.Equal, High: r.Equal}}
	case r.Range != nil:
		bounds = []Bounds{*r.Range}
	case r.Ranges != nil:
		bounds = r.Ranges
	default:
		bounds = []Bounds{{}}
	}
	ranges := make([]Range, 0, len(bounds))
	for i := range bounds {
		rg, some, err := bounds[i].compile(desc)
		if err != nil {
			return nil, err
		}
		if some {
			ranges = append(ranges, rg)
		}
	}
	return mergeRanges(ranges), nil
}

// project checks the components that rows are to have, and sets how many make rows distinct. An index keeps rows in
// the order of whole keys, so rows with some equal components are consecutive only if these are the leading ones.
func (s *Spec) project(distinct bool) error {
	leading := true
	for i, p := range s.Project {
		if p < 0 || p >= len(s.Desc) {
			return Errorf(errcode.BadRequest, "project[%d] is %d: a key of this index has the components 0 to %d", i, p,
				len(s.Desc)-1)
		}
		if slices.Contains(s.Project[:i], p) {
			return Errorf(errcode.BadRequest, "project names component %d twice", p)
		}
		leading = leading && p == i
	}
	if !distinct {
		return nil
	}
	s.Distinct = len(s.Desc)
	if s.Project != nil {
		s.Distinct = len(s.Project)
	}
	if !leading || s.Distinct == 0 {
		return Errorf(errcode.BadRequest, "distinct requires the leading components of the key: project [0], [0,1] "+
			"and so on, or no project")
	}
	return nil
}

// compile encodes one range. It returns false if no key can be in it.
//
// Both bounds are given in value order. The component in which they first differ, or at which one of them ends,
// decides: if it is descending, the index order is reversed there, and the bounds are swapped together with their
// inclusion. A bound with fewer components than the key stands for every key with that prefix: if included, all of
// these keys belong to the range, if excluded, none of them.
func (b *Bounds) compile(desc []bool) (Range, bool, error) {
	withLow, withHigh, known := b.Inclusion.bounds()
	if !known {
		return Range{}, false, Errorf(errcode.BadRequest, "inclusion %q: want both, low, high or neither", b.Inclusion)
	}
	low, lowEnds, err := encodeBound("low", b.Low, desc)
	if err != nil {
		return Range{}, false, err
	}
	high, highEnds, err := encodeBound("high", b.High, desc)
	if err != nil {
		return Range{}, false, err
	}
	if i := differAt(low, lowEnds, high, highEnds); i < len(desc) && desc[i] {
		low, high, withLow, withHigh = high, low, withHigh, withLow
	}
	var r Range
	if len(low) > 0 {
		if r.Low = low; !withLow {
			if r.Low = collate.PrefixEnd(low); r.Low == nil {
				return r, false, nil // no key is greater than every key with this prefix
			}
		}
	}
	if len(high) > 0 {
		if r.High = high; withHigh {
			r.High = collate.PrefixEnd(high) // nil: no key is greater, which is open as well
		}
	}
	return r, !r.isEmpty(), nil
}

// Empty reports whether no key of any index can lie between the bounds. It does not depend on the directions of the
// components, since the bounds are given in value order. Bounds that no request may have are not empty.
func (b *Bounds) Empty() bool {
	_, some, err := b.compile(make([]bool, max(len(b.Low), len(b.High))))
	return err == nil && !some
}

// bounds returns which bounds belong to the range; known is false for an invalid inclusion.
func (i Inclusion) bounds() (low, high, known bool) {
	switch i {
	case "", Both:
		return true, true, true
	case LowOnly:
		return true, false, true
	case HiOnly:
		return false, true, true
	case Neither:
		return false, false, true
	}
	return false, false, false
}

// encodeBound encodes the components of a bound; ends has the end of each.
func encodeBound(name string, values []json.RawMessage, desc []bool) (key []byte, ends []int, err error) {
	if len(values) > len(desc) {
		return nil, nil, Errorf(errcode.BadRequest, "%s has %d values, a key of this index has %d components", name,
			len(values), len(desc))
	}
	for i, v := range values {
		if key, err = collate.AppendComposite(key, [][]byte{v}, desc[i:i+1]); err != nil {
			return nil, nil, Errorf(errcode.BadRequest, "%s, component %d: %w", name, i, err)
		}
		if len(key) > MaxKeyBytes {
			return nil, nil, Errorf(errcode.BadRequest, "%s is longer than %d bytes", name, MaxKeyBytes)
		}
		ends = append(ends, len(key))
	}
	return key, ends, nil
}

// differAt returns the first component in which two encoded bounds differ, or at which one of them ends. If they are
// equal, it returns a number beyond every component.
func differAt(a []byte, aEnds []int, b []byte, bEnds []int) int {
	from := 0
	for i := range min(len(aEnds), len(bEnds)) {
		if aEnds[i] != bEnds[i] || !bytes.Equal(a[from:aEnds[i]], b[from:bEnds[i]]) {
			return i
		}
		from = aEnds[i]
	}
	if len(aEnds) == len(bEnds) {
		return int(^uint(0) >> 1)
	}
	return min(len(aEnds), len(bEnds))
}

// String describes the spec for logs.
func (s *Spec) String() string {
	return fmt.Sprintf("index %s, %d ranges, %s, limit %d, reverse %v", s.Index, len(s.Ranges), s.Consistency, s.Limit,
		s.Reverse)
}
