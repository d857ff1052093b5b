package statecontext

import (
	"errors"
	"fmt"

	"tidemark/index"
)

// Limits bound what Apply accepts. They are replicated, because every node must decide alike; SetLimits changes them. A
// zero field of a command means the default.
type Limits struct {
	Buckets          uint32 `json:"buckets"`
	Indexes          uint32 `json:"indexes"`            // over all buckets
	IndexesPerBucket uint32 `json:"indexes_per_bucket"` // not counting those that are being dropped
	KeyExpressions   uint32 `json:"key_expressions"`
	NameLength       uint32 `json:"name_length"`       // bytes
	StatementLength  uint32 `json:"statement_length"`  // bytes, of the canonical text and of each expression
	LedgerEntries    uint32 `json:"ledger_entries"`    // outcomes remembered
	LedgerMaxAgeMS   int64  `json:"ledger_max_age_ms"` // forgotten after this
	LedgerMinAgeMS   int64  `json:"ledger_min_age_ms"` // never forgotten before this: rather refuse
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

// Bounds of limits: what the encodings and the design can bear.
const (
	mostBuckets    = 10_000
	mostIndexes    = 100_000
	mostKeys       = 1_000
	mostNameLength = 1_000
	mostStatement  = 256 << 10
	mostEntries    = 1_000_000
	mostAgeMS      = 7 * 24 * 3600 * 1000
)

// ErrLimits is wrapped when limits cannot be set.
var ErrLimits = errors.New("limits")

// Check tells whether the limits are ones that may be set, by name. SetLimits itself does not: what was set stays legal.
func (l Limits) Check() error {
	for _, r := range l.Table() {
		if r.Value < 1 || r.Value > r.Most {
			return fmt.Errorf("%w: %s %d; want 1 to %d", ErrLimits, r.Name, r.Value, r.Most)
		}
	}
	if l.LedgerMaxAgeMS < l.LedgerMinAgeMS {
		return fmt.Errorf("%w: ledger_max_age_ms %d must not be below ledger_min_age_ms %d", ErrLimits, l.LedgerMaxAgeMS, l.LedgerMinAgeMS)
	}
	return nil
}

// LimitRow is one limit.
type LimitRow struct {
	Name  string // as in JSON
	Value int64
	Most  int64 // that may be set
}

// Table lists the limits by name.
func (l Limits) Table() []LimitRow {
	return []LimitRow{
		{"buckets", int64(l.Buckets), mostBuckets}, {"indexes", int64(l.Indexes), mostIndexes}, {"indexes_per_bucket", int64(l.IndexesPerBucket), mostIndexes},
		{"key_expressions", int64(l.KeyExpressions), mostKeys}, {"name_length", int64(l.NameLength), mostNameLength},
		{"statement_length", int64(l.StatementLength), mostStatement}, {"ledger_entries", int64(l.LedgerEntries), mostEntries},
		{"ledger_max_age_ms", l.LedgerMaxAgeMS, mostAgeMS}, {"ledger_min_age_ms", l.LedgerMinAgeMS, mostAgeMS},
	}
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

// WithinLimits tells whether a new index may be proposed as far as the limits go, nil if so. A refusal names the limit and
// the way to change it; Apply refuses too, in words that stay as they are, for they are part of the state.
func (s *State) WithinLimits(f *index.Definition) *Rejection {
	if s.IndexByName(f.Bucket, f.Name) != nil {
		return nil // the name decides
	}
	here := int64(0)
	for range s.IndexesOf(f.Bucket) {
		here++
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
			return reject(LimitExceeded, "%d %s; the limit %s is %d: tidemark cluster limits %s=N (or PATCH /v1/limits) raises it, to at most %d",
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
