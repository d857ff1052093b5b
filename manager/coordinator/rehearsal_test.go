package coordinator

import (
	"context"
	"errors"
	"reflect"
	"testing"

	"tidemark/errcode"
	"tidemark/expression"
	"tidemark/index"
	"tidemark/manager/coordinator/core"
	"tidemark/partition"
	"tidemark/statecontext"
)

// TestRehearsal checks that a dry run returns what the statements then do, each after those before it. Nothing of it
// stays, not even load, and a bucket that is queried for the first time is not registered.
func TestRehearsal(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(3)
		w.bucket("other", "uuid-2")
		w.create("first", "", 1, 0)
		const text = `
			CREATE INDEX a ON other(name) WITH {"num_partition":5};
			CREATE INDEX b ON world(name) WITH {"num_partition":4, "num_replica":1, "defer_build":true};
			ALTER INDEX b ON world WITH {"action":"replica_count", "num_replica":2};
			BUILD INDEX ON world(b);
			CREATE INDEX IF NOT EXISTS first ON world(name);
			DROP INDEX first ON world;
			CREATE INDEX first ON world(name) WITH {"num_partition":3};`
		proposed := func() (n int) {
			for _, kind := range []string{"CreateIndex", "AlterIndex", "BuildIndexes", "DropIndex", "SetBucket"} {
				n += w.log.counted("*statecontext." + kind)
			}
			return n
		}
		before := proposed()
		rehearse := func() *Coordinator {
			r, end, err := w.leader().Rehearse(w.ctx)
			if err != nil {
				t.Fatal(err)
			}
			defer end()
			w.executeAll(r, text)
			return r
		}
		said := rehearse()
		if again := rehearse(); !reflect.DeepEqual(placesOf(said.State()), placesOf(again.State())) {
			t.Errorf("a dry run counts for the next one: %v, then %v", placesOf(said.State()), placesOf(again.State()))
		}
		if n := proposed(); n != before || w.log.State().IndexCount() != 1 || w.log.State().Bucket("other") != nil {
			t.Errorf("a dry run has left something: %d commands, %d before, %d indexes", n, before, w.log.State().IndexCount())
		}
		w.executeAll(w.leader(), text)
		if did := placesOf(w.log.State()); !reflect.DeepEqual(placesOf(said.State()), did) {
			t.Errorf("said %v, did %v", placesOf(said.State()), did)
		}
	})
}

// TestRehearsalRefuses checks that the same checks apply, and that a rehearsal waits for another one as long as its
// caller does.
func TestRehearsalRefuses(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(2)
		w.create("first", "", 1, 0)
		r, end, err := w.leader().Rehearse(w.ctx)
		if err != nil {
			t.Fatal(err)
		}
		for text, want := range map[string]error{
			"CREATE INDEX first ON world(name)":                              errcode.NameExists,
			"CREATE INDEX x ON nobody(name)":                                 core.ErrUnknownBucket,
			`CREATE INDEX x ON world(name) WITH {"num_replica":2}`:           nil, // of package rebalance
			"DROP INDEX x ON world":                                          errcode.UnknownIndex,
			"BUILD INDEX ON world(first, x)":                                 errcode.UnknownIndex,
			`ALTER INDEX x ON world WITH {"action":"move","nodes":["i1"]}`:   errcode.UnknownIndex,
			`ALTER INDEX first ON world WITH {"action":"move","nodes":[""]}`: nil,
		} {
			s, err := expression.Parse(text)
			if err == nil {
				_, err = r.Execute(w.ctx, s[0], nil)
			}
			if err == nil || want != nil && !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", text, err, want)
			}
		}
		_, another, err := w.leader().Rehearse(w.ctx)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(w.ctx)
		cancel()
		if _, _, err := w.leader().Rehearse(ctx); !errors.Is(err, core.ErrBusy) {
			t.Errorf("a third one beside them: %v", err)
		}
		end()
		end()
		another()
		if _, last, err := w.leader().Rehearse(w.ctx); err != nil {
			t.Error(err)
		} else {
			last()
		}
		w.depose()
		if _, _, err := w.coord.Rehearse(w.ctx); !errors.Is(err, ErrNotLeading) {
			t.Errorf("without leading: %v", err)
		}
	})
}

// executeAll runs all statements of a text.
func (w *world) executeAll(c *Coordinator, text string) {
	w.t.Helper()
	all, err := expression.Parse(text)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, s := range all {
		if _, err := c.Execute(w.ctx, s, nil); err != nil {
			w.t.Fatalf("%s: %v", s, err)
		}
	}
}

// placesOf returns the copies of all indexes that are not being dropped, by name.
func placesOf(s *statecontext.State) map[string][]partition.Copy {
	all := map[string][]partition.Copy{}
	for x := range s.Indexes() {
		d := &x.Definition
		if d.State == index.Dropping {
			continue
		}
		name := d.Bucket + "/" + d.Name
		for _, o := range x.Topology.Copies {
			all[name] = append(all[name], partition.Copy{Slice: o.Slice, Replica: o.Replica, Node: o.Node})
		}
	}
	return all
}
