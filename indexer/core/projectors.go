// Package core is the pure part of package indexer: what a node does with what it is told. It decides and answers; it
// waits for nothing, stores nothing and knows no time. The role and the simulation (internal/testing/simulation) drive
// the same.
package core

import (
	"slices"

	"tidemark/index"
	"tidemark/wire"
)

// ChooseProjector says whom to ask for a side stream, after so many tries: the owner of the maintenance stream, where
// it is known, each second time, and the others in turn between. What the owner cannot do yet nobody else can, however
// many there are.
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
