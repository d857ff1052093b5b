package scan

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"tidemark/errcode"
	"tidemark/index"
)

// keepers is a fake cluster that records when its nodes are requested to keep timestamps.
type keepers struct {
	*fakeCluster
	began time.Time
	// answer is a node's answer; nil: it keeps everything
	answer func(ctx context.Context, node index.NodeID) error

	mu       sync.Mutex
	requests map[index.NodeID][]time.Duration
	ids      map[Pages]bool
	kept     []index.CopyID
}

// newKeepers returns an index of three slices with two copies each, on three nodes.
func newKeepers() *keepers {
	k := &keepers{fakeCluster: newCluster(3, 2, 3), began: time.Now(), requests: map[index.NodeID][]time.Duration{},
		ids: map[Pages]bool{}}
	k.keep = func(ctx context.Context, node index.NodeID, req KeepRequest) error {
		k.mu.Lock()
		k.requests[node] = append(k.requests[node], time.Since(k.began))
		k.ids[req.Scan] = true
		k.mu.Unlock()
		if err := req.Check(); err != nil {
			return err
		}
		if k.answer != nil {
			if err := k.answer(ctx, node); err != nil {
				return err
			}
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		k.kept = append(k.kept, req.Copies...)
		return nil
	}
	return k
}

// pausingSink pauses at its first row.
type pausingSink struct {
	collect
	pause time.Duration
	first func() // called after the pause; nil: nothing
}

func (s *pausingSink) Row(r Row) error {
	if len(s.rows) == 0 {
		time.Sleep(s.pause)
		if s.first != nil {
			s.first()
		}
	}
	return s.collect.Row(r)
}

// TestLongScansAreKept: nodes with copies of a scan's slices are requested to keep its timestamp once the scan has
// taken keepFrom, or earlier when they are about to release it, and again before it expires. A short scan sends no
// request, and neither does one that moves on to newer timestamps.
func TestLongScansAreKept(t *testing.T) {
	for _, c := range []struct {
		name      string
		takes     time.Duration
		newer     uint64 // timestamps that follow at once
		stability RowStability
		times     int // requests to each node
	}{
		{"short", keepLook / 2, 10, ScanStability, 0},
		{"not long, and nothing new", keepFrom - keepLook, keepBehind - 1, ScanStability, 0},
		{"not long, and soon released", 2 * keepLook, keepBehind, ScanStability, 1},
		{"long", keepFrom + 3*keepLook, 0, ScanStability, 1},
		{"long, and of a query", keepFrom + 3*keepLook, 0, QueryStability, 1},
		{"long, of several timestamps", keepFrom + 3*keepLook, 10, NoStability, 0},
		{"very long", keepFrom + 2*keepEvery + keepAgain, 0, ScanStability, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newKeepers()
				k.fakeCluster.newest += c.newer
				spec := openSpec()
				spec.Stability = c.stability
				sink := &pausingSink{pause: c.takes}
				if _, err := NewCoordinator(k, k, k, Options{}).Scan(t.Context(), spec, sink); err != nil {
					t.Fatal(err)
				}
				if c.times == 0 {
					if len(k.requests) > 0 {
						t.Errorf("requested %v", k.requests)
					}
					return
				}
				if slices.Sort(k.kept); len(k.requests) != 3 || len(k.ids) != 1 || len(slices.Compact(k.kept)) != 6 {
					t.Errorf("requested %v, by %d names, to keep %v", k.requests, len(k.ids), k.kept)
				}
				for node, at := range k.requests {
					if len(at) != c.times {
						t.Errorf("node %d was queried at %v, want %d times", node, at, c.times)
					}
					for i := range at[1:] {
						if gap := at[i+1] - at[i]; gap > KeepFor/2 {
							t.Errorf("node %d was queried at %v", node, at)
						}
					}
				}
			})
		})
	}
}

// TestKeptTimestampIsReleasedWithTheScan: the next request to a node names a kept scan that has ended, also one that
// ended with an error for its client; but not if the client was lost, because the scan may continue elsewhere.
func TestKeptTimestampIsReleasedWithTheScan(t *testing.T) {
	for _, lost := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			k := newKeepers()
			c := NewCoordinator(k, k, k, Options{})
			ctx, gone := context.WithCancel(t.Context())
			defer gone()
			sink := &pausingSink{pause: time.Second}
			if lost {
				sink.first = gone
			}
			if _, err := c.Scan(ctx, openSpec(), sink); (err != nil) != lost {
				t.Fatal(err)
			}
			if _, err := c.Scan(t.Context(), openSpec(), &collect{}); err != nil {
				t.Fatal(err)
			}
			if want := !lost; (len(k.pagesOver) == 3 && k.ids[k.pagesOver[0]]) != want || lost && len(k.pagesOver) > 0 {
				t.Errorf("client lost %v: %v are over, requested for %v", lost, k.pagesOver, k.ids)
			}
		})
	}
}

// dying is a Nodes that loses a node after the scan has some of its rows.
type dying struct {
	*keepers
	lost atomic.Bool
}

// OpenSlices implements Nodes.
func (d *dying) OpenSlices(ctx context.Context, node index.NodeID, others []index.NodeID, req NodeRequest) (RowStream,
	error) {
	rows, err := d.keepers.OpenSlices(ctx, node, others, req)
	if err == nil && node != here && d.lost.CompareAndSwap(false, true) {
		return &dyingRows{rows, 4}, nil
	}
	return rows, err
}

type dyingRows struct {
	RowStream
	left int
}

// Next implements RowStream.
func (d *dyingRows) Next() (Row, error) {
	if d.left--; d.left < 0 {
		return Row{}, io.ErrUnexpectedEOF
	}
	return d.RowStream.Next()
}

// TestScanContinuesAtAKeptTimestamp: a node is lost in the middle of a scan, when nodes hold only kept timestamps: the
// scan continues at its own, invisibly to the client. If no node keeps it any more, the scan fails, and the error
// names a node that had no room, not nodes whose answer the scan did not wait for.
func TestScanContinuesAtAKeptTimestamp(t *testing.T) {
	for _, c := range []struct {
		name   string
		pause  time.Duration
		answer func(ctx context.Context, earlier int) error // to each node's request of that number; nil: all keep it
		lost   bool                                         // the kept snapshots, too
		fails  bool                                         // the scan
		why    string                                       // its error's text about keeping
	}{
		{name: "kept", pause: time.Second},
		{name: "no room", pause: time.Second, answer: func(context.Context, int) error {
			return Errorf(errcode.Busy, "no room for it")
		}, fails: true, why: "3 of the indexers did not keep it on request, i0 (host:0): no room for it"},
		{name: "requested again at its end", pause: keepFrom + keepEvery + keepTimeout/2,
			answer: func(ctx context.Context, earlier int) error {
				if earlier == 1 {
					return nil
				}
				<-ctx.Done()
				return ctx.Err()
			}, lost: true, fails: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newKeepers()
				if c.answer != nil {
					k.answer = func(ctx context.Context, node index.NodeID) error {
						k.mu.Lock()
						requests := len(k.requests[node])
						k.mu.Unlock()
						return c.answer(ctx, requests)
					}
				}
				nodes := &dying{keepers: k}
				sink := &pausingSink{pause: c.pause, first: func() {
					k.mu.Lock()
					defer k.mu.Unlock()
					for id := range k.has {
						if c.lost || !slices.Contains(k.kept, id) {
							k.has[id] = map[uint64]errcode.Code{6: ""}
						}
					}
				}}
				_, err := NewCoordinator(k, k, nodes, Options{}).Scan(t.Context(), openSpec(), sink)
				if c.fails {
					_, why, _ := strings.Cut(fmt.Sprint(err), "; ")
					if CodeOf(err) != errcode.SnapshotTooOld || why != c.why {
						t.Errorf("%v", err)
					}
				} else if want := k.expect(5, []Range{{}}, false, 0); err != nil || !slices.Equal(sink.rows, want) {
					t.Errorf("%d of %d rows: %v", len(sink.rows), len(want), err)
				}
				if !nodes.lost.Load() {
					t.Error("no node was lost")
				}
				if c.lost && len(k.requests[2]) != 2 {
					t.Errorf("node 2 was queried at %v, want twice", k.requests[2])
				}
			})
		})
	}
}

// TestHungKeepersDelayNothing: nodes that do not answer requests to keep a timestamp delay neither the scan nor
// other nodes, and are queried again.
func TestHungKeepersDelayNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeepers()
		k.answer = func(ctx context.Context, node index.NodeID) error {
			if node == here {
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		}
		const pause = 11 * time.Second
		sink := &pausingSink{pause: pause}
		if _, err := NewCoordinator(k, k, k, Options{}).Scan(t.Context(), openSpec(), sink); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(k.began); took != pause {
			t.Errorf("it took %s", took)
		}
		if len(k.requests[here]) != 1 || len(k.requests[0]) < 2 || len(k.requests[2]) < 2 {
			t.Errorf("requested %v", k.requests)
		}
	})
}

// TestKeepRequests: requests that no coordinator sends are refused.
func TestKeepRequests(t *testing.T) {
	for name, r := range map[string]KeepRequest{
		"no copies":          {},
		"too many":           {Copies: make([]index.CopyID, MaxCopies+1)},
		"a user without end": {Copies: []index.CopyID{1}, Scan: Pages{For: strings.Repeat("u", maxUser+1)}},
	} {
		var e *Error
		if err := r.Check(); !errors.As(err, &e) || e.Code != errcode.BadRequest {
			t.Errorf("%s: %v", name, err)
		}
	}
}
