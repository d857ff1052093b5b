package projector

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/internal/rpc"
	"tidemark/internal/testing/draws"
	"tidemark/keyversion"
	"tidemark/wire"
)

// rivalLeader is a coordinator that sends commands from several goroutines at once, as lanes do.
type rivalLeader struct {
	w       *world
	term    uint64
	making  *sync.Mutex   // of definitions: the world numbers them
	counter atomic.Uint64 // of fences
	inc     atomic.Uint64 // of incarnations
	rev     *atomic.Uint64
	deposed *atomic.Bool // the newer leader has been obeyed
	late    atomic.Int64 // commands that were obeyed although they began after that
	refused atomic.Int64
	obeyed  atomic.Int64
}

func (s *rivalLeader) fence() wire.Fence {
	return wire.Fence{ClusterID: "c1", Epoch: 1, Term: s.term, Counter: s.counter.Add(1)}
}

func (s *rivalLeader) incarnation(counter uint64) index.Incarnation {
	return index.Incarnation{Epoch: 1, Term: s.term, Counter: counter}
}

// command sends one command of any kind.
func (s *rivalLeader) command(r *rand.Rand) {
	ctx := context.Background()
	over := s.deposed.Load()
	var err error
	switch r.IntN(5) {
	case 0:
		s.making.Lock()
		d := s.w.definitions(s.rev.Add(1), []index.ID{1, 2, 3}[:1+r.IntN(3)]...)
		s.making.Unlock()
		d.Fence = s.fence()
		_, err = s.w.client.Definitions(ctx, s.w.url, d)
	case 1:
		_, err = s.w.client.Hello(ctx, s.w.url, &wire.HelloRequest{Fence: s.fence()})
	case 2:
		err = s.w.client.Stop(ctx, s.w.url, &wire.StreamStop{Fence: s.fence(), Topic: wire.MaintenanceTopic,
			Bucket:   testBucket,
			VBuckets: []uint16{uint16(r.IntN(vbuckets))}, Incarnation: s.incarnation(s.inc.Load())})
	default:
		_, err = s.start(uint16(r.IntN(vbuckets)), uint16(r.IntN(vbuckets)))
	}
	switch p := rpc.AsProblem(err); {
	case err == nil && over && s.term == 1:
		s.late.Add(1)
	case err == nil:
		s.obeyed.Add(1)
		if s.term == 2 {
			s.deposed.Store(true)
		}
	case errors.As(err, &p) && p.Code == errcode.Fenced:
		s.refused.Add(1)
	}
}

// start requests the vbuckets in a range under a new incarnation.
func (s *rivalLeader) start(from, to uint16) (*wire.StreamReply, error) {
	req := &wire.StreamRequest{Topic: wire.MaintenanceTopic, Incarnation: s.incarnation(s.inc.Add(1)), Fence: s.fence(),
		Buckets: []wire.StreamBucket{{Bucket: testBucket, BucketUUID: testUUID}}}
	for v := min(from, to); v <= max(from, to); v++ {
		req.Buckets[0].Restart.Add(wire.StreamStart{VBucket: v})
	}
	return s.w.client.Streams(context.Background(), s.w.url, req)
}

// TestTwoCoordinators: two leaders command one projector at the same time. Once a command of the newer one has been
// obeyed, none of the older one is; in the end the streams are those that the newer one requested, and no event of
// the older one's streams follows a BEGIN of the newer.
func TestTwoCoordinators(t *testing.T) {
	t.Parallel()
	seed := draws.Seed(t)
	w := newWorld(t)
	w.define(1, 1)
	var rev atomic.Uint64
	var deposed atomic.Bool
	var making sync.Mutex
	rev.Store(1)
	older, newer := &rivalLeader{w: w, term: 1, making: &making, rev: &rev, deposed: &deposed},
		&rivalLeader{w: w, term: 2, making: &making, rev: &rev, deposed: &deposed}
	older.counter.Store(1)
	leaders := []*rivalLeader{older, older, older, newer, newer, newer}
	var all sync.WaitGroup
	for i, s := range leaders {
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		all.Go(func() {
			if s == newer { // the election happens in the middle of the older one's work
				w.eventually("the older one has streams", func() bool {
					return older.obeyed.Load() > int64(10+r.IntN(20)) ||
						older.refused.Load() > 200
				})
			}
			for i := 0; i < 60 || s == older && s.refused.Load() == 0; i++ { // the newer one refuses it in the end
				s.command(r)
			}
		})
	}
	writer := rand.New(rand.NewPCG(seed, 99))
	for i := range 200 {
		w.set(fmt.Sprint("k", writer.IntN(50)), map[string]any{"f1": 1000 + i, "f2": i, "f3": i})
	}
	all.Wait()
	if newer.obeyed.Load() == 0 || older.obeyed.Load() == 0 || older.refused.Load() == 0 {
		t.Fatalf("older: %d obeyed, %d refused; newer: %d obeyed, %d refused: nothing is shown", older.obeyed.Load(),
			older.refused.Load(), newer.obeyed.Load(), newer.refused.Load())
	}
	if n := older.late.Load(); n > 0 {
		t.Errorf("%d commands of the older one were obeyed after the newer one's", n)
	}
	reply, err := newer.start(0, vbuckets-1)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range reply.Buckets[0].Results {
		if r.Outcome != wire.StartBegun {
			t.Errorf("%+v", r)
		}
	}
	last := newer.incarnation(newer.inc.Load())
	if _, err := older.start(0, vbuckets-1); rpc.AsProblem(err).Code != errcode.Fenced {
		t.Errorf("the older one's last word: %v", err)
	}
	var s wire.ProjectorState
	w.get("/v1/state", &s)
	for i, inc := range s.Buckets[0].Incarnations {
		if inc != last || s.Buckets[0].Ended[i] {
			t.Errorf("vbucket %d streams under %v, want %v", s.Buckets[0].VBuckets[i], inc, last)
		}
	}
	w.eventually("BEGIN of every vbucket under the last incarnation", func() bool {
		n := 0
		for _, b := range w.data.kinds(keyversion.StreamBegin) {
			if b.Incarnation == last {
				n++
			}
		}
		return n == vbuckets
	})
	w.data.mu.Lock()
	defer w.data.mu.Unlock()
	var highest [vbuckets]index.Incarnation
	for _, ev := range w.data.events {
		if ev.Incarnation.Compare(highest[ev.VBucket]) < 0 {
			t.Fatalf("vbucket %d: %s of %v after one of %v", ev.VBucket, ev.Kind, ev.Incarnation, highest[ev.VBucket])
		}
		highest[ev.VBucket] = ev.Incarnation
	}
}
