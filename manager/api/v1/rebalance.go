package v1

import (
	"tidemark/index"
	"tidemark/partition"
	"tidemark/rebalance"
	"tidemark/statecontext"
)

// RebalanceRequest requests that copies be spread over the present indexers.
type RebalanceRequest struct {
	// Remove names indexers (name, node number or uuid) that are to give up all copies. They take no copies from then
	// on.
	Remove []string `json:"remove,omitempty"`
	// Keep names indexers of an earlier Remove that are to serve again.
	Keep []string `json:"keep,omitempty"`
	// Sends and Receives are the numbers of copies that one indexer sends, and receives, at a time; 0: 1.
	Sends    int `json:"sends,omitempty"`
	Receives int `json:"receives,omitempty"`
	// Plan is a plan made earlier that is to be run now. It is refused (STALE_PLAN) if the placement has changed since.
	Plan *rebalance.Plan `json:"plan,omitempty"`
}

// RebalanceReply is a plan, and the rebalance that executes it.
type RebalanceReply struct {
	// ID of the rebalance that began; 0: nothing has to move, or only the plan was requested.
	ID uint64 `json:"id,omitempty"`
	// Plan is absent if this request was answered before: ID is then the rebalance that it has begun.
	Plan *rebalance.Plan `json:"plan,omitempty"`
}

// RebalanceInfo is the present state of a rebalance.
type RebalanceInfo struct {
	statecontext.RebalanceJob
	Percent float64 `json:"percent"`
	// RemainingMS is the expected remaining time, from the progress so far; absent until it can be estimated.
	RemainingMS *int64 `json:"remaining_ms,omitempty"`
	// BytesDone is how many of bytes have arrived, while it is running.
	BytesDone uint64 `json:"bytes_done,omitempty"`
	// Moves holds its steps while it is running.
	Moves []RebalanceMove `json:"moves,omitempty"`
}

// RebalanceMove is a step of a rebalance, and how many of its bytes have arrived.
type RebalanceMove struct {
	partition.Rebalance
	BytesDone uint64 `json:"bytes_done"`
}

// RebalanceList lists the newest rebalances.
type RebalanceList struct {
	Rebalances []RebalanceInfo `json:"rebalances"` // by id; without moves
	// Splits holds the running splits, which are not rebalances: by id of the indexes that are split, at most 100.
	Splits     []RunningSplit `json:"splits,omitempty"`
	MoreSplits int            `json:"more_splits,omitempty"` // not in Splits
}

// RunningSplit is a running split of an index.
type RunningSplit struct {
	ID         index.ID  `json:"id"`
	Bucket     string    `json:"bucket"`
	Scope      string    `json:"scope,omitempty"`
	Collection string    `json:"collection,omitempty"`
	Name       string    `json:"name"`
	Split      SplitInfo `json:"split"`
}
