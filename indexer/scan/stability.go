package scan

import (
	"fmt"
	"time"

	"tidemark/errcode"
	"tidemark/wire"
)

// RowStability says what a scan's rows have in common.
type RowStability string

// The stabilities.
const (
	NoStability    RowStability = "none"  // each page of PageRows rows is of the newest timestamp there is then
	ScanStability  RowStability = "scan"  // all rows are of one timestamp
	QueryStability RowStability = "query" // and so are those of other scans that name it: it is kept for them
)

const (
	// PageRows is how many rows a scan without stability reads at one timestamp.
	PageRows = 10_000
	// KeepFor is how long a timestamp is kept for the next scan that names it.
	KeepFor = time.Minute
	// MaxKeep is the most that a node keeps one, however often it is named: what is held for it grows with all that is
	// written meanwhile.
	MaxKeep = 10 * time.Minute
)

// TimestampID names a timestamp, for later scans of the same bucket.
func TimestampID(r wire.StabilityRef) string {
	return fmt.Sprintf("%d.%d.%d.%d", r.Generation, r.RollbackID, r.Number, r.Hash)
}

// ParseTimestampID reads what TimestampID wrote.
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
		return Errorf(errcode.BadRequest, "timestamp goes with stability query, not with %s", r.Stability)
	case r.Timestamp != "" && r.Consistency != Any:
		return Errorf(errcode.BadRequest, "the timestamp says what is seen: leave out consistency %s", r.Consistency)
	}
	return nil
}

// tooOld makes of any reason why a timestamp that was named cannot be had the one that tells the caller what to do.
func tooOld(at *wire.StabilityRef, err error) error {
	switch CodeOf(err) {
	case errcode.SnapshotSkipped, errcode.SnapshotTooOld, errcode.IndexInRollback:
		return Errorf(errcode.SnapshotTooOld, "timestamp %s is not kept any more (it is for %s after its last use, for "+
			"%s in all); begin the query anew: %w", TimestampID(*at), KeepFor,
			MaxKeep, err)
	}
	return err
}
