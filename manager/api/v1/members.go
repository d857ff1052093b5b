package v1

import "tidemark/index"

// JoinRequest is the body of POST /v1/cluster/managers:join.
type JoinRequest struct {
	// Address is where the manager that waits for a cluster listens for REST: host:port or a base URL.
	Address string `json:"address"`
}

// MemberReply is the answer to a change of members.
type MemberReply struct {
	ID       string `json:"id"` // its name
	ServerID string `json:"server_id,omitempty"`
	Detail   string `json:"detail"` // what follows from it
}

// IndexLoss is what the removal of an indexer means for an index.
type IndexLoss struct {
	Index  index.ID `json:"index"`
	Name   string   `json:"name"`
	Bucket string   `json:"bucket"`
	Copies int      `json:"copies"` // that the indexer had; each is placed anew on another
	// LastCopies is how many of them no living indexer has besides.
	LastCopies int `json:"last_copies"`
	// Rebuilt tells that the index is built anew from KV; until then it cannot be scanned.
	Rebuilt bool `json:"rebuilt"`
}

// IndexerRemoval is the answer of DELETE /v1/cluster/indexers/{id}.
type IndexerRemoval struct {
	ID      string       `json:"id"`
	Node    index.NodeID `json:"node"`
	UUID    string       `json:"uuid"`
	Alive   bool         `json:"alive"`
	Removed bool         `json:"removed"` // false after dry_run, and while it goes on
	// Evicting: it is decided and goes on by itself, also under another leader; the same call waits for its end. Waits
	// says what keeps it.
	Evicting bool        `json:"evicting,omitempty"`
	Waits    string      `json:"waits,omitempty"`
	Indexes  []IndexLoss `json:"indexes"` // of the copies that it had when it was asked for
}

// LoseData are the words that let a removal go on which would leave less than a majority of managers alive: those that
// do not answer are removed before it, as few as will do.
const LoseData = "lose-data"
