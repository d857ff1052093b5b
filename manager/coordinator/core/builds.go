package core

import (
	"errors"
	"slices"

	"tidemark/index"
	"tidemark/liveness"
	"tidemark/partition"
	"tidemark/statecontext"
)

// stages names the spans of a build by what each of them waits for.
var stages = [...]string{"build: hosts make copies", "build: streams begin", "build: copies are filled",
	"build: copies are exact at a stability timestamp",
	"build: components receive that it is ready"}

// build tracks the stage of a traced statement that builds indexes. tracing.go makes spans of the stages.
type build struct {
	id    uint64
	ids   []index.ID
	stage int // 1 is the first of stages; 0: none yet
}

// begun starts tracking a build.
func (l *builds) begun(b *BuildBegun) {
	l.all = append(l.all, &build{id: b.Build, ids: b.IDs})
	l.follow()
}

// builds holds the traced builds.
type builds struct {
	*scene
	all []*build
}

// follow moves traced builds to their present stage and removes those that are over.
func (l *builds) follow() {
	l.all = slices.DeleteFunc(l.all, func(b *build) bool {
		over, err := l.followBuild(b)
		if over {
			l.do(BuildOver{Build: b.id, Err: err})
		}
		return over
	})
}

var errDropped = errors.New("the index was dropped")

// followBuild enters the stage of the index that is the furthest behind.
func (l *builds) followBuild(b *build) (over bool, err error) {
	least, over := len(stages), true
	for _, id := range b.ids {
		x := l.now.state.Index(id)
		switch {
		case x == nil || x.Definition.State == index.Dropping:
			err = errDropped
			continue
		case x.Definition.State == index.Error:
			err = errors.New(x.Definition.Reason)
			continue
		}
		stage := l.stageOf(x)
		least, over = min(least, stage), over && stage == len(stages)
	}
	if least < len(stages) && b.stage != least+1 {
		b.stage = least + 1
		l.do(Stage{Build: b.id, Name: stages[least]})
	}
	return over, err
}

// stageOf returns the position in stages of an index that is not in error, and len(stages) when nothing is left to
// do.
func (l *builds) stageOf(x *statecontext.Index) int {
	d, b := &x.Definition, l.buckets.byName[x.Definition.Bucket]
	switch {
	case d.State == index.Pending:
		return 0
	case d.State == index.Maintenance && l.allAcknowledged(d.ModifiedCAS):
		return len(stages)
	case d.State == index.Maintenance:
		return 4
	case b == nil || b.ledger.Summary(l.nowMS).Begun < b.ledger.Len():
		return 1
	case slices.ContainsFunc(x.Topology.Copies, func(c partition.Copy) bool { return !l.filled(c) }):
		return 2
	}
	return 3
}

// filled reports whether a copy's side streams have brought everything, as its indexer reports.
func (l *builds) filled(c partition.Copy) bool {
	n := l.components.indexers[c.Node]
	if n == nil {
		return false
	}
	r, has := n.copies[c.ID]
	return has && r.Done >= r.Total && (r.Total > 0 || r.Ready)
}

// allAcknowledged reports whether all live components have acknowledged a definitions revision.
func (l *builds) allAcknowledged(revision uint64) bool {
	for _, p := range l.components.projectors {
		if p.acked < revision && l.life(&p.component) != liveness.Offline {
			return false
		}
	}
	for _, n := range l.components.indexers {
		if n.acked < revision && l.isReachable(n) {
			return false
		}
	}
	return true
}
