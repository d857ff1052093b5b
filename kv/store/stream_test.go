package store

import (
	"testing"

	"tidemark/timestamp"
)

// The producer's rollback decision, row by row: where a consumer may continue, and to where it must roll back.
func TestDecide(t *testing.T) {
	const newest, older, oldest, unknown = 30, 20, 10, 99
	h := History{High: 20, Purge: 4, Failover: timestamp.FailoverLog{{VBUUID: newest, Seqno: 16},
		{VBUUID: older, Seqno: 11}, {VBUUID: oldest}}}
	req := func(start, snapStart, snapEnd, uuid uint64) StreamRequest {
		return StreamRequest{Start: start, End: all, VBUUID: uuid, SnapStart: snapStart, SnapEnd: snapEnd}
	}
	for _, c := range []struct {
		name string
		r    StreamRequest
		want Outcome
		to   uint64
	}{
		{"start behind end", StreamRequest{Start: 6, End: 5, VBUUID: newest, SnapStart: 6, SnapEnd: 6}, OutOfRange, 0},
		{"start before its snapshot", req(5, 6, 7, newest), OutOfRange, 0},
		{"start behind its snapshot", req(8, 6, 7, newest), OutOfRange, 0},
		{"from nothing", req(0, 0, 0, 0), Accept, 0},
		{"from nothing with an unknown branch", req(0, 0, 0, unknown), Accept, 0},
		{"the same, strictly", StreamRequest{End: all, VBUUID: unknown, Strict: true}, Rollback, 0},
		{"strictly, no branch named", StreamRequest{End: all, Strict: true}, Accept, 0},
		{"below the purge seqno", req(3, 3, 3, newest), Rollback, 0},
		{"below it, known to the client", StreamRequest{Start: 3, End: all, VBUUID: newest, SnapStart: 3, SnapEnd: 3,
			ClientPurge: 4}, Accept, 0},
		{"below it, ignored by the client", StreamRequest{Start: 3, End: all, VBUUID: newest, SnapStart: 3, SnapEnd: 3,
			IgnorePurged: true}, Accept, 0},
		{"at the purge seqno", req(4, 4, 4, newest), Accept, 0},
		{"unknown branch", req(12, 12, 12, unknown), Rollback, 0},
		{"newest branch, at a snapshot end", req(20, 18, 20, newest), Accept, 0},
		{"newest branch, inside a snapshot", req(18, 17, 20, newest), Accept, 0},
		{"newest branch, ahead of the producer", req(25, 25, 25, newest), Rollback, 20},
		{"newest branch, ahead, at a snapshot end", req(25, 18, 25, newest), Rollback, 20},
		{"newest branch, snapshot reaches too far", req(19, 18, 25, newest), Rollback, 18},
		{"newest branch, start is the snapshot's start", req(19, 19, 25, newest), Accept, 0},
		{"older branch, all before its end", req(8, 5, 11, oldest), Accept, 0},
		{"older branch, as seen with real engines (1)", req(8, 0, 11, oldest), Accept, 0},
		{"older branch, as seen with real engines (2)", req(8, 0, 16, oldest), Rollback, 0},
		{"older branch, as seen with real engines (3)", req(12, 12, 16, oldest), Rollback, 11},
		{"older branch, at its end", req(11, 11, 11, oldest), Accept, 0},
		{"middle branch, at its end", req(16, 12, 16, older), Accept, 0},
		{"middle branch, behind its end", req(17, 17, 17, older), Rollback, 16},
		{"middle branch, snapshot over its end", req(14, 13, 17, older), Rollback, 13},
	} {
		if got, to := h.Decide(c.r); got != c.want || to != c.to {
			t.Errorf("%s: %v %d, want %v %d", c.name, got, to, c.want, c.to)
		}
	}
}
