package coordinator

import (
	"errors"
	"testing"
	"time"

	"tidemark/index"
	"tidemark/statecontext"
)

// TestRetriesKeepTheirOutcome: a request that is sent again has the outcome that it had, whatever has become of its
// index, of the name and of the nodes since.
func TestRetriesKeepTheirOutcome(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(1)
		def := index.Definition{Name: "a", Bucket: "world", IsPrimary: true, Deferred: true}
		request := func(key string) *statecontext.Request { return &statecontext.Request{Principal: "u", Key: key} }
		create := CreateRequest{Definition: def, Request: request("create")}
		first, err := w.leader().CreateIndex(w.ctx, create)
		if err != nil {
			t.Fatal(err)
		}
		ensure := CreateRequest{Definition: def, IfNotExists: true, Request: request("ensure")}
		for range 2 {
			if o, err := w.leader().CreateIndex(w.ctx, ensure); err != nil || o.ID != first.ID || !o.Existed {
				t.Errorf("if not exists: %+v, %v", o, err)
			}
		}
		drop := DropRequest{ID: first.ID, Request: request("drop")}
		dropped, err := w.leader().DropIndex(w.ctx, drop)
		if err != nil || dropped.ID != first.ID || dropped.Existed {
			t.Fatalf("drop: %+v, %v", dropped, err)
		}
		second, err := w.leader().CreateIndex(w.ctx, CreateRequest{Definition: index.Definition{Name: "a", Bucket: "world",
			IsPrimary: true, Deferred: true}})
		if err != nil || second.ID == first.ID {
			t.Fatalf("the name again: %+v, %v", second, err)
		}
		drop.ID = second.ID // as a retry by name finds it
		o, err := w.leader().DropIndex(w.ctx, drop)
		if err != nil || !o.Replayed || o.ID != first.ID || o.Definition.ID != first.ID || o.CAS != dropped.CAS || o.Existed {
			t.Errorf("the drop again: %+v, %v", o, err)
		}
		if w.leader().cfg.Consensus.State().IndexByName("world", "a") == nil {
			t.Error("the drop that was sent again has dropped the name's next index")
		}

		w.indexers["http://i1"].kill()
		time.Sleep(time.Minute) // it is offline
		if _, err := w.leader().CreateIndex(w.ctx, CreateRequest{Definition: index.Definition{Name: "b", Bucket: "world",
			IsPrimary: true}}); !errors.Is(err, ErrNoIndexer) {
			t.Errorf("no indexer that answers: %v", err)
		}
		if o, err := w.leader().CreateIndex(w.ctx, create); err != nil || o.ID != first.ID || !o.Replayed || o.Existed ||
			o.CAS != first.CAS {
			t.Errorf("the creation again, without nodes: %+v, %v", o, err)
		}
	})
}
