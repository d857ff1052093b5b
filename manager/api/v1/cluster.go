package v1

import "tidemark/statecontext"

// RestoreReply is the answer of POST /v1/restore.
type RestoreReply struct {
	// the CAS of the switch to the restored state; of a dry run, the present one
	CAS      uint64                   `json:"cas"`
	Epoch    uint64                   `json:"epoch"` // rises with every restore
	DryRun   bool                     `json:"dry_run,omitempty"`
	Replayed bool                     `json:"replayed,omitempty"` // executed before, under the same Idempotency-Key
	Backup   statecontext.BackupInfo  `json:"backup"`
	Indexes  statecontext.RestorePlan `json:"indexes"`
}

// FormatReply is the answer of POST /v1/cluster:finalize-upgrade.
type FormatReply struct {
	FormatLevel uint64 `json:"format_level"`
}

// LimitsChange is the body of PATCH /v1/limits: absent limits stay unchanged, 0 sets the default.
type LimitsChange struct {
	Buckets          *uint32 `json:"buckets,omitempty"`
	Indexes          *uint32 `json:"indexes,omitempty"`
	IndexesPerBucket *uint32 `json:"indexes_per_bucket,omitempty"`
	KeyExpressions   *uint32 `json:"key_expressions,omitempty"`
	NameLength       *uint32 `json:"name_length,omitempty"`
	StatementLength  *uint32 `json:"statement_length,omitempty"`
	LedgerEntries    *uint32 `json:"ledger_entries,omitempty"`
	LedgerMaxAgeMS   *int64  `json:"ledger_max_age_ms,omitempty"`
	LedgerMinAgeMS   *int64  `json:"ledger_min_age_ms,omitempty"`
	TransferRate     *int64  `json:"transfer_rate,omitempty"` // bytes per second of copies' files that each indexer sends
}

// Apply returns the limits with the change applied.
func (c *LimitsChange) Apply(l statecontext.Limits) statecontext.Limits {
	set(&l.Buckets, c.Buckets)
	set(&l.Indexes, c.Indexes)
	set(&l.IndexesPerBucket, c.IndexesPerBucket)
	set(&l.KeyExpressions, c.KeyExpressions)
	set(&l.NameLength, c.NameLength)
	set(&l.StatementLength, c.StatementLength)
	set(&l.LedgerEntries, c.LedgerEntries)
	set(&l.LedgerMaxAgeMS, c.LedgerMaxAgeMS)
	set(&l.LedgerMinAgeMS, c.LedgerMinAgeMS)
	set(&l.TransferRate, c.TransferRate)
	return l.WithDefaults()
}

func set[T any](field, value *T) {
	if value != nil {
		*field = *value
	}
}
