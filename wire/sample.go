package wire

import "tidemark/index"

// Limits of a SampleRequest.
const (
	MaxSampled     = 1 << 16 // entries to read, or those of one vbucket if these are more
	MaxSampleKeys  = 1 << 12
	MaxSampleBytes = 1 << 20
	MaxLoadMS      = 30_000
)

// SampleRequest asks how the leading keys of a copy are distributed, as it serves them now. POST /v1/samples of an
// indexer's admin port. The error is INDEX_NOT_HOSTED if the copy does not serve.
type SampleRequest struct {
	Copy   index.CopyID `json:"copy"`
	Wanted int          `json:"wanted"` // entries to examine; all of them if there are fewer
	Keys   int          `json:"keys"`   // limit of keys in the answer
	Bytes  int          `json:"bytes"`  // limit of their total size
	// LoadMS, unless 0, is the duration of sampling the entries that are written, and read by scans: the answer is about
	// these, and Wanted is ignored. The error is BUSY while another such request is being served.
	LoadMS int64 `json:"load_ms,omitempty"`
	// Whole requests whole entries, a sample of those examined, instead of quantiles: at most Keys of them.
	Whole bool `json:"whole,omitempty"`
}

// SampleReply has quantiles of the leading components of a copy's keys.
type SampleReply struct {
	Rows int64    `json:"rows"` // entries of the copy, or those that were written and read
	Of   int64    `json:"of"`   // number of entries of which the keys are quantiles
	Keys [][]byte `json:"keys"` // collated, not complemented, ascending; truncated if too long for a bound
	// Entries is the answer to a SampleRequest with Whole, in any order. Keys is empty then.
	Entries [][]SampledValue `json:"entries,omitempty"`
}

// SampledValue is a component of an entry.
type SampledValue struct {
	Value []byte `json:"value"` // collated, not complemented; truncated if too long for a bound
	Hash  uint64 `json:"hash"`  // of the complete value
}
