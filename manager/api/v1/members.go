package v1

import "tidemark/index"

// JoinRequest is the body of POST /v1/cluster/managers:join.
type JoinRequest struct {
	// Address is where the manager that waits to join listens for REST: host:port or a base URL.
	Address string `json:"address"`
}

// MemberReply is the answer to a change of members.
type MemberReply struct {
	ID       string `json:"id"` // its name
	ServerID string `json:"server_id,omitempty"`
	Detail   string `json:"detail"` // the consequences
}

// IndexLoss is what an index loses by the removal of an indexer.
type IndexLoss struct {
	Index  index.ID `json:"index"`
	Name   string   `json:"name"`
	Bucket string   `json:"bucket"`
	Copies int      `json:"copies"` // on the indexer; each is placed anew on another one
	// LastCopies counts those of them of which no other live indexer has a copy.
	LastCopies int `json:"last_copies"`
	// Rebuilt is set if the index is rebuilt from KV; until then it cannot be scanned.
	Rebuilt bool `json:"rebuilt"`
}

// IndexerRemoval is the answer of DELETE /v1/cluster/indexers/{id}.
type IndexerRemoval struct {
	ID      string       `json:"id"`
	Node    index.NodeID `json:"node"`
	UUID    string       `json:"uuid"`
	Alive   bool         `json:"alive"`
	Removed bool         `json:"removed"` // false after dry_run, and while the removal is in progress
	// Evicting is set while the removal is in progress; it continues by itself, also under another leader, and the same
	// call waits for its end. Waits is why it is stuck.
	Evicting bool        `json:"evicting,omitempty"`
	Waits    string      `json:"waits,omitempty"`
	Indexes  []IndexLoss `json:"indexes"` // for the copies on the indexer at the time of the request
}

// LoseData confirms a removal that leaves less than a majority of managers alive: those that do not answer are
// removed first, as few as necessary.
const LoseData = "lose-data"
