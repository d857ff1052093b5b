package scan

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/internal/rpc"
)

// fullCluster has nodes without room for another part.
type fullCluster struct {
	*fakeCluster
	full     func(node index.NodeID, earlier int) bool // earlier: number of earlier requests to the node
	refused  int
	requests map[index.NodeID]int
}

// OpenSlices implements Nodes.
func (f *fullCluster) OpenSlices(ctx context.Context, node index.NodeID, others []index.NodeID,
	req NodeRequest) (RowStream, error) {
	f.mu.Lock()
	requests := f.requests[node]
	f.requests[node]++
	full := f.full(node, requests)
	if full {
		f.refused++
	}
	f.mu.Unlock()
	if full {
		return nil, fmt.Errorf("http://node: %w", rpc.Refuse(errcode.Busy, "9 parts of scans are under way on this node"))
	}
	return f.fakeCluster.OpenSlices(ctx, node, others, req)
}

// TestNoRoomForAPart: if a node has no room for a part, another copy is read. If there is none, a scan that has
// returned no row is refused at once, with the time to retry, and the parts it has opened elsewhere are not reopened
// again and again. A scan that has returned rows waits for room.
func TestNoRoomForAPart(t *testing.T) {
	none := func(n index.NodeID, _ int) bool { return n == 0 }
	cut := func(n index.NodeID, earlier int) int {
		if n == 0 && earlier == 1 {
			return 5000 // bytes, of which the first rows have arrived
		}
		return -1
	}
	gone := func(n index.NodeID, _ int) int {
		if n == 1 {
			return -2
		}
		return -1
	}
	for _, c := range []struct {
		name     string
		replicas int
		full     func(node index.NodeID, earlier int) bool
		broken   func(node index.NodeID, earlier int) int
		past     bool // nodes other than 0 hold another timestamp by now
		named    bool // the request names the timestamp
		code     errcode.Code
		waits    bool // otherwise it takes no time
		refused  int  // at most
	}{
		{"no other node has it", 1, none, nil, false, false, errcode.Busy, false, 1},
		{"another one has it", 2, func(n index.NodeID, _ int) bool { return n != here }, nil, false, false, "", false, 2},
		{"the other node is past it", 2, none, nil, true, false, "", true, 20},
		{"the other node is past it, and it is named", 2, none, nil, true, true, errcode.Busy, false, 2},
		{"the other node is gone", 2, none, gone, false, false, errcode.Busy, false, 2},
		{"room in the middle", 1, func(n index.NodeID, earlier int) bool { return n == 0 && earlier > 0 && earlier < 20 }, cut,
			false, false, "", true, 19},
		{"no room in the middle", 1, func(n index.NodeID, earlier int) bool { return n == 0 && earlier > 0 }, cut, false, false,
			errcode.Busy, true, 10_000},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fullCluster{fakeCluster: newCluster(2, c.replicas, 3), full: c.full,
					requests: map[index.NodeID]int{}}
				if c.broken != nil {
					f.broken = func(n index.NodeID) int { return c.broken(n, f.requests[n]) }
				}
				spec, number := openSpec(), uint64(5)
				if at := refOf(number); c.named {
					spec.At = &at
				}
				if c.past {
					f.rows[6], number = f.rows[3], 6 // rows of its own
					f.request = func(NodeRequest) {  // the catalog is updated a moment later
						f.mu.Lock()
						defer f.mu.Unlock()
						f.view.Held = slices.Clone(f.view.Held)
						for i := range f.view.Held {
							if h := &f.view.Held[i]; h.Node != 0 {
								h.Ref = refOf(6)
							}
						}
					}
					for _, copy := range f.view.Topology.Copies {
						if copy.Node != 0 {
							f.has[copy.ID] = map[uint64]errcode.Code{5: errcode.SnapshotTooOld, 6: ""}
						}
					}
				}
				began, sink := time.Now(), &collect{}
				_, err := NewCoordinator(f, f, f, Options{}).Scan(t.Context(), spec, sink)
				if c.code == "" {
					if want := f.expect(number, []Range{{}}, false, 0); err != nil || !slices.Equal(sink.rows, want) {
						t.Errorf("%d rows: %v", len(sink.rows), err)
					}
				} else if p := ProblemOf(err); p.Code != c.code || p.RetryAfterMS == 0 ||
					!strings.Contains(p.Detail, "indexer i0 (host:0): 9 parts") {
					t.Errorf("%+v", p)
				}
				if took := time.Since(began); took > 0 != c.waits {
					t.Errorf("it took %v", took)
				}
				if n := f.refused; n < 1 || n > c.refused {
					t.Errorf("refused %d times, want 1 to %d", n, c.refused)
				}
				if f.opened.Load() != f.closed.Load() {
					t.Errorf("%d parts were opened, %d closed", f.opened.Load(), f.closed.Load())
				}
			})
		})
	}
}
