package api

import (
	"testing"

	"tidemark/index"
	"tidemark/partition"
	"tidemark/statecontext"
)

// written is a state made by commands.
type written struct {
	t *testing.T
	s *statecontext.State
}

func (w *written) must(b statecontext.Body) statecontext.Result {
	w.t.Helper()
	next, results, _ := statecontext.ApplyCommands(w.s, w.s.AppliedIndex()+1,
		[]statecontext.Command{{TimeMS: 1, Body: b}})
	if err := results[0].Err(); err != nil {
		w.t.Fatal(err)
	}
	w.s = next
	return results[0]
}

func (w *written) create(name, where string, ready bool, keys ...string) index.ID {
	w.t.Helper()
	d := index.Definition{Name: name, Bucket: "b", BucketUUID: "bu", Using: index.UsingOrdered,
		ExprType: index.ExprN1QL, IsPrimary: len(keys) == 0, Where: where, Partitions: 1}
	for _, k := range keys {
		d.Keys = append(d.Keys, index.KeyExpr{Expr: k})
	}
	id := w.must(&statecontext.CreateIndex{Definition: d, Layout: partition.Layout{Scheme: partition.HashDocID,
		Partitions: 1}, Placement: []statecontext.Placement{{}}}).Index
	if ready {
		w.must(&statecontext.AllocateCopies{ID: id, Revision: w.s.DefinitionsRevision(),
			Copies: []index.CopyID{w.s.Topology(id).Copies[0].ID}})
		w.must(&statecontext.SetIndexState{ID: id, From: index.Pending, To: index.Backfill})
		w.must(&statecontext.SetIndexState{ID: id, From: index.Backfill, To: index.Maintenance})
	}
	return id
}

// newWritten returns a state with an indexer and a bucket b of 4 vbuckets.
func newWritten(t *testing.T) *written {
	w := &written{t, statecontext.New()}
	w.must(&statecontext.LeaderStarted{Term: 1, Manager: statecontext.Manager{ID: "m1",
		FormatLevel: statecontext.FormatLevel}})
	w.must(&statecontext.BootstrapCluster{ClusterID: "c", Epoch: 1, FormatLevel: statecontext.FormatLevel})
	w.must(&statecontext.RegisterIndexer{Indexer: statecontext.Indexer{UUID: "u", Name: "i1"}})
	w.must(&statecontext.SetBucket{Name: "b", UUID: "bu", VBuckets: 4})
	return w
}
