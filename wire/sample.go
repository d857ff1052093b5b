package wire

import "tidemark/index"

// Most that a SampleRequest may ask for.
const (
	MaxSampled     = 1 << 16 // entries to read, or those of one vbucket where these are more
	MaxSampleKeys  = 1 << 12
	MaxSampleBytes = 1 << 20
	MaxLoadMS      = 30_000
)

// SampleRequest asks how the leading keys of a copy are spread, as it serves them now. POST /v1/samples of an indexer's
// admin port; a copy that does not serve is INDEX_NOT_HOSTED.
type SampleRequest struct {
	Copy   index.CopyID `json:"copy"`
	Wanted int          `json:"wanted"` // entries to look at; where there are no more, all are
	Keys   int          `json:"keys"`   // to answer with, at most
	Bytes  int          `json:"bytes"`  // of these together, at most
	// LoadMS, unless 0, is for how long it is looked which entries are written, and read by scans: the answer is of
	// these, and Wanted does not count. Who looks while somebody else does is told BUSY.
	LoadMS int64 `json:"load_ms,omitempty"`
	// Whole asks for whole entries, a sample of those that were looked at, instead of quantiles: at most Keys of them.
	Whole bool `json:"whole,omitempty"`
}

// SampleReply has quantiles of the leading components of a copy's keys.
type SampleReply struct {
	Rows int64    `json:"rows"` // entries of the copy, or those that were written and read
	Of   int64    `json:"of"`   // of so many of them the keys are quantiles
	Keys [][]byte `json:"keys"` // collated, upright, ascending; those too long to be a bound are cut off
	// Entries are those of a SampleRequest with Whole, which has no Keys, in any order.
	Entries [][]SampledValue `json:"entries,omitempty"`
}

// SampledValue is a component of an entry.
type SampledValue struct {
	Value []byte `json:"value"` // collated, upright; of one that is too long to be a bound no more than orders it
	Hash  uint64 `json:"hash"`  // of all of it
}
