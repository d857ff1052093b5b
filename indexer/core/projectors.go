// Package core is the pure part of package indexer: the decisions that a node makes on commands, data and answers. It
// does no I/O, takes no locks and reads no clock; callers pass the time in. Package indexer and the simulation
// (internal/testing/simulation) drive the same code.
package core

import (
	"slices"

	"tidemark/index"
	"tidemark/wire"
)

// ChooseProjector returns the projector to send a side-stream request to after a number of tries. Every second try
// goes to the owner of the maintenance stream, if it is known, and the tries between go to the other projectors in
// turn: what the owner cannot serve yet, the others cannot serve either, however many there are.
func ChooseProjector(all []wire.ProjectorEndpoint, owner index.ProjectorID, tries int) wire.ProjectorEndpoint {
	at := slices.IndexFunc(all, func(p wire.ProjectorEndpoint) bool { return p.ID == owner })
	switch {
	case at < 0 || len(all) == 1:
		return all[tries%len(all)]
	case tries%2 == 0:
		return all[at]
	default:
		return all[(at+1+tries/2%(len(all)-1))%len(all)]
	}
}
