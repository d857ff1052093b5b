package projector

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"tidemark/kv"
	"tidemark/kv/server"
	"tidemark/projector/feed"
	"tidemark/wire"
)

// Temporarily refused queries are repeated, only these, and a limited number of times; other answers stay as they
// are.
func TestQueryEach(t *testing.T) {
	t.Parallel()
	lost := errors.New("lost")
	type answer struct {
		n   int
		err error
	}
	run := func(ctx context.Context, refusals map[uint16]int, fatal uint16) (out []answer, asked [][]uint16) {
		out = queryEach(ctx, []uint16{4, 5, 6}, func(vbs []uint16) (out []answer) {
			asked = append(asked, slices.Clone(vbs))
			for _, vb := range vbs {
				switch {
				case vb == fatal:
					out = append(out, answer{err: lost})
				case refusals[vb] > 0:
					refusals[vb]--
					out = append(out, answer{err: fmt.Errorf("vbucket %d: %w", vb, feed.ErrTemporary)})
				default:
					out = append(out, answer{n: int(vb)})
				}
			}
			return out
		}, func(a answer) error { return a.err })
		return out, asked
	}
	if out, asked := run(t.Context(), map[uint16]int{5: 2, 6: 1}, 4); fmt.Sprint(asked) != "[[4 5 6] [5 6] [5]]" ||
		!errors.Is(out[0].err, lost) || out[1] != (answer{n: 5}) || out[2] != (answer{n: 6}) {
		t.Errorf("%v after %v", out, asked)
	}
	if out, asked := run(t.Context(), map[uint16]int{5: 1000}, 0); len(asked) != 1+retryTimes ||
		!errors.Is(out[1].err, feed.ErrTemporary) || out[0].n != 4 || out[2].n != 6 {
		t.Errorf("%v after %v", out, asked)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if out, asked := run(over, map[uint16]int{5: 1000}, 0); len(asked) > 2 || !errors.Is(out[1].err, feed.ErrTemporary) {
		t.Errorf("%v after %v", out, asked)
	}
}

// If one vbucket among many is always refused temporarily, there still is an answer for all of them.
func TestLogsDespiteTemporaryRefusals(t *testing.T) {
	t.Parallel()
	const many, tries = 64, 20
	for _, kind := range []FeedKind{FeedNative, FeedGocbcore} {
		t.Run(string(kind), func(t *testing.T) {
			node, err := kv.Open(kv.Config{NodeID: "kv1", Dir: t.TempDir(), Listen: "127.0.0.1:0", Admin: "127.0.0.1:0",
				User: "u", Password: "secret", Nasty: server.Temporary,
				Nodes:   []kv.Peer{{ID: "kv1", Memcached: "127.0.0.1:0", Admin: "127.0.0.1:0"}},
				Buckets: []kv.BucketConfig{{Name: testBucket, UUID: testUUID, VBuckets: many}}})
			if err != nil {
				t.Fatal(err)
			}
			running(t, func(ctx context.Context) { _ = node.Run(ctx) })
			<-node.Ready()
			w := newWorldWith(t, node.MemcachedAddr(), kind)
			for what, ask := range map[string]func() (int, error){
				"logs": func() (int, error) {
					r, err := w.client.FailoverLogs(t.Context(), w.url,
						&wire.FailoverLogsRequest{Fence: w.fence(), Bucket: testBucket})
					if err != nil {
						return 0, err
					}
					return len(r.Logs), nil
				},
				"positions": func() (int, error) {
					r, err := w.client.Seqnos(t.Context(), w.url, &wire.SeqnosRequest{Bucket: testBucket})
					if err != nil {
						return 0, err
					}
					return len(r.VBuckets), nil
				},
			} {
				n := 0
				for range tries { // the query before, which is of all vbuckets, may be refused too
					if n, err = ask(); n == many {
						break
					}
				}
				if n != many {
					t.Errorf("%s of %d vbuckets, at last: %v", what, n, err)
				}
			}
		})
	}
}
