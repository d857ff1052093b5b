package projector

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"tidemark/expression"
	"tidemark/index"
	"tidemark/partition"
	"tidemark/projector/router"
	"tidemark/wire"
)

// assessor finds indexes in definitions that this projector cannot evaluate: they are of a newer version, or damaged.
// The coordinator is notified of them, since they lack this projector's documents.
type assessor struct {
	mu   sync.Mutex
	seen map[index.ID]assessed
	read func(expression.Source) (*expression.Parsed, error) // expression.ParseSource except in tests
}

func newAssessor() *assessor { return &assessor{read: expression.ParseSource} }

// assessed is the parsed form of an index's expressions, which never change, or the error.
type assessed struct {
	source expression.Source
	parsed *expression.Parsed
	err    error
}

// errTooMany is wrapped when a bucket has more indexes than can be evaluated.
var errTooMany = errors.New("too many indexes")

func tooMany(bucket string) error {
	return fmt.Errorf("%w: bucket %s has more than %d, which is the limit", errTooMany, bucket,
		expression.MaxSources)
}

// assess lists the indexes that cannot be evaluated, whatever their state; those that are not in state Error yet come
// first.
func (a *assessor) assess(d *wire.Definitions) *wire.Evaluation {
	a.mu.Lock()
	defer a.mu.Unlock()
	places := make(map[index.ID]*partition.Topology, len(d.Topologies))
	for i := range d.Topologies {
		places[d.Topologies[i].Index] = &d.Topologies[i]
	}
	view := router.ViewConfig{Endpoints: maintenanceEndpoints(d)}
	e := &wire.Evaluation{Revision: d.Revision, Rules: expression.Rules}
	seen, active := make(map[index.ID]assessed, len(d.Indexes)), map[string]int{}
	var known []wire.Unevaluated
	for _, isActive := range []bool{true, false} { // indexes that are evaluated already have precedence
		for i := range d.Indexes {
			def := &d.Indexes[i]
			place := places[def.ID]
			if place == nil || def.State.Active() != isActive {
				continue
			}
			found := a.expressions(def)
			seen[def.ID] = found
			err := found.err
			if err == nil {
				_, err = view.Check(place)
			}
			if err == nil && active[def.Bucket] >= expression.MaxSources {
				err = tooMany(def.Bucket)
			}
			switch u := (wire.Unevaluated{Index: def.ID}); {
			case err == nil && isActive:
				active[def.Bucket]++
			case err == nil:
			case def.State == index.Error:
				u.Error = reason(err)
				known = append(known, u)
			default:
				u.Error = reason(err)
				e.Indexes = append(e.Indexes, u)
			}
		}
	}
	a.seen = seen
	e.Indexes = append(e.Indexes, known...)
	if len(e.Indexes) > wire.MaxUnevaluated {
		e.Indexes, e.More = e.Indexes[:wire.MaxUnevaluated], true
	}
	return e
}

// parsed returns the parsed expressions of an index. Those of the newest definitions were parsed on arrival.
func (a *assessor) parsed(def *index.Definition) (*expression.Parsed, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	found := a.expressions(def)
	return found.parsed, found.err
}

// expressions parses an index's expressions, or returns the cached result.
func (a *assessor) expressions(def *index.Definition) assessed {
	source := expression.SourceOf(def)
	if was, has := a.seen[def.ID]; has && slices.Equal(was.source.Keys, source.Keys) && was.source.Where == source.Where &&
		was.source.IsPrimary == source.IsPrimary {
		return was
	}
	parsed, err := a.read(source)
	return assessed{source, parsed, err}
}

// reason returns an error's text on one line.
func reason(err error) string {
	var syntax *expression.SyntaxError
	if errors.As(err, &syntax) {
		return wire.Cut(fmt.Sprintf("%s, in %s", syntax.Message, syntax.Text), maxFaultText)
	}
	return wire.Cut(strings.Join(strings.Fields(err.Error()), " "), maxFaultText)
}
