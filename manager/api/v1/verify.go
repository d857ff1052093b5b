package v1

import (
	"encoding/json"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/wire"
)

// Limits and defaults of a verification (docs/scans.md, "Verification").
const (
	DefaultVerifyRate  = 20_000     // documents per second and indexer
	MinVerifyRate      = 100        // a lower rate would end streams as silent
	MaxVerifyRate      = 10_000_000 // in effect no limit
	DefaultVerifyShown = 1000       // differences that are listed
	MaxVerifyShown     = 1_000_000
)

// VerifyRequest is the body of POST /v1/indexes/{id}:verify: how an index is compared with the KV data.
type VerifyRequest struct {
	// Rate is how many documents each indexer examines per second: 100 to 10,000,000; 0: 20,000.
	Rate int64 `json:"rate,omitempty"`
	// Limit is how many differences are listed, the others are only counted; 0: 1000.
	Limit int `json:"limit,omitempty"`
}

// Difference is a document for which a copy of a slice does not hold what it should; with LostOnWay a vbucket.
type Difference struct {
	Kind    wire.DifferenceKind `json:"kind"`
	ID      string              `json:"id"` // of the document
	VBucket uint16              `json:"vbucket"`
	Slice   index.SliceID       `json:"slice"`
	Replica uint8               `json:"replica"`
	Copy    index.CopyID        `json:"copy"`
	Indexer string              `json:"indexer"`
	// Expected holds the keys according to the KV data, each an array of JSON values, at most 16 of them; Found those of
	// the rows.
	Expected []json.RawMessage `json:"expected"`
	Found    []json.RawMessage `json:"found"`
	// KVSeqno is the document's sequence number in KV, 0 if KV does not have it; IndexSeqno is the one that the copy
	// reflects, 0 if it has no entry.
	KVSeqno    uint64 `json:"kv_seqno"`
	IndexSeqno uint64 `json:"index_seqno"`
	// Stability is the number of the stability timestamp at which they differ.
	Stability uint64 `json:"stability_number"`
	// Detail describes, for the last two kinds, what was lost, and where; for a document that was found otherwise later,
	// it is the stability timestamp since which it was.
	Detail string `json:"detail,omitempty"`
}

// VerifyProgress is the progress of a verification.
type VerifyProgress struct {
	Indexer   string  `json:"indexer"`
	Percent   float64 `json:"percent"`
	Documents uint64  `json:"documents"` // examined
}

// VerifiedCopy is the result of one copy.
type VerifiedCopy struct {
	Copy        index.CopyID  `json:"copy"`
	Slice       index.SliceID `json:"slice"`
	Replica     uint8         `json:"replica"`
	Indexer     string        `json:"indexer"`
	Rows        uint64        `json:"rows"`        // examined in the index
	Documents   uint64        `json:"documents"`   // of KV, compared
	Differences uint64        `json:"differences"` // documents
	// Unsettled counts documents that changed too often while they were examined to be compared.
	Unsettled uint64 `json:"unsettled"`
}

// VerifyEnd is the result of a complete verification, over all copies.
type VerifyEnd struct {
	Differences uint64 `json:"differences"` // documents, of each kind and copy; 0: index and KV data agree
	Listed      uint64 `json:"listed"`      // of them, those that were listed
	Documents   uint64 `json:"documents"`   // compared, counted each time
	Rows        uint64 `json:"rows"`
	Unsettled   uint64 `json:"unsettled"`
	// FirstStability and LastStability are the numbers of the first and last stability timestamps at which it compared.
	FirstStability uint64         `json:"first_stability_number"`
	LastStability  uint64         `json:"last_stability_number"`
	Copies         []VerifiedCopy `json:"copies"`
}

// VerifyFailure is why a verification was not completed.
type VerifyFailure struct {
	Code   errcode.Code `json:"code"`
	Detail string       `json:"detail"`
}

// VerifyLine is one line of a verification's answer: exactly one of its fields is set. The last line is End or Error.
type VerifyLine struct {
	Difference *Difference     `json:"difference,omitempty"`
	Progress   *VerifyProgress `json:"progress,omitempty"`
	End        *VerifyEnd      `json:"end,omitempty"`
	Error      *VerifyFailure  `json:"error,omitempty"`
}

// Add adds the result of another part of the same verification.
func (e *VerifyEnd) Add(o *VerifyEnd) {
	e.Differences += o.Differences
	e.Listed += o.Listed
	e.Documents += o.Documents
	e.Rows += o.Rows
	e.Unsettled += o.Unsettled
	e.LastStability = max(e.LastStability, o.LastStability)
	if e.FirstStability == 0 || o.FirstStability < e.FirstStability {
		e.FirstStability = o.FirstStability
	}
	e.Copies = append(e.Copies, o.Copies...)
}
