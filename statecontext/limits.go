package statecontext

import (
	"errors"
	"fmt"

	"tidemark/errcode"
	"tidemark/index"
)

// Limits bound what users may request. They are replicated, because every node must decide alike; SetLimits changes
// them. A zero field in a command means the default.
//
// No command that the cluster needs to operate depends on them: beginnings of terms, registrations, buckets of KV,
// states of indexes and copies, rollbacks. Those have fixed bounds (maxIdentityBytes, maxAddressBytes). A limit that
// could reject one of them would stop the cluster, and with it the way to change the limit.
type Limits struct {
	Buckets          uint32 `json:"buckets"`
	Indexes          uint32 `json:"indexes"`            // in all buckets
	IndexesPerBucket uint32 `json:"indexes_per_bucket"` // excluding those that are being dropped
	KeyExpressions   uint32 `json:"key_expressions"`
	NameLength       uint32 `json:"name_length"`       // bytes of an index name
	StatementLength  uint32 `json:"statement_length"`  // bytes of the canonical text and of each expression
	LedgerEntries    uint32 `json:"ledger_entries"`    // remembered outcomes
	LedgerMaxAgeMS   int64  `json:"ledger_max_age_ms"` // an outcome is forgotten after this
	LedgerMinAgeMS   int64  `json:"ledger_min_age_ms"` // never forgotten before this; new requests are rejected
	// TransferRate bounds the bytes of files per second that each indexer sends to others; 0: the rate that each indexer
	// was started with. It does not bound users' requests, but is changed in the same way, while slices move.
	TransferRate int64 `json:"transfer_rate"`
}

// DefaultLimits returns the limits that are in force until SetLimits.
func DefaultLimits() Limits {
	return Limits{
		Buckets:          1000,
		Indexes:          20_000,
		IndexesPerBucket: 10_000,
		KeyExpressions:   32,
		NameLength:       220,
		StatementLength:  32 << 10,
		LedgerEntries:    100_000,
		LedgerMaxAgeMS:   24 * 3600 * 1000,
		LedgerMinAgeMS:   10 * 60 * 1000,
	}
}

// Bounds of the limits: above them the encodings or the design do not work, below them the cluster would not be
// usable.
const (
	mostBuckets    = 10_000
	mostIndexes    = 100_000
	mostKeys       = 1_000
	mostNameLength = 1_000
	mostStatement  = 256 << 10
	mostEntries    = 1_000_000
	mostAgeMS      = 7 * 24 * 3600 * 1000
	mostMinAgeMS   = 3600 * 1000 // a full ledger rejects new requests for this long

	leastNameLength = 16
	leastStatement  = 64
	leastEntries    = 1000
	leastMaxAgeMS   = 60 * 1000
	leastMinAgeMS   = 1000

	// LeastTransferRate is the lowest transfer rate of an indexer, in bytes per second: one chunk per second.
	LeastTransferRate = 1 << 20
	mostTransferRate  = 1 << 40
)

// Bounds of the fields in the cluster's own commands.
const (
	maxIdentityBytes = 1000    // ids and uuids of members, names and uuids of buckets
	maxAddressBytes  = 4 << 10 // addresses, labels, boot ids, names of members
	maxReasonBytes   = 4 << 10 // reason of a failed index; a longer one is truncated
)

// ErrLimits is wrapped if limits cannot be set.
var ErrLimits = errors.New("limits")

// Check reports whether the limits may be set; its error names the limit. SetLimits does not call it: values that
// were set once stay legal.
func (l Limits) Check() error {
	for _, r := range l.Table() {
		if r.Value < r.Least || r.Value > r.Most {
			return fmt.Errorf("%w: %s %d; want %d to %d", ErrLimits, r.Name, r.Value, r.Least, r.Most)
		}
	}
	if l.LedgerMaxAgeMS < l.LedgerMinAgeMS {
		return fmt.Errorf("%w: ledger_max_age_ms %d must not be below ledger_min_age_ms %d", ErrLimits, l.LedgerMaxAgeMS,
			l.LedgerMinAgeMS)
	}
	if l.TransferRate != 0 && l.TransferRate < LeastTransferRate {
		return fmt.Errorf("%w: transfer_rate %d; want at least %d bytes a second, or 0 for the rate each indexer was "+
			"started with", ErrLimits, l.TransferRate, LeastTransferRate)
	}
	return nil
}

// LimitRow describes one limit.
type LimitRow struct {
	Name        string // name in JSON
	Value       int64
	Least, Most int64 // range of values that may be set
}

// Table returns all limits with their names and ranges.
func (l Limits) Table() []LimitRow {
	return []LimitRow{
		{"buckets", int64(l.Buckets), 1, mostBuckets},
		{"indexes", int64(l.Indexes), 1, mostIndexes},
		{"indexes_per_bucket", int64(l.IndexesPerBucket), 1, mostIndexes},
		{"key_expressions", int64(l.KeyExpressions), 1, mostKeys},
		{"name_length", int64(l.NameLength), leastNameLength, mostNameLength},
		{"statement_length", int64(l.StatementLength), leastStatement, mostStatement},
		{"ledger_entries", int64(l.LedgerEntries), leastEntries, mostEntries},
		{"ledger_max_age_ms", l.LedgerMaxAgeMS, leastMaxAgeMS, mostAgeMS},
		{"ledger_min_age_ms", l.LedgerMinAgeMS, leastMinAgeMS, mostMinAgeMS},
		{"transfer_rate", l.TransferRate, 0, mostTransferRate},
	}
}

// usable returns the limits with every value that Check would reject moved to the nearest legal one. A backup may
// hold values that were legal where it was taken.
func (l Limits) usable() Limits {
	for _, f := range []struct {
		field       *uint32
		least, most uint32
	}{
		{&l.Buckets, 1, mostBuckets}, {&l.Indexes, 1, mostIndexes}, {&l.IndexesPerBucket, 1, mostIndexes},
		{&l.KeyExpressions, 1, mostKeys},
		{&l.NameLength, leastNameLength, mostNameLength}, {&l.StatementLength, leastStatement, mostStatement},
		{&l.LedgerEntries, leastEntries, mostEntries},
	} {
		*f.field = min(max(*f.field, f.least), f.most)
	}
	l.LedgerMinAgeMS = min(max(l.LedgerMinAgeMS, leastMinAgeMS), mostMinAgeMS)
	l.LedgerMaxAgeMS = min(max(l.LedgerMaxAgeMS, leastMaxAgeMS, l.LedgerMinAgeMS), mostAgeMS)
	if l.TransferRate != 0 {
		l.TransferRate = min(max(l.TransferRate, LeastTransferRate), mostTransferRate)
	}
	return l
}

// WithDefaults returns the limits with zero fields replaced by the defaults.
func (l Limits) WithDefaults() Limits { return l.withDefaults() }

func (l Limits) withDefaults() Limits {
	d := DefaultLimits()
	fill(&l.Buckets, d.Buckets)
	fill(&l.Indexes, d.Indexes)
	fill(&l.IndexesPerBucket, d.IndexesPerBucket)
	fill(&l.KeyExpressions, d.KeyExpressions)
	fill(&l.NameLength, d.NameLength)
	fill(&l.StatementLength, d.StatementLength)
	fill(&l.LedgerEntries, d.LedgerEntries)
	fill(&l.LedgerMaxAgeMS, d.LedgerMaxAgeMS)
	fill(&l.LedgerMinAgeMS, d.LedgerMinAgeMS)
	return l
}

func fill[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// WithinLimits returns nil if the limits allow a new index, else a rejection that names the limit and the way to
// change it. Apply rejects the index with the same code.
func (s *State) WithinLimits(f *index.Definition) *Rejection {
	if s.IndexIn(f.Keyspace(), f.Name) != nil {
		return nil // Apply decides by the name
	}
	here := int64(0)
	if s.indexes.Len() >= int(s.limits.IndexesPerBucket) { // otherwise the bucket has fewer, too
		for range s.IndexesOf(f.Bucket) {
			here++
		}
	}
	buckets := int64(s.buckets.Len())
	if s.Bucket(f.Bucket) == nil {
		buckets++
	}
	text := max(len(f.Statement), len(f.Where))
	for _, k := range f.Keys {
		text = max(text, len(k.Expr))
	}
	need := map[string]struct {
		value int64
		what  string
	}{
		"buckets":            {buckets, "buckets with indexes, including this one"},
		"indexes":            {int64(s.indexes.Len()) + 1, "indexes of all buckets, including this one"},
		"indexes_per_bucket": {here + 1, "indexes of the bucket, including this one"},
		"key_expressions":    {int64(len(f.Keys)), "key expressions"},
		"name_length":        {int64(len(f.Name)), "bytes in the index's name"},
		"statement_length":   {int64(text), "bytes in the statement, or in one of its expressions"},
	}
	for _, row := range s.limits.Table() {
		if n, ok := need[row.Name]; ok && n.value > row.Value {
			return reject(errcode.LimitExceeded, "%d %s; the limit %s is %d: tidemark cluster limits %s=N (or PATCH "+
				"/v1/limits) raises it, to at most %d",
				n.value, n.what, row.Name, row.Value, row.Name, row.Most)
		}
	}
	return nil
}

// Bounds of the encodings, checked by every decoder. They are not configurable: changing one requires a new format.
const (
	// MaxEntryBytes bounds the size of one Raft entry.
	MaxEntryBytes = 1 << 20
	// MaxCommands bounds the number of commands in one Raft entry.
	MaxCommands = 1024
	// MaxStabilityBytes bounds the size of one AdvanceStability (one consolidated command per tick).
	MaxStabilityBytes = 256 << 10
	// MaxKeyBytes bounds the principal and the idempotency key of a request, each.
	MaxKeyBytes = 256
	// maxRecordBytes bounds one record of a state snapshot: a bucket with 4096 vbuckets and long failover logs.
	maxRecordBytes = 16 << 20
)
