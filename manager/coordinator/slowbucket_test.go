package coordinator

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"tidemark/index"
	"tidemark/projectorclient"
	"tidemark/wire"
)

// beside makes two ready indexes on buckets of their own, world and other.
func beside(w *world) {
	w.bucket("other", "uuid-2")
	w.components(2)
	o := w.create("a", "", 2, 0)
	x, err := w.leader().CreateIndex(w.ctx, CreateRequest{Definition: index.Definition{Name: "b", Bucket: "other",
		Keys: []index.KeyExpr{{Expr: "name"}}, Partitions: 2}})
	if err != nil {
		w.t.Fatal(err)
	}
	w.until("READY", 10*time.Second, func() bool {
		return w.state(o.ID) == index.Maintenance && w.state(x.ID) == index.Maintenance
	})
}

// losesStream makes the projectors lose a stream of a bucket.
func losesStream(w *world, bucket string) {
	for _, id := range []string{"p1", "p2"} {
		p := w.projectors["http://"+id]
		p.mu.Lock()
		delete(p.streams[bucket], 0)
		p.mu.Unlock()
	}
}

// streamsIt reports whether a projector has that stream of a bucket.
func streamsIt(w *world, bucket string) bool {
	for _, id := range []string{"p1", "p2"} {
		p := w.projectors["http://"+id]
		p.mu.Lock()
		has := p.streams[bucket][0] != nil
		p.mu.Unlock()
		if has {
			return true
		}
	}
	return false
}

// TestRollbackDelaysNoOtherBucket checks that, while an indexer takes long to restore one bucket, it is polled for
// positions of another one that has lost a stream.
func TestRollbackDelaysNoOtherBucket(t *testing.T) {
	inWorld(t, func(w *world) {
		var restoring, polled atomic.Int32
		over := make(chan struct{})
		defer close(over)
		beside(w)
		w.slowly(func(req any) {
			switch r := req.(type) {
			case *wire.RollbackRequest:
				if r.Bucket == "world" && r.Step == "rollback" {
					restoring.Add(1)
					<-over
				}
			case *wire.PollRequest:
				if r.Bucket == "other" {
					polled.Add(1)
				}
			}
		})
		w.write("world", 5)
		w.until("15 is stable", 2*time.Second,
			func() bool { return w.log.State().Bucket("world").Stability.Vector.Seqnos[3] == 15 })
		w.loses(3, 12)
		w.until("it restores", time.Minute, func() bool { return restoring.Load() == 2 })
		losesStream(w, "other")
		w.until("both are queried", 10*time.Second, func() bool { return polled.Load() >= 2 })
	})
}

// TestManyHungBucketsDelayNoOther lets KV answer no stream request of more buckets than a component carries out
// commands for at a time. A stream of one more bucket, lost after all of these, must begin again meanwhile.
func TestManyHungBucketsDelayNoOther(t *testing.T) {
	inWorld(t, func(w *world) {
		var hang []string
		for i := range 2*sendsAtOnce + 1 {
			hang = append(hang, fmt.Sprint("hangs-", i))
			w.bucket(hang[i], fmt.Sprint("uuid-hangs-", i))
		}
		beside(w)
		for _, b := range hang {
			x, err := w.leader().CreateIndex(w.ctx, CreateRequest{Definition: index.Definition{Name: "c", Bucket: b,
				Keys: []index.KeyExpr{{Expr: "name"}}, Partitions: 1}})
			if err != nil {
				t.Fatal(err)
			}
			w.until("READY", 10*time.Second, func() bool { return w.state(x.ID) == index.Maintenance })
		}
		var hung atomic.Int32
		over := make(chan struct{})
		defer close(over)
		w.slowly(func(req any) {
			r, is := req.(*wire.StreamRequest)
			if is && slices.Contains(hang, r.Buckets[0].Bucket) {
				hung.Add(1)
				select {
				case <-over:
				case <-time.After(projectorclient.StreamTimeout):
				}
			}
		})
		for _, b := range hang {
			losesStream(w, b)
		}
		w.until("they hang", time.Minute, func() bool { return hung.Load() >= 2*sendsAtOnce })
		losesStream(w, "other")
		w.until("the other bucket streams again", projectorclient.StreamTimeout/2,
			func() bool { return streamsIt(w, "other") })
	})
}

// TestStartsDelayNoOtherBucket lets KV answer no stream request of one bucket; a lost stream of another one must
// begin again meanwhile.
func TestStartsDelayNoOtherBucket(t *testing.T) {
	inWorld(t, func(w *world) {
		var hung atomic.Int32
		over := make(chan struct{})
		defer close(over)
		beside(w)
		w.slowly(func(req any) {
			r, is := req.(*wire.StreamRequest)
			if is && r.Buckets[0].Bucket == "world" {
				hung.Add(1)
				select {
				case <-over:
				case <-time.After(10 * time.Second): // like a projector
				}
			}
		})
		losesStream(w, "world")
		w.until("it hangs", time.Minute, func() bool { return hung.Load() > 0 })
		time.Sleep(8 * time.Second) // virtual time: it is sent the request again, and more of it waits
		losesStream(w, "other")
		w.until("the other bucket streams again", 5*time.Second, func() bool { return streamsIt(w, "other") })
	})
}
