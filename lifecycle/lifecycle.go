// Package lifecycle decides the next step in the life of an index (IX-5): when copies count as allocated, when a build
// begins, when the index is ready, when it fails, when one that failed is built again, and when one that is dropped is
// forgotten.
//
// What it promises: a decision is a function of the Facts, which come anew for each one (level-triggered), so that a
// lost message or a new leader loses nothing; an index becomes ready everywhere or nowhere; each decision carries the
// Guard under which it was made, so that Apply refuses one that a rollback or a new incarnation of the bucket has
// overtaken.
//
// What it never does: remember, wait, or carry anything out.
package lifecycle

import (
	"fmt"
	"slices"
	"time"

	"tidemark/index"
	"tidemark/partition"
)

// Guard is what a decision was made under: the bucket's generation, and its newest finished rollback.
type Guard struct{ Generation, RollbackID uint64 }

// Host is what is known of the indexer that a copy is placed on.
type Host struct {
	Known   bool
	Offline bool
	Name    string // "" when it is not known
	Acked   uint64 // definitions revision under which it works
}

// Copy is a copy of the index and what its host has reported of it.
type Copy struct {
	partition.Copy
	Host Host
	// Moves: it is to take the place of a copy whose host lives, and is forgotten if it does not come to that.
	Moves bool
	// Replaced: a copy on a host that lives is to take its place.
	Replaced bool
	// Made: the host has made the copy, and works under the definitions revision Revision.
	Made     bool
	Revision uint64
	// Reported: Done, Total, Exact and At are what the host has told.
	Reported    bool
	Done, Total uint64 // seqnos of the build
	Exact       bool   // it has been exact at a stability timestamp, of At
	At          Guard
}

// Projector is a projector that is not offline.
type Projector struct {
	Knows  bool // it has told what it can evaluate, under definitions that have the index as it is now
	Cannot bool // evaluate it
}

// Facts are what a decision about one index is made of.
type Facts struct {
	State           index.State
	CannotEvaluate  bool   // the reason of state error
	Waits           bool   // its build was not asked for
	Modified        uint64 // definitions revision of its newest change
	PlacedAt        uint64 // definitions revision in which its copies were placed last
	Copies          []Copy
	Projectors      []Projector   // empty is enough where CannotEvaluate is false
	Steady          bool          // the bucket exists, is the one the index was made on, and is not being rolled back
	Guard           Guard         // of the bucket; where Steady
	Lacking, Enough time.Duration // for how long a host has been away, and what ends the patience with it
}

// Kind is what is to be done.
type Kind uint8

// The kinds.
const (
	Wait      Kind = iota
	Allocate       // tell the state which copies their hosts have: Copies, under Revision
	Build          // begin to build: under Guard
	MakeReady      // under Guard
	Fail           // with Reason
	Rebuild        // what failed can be built again: under Guard
	Forget         // a dropped index
)

// String returns the word that golden scripts use.
func (k Kind) String() string {
	return [...]string{"wait", "allocate", "build", "make ready", "fail", "rebuild", "forget"}[k]
}

// Step is a decision.
type Step struct {
	Kind     Kind
	Copies   []index.CopyID
	Revision uint64
	Guard    Guard
	Reason   string
	// Nearly: a build lacks nothing but a stability timestamp at which its copies are exact.
	Nearly bool
}

// Away returns the name of a host without which a build cannot go on, "" when all are there.
func Away(state index.State, copies []Copy) (name string) {
	if !state.ToBeReady() {
		return ""
	}
	for _, c := range copies {
		switch {
		case c.Moves, c.Replaced, c.Host.Known && !c.Host.Offline:
		case c.Host.Name != "":
			name = c.Host.Name
		default:
			name = fmt.Sprintf("node %d", c.Node)
		}
	}
	return name
}

// Next decides.
func Next(f *Facts) Step {
	if away := Away(f.State, f.Copies); away != "" && !f.Waits && f.Lacking >= f.Enough {
		return Step{Kind: Fail, Reason: fmt.Sprintf("HOST_AWAY: indexer %s has been away for %v; bring it back and BUILD "+
			"INDEX, or drop the index", away, f.Enough)}
	}
	if f.State == index.Dropping {
		return dropping(f)
	}
	if s := allocate(f); s.Kind != Wait {
		return s
	}
	switch f.State {
	case index.Pending:
		if f.Steady && !f.Waits && allAllocated(f) {
			return Step{Kind: Build, Guard: f.Guard}
		}
	case index.Backfill:
		return ready(f)
	case index.Error:
		return rebuild(f)
	}
	return Step{}
}

// allocate finds placed copies that their hosts have made. Their newest common revision is told, so that Apply can see
// that no change of the placement has come between.
func allocate(f *Facts) (s Step) {
	for i := range f.Copies {
		c := &f.Copies[i]
		if c.State != partition.Placed || !c.Host.Known || !c.Made || c.Revision < f.PlacedAt {
			continue
		}
		if s.Kind == Wait || c.Revision < s.Revision {
			s.Kind, s.Revision = Allocate, c.Revision
		}
		s.Copies = append(s.Copies, c.ID)
	}
	return s
}

func allAllocated(f *Facts) bool {
	return !slices.ContainsFunc(f.Copies, func(c Copy) bool { return c.State != partition.Allocated })
}

// ready decides whether a build is over, everywhere or nowhere (IX-5): all copies of all slices have been exact at a
// stability timestamp of the bucket's present generation and rollback id.
func ready(f *Facts) Step {
	if !f.Steady || !allAllocated(f) {
		return Step{}
	}
	s := Step{Kind: MakeReady, Guard: f.Guard}
	for i := range f.Copies {
		switch c := &f.Copies[i]; {
		case !c.Host.Known, !c.Reported, c.Done < c.Total:
			return Step{}
		case !c.Exact, c.At != f.Guard:
			s = Step{Nearly: true}
		}
	}
	return s
}

// rebuild decides whether an index that a projector could not evaluate can be built again: every projector that lives
// has looked through definitions that have it, and can evaluate it.
func rebuild(f *Facts) Step {
	if !f.CannotEvaluate || !f.Steady || len(f.Projectors) == 0 ||
		slices.ContainsFunc(f.Projectors, func(p Projector) bool { return !p.Knows || p.Cannot }) {
		return Step{}
	}
	return Step{Kind: Rebuild, Guard: f.Guard}
}

// dropping decides whether a dropped index can be forgotten: every host works under a definitions revision in which its
// copies are leaving. One that is away learns it when it comes back: the newest definitions do not have the index, and
// its copy ids are never used again.
func dropping(f *Facts) Step {
	for i := range f.Copies {
		if h := &f.Copies[i].Host; h.Known && !h.Offline && h.Acked < f.Modified {
			return Step{}
		}
	}
	return Step{Kind: Forget}
}
