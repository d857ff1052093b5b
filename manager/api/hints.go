package api

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"tidemark/expression"
	"tidemark/index"
	"tidemark/internal/config"
	"tidemark/wire"
)

// hintTime limits the sampling of documents per request, counted from the begin of an index's creation, which runs in
// parallel; hints are made from what has been found by then.
const hintTime = 500 * time.Millisecond

// hints samples documents while indexes are being created, to report fields that none of them has: a typo produces an
// empty index, and no error. If KV did not answer for one index, the next of the request does not wait for it.
type hints struct {
	g      *ground
	silent atomic.Bool // the last sampling timed out
	spent  time.Duration
}

// beside is begin for a statement.
func (h *hints) beside(ctx context.Context, s expression.Statement) (end func() []string) {
	create, is := s.(*expression.CreateIndex)
	if !is {
		return nil
	}
	d := create.Definition()
	return h.begin(ctx, &d)
}

// begin starts sampling the documents of a keyspace. The returned function waits for the end and returns hints about
// the definition.
func (h *hints) begin(ctx context.Context, d *index.Definition) (end func() []string) {
	nothing := func() []string { return nil }
	if h.silent.Load() || len(keyFields(d)) == 0 || h.spent >= hintTime {
		return nothing
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, hintTime-h.spent)
	var found *wire.FieldsReply
	over := make(chan struct{})
	go func() {
		defer close(over)
		defer cancel()
		found = h.g.sampleFields(ctx, &wire.FieldsRequest{Bucket: d.Bucket, Scope: d.Member.Scope,
			Collection: d.Member.Collection})
		h.silent.Store(ctx.Err() != nil)
	}()
	return func() []string {
		<-over // within hintTime
		h.spent += time.Since(began)
		return fieldHints(d, found)
	}
}

// sampleFields asks all projectors which fields documents have, and sums up the answers that arrive in time.
func (g *ground) sampleFields(ctx context.Context, req *wire.FieldsRequest) *wire.FieldsReply {
	var mu sync.Mutex
	var asked sync.WaitGroup
	sum, byPath := &wire.FieldsReply{Whole: true}, map[string]int{}
	for p := range g.cfg.Raft.State().Projectors() {
		asked.Go(func() {
			r, err := g.projectors.Fields(ctx, p.Admin, req)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				g.cfg.Logger.Debug("projector did not report fields of "+
					"documents", "projector", p.ID, "bucket", req.Bucket, "error", err)
				sum.Whole = false
				return
			}
			sum.Documents, sum.Whole = sum.Documents+r.Documents, sum.Whole && r.Whole
			for _, f := range r.Fields {
				key := fmt.Sprintf("%q", f.Path)
				at, has := byPath[key]
				if !has {
					at = len(sum.Fields)
					byPath[key], sum.Fields = at, append(sum.Fields, wire.FieldCount{Path: f.Path})
				}
				sum.Fields[at].Documents += f.Documents
			}
		})
	}
	asked.Wait()
	return sum
}

// fieldHints returns hints about fields of the index's key that no sampled document has, if a similar name exists or
// the sample has all documents, since an index may be meant for rare documents; and about fields of its WHERE if a
// similar name exists.
func fieldHints(d *index.Definition, r *wire.FieldsReply) (all []string) {
	if r.Documents == 0 || len(r.Fields) >= wire.MaxFieldPaths { // missing fields may have been left out
		return nil
	}
	for _, path := range keyFields(d) {
		all = addHint(all, path, r, !r.Whole)
	}
	for _, path := range fieldsIn(d.Where) {
		all = addHint(all, path, r, true)
	}
	return all
}

// addHint adds a hint if no document has a field; with onlyNear, only if a field with a similar name exists.
func addHint(all []string, path []string, r *wire.FieldsReply, onlyNear bool) []string {
	for n := range path {
		upTo := path[:n+1]
		if slices.ContainsFunc(r.Fields, func(f wire.FieldCount) bool { return slices.Equal(f.Path, upTo) }) {
			continue
		}
		hint := fmt.Sprintf("0 of %d sampled documents have %s", r.Documents, fieldName(upTo))
		near := config.Nearest(path[n], beside(upTo, r))
		if near != "" {
			hint += fmt.Sprintf("; did you mean %s?", fieldName(append(slices.Clone(path[:n]), near)))
		}
		if near == "" && onlyNear || slices.Contains(all, hint) {
			return all
		}
		return append(all, hint)
	}
	return all
}

// beside returns the names of the fields at the place where a path ends.
func beside(path []string, r *wire.FieldsReply) (names []string) {
	up := path[:len(path)-1]
	for _, f := range r.Fields {
		if len(f.Path) == len(path) && slices.Equal(f.Path[:len(up)], up) {
			names = append(names, f.Path[len(up)])
		}
	}
	return names
}

// fieldName returns a path in the syntax of statements.
func fieldName(path []string) string {
	p := &expression.Path{}
	for _, name := range path {
		p.Steps = append(p.Steps, expression.Step{Name: name})
	}
	return p.String()
}

// keyFields returns the fields used in an index's key.
func keyFields(d *index.Definition) (all [][]string) {
	for _, k := range d.Keys {
		all = append(all, fieldsIn(k.Expr)...)
	}
	return all
}

// fieldsIn returns the fields of the document in an expression, each up to its first array, or as deep as projectors
// look.
func fieldsIn(text string) (all [][]string) {
	if strings.TrimSpace(text) == "" {
		return nil
	}
	x, err := expression.ParseKey(text)
	if err != nil {
		return nil
	}
	expression.Walk(x, func(x expression.Expr) {
		p, is := x.(*expression.Path)
		if !is {
			return
		}
		var path []string
		for _, s := range p.Steps[:min(len(p.Steps), wire.MaxFieldDepth)] {
			if s.Element {
				break
			}
			path = append(path, s.Name)
		}
		if len(path) > 0 {
			all = append(all, path)
		}
	})
	return all
}
