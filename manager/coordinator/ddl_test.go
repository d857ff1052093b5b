package coordinator

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/liveness"
	"tidemark/manager/coordinator/core"
	"tidemark/statecontext"
	"tidemark/wire"
)

// TestRetriesKeepTheirOutcome checks that a repeated request has its first outcome, whatever has become of its index,
// of the name and of the nodes since.
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
		time.Sleep(time.Minute) // now it is offline
		if _, err := w.leader().CreateIndex(w.ctx, CreateRequest{Definition: index.Definition{Name: "b", Bucket: "world",
			IsPrimary: true}}); !errors.Is(err, core.ErrNoIndexer) {
			t.Errorf("no indexer that answers: %v", err)
		}
		if o, err := w.leader().CreateIndex(w.ctx, create); err != nil || o.ID != first.ID || !o.Replayed || o.Existed ||
			o.CAS != first.CAS {
			t.Errorf("the creation again, without nodes: %+v, %v", o, err)
		}
	})
}

// TestChangesOfPlacesKeepTheirOutcome checks that a repeated ALTER or rebalance gets its first answer, whatever a
// fresh look at the placement would show: that nothing has to move, that another rebalance runs, that the index is
// gone.
func TestChangesOfPlacesKeepTheirOutcome(t *testing.T) {
	inWorld(t, func(w *world) {
		lone, pair := w.moving()
		request := func(key string) *statecontext.Request { return &statecontext.Request{Principal: "u", Key: key} }
		one, zero := 1, 0
		more := AlterRequest{ID: lone.ID, Replicas: &one, Request: request("more")}
		first, err := w.leader().AlterIndex(w.ctx, more)
		if err != nil || first.Existed || first.Replayed {
			t.Fatalf("%+v, %v", first, err)
		}
		again := func(what string, req AlterRequest, first Outcome) {
			t.Helper()
			o, err := w.leader().AlterIndex(w.ctx, req)
			if err != nil || !o.Replayed || o.Existed || o.ID != first.ID || o.CAS != first.CAS || o.Definition.ID != first.ID {
				t.Errorf("%s again: %+v, %v, first %+v", what, o, err, first)
			}
		}
		again("more replicas", more, first) // it has them now, so there is nothing to do
		drop := AlterRequest{ID: pair.ID, Drop: &one, Request: request("less")}
		dropped, err := w.leader().AlterIndex(w.ctx, drop)
		if err != nil {
			t.Fatal(err)
		}
		again("a replica that is dropped", drop, dropped) // it no longer exists
		if n := w.log.State().Definition(pair.ID).Replicas; n != 0 {
			t.Errorf("%d replicas", n)
		}

		w.indexer("i4")
		w.until("i4 is there", 20*time.Second, func() bool { s, _ := w.leader().Status(); return len(s.Indexers) == 4 })
		w.rebalanced(time.Minute)
		move := RebalanceRequest{Cause: "test", Remove: []string{"i2"}, Request: request("move")}
		_, id, err := w.leader().Rebalance(w.ctx, move)
		if err != nil || id == 0 {
			t.Fatal(id, err)
		}
		for _, when := range []string{"under way", "over"} {
			if p, n, err := w.leader().Rebalance(w.ctx, move); err != nil || n != id || p != nil {
				t.Errorf("a rebalance again that is %s: %+v, %d, %v; first %d", when, p, n, err, id)
			}
			w.rebalanced(5 * time.Minute)
		}
		other := RebalanceRequest{Cause: "test", Keep: []string{"i2"}, Request: request("move")}
		other.Request.BodyHash[0] = 1
		if _, _, err := w.leader().Rebalance(w.ctx, other); !errors.Is(err, errcode.RequestMismatch) {
			t.Errorf("another rebalance under the same key: %v", err)
		}
		if !w.log.State().Going(w.nodeOf("i2")) {
			t.Error("what was refused has marked an indexer")
		}
		if p, n, err := w.leader().Rebalance(w.ctx, RebalanceRequest{DryRun: true, Request: request("move")}); err != nil ||
			n != 0 || p == nil {
			t.Errorf("a plan alone: %+v, %d, %v", p, n, err)
		}

		if _, err := w.leader().DropIndex(w.ctx, DropRequest{ID: lone.ID}); err != nil {
			t.Fatal(err)
		}
		w.until("the index is removed", time.Minute, func() bool { return w.log.State().Index(lone.ID) == nil })
		again("one that is gone", more, first)
		more.ID = 0 // as a retry by name finds it
		again("one whose name is gone", more, first)
		if _, err := w.leader().AlterIndex(w.ctx, AlterRequest{Replicas: &zero, Request: request("new")}); !errors.Is(err,
			errcode.UnknownIndex) {
			t.Errorf("no index: %v", err)
		}
	})
}

// TestMissingBucketNeedsAllProjectors checks that, while other projectors cannot be queried, an answer that the bucket
// does not exist is accepted only where nothing is lost by it: CREATE INDEX is refused with the projectors that could
// not be queried. A restore and BUILD INDEX do not proceed as if KV had no such bucket.
func TestMissingBucketNeedsAllProjectors(t *testing.T) {
	for _, silent := range []bool{true, false} { // else its KV node is silent
		inWorld(t, func(w *world) {
			w.components(1)
			a := w.create("a", "", 2, 0)
			w.until("READY", 10*time.Second, func() bool { return w.state(a.ID) == index.Maintenance })
			w.deleted("world")
			w.until("gone", 30*time.Second, func() bool { return w.state(a.ID) == index.Error })
			restore := func() ([]statecontext.FoundBucket, error) {
				return w.leader().findBuckets(w.ctx, statecontext.New(), w.log.State())
			}
			build := func() error {
				_, err := w.leader().BuildIndexes(w.ctx, BuildRequest{IDs: []index.ID{a.ID}})
				return err
			}
			if found, err := restore(); err != nil || len(found) > 0 {
				t.Errorf("a restore without the bucket: %v, %v", found, err)
			}
			if err := build(); !errors.Is(err, errcode.BucketGone) {
				t.Errorf("BUILD INDEX without the bucket: %v", err)
			}
			w.bucket("world", "uuid-2")
			p1, p2 := w.projectors["http://p1"], w.projectors["http://p2"]
			p1.mu.Lock()
			p1.foreign = "none" // its KV node is not in the KV cluster
			p1.mu.Unlock()
			p2.mu.Lock()
			p2.down, p2.away = silent, !silent
			p2.mu.Unlock()
			saysSo := func(err, is error) bool { return errors.Is(err, is) && strings.Contains(err.Error(), "p2") }
			if _, err := restore(); !saysSo(err, ErrNoProjector) || errors.Is(err, core.ErrUnknownBucket) {
				t.Errorf("a restore: %v", err)
			}
			if err := build(); !saysSo(err, ErrNoProjector) || errors.Is(err, core.ErrUnknownBucket) {
				t.Errorf("BUILD INDEX: %v", err)
			}
			if _, err := w.leader().CreateIndex(w.ctx, CreateRequest{Definition: index.Definition{Name: "b", Bucket: "world",
				IsPrimary: true}}); !saysSo(err, core.ErrUnknownBucket) {
				t.Errorf("CREATE INDEX: %v", err)
			}
		})
	}
}

// TestABucketOfAnotherCluster checks that the answers of a projector at another KV cluster do not count while others
// stream. While none streams, a bucket about which two projectors disagree is refused with their names. A projector
// that does not answer delays none of that.
func TestABucketOfAnotherCluster(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(1)
		p3 := w.projector("p3")
		p3.mu.Lock()
		p3.foreign = "of-another"
		p3.mu.Unlock()
		w.until("p3 is there", 5*time.Second, func() bool { s, _ := w.leader().Status(); return len(s.Projectors) == 3 })
		create := func(bucket string) error {
			_, err := w.leader().CreateIndex(w.ctx, CreateRequest{Definition: index.Definition{Name: "x", Bucket: bucket,
				IsPrimary: true}})
			return err
		}
		p2 := w.projectors["http://p2"]
		w.bucket("first", "uuid-f")
		for range 5 { // whichever answers first
			err := create("first")
			if !errors.Is(err, ErrNoProjector) || !strings.Contains(err.Error(), "p3") ||
				!strings.Contains(err.Error(), "of-another") || !strings.Contains(err.Error(), "uuid-f") {
				t.Fatalf("two say different things: %v", err)
			}
		}
		p3.mu.Lock()
		p3.hangs = true
		p3.mu.Unlock()
		began := time.Now()
		if err := create("first"); err != nil || time.Since(began) > 2*time.Second {
			t.Errorf("one says nothing: %v, after %v", err, time.Since(began))
		}
		p3.mu.Lock()
		p3.hangs = false
		p3.mu.Unlock()
		streaming := func() bool {
			s, _ := w.leader().Status()
			return s.Projectors[0].Streams > 0 && s.Projectors[1].Streams > 0
		}
		w.until("p1 and p2 stream", time.Minute, streaming)
		w.bucket("second", "uuid-s")
		for range 5 {
			if err := create("nowhere"); !errors.Is(err, core.ErrUnknownBucket) {
				t.Fatalf("a bucket that only the other cluster has: %v", err)
			}
		}
		if err := create("second"); err != nil {
			t.Fatal(err)
		}
		if b := w.log.State().Bucket("second"); b == nil || b.UUID != "uuid-s" {
			t.Errorf("of two buckets of one name it took %+v", b)
		}
		p2.mu.Lock()
		p2.away = true
		p2.mu.Unlock()
		if err := create("nowhere"); !errors.Is(err, core.ErrUnknownBucket) || !strings.Contains(err.Error(), "p2") ||
			strings.Contains(err.Error(), "p3") {
			t.Errorf("where p2 cannot be queried: %v", err)
		}
	})
}

// TestAnotherProcessIsNotQueriedForABucket checks that a process that listens at the address of a projector, for
// instance the projector of another cluster, is not taken at its word about a bucket. The registered one is waited for.
func TestAnotherProcessIsNotQueriedForABucket(t *testing.T) {
	inWorld(t, func(w *world) {
		w.projector("p1")
		w.indexer("i1")
		w.until("registration", 5*time.Second, func() bool {
			s, _ := w.leader().Status()
			return len(s.Projectors) == 1 && len(s.Indexers) == 1 && s.Step == "active"
		})
		w.crash("p1")
		another := &fakeProjector{id: "p1", foreign: "of-another"}
		another.fake = fake{w: w, addr: "http://p1", boot: "another"}
		another.ctx, another.kill = context.WithCancel(w.ctx)
		defer another.kill()
		w.mu.Lock()
		w.projectors[another.addr] = another
		w.mu.Unlock()
		create := func() error {
			_, err := w.leader().CreateIndex(w.ctx, CreateRequest{Definition: index.Definition{Name: "x", Bucket: "world",
				IsPrimary: true}})
			return err
		}
		if err := create(); !errors.Is(err, ErrNoProjector) || !strings.Contains(err.Error(), "another") {
			t.Errorf("while it listens: %v", err)
		}
		if b := w.log.State().Bucket("world"); b != nil {
			t.Fatalf("it counted: %+v", b)
		}
		w.running.Go(func() {
			time.Sleep(2 * projectorPause)
			w.projector("p1")
		})
		if err := create(); err != nil {
			t.Errorf("p1 is started again: %v", err)
		}
		if b := w.log.State().Bucket("world"); b == nil || b.UUID != "uuid-1" {
			t.Errorf("of KV's bucket it has %+v", b)
		}
	})
}

// TestLostProjectorIsIgnored checks that a projector that is lost, and was never removed, does not put in doubt
// whether KV has a bucket while others stream; one that merely does not answer does.
func TestLostProjectorIsIgnored(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(1)
		a := w.create("a", "", 2, 0)
		w.until("READY", 10*time.Second, func() bool { return w.state(a.ID) == index.Maintenance })
		query := func() error {
			_, err := w.leader().queryBucket(w.ctx, &wire.BucketRequest{Bucket: "other"})
			return definite(err)
		}
		p2 := w.projectors["http://p2"]
		p2.mu.Lock()
		p2.down = true
		p2.mu.Unlock()
		if err := query(); !errors.Is(err, ErrNoProjector) || !strings.Contains(err.Error(), "p2") {
			t.Errorf("it does not answer: %v", err)
		}
		w.crash("p2")
		w.until("it is lost", time.Minute, func() bool {
			s, _ := w.leader().Status()
			return s.Projectors[1].Life == liveness.Offline && s.Projectors[1].Streams == 0
		})
		if err := query(); !errors.Is(err, core.ErrUnknownBucket) {
			t.Errorf("it is lost: %v", err)
		}
	})
}

// TestKnownBucketNeedsOneAnswer checks that a query about a bucket in the state does not wait for a hanging
// projector once another one has found the bucket.
func TestKnownBucketNeedsOneAnswer(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(1)
		a := w.create("a", "", 2, 0)
		w.until("READY", 10*time.Second, func() bool { return w.state(a.ID) == index.Maintenance })
		p2 := w.projectors["http://p2"]
		p2.mu.Lock()
		p2.hangs = true
		p2.mu.Unlock()
		began := time.Now()
		if _, err := w.leader().queryBucket(w.ctx, &wire.BucketRequest{Bucket: "world", Collections: true}); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took >= agreeWait { // virtual
			t.Errorf("it took %v", took)
		}
	})
}

// TestProjectorBesideAHungOneAnswers checks that, while the only streaming projector hangs, another live one whose KV
// node has vbuckets of a known bucket can report that KV has a bucket. Its answer that there is none stays in doubt.
// A projector that has reported no such vbuckets may be at another KV cluster, and is not asked.
func TestProjectorBesideAHungOneAnswers(t *testing.T) {
	inWorld(t, func(w *world) {
		w.kv["world"].one, w.looks = true, true
		p1, p2, p3 := w.projector("p1"), w.projector("p2"), w.projector("p3")
		p2.mu.Lock()
		p2.refuses, p2.streams["world"] = true, map[uint16]*fakeStream{}
		p2.mu.Unlock()
		p3.mu.Lock()
		p3.refuses, p3.foreign = true, "of-another"
		p3.mu.Unlock()
		w.indexer("i1")
		w.until("registration", 5*time.Second, func() bool {
			s, _ := w.leader().Status()
			return len(s.Projectors) == 3 && len(s.Indexers) == 1 && s.Step == "active"
		})
		if _, err := w.leader().proposeFor(w.ctx, &statecontext.SetBucket{Name: "world", UUID: "uuid-1",
			VBuckets: vbuckets}); err != nil {
			t.Fatal(err)
		}
		a := w.create("a", "", 2, 0)
		w.until("READY", time.Minute, func() bool { return w.state(a.ID) == index.Maintenance })
		w.until("p1 alone streams", time.Minute, func() bool { return w.shares()["p1"] == vbuckets })
		w.bucket("new", "uuid-n")
		p1.mu.Lock()
		p1.hangs = true
		p1.mu.Unlock()
		if b, err := w.leader().queryBucket(w.ctx, &wire.BucketRequest{Bucket: "new"}); err != nil || b.UUID != "uuid-n" {
			t.Errorf("a bucket of which nothing is known: %+v, %v", b, err)
		}
		_, err := w.leader().queryBucket(w.ctx, &wire.BucketRequest{Bucket: "nowhere"})
		if err = definite(err); !errors.Is(err, ErrNoProjector) || !strings.Contains(err.Error(), "p1") ||
			strings.Contains(err.Error(), "p3") {
			t.Errorf("one that no projector has: %v", err)
		}
	})
}
