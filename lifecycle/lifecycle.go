// Package lifecycle decides the next step in the life of an index (IX-5): when copies count as allocated, when a
// build begins, when the index is ready, when it fails, when a failed one is rebuilt, and when a dropped one is
// removed.
//
// Guarantees: a decision is a function of the Facts, which are collected anew for each one (level-triggered), so that
// a lost message or a new leader loses nothing; an index becomes ready everywhere or nowhere; each decision carries
// the Guard under which it was made, so that Apply refuses one that a rollback or a re-creation of the bucket has
// overtaken.
//
// The package never keeps state, waits, or carries anything out.
package lifecycle

import (
	"fmt"
	"slices"
	"time"

	"tidemark/index"
	"tidemark/partition"
)

// Guard is the state of the bucket under which a decision was made: its generation, and its newest finished rollback.
type Guard struct{ Generation, RollbackID uint64 }

// Host is the indexer on which a copy is placed.
type Host struct {
	Known   bool
	Offline bool
	Name    string // "" if unknown
	Acked   uint64 // definitions revision in force there
}

// Copy is a copy of the index with its host's reports.
type Copy struct {
	partition.Copy
	Host Host
	// Moves is set if the copy is to replace one whose host is alive. It is discarded if the move fails.
	Moves bool
	// Replaced is set if a copy on a host that is alive is to replace this one.
	Replaced bool
	// Made is set if the host has made the copy, with the definitions revision Revision in force.
	Made     bool
	Revision uint64
	// Reported is set if Done, Total, Exact and At are from a report of the host.
	Reported    bool
	Done, Total uint64 // seqnos of the build
	Exact       bool   // it has been exact at a stability timestamp, under At
	At          Guard
}

// Projector is a projector that is not offline.
type Projector struct {
	Reported bool // it has reported what it can evaluate, under definitions with the current state of the index
	Cannot   bool // it cannot evaluate the index
}

// Facts are the input of a decision about one index.
type Facts struct {
	State           index.State
	CannotEvaluate  bool   // the reason of state error
	Waits           bool   // its build was not requested
	Modified        uint64 // definitions revision of its last change
	PlacedAt        uint64 // definitions revision in which its copies were last placed
	Copies          []Copy
	Projectors      []Projector   // may be empty if CannotEvaluate is false
	Steady          bool          // the bucket exists, is the one on which the index was made, and is not in a rollback
	Guard           Guard         // of the bucket; if Steady
	Lacking, Enough time.Duration // how long a host has been away, and the limit for that
}

// Kind is the kind of a Step.
type Kind uint8

// The kinds.
const (
	Wait      Kind = iota
	Allocate       // record the copies that their hosts have made: Copies, under Revision
	Build          // begin the build, under Guard
	MakeReady      // under Guard
	Fail           // with Reason
	Rebuild        // rebuild a failed index, under Guard
	Forget         // remove a dropped index
)

// String returns the word in golden scripts.
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
	// Nearly is set if a build lacks only a stability timestamp at which its copies are exact.
	Nearly bool
}

// Away returns the name of a host whose absence blocks a build, "" if all are present.
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

// Next returns the next step for an index.
func Next(f *Facts) Step {
	if away := Away(f.State, f.Copies); away != "" && !f.Waits && f.Lacking >= f.Enough {
		return Step{Kind: Fail, Reason: fmt.Sprintf("HOST_AWAY: indexer %s has been offline for %v; restart it and run "+
			"BUILD INDEX, or drop the index", away, f.Enough)}
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

// allocate returns the placed copies that their hosts have made, and their newest common revision. Apply compares it
// with the placement, to detect a change in between.
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

// ready decides whether a build is complete, everywhere or nowhere (IX-5): all copies of all slices have been exact
// at a stability timestamp of the bucket's current generation and rollback id.
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

// rebuild decides whether an index that a projector could not evaluate can be rebuilt: every live projector has
// checked definitions that have the index, and can evaluate it.
func rebuild(f *Facts) Step {
	if !f.CannotEvaluate || !f.Steady || len(f.Projectors) == 0 ||
		slices.ContainsFunc(f.Projectors, func(p Projector) bool { return !p.Reported || p.Cannot }) {
		return Step{}
	}
	return Step{Kind: Rebuild, Guard: f.Guard}
}

// dropping decides whether a dropped index can be removed: every host has a definitions revision in force in which
// its copies are leaving. An absent host learns it when it returns: the newest definitions do not have the index, and
// its copy ids are never reused.
func dropping(f *Facts) Step {
	for i := range f.Copies {
		if h := &f.Copies[i].Host; h.Known && !h.Offline && h.Acked < f.Modified {
			return Step{}
		}
	}
	return Step{Kind: Forget}
}
