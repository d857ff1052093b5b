package scan

import (
	"fmt"
	"time"

	"tidemark/errcode"
	"tidemark/wire"
)

// RowStability determines what a scan's rows have in common.
type RowStability string

// Kinds of stability.
const (
	NoStability    RowStability = "none"  // each page of PageRows rows has the newest timestamp at that moment
	ScanStability  RowStability = "scan"  // all rows are of one timestamp
	QueryStability RowStability = "query" // and so are the rows of other scans that name it: nodes keep it for them
)

const (
	// PageRows is the number of rows that a scan without stability reads at one timestamp.
	PageRows = 10_000
	// KeepFor is how long a timestamp is kept for the next scan that names it.
	KeepFor = time.Minute
	// MaxKeep bounds how long a node keeps a timestamp, however often it is named: the memory and disk held for it
	// grow with everything that is written meanwhile.
	MaxKeep = 10 * time.Minute
)

// TimestampID returns the id of a timestamp, for later scans of the same bucket.
func TimestampID(r wire.StabilityRef) string {
	return fmt.Sprintf("%d.%d.%d.%d", r.Generation, r.RollbackID, r.Number, r.Hash)
}

// ParseTimestampID parses what TimestampID returned.
func ParseTimestampID(bucket, id string) (wire.StabilityRef, error) {
	r := wire.StabilityRef{Bucket: bucket}
	if n, err := fmt.Sscanf(id, "%d.%d.%d.%d", &r.Generation, &r.RollbackID, &r.Number, &r.Hash); err != nil || n != 4 ||
		TimestampID(r) != id {
		return r, Errorf(errcode.BadRequest, "timestamp %.100q: want the id of an earlier scan's timestamp, as "+
			"1.0.57.8110943218812215386", id)
	}
	return r, nil
}

func (r *Request) checkStability() error {
	switch r.Stability {
	case "":
		r.Stability = ScanStability
	case NoStability, ScanStability, QueryStability:
	default:
		return Errorf(errcode.BadRequest, "stability %q: want none, scan or query", r.Stability)
	}
	switch {
	case r.Timestamp != "" && r.Stability != QueryStability:
		return Errorf(errcode.BadRequest, "timestamp requires stability query, not %s", r.Stability)
	case r.Timestamp != "" && r.Consistency != Any:
		return Errorf(errcode.BadRequest, "a timestamp determines the state: omit consistency %s", r.Consistency)
	}
	return nil
}

// tooOld maps errors about a named timestamp that is not available to an error with advice for the caller.
func tooOld(at *wire.StabilityRef, err error) error {
	switch CodeOf(err) {
	case errcode.SnapshotSkipped, errcode.SnapshotTooOld, errcode.IndexInRollback:
		return Errorf(errcode.SnapshotTooOld, "timestamp %s is no longer kept (it is kept for %s after its last use, for "+
			"%s in all); start the query again: %w", TimestampID(*at), KeepFor,
			MaxKeep, err)
	}
	return err
}
