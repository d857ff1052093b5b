package v1

import (
	"tidemark/index"
	"tidemark/partition"
	"tidemark/rebalance"
	"tidemark/statecontext"
)

// RebalanceRequest asks for copies to be spread over the indexers that are there.
type RebalanceRequest struct {
	// Remove are indexers (name, node number or uuid) that are to hold nothing in the end. They take no copies from then
	// on.
	Remove []string `json:"remove,omitempty"`
	// Keep are indexers that were to hold nothing, and are to serve again.
	Keep []string `json:"keep,omitempty"`
	// Sends and Receives are how many copies one indexer sends, and receives, at a time; 0: 1.
	Sends    int `json:"sends,omitempty"`
	Receives int `json:"receives,omitempty"`
	// Plan is a plan that was made before, to be run now. It is refused (STALE_PLAN) when the placement has moved on.
	Plan *rebalance.Plan `json:"plan,omitempty"`
}

// RebalanceReply is a plan, and the rebalance that carries it out.
type RebalanceReply struct {
	// ID of the rebalance that began; 0: nothing has to move, or the plan alone was asked for.
	ID uint64 `json:"id,omitempty"`
	// Plan is absent when this request was answered before: the ID says which rebalance it has begun.
	Plan *rebalance.Plan `json:"plan,omitempty"`
}

// RebalanceInfo is a rebalance as it stands.
type RebalanceInfo struct {
	statecontext.RebalanceJob
	Percent float64 `json:"percent"`
	// RemainingMS is how long it will still take, by how it has gone so far; absent before that can be told.
	RemainingMS *int64 `json:"remaining_ms,omitempty"`
	// BytesDone is what has arrived of bytes, while it is under way.
	BytesDone uint64 `json:"bytes_done,omitempty"`
	// Moves are its steps while it is under way.
	Moves []RebalanceMove `json:"moves,omitempty"`
}

// RebalanceMove is a step of a rebalance, and what has arrived of its bytes.
type RebalanceMove struct {
	partition.Rebalance
	BytesDone uint64 `json:"bytes_done"`
}

// RebalanceList lists the newest rebalances.
type RebalanceList struct {
	Rebalances []RebalanceInfo `json:"rebalances"` // by id; moves are left out
	// Splits are under way, which are no rebalances: by id of the indexes that are split, at most 100.
	Splits     []RunningSplit `json:"splits,omitempty"`
	MoreSplits int            `json:"more_splits,omitempty"` // that are left out
}

// RunningSplit is a split of an index that is under way.
type RunningSplit struct {
	ID         index.ID  `json:"id"`
	Bucket     string    `json:"bucket"`
	Scope      string    `json:"scope,omitempty"`
	Collection string    `json:"collection,omitempty"`
	Name       string    `json:"name"`
	Split      SplitInfo `json:"split"`
}
