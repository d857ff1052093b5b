package v1

import (
	"encoding/json"
	"strconv"

	"tidemark/index"
	"tidemark/timestamp"
	"tidemark/wire"
)

// Token says that a write at {vbucket, vbuuid, seqno} must be seen.
type Token struct {
	VBucket uint16 `json:"vbucket"`
	VBUUID  uint64 `json:"vbuuid,string"`
	Seqno   uint64 `json:"seqno"`
}

// Range limits a scan. A nil bound is open; Inclusion is both (default), low, high or neither. Equal, Prefix, From,
// After, UpTo and Below make one of Go values.
type Range struct {
	Low       []json.RawMessage `json:"low,omitempty"`
	High      []json.RawMessage `json:"high,omitempty"`
	Inclusion string            `json:"inclusion,omitempty"`

	err error // of the values that it was made of
}

// Condition is one on a single component of the key, from 0: it equals Equal, is one of In, or lies between Low and
// High, of which one may be missing. Exactly one of the three is given. Component and ComponentIn make one of Go
// values.
type Condition struct {
	Component int               `json:"component"`
	Equal     json.RawMessage   `json:"equal,omitempty"`
	In        []json.RawMessage `json:"in,omitempty"`
	Low       json.RawMessage   `json:"low,omitempty"`
	High      json.RawMessage   `json:"high,omitempty"`
	Inclusion string            `json:"inclusion,omitempty"` // of Low and High: both (default), low, high or neither

	err error // of the values that it was made of
}

// ScanRequest is the body of POST /v1/indexes/{id}:scan and :count. At most one of Equal, Range and Ranges is given;
// none means the whole index.
type ScanRequest struct {
	Limit         int               `json:"limit,omitempty"`       // rows; 0 = no limit
	Consistency   string            `json:"consistency,omitempty"` // any (default), at_plus, session
	Tokens        []Token           `json:"tokens,omitempty"`      // for at_plus
	Equal         []json.RawMessage `json:"equal,omitempty"`
	Range         *Range            `json:"range,omitempty"`
	Ranges        []Range           `json:"ranges,omitempty"`
	Reverse       bool              `json:"reverse,omitempty"`
	WantTimestamp bool              `json:"want_timestamp,omitempty"`
	Explain       bool              `json:"explain,omitempty"` // how it is carried out is wanted, with its end
	Offset        int               `json:"offset,omitempty"`  // rows passed over before the first one
	// one row, the first, of those with the same key, or with the same Project
	Distinct bool `json:"distinct,omitempty"`
	// Stability is scan (default: all rows are of one timestamp), none (each 10,000 rows are of the newest one), or query:
	// of one timestamp that is kept for later scans, which name it with Timestamp, ScanTimestamp.ID of the first one.
	Stability string `json:"stability,omitempty"`
	Timestamp string `json:"timestamp,omitempty"`
	// ScanVectors are tokens as SDKs of Couchbase write them, instead of Tokens: {"bucket":{"vbucket":[seqno,"vbuuid"]}}.
	ScanVectors map[string]map[string][]json.RawMessage `json:"scan_vectors,omitempty"`
	// components of the key that rows have, from 0; nil: all; empty: none
	Project []int `json:"project,omitzero"`
	// conditions on single components: rows that do not meet all of them are left out
	Where []Condition `json:"where,omitempty"`
	// GroupBy and Aggregates ask for groups (Group) instead of rows: rows that agree in the components of GroupBy, from 0,
	// are one; none: all rows are. Limit and Offset are of groups, in the order of GroupBy's components.
	GroupBy    []int       `json:"group_by,omitzero"`
	Aggregates []Aggregate `json:"aggregates,omitempty"` // at most 32
	// Session has tokens of earlier answers (ScanSeen.Session), separated by commas: nothing older is shown. Those of
	// other buckets than the index's do not count. The Go client keeps them by itself, see Session.
	Session string `json:"session,omitempty"`
	// WantCursor asks for a page: Limit rows, and a cursor (ScanEnd.Cursor) behind which the next request, otherwise the
	// same, goes on with Cursor. All pages are of one timestamp, which is kept for a minute after each, for ten minutes at
	// most; then the answer is CURSOR_EXPIRED. With Newer the scan goes on behind the cursor in the newest state.
	WantCursor bool   `json:"want_cursor,omitempty"`
	Cursor     string `json:"cursor,omitempty"`
	Newer      bool   `json:"newer,omitempty"`
}

// ScanRoute is the answer of :locate: how to scan an index without a manager between.
type ScanRoute struct {
	Index     index.ID `json:"index"`
	ScanPorts []string `json:"scan_ports"` // host:port, of the indexers that hold the index, in no order
	Ticket    string   `json:"ticket"`     // stands for the caller there
	TicketMS  int64    `json:"ticket_ms"`  // how long it is good
}

// Row is one entry of an index.
type Row struct {
	Key []json.RawMessage `json:"key"`
	ID  string            `json:"id"`
}

// ScanTimestamp names the state that a scan has shown.
type ScanTimestamp struct {
	// ID names it for later scans, see ScanRequest.Stability.
	ID     string            `json:"id"`
	Hash   string            `json:"hash"`
	Vector []VBucketPosition `json:"vector,omitempty"`
}

// VBucketPosition is written ["vbuuid", seqno].
type VBucketPosition timestamp.Position

// MarshalJSON writes ["vbuuid", seqno].
func (p VBucketPosition) MarshalJSON() ([]byte, error) {
	return json.Marshal([2]any{strconv.FormatUint(p.VBUUID, 10), p.Seqno})
}

// UnmarshalJSON reads what MarshalJSON wrote.
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

// ScanEnd is the last line of a scan that came to its end.
type ScanEnd struct {
	End       bool          `json:"end"`
	Rows      uint64        `json:"rows"`
	Timestamp ScanTimestamp `json:"timestamp"`
	ScanSeen
	ScanMore
	Explain *ScanExplain `json:"explain,omitempty"` // where it was asked for
}

// ScanMore is the end of a page, see ScanRequest.WantCursor.
type ScanMore struct {
	More   bool   `json:"more,omitempty"`   // rows follow
	Cursor string `json:"cursor,omitempty"` // behind which they do; absent with More: the last row has more than 32 KiB
}

// ScanSeen is what a session has seen with an answer.
type ScanSeen struct {
	// Session is a token: what is asked for with it shows nothing older.
	Session string `json:"session,omitempty"`
	// SessionLost says why something that the session had seen is there no more, as a failover has undone it or the bucket
	// was made anew; absent: all is. The answer shows all that KV had when it began then, whatever its consistency.
	SessionLost string `json:"session_lost,omitempty"`
}

// ScanExplain says how a scan or a count was carried out. Of an answer that another indexer has gone on with it is that
// one's part.
type ScanExplain struct {
	// Attempts is how often copies were chosen: again where none had the timestamp, and for each page of stability none.
	Attempts int    `json:"attempts"`
	Chosen   string `json:"chosen"` // by what its timestamp was chosen
	// AgeMS is for how long the indexer had known the timestamp when the question came, negative when it was made
	// meanwhile; absent where it has known it since it started, or for longer than it remembers (1,024 timestamps of a
	// bucket).
	AgeMS *float64 `json:"age_ms,omitempty"`
	wire.ScanTimes
	TookMS float64 `json:"took_ms"` // in all, until its last row was given
	Slices int     `json:"slices"`  // that may hold rows of the ranges
	Of     int     `json:"of"`      // slices of the index
	// Read is how many entries indexers looked at, of which Filtered did not meet the conditions. Those that bounds and
	// conditions let an indexer go past, and those that are counted as a whole, are not looked at.
	Read     int64 `json:"read"`
	Filtered int64 `json:"filtered"`
	// LeftOut are the others, which nobody was asked for, and LeftOutWhy why no row can be in them.
	LeftOut    []index.SliceID `json:"left_out,omitempty"`
	LeftOutWhy string          `json:"left_out_why,omitempty"`
	Parts      []ScanPart      `json:"parts"` // what indexers were asked for, in the order of the questions, at most 1,024
	Omitted    int             `json:"omitted,omitempty"`
}

// ScanPart is what one indexer was asked for at once.
type ScanPart struct {
	Indexer  string          `json:"indexer"`
	Slices   []index.SliceID `json:"slices"`
	Copies   []index.CopyID  `json:"copies"`
	Rows     int64           `json:"rows"`            // taken from it, before distinct and offset; parts of groups
	Read     int64           `json:"read"`            // entries looked at, up to the last of its answer that was taken
	Filtered int64           `json:"filtered"`        // of these, those that do not meet the conditions
	OpenedMS float64         `json:"opened_ms"`       // until it had the timestamp, and its first rows
	Error    string          `json:"error,omitempty"` // why others were asked instead
}

// ScanFailure is the last line of a scan that failed midway.
type ScanFailure struct {
	Error   wire.Problem `json:"error"`
	Session string       `json:"session,omitempty"` // a token of what was seen with the rows before
}

// CountReply is the answer of :count.
type CountReply struct {
	Count     uint64        `json:"count"`
	Timestamp ScanTimestamp `json:"timestamp"`
	ScanSeen
	Explain *ScanExplain `json:"explain,omitempty"`
}
