package v1

import (
	"encoding/json"
	"strconv"

	"tidemark/index"
	"tidemark/timestamp"
	"tidemark/wire"
)

// Token requires that the write at {vbucket, vbuuid, seqno} be visible.
type Token struct {
	VBucket uint16 `json:"vbucket"`
	VBUUID  uint64 `json:"vbuuid,string"`
	Seqno   uint64 `json:"seqno"`
}

// Range limits a scan. A nil bound is open; Inclusion is both (default), low, high or neither. Equal, Prefix, From,
// After, UpTo and Below make a Range from Go values.
type Range struct {
	Low       []json.RawMessage `json:"low,omitempty"`
	High      []json.RawMessage `json:"high,omitempty"`
	Inclusion string            `json:"inclusion,omitempty"`

	err error // of the values from which it was made
}

// Condition is a condition on a single component of the key, counted from 0: it equals Equal, is one of In, or lies
// between Low and High, of which one may be missing. Exactly one of the three must be given. Component and
// ComponentIn make a Condition from Go values.
type Condition struct {
	Component int               `json:"component"`
	Equal     json.RawMessage   `json:"equal,omitempty"`
	In        []json.RawMessage `json:"in,omitempty"`
	Low       json.RawMessage   `json:"low,omitempty"`
	High      json.RawMessage   `json:"high,omitempty"`
	Inclusion string            `json:"inclusion,omitempty"` // of Low and High: both (default), low, high or neither

	err error // of the values from which it was made
}

// ScanRequest is the body of POST /v1/indexes/{id}:scan and :count. At most one of Equal, Range and Ranges may be
// given; none means the whole index.
type ScanRequest struct {
	Limit         int               `json:"limit,omitempty"`       // rows; 0 = no limit
	Consistency   string            `json:"consistency,omitempty"` // any (default), at_plus, session
	Tokens        []Token           `json:"tokens,omitempty"`      // for at_plus
	Equal         []json.RawMessage `json:"equal,omitempty"`
	Range         *Range            `json:"range,omitempty"`
	Ranges        []Range           `json:"ranges,omitempty"`
	Reverse       bool              `json:"reverse,omitempty"`
	WantTimestamp bool              `json:"want_timestamp,omitempty"`
	Explain       bool              `json:"explain,omitempty"` // return how the scan was executed, with its end
	Offset        int               `json:"offset,omitempty"`  // rows to skip before the first one
	// only the first of the rows with the same key, or with the same Project
	Distinct bool `json:"distinct,omitempty"`
	// Stability is scan (default: all rows are of one timestamp), none (each 10,000 rows are of the newest one), or
	// query: all rows are of one timestamp that is kept for later scans, which name it in Timestamp by the
	// ScanTimestamp.ID of the first one.
	Stability string `json:"stability,omitempty"`
	Timestamp string `json:"timestamp,omitempty"`
	// ScanVectors holds tokens in the form of Couchbase SDKs, instead of Tokens:
	// {"bucket":{"vbucket":[seqno,"vbuuid"]}}.
	ScanVectors map[string]map[string][]json.RawMessage `json:"scan_vectors,omitempty"`
	// components of the key to return, counted from 0; nil: all; empty: none
	Project []int `json:"project,omitzero"`
	// conditions on single components: only rows that meet all of them are returned
	Where []Condition `json:"where,omitempty"`
	// GroupBy and Aggregates request groups (Group) instead of rows: rows that agree in the components of GroupBy,
	// counted from 0, form one group; if it is empty, all rows do. Limit and Offset apply to groups, in the order of
	// GroupBy's components.
	GroupBy    []int       `json:"group_by,omitzero"`
	Aggregates []Aggregate `json:"aggregates,omitempty"` // at most 32
	// Session holds tokens of earlier answers (ScanSeen.Session), separated by commas: nothing older is returned. Tokens
	// of other buckets than the index's are ignored. The Go client manages them by itself, see Session.
	Session string `json:"session,omitempty"`
	// WantCursor requests a page: Limit rows, and a cursor (ScanEnd.Cursor) after which the next request, otherwise the
	// same, continues with Cursor. All pages are of one timestamp, which is kept for a minute after each, for ten
	// minutes at most; then the answer is CURSOR_EXPIRED. With Newer the scan continues after the cursor in the newest
	// state.
	WantCursor bool   `json:"want_cursor,omitempty"`
	Cursor     string `json:"cursor,omitempty"`
	Newer      bool   `json:"newer,omitempty"`
}

// ScanRoute is the answer of :locate: how to scan an index at an indexer, without a manager.
type ScanRoute struct {
	Index     index.ID `json:"index"`
	ScanPorts []string `json:"scan_ports"` // host:port of the indexers that hold the index, in random order
	Ticket    string   `json:"ticket"`     // authenticates the caller there
	TicketMS  int64    `json:"ticket_ms"`  // how long the ticket is valid
}

// Row is one entry of an index.
type Row struct {
	Key []json.RawMessage `json:"key"`
	ID  string            `json:"id"`
}

// ScanTimestamp identifies the state that a scan has returned.
type ScanTimestamp struct {
	// ID identifies the state in later scans, see ScanRequest.Stability.
	ID     string            `json:"id"`
	Hash   string            `json:"hash"`
	Vector []VBucketPosition `json:"vector,omitempty"`
}

// VBucketPosition is encoded as ["vbuuid", seqno].
type VBucketPosition timestamp.Position

// MarshalJSON encodes p as ["vbuuid", seqno].
func (p VBucketPosition) MarshalJSON() ([]byte, error) {
	return json.Marshal([2]any{strconv.FormatUint(p.VBUUID, 10), p.Seqno})
}

// UnmarshalJSON decodes the form of MarshalJSON.
func (p *VBucketPosition) UnmarshalJSON(b []byte) error {
	var pair [2]json.RawMessage
	if err := json.Unmarshal(b, &pair); err != nil {
		return err
	}
	var s string
	if err := json.Unmarshal(pair[0], &s); err != nil {
		return err
	}
	u, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return err
	}
	p.VBUUID = u
	return json.Unmarshal(pair[1], &p.Seqno)
}

// ScanEnd is the last line of a complete scan.
type ScanEnd struct {
	End       bool          `json:"end"`
	Rows      uint64        `json:"rows"`
	Timestamp ScanTimestamp `json:"timestamp"`
	ScanSeen
	ScanMore
	Explain *ScanExplain `json:"explain,omitempty"` // if it was requested
}

// ScanMore is the end of a page, see ScanRequest.WantCursor.
type ScanMore struct {
	More   bool   `json:"more,omitempty"`   // rows follow
	Cursor string `json:"cursor,omitempty"` // after which they follow; absent with More: the last row exceeds 32 KiB
}

// ScanSeen is the state of a session after an answer.
type ScanSeen struct {
	// Session is a token: requests with it return nothing older.
	Session string `json:"session,omitempty"`
	// SessionLost is why something that the session had seen no longer exists, because of a failover or because the
	// bucket was re-created; absent: everything exists. The answer then shows everything that KV had when the scan
	// began, whatever its consistency.
	SessionLost string `json:"session_lost,omitempty"`
}

// ScanExplain is how a scan or a count was executed. If another indexer has continued an answer, it covers that
// indexer's part.
type ScanExplain struct {
	// Attempts is how often copies were chosen: again if none had the timestamp, and for each page with stability none.
	Attempts int    `json:"attempts"`
	Chosen   string `json:"chosen"` // how its timestamp was chosen
	// AgeMS is for how long the indexer had known the timestamp when the request arrived, negative if it was made later;
	// absent if the indexer has known it since it started, or for longer than it keeps records (1,024 timestamps of a
	// bucket).
	AgeMS *float64 `json:"age_ms,omitempty"`
	wire.ScanTimes
	TookMS float64 `json:"took_ms"` // in all, until its last row was delivered
	Slices int     `json:"slices"`  // slices that may hold rows of the ranges
	Of     int     `json:"of"`      // slices of the index
	// Read is how many entries indexers have examined, and Filtered how many of these did not meet the conditions.
	// Entries that are skipped by means of bounds and conditions, and those that are counted as a whole, are not
	// examined.
	Read     int64 `json:"read"`
	Filtered int64 `json:"filtered"`
	// LeftOut holds the other slices, which were not scanned, and LeftOutWhy why they cannot contain a row.
	LeftOut    []index.SliceID `json:"left_out,omitempty"`
	LeftOutWhy string          `json:"left_out_why,omitempty"`
	Parts      []ScanPart      `json:"parts"` // requests to indexers, in order, at most 1,024
	Omitted    int             `json:"omitted,omitempty"`
}

// ScanPart is one request to one indexer.
type ScanPart struct {
	Indexer  string          `json:"indexer"`
	Slices   []index.SliceID `json:"slices"`
	Copies   []index.CopyID  `json:"copies"`
	Rows     int64           `json:"rows"`            // received from it, before distinct and offset; parts of groups
	Read     int64           `json:"read"`            // entries examined, up to the last part of its answer that was used
	Filtered int64           `json:"filtered"`        // examined entries that do not meet the conditions
	OpenedMS float64         `json:"opened_ms"`       // until it had the timestamp, and its first rows
	Error    string          `json:"error,omitempty"` // why other copies were used instead
}

// ScanFailure is the last line of a scan that failed midway.
type ScanFailure struct {
	Error   wire.Problem `json:"error"`
	Session string       `json:"session,omitempty"` // a token for what the preceding rows have shown
}

// CountReply is the answer of :count.
type CountReply struct {
	Count     uint64        `json:"count"`
	Timestamp ScanTimestamp `json:"timestamp"`
	ScanSeen
	Explain *ScanExplain `json:"explain,omitempty"`
}
