package timestamp

import "cmp"

// Ref names one stability timestamp of a bucket. Whoever knows a higher generation or rollback id discards it.
type Ref struct {
	Generation uint64 `json:"generation"`  // of the bucket: another one after it was deleted and created again
	RollbackID uint64 `json:"rollback_id"` // of the newest finished rollback before it, 0 before the first
	Number     uint64 `json:"number"`      // rises by one with every promotion and every end of a rollback
	Hash       uint64 `json:"hash,string"` // of the vector; it takes no part in the order
}

// Compare orders two references of one bucket by generation, rollback id, number.
func (r Ref) Compare(o Ref) int {
	return cmp.Or(cmp.Compare(r.Generation, o.Generation), cmp.Compare(r.RollbackID, o.RollbackID),
		cmp.Compare(r.Number, o.Number))
}

// Stability is a stability timestamp of a bucket: a state that KV really had, per vbucket a position, with the failover
// logs that were known when it was promoted, by which it is told whether it lies on a branch.
type Stability struct {
	Ref
	Vector Vector        `json:"vector"` // never changed: it may share its branches with the one before it
	Logs   []FailoverLog `json:"logs"`   // by vbucket; may be shorter where nothing is known
}
