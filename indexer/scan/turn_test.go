package scan

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/internal/testing/pipenet"
)

// pipedCluster reads other nodes over HTTP, like peers, over a connection without buffers: a writer blocks until it
// is read.
type pipedCluster struct {
	*fakeCluster
	l    *pipenet.Listener
	http http.Client

	mu       sync.Mutex
	requests []NodeRequest // by their number, which is the path
	ended    []error       // of the parts
}

// serve serves until the returned function is called.
func (p *pipedCluster) serve(t *testing.T) (stop func()) {
	p.l = pipenet.Listen()
	p.http.Transport = &http.Transport{DialContext: p.l.Dial}
	srv := &http.Server{Handler: p}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(p.l) }()
	return func() {
		p.http.CloseIdleConnections()
		if err := srv.Close(); err != nil {
			t.Error(err)
		}
		<-served
	}
}

// ServeHTTP implements http.Handler.
func (p *pipedCluster) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n, err := strconv.Atoi(r.URL.Path[1:])
	p.mu.Lock()
	req := p.requests[n]
	p.mu.Unlock()
	var out *Answer
	if err == nil {
		out, err = NewPart(w, req.Lasts())
	}
	if err == nil {
		err = Serve(r.Context(), out, out.Flush, req, p.fakeCluster)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = append(p.ended, err)
}

// OpenSlices implements Nodes.
func (p *pipedCluster) OpenSlices(ctx context.Context, node index.NodeID, _ []index.NodeID, req NodeRequest) (RowStream,
	error) {
	if node == here {
		return Open(ctx, req, p.fakeCluster)
	}
	p.mu.Lock()
	n := len(p.requests)
	p.requests = append(p.requests, req)
	p.mu.Unlock()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, fmt.Sprintf("http://node/%d", n), nil)
	if err != nil {
		return nil, err
	}
	resp, err := p.http.Do(r)
	if err != nil {
		return nil, err
	}
	s, err := ReadFrames(resp.Body)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// steadySink is a client that takes some rows at one per second, and then all others.
type steadySink struct {
	slow, rows int
	first      func()
}

func (s *steadySink) Row(Row) error {
	if s.rows++; s.rows == 1 {
		s.first()
	}
	if s.rows <= s.slow {
		time.Sleep(time.Second)
	}
	return nil
}

// TestSliceStaysOpenUntilItsTurn: the slices of an index that is partitioned by range are opened at once and read one
// after the other. Those of another node stay open until their turn, although they can send nothing for minutes and
// no node would hold the timestamp any more; and no longer than the scan.
func TestSliceStaysOpenUntilItsTurn(t *testing.T) {
	for _, c := range []struct {
		first int // rows of the first slice, one per second
		code  errcode.Code
	}{
		{70, ""},
		{500, ""},
		{700, errcode.Timeout}, // longer than a scan may take
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newCluster(2, 1, 2)
			p := &pipedCluster{fakeCluster: f}
			stop := p.serve(t)
			defer stop()
			var first, second []Row
			for i := range c.first {
				first = append(first, Row{fmt.Appendf(nil, "a%04d", i), []byte("d")})
			}
			for i := range 400 { // more than a piece of an answer
				second = append(second, Row{fmt.Appendf(nil, "b%03d", i), fmt.Appendf(nil, "%0400d", i)})
			}
			f.rows[5][0], f.rows[5][1] = second, first         // of node 0, and of the coordinating node
			sink := &steadySink{slow: c.first, first: func() { // from here on only open parts have the timestamp
				f.mu.Lock()
				defer f.mu.Unlock()
				for id := range f.has {
					f.has[id] = map[uint64]errcode.Code{6: ""}
				}
			}}
			spec := openSpec()
			res, err := NewCoordinator(f, f, p, Options{}).Scan(t.Context(), spec, sink)
			if c.code != "" {
				if CodeOf(err) != c.code {
					t.Errorf("%d rows: %v, want %s", res.Rows, err, c.code)
				}
			} else if err != nil || res.Rows != int64(c.first+len(second)) {
				t.Errorf("%d rows: %v", res.Rows, err)
			}
			synctest.Wait()
			if f.opened.Load() != f.closed.Load() || len(p.ended) != 1 {
				t.Errorf("%d of %d snapshots were given back; parts ended %v", f.closed.Load(), f.opened.Load(), p.ended)
			}
		})
	}
}
