package statecontext

import (
	"errors"
	"fmt"

	"tidemark/errcode"
	"tidemark/index"
)

// Limits bound what users may ask for. They are replicated, because every node must decide alike; SetLimits changes
// them. A zero field of a command means the default.
//
// No command that the cluster lives by looks at them: beginnings of terms, registrations, buckets of KV, states of
// indexes and copies, rollbacks. Those have bounds of their own, which nobody can set (maxIdentityBytes,
// maxAddressBytes): a limit that could refuse one of them would stop the cluster, and with it the way to take the limit
// back.
type Limits struct {
	Buckets          uint32 `json:"buckets"`
	Indexes          uint32 `json:"indexes"`            // over all buckets
	IndexesPerBucket uint32 `json:"indexes_per_bucket"` // not counting those that are being dropped
	KeyExpressions   uint32 `json:"key_expressions"`
	NameLength       uint32 `json:"name_length"`       // bytes, of an index's name
	StatementLength  uint32 `json:"statement_length"`  // bytes, of the canonical text and of each expression
	LedgerEntries    uint32 `json:"ledger_entries"`    // outcomes remembered
	LedgerMaxAgeMS   int64  `json:"ledger_max_age_ms"` // forgotten after this
	LedgerMinAgeMS   int64  `json:"ledger_min_age_ms"` // never forgotten before this: rather refuse
	// TransferRate bounds the bytes of files a second that each indexer sends to others; 0: what each was started with. It
	// is no bound of what users ask for, but changed as those are, while slices move.
	TransferRate int64 `json:"transfer_rate"`
}

// DefaultLimits are in force until SetLimits.
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

// Bounds of limits: what the encodings and the design can bear, and below what nobody could work.
const (
	mostBuckets    = 10_000
	mostIndexes    = 100_000
	mostKeys       = 1_000
	mostNameLength = 1_000
	mostStatement  = 256 << 10
	mostEntries    = 1_000_000
	mostAgeMS      = 7 * 24 * 3600 * 1000
	mostMinAgeMS   = 3600 * 1000 // a full ledger refuses for as long

	leastNameLength = 16
	leastStatement  = 64
	leastEntries    = 1000
	leastMaxAgeMS   = 60 * 1000
	leastMinAgeMS   = 1000

	// LeastTransferRate is what an indexer sends at the least: a chunk takes a second.
	LeastTransferRate = 1 << 20
	mostTransferRate  = 1 << 40
)

// Bounds of what the cluster's own commands carry.
const (
	maxIdentityBytes = 1000    // ids and uuids of members, names and uuids of buckets
	maxAddressBytes  = 4 << 10 // addresses, labels, boot ids, names of members
	maxReasonBytes   = 4 << 10 // why an index is in error; a longer one is cut
)

// ErrLimits is wrapped when limits cannot be set.
var ErrLimits = errors.New("limits")

// Check reports whether the limits are ones that may be set, by name. SetLimits itself does not: what was set stays
// legal.
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
		return fmt.Errorf("%w: transfer_rate %d; want at least %d bytes a second, or 0 for what each indexer was started "+
			"with", ErrLimits, l.TransferRate, LeastTransferRate)
	}
	return nil
}

// LimitRow is one limit.
type LimitRow struct {
	Name        string // as in JSON
	Value       int64
	Least, Most int64 // that may be set
}

// Table lists the limits by name.
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

// usable returns the limits with every value that may not be set (Check) moved to the nearest one that may: a backup
// brings what was legal where it was taken.
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

// WithDefaults fills the zero fields.
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

// WithinLimits reports whether a new index may be proposed as far as the limits go, nil if so. A refusal names the
// limit and the way to change it; Apply refuses too, by the same code.
func (s *State) WithinLimits(f *index.Definition) *Rejection {
	if s.IndexIn(f.Keyspace(), f.Name) != nil {
		return nil // the name decides
	}
	here := int64(0)
	if s.indexes.Len() >= int(s.limits.IndexesPerBucket) { // else the bucket has fewer, too
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
		"buckets":            {buckets, "buckets with indexes, with this one"},
		"indexes":            {int64(s.indexes.Len()) + 1, "indexes of all buckets, with this one"},
		"indexes_per_bucket": {here + 1, "indexes of the bucket, with this one"},
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

// Bounds of the encodings, checked by every decoder. They are not configuration: a change is a new format.
const (
	// MaxEntryBytes bounds one Raft entry.
	MaxEntryBytes = 1 << 20
	// MaxCommands bounds the commands of one Raft entry.
	MaxCommands = 1024
	// MaxStabilityBytes bounds one AdvanceStability (one consolidated command per tick).
	MaxStabilityBytes = 256 << 10
	// MaxKeyBytes bounds principal and idempotency key of a request, each.
	MaxKeyBytes = 256
	// maxRecordBytes bounds one record of a state snapshot: a bucket of 4096 vbuckets with long failover logs.
	maxRecordBytes = 16 << 20
)
