package timestamp

import "cmp"

// Ref identifies a stability timestamp of a bucket. It is void for a receiver that has seen a higher generation or
// rollback id.
type Ref struct {
	Generation uint64 `json:"generation"`  // of the bucket: rises if it is deleted and created again
	RollbackID uint64 `json:"rollback_id"` // of the newest finished rollback before it, 0 before the first one
	Number     uint64 `json:"number"`      // rises by one with every promotion and every end of a rollback
	Hash       uint64 `json:"hash,string"` // of the vector; it is not part of the order
}

// Compare orders two references of one bucket by generation, rollback id, number.
func (r Ref) Compare(o Ref) int {
	return cmp.Or(cmp.Compare(r.Generation, o.Generation), cmp.Compare(r.RollbackID, o.RollbackID),
		cmp.Compare(r.Number, o.Number))
}

// Stability is a stability timestamp of a bucket: a state that KV really had, as a position per vbucket, with the
// failover logs at its promotion. They determine whether it lies on a given branch.
type Stability struct {
	Ref
	Vector Vector        `json:"vector"` // immutable: it may share its vbuuids with its predecessor
	Logs   []FailoverLog `json:"logs"`   // by vbucket; may be shorter if nothing is known
}
