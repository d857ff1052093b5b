package scanserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fxamacker/cbor/v2"
	"github.com/hashicorp/go-hclog"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/indexer/peers"
	"tidemark/indexer/scan"
	"tidemark/internal/rpc"
	"tidemark/internal/rpc/route"
	"tidemark/internal/testing/pipenet"
	"tidemark/wire"
)

// manyPins has one copy with the given number of rows. Tests use more rows than the pipe and its readers can buffer.
type manyPins struct {
	rows int
	left atomic.Int64 // number of snapshots that were released
}

func (p *manyPins) Pin(context.Context, index.ID, []index.CopyID, wire.StabilityRef, time.Duration) (*scan.Pinned,
	error) {
	return &scan.Pinned{Slices: []scan.Slice{manyRows(p.rows)}, Release: func() error { p.left.Add(1); return nil }}, nil
}
func (p *manyPins) Keep(wire.StabilityRef, time.Duration) {}
func (p *manyPins) EndPages(scan.Pages)                   {}
func (p *manyPins) KeepPages(scan.Pages, []index.CopyID, wire.StabilityRef) (func(bool), error) {
	return func(bool) {}, nil
}

type manyRows int

func (m manyRows) Items() int64 { return int64(m) }
func (m manyRows) Rows(context.Context, []byte, []byte, bool) (scan.Cursor, error) {
	return &manyCursor{left: int(m)}, nil
}

type manyCursor struct{ left int }

func (c *manyCursor) Next() bool { c.left--; return c.left >= 0 }
func (c *manyCursor) Row() (key, docID []byte) {
	return fmt.Appendf(nil, "%06d", 1<<20-c.left), make([]byte, 1000)
}
func (c *manyCursor) Close() error { return nil }

// openPart requests a part from a server over a connection that does not buffer, in virtual time.
func openPart(t *testing.T, s *Server, req scan.NodeRequest) (*scan.FrameReader, error) {
	t.Helper()
	s.nameOf = func(index.NodeID) string { return "i7" }
	s.parts, s.log = rpc.NewPlaces(4, "parts of scans"), hclog.NewNullLogger()
	l := pipenet.Listen()
	srv := rpc.NewServer((&route.Table{Routes: s.Routes()}).Handler())
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- rpc.Serve(ctx, srv, l, time.Second) }()
	client := &http.Client{Transport: &http.Transport{DialContext: l.Dial}}
	t.Cleanup(func() {
		client.CloseIdleConnections()
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	body, err := cbor.Marshal(req)
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://node"+SlicesPath, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", rpc.MediaCBOR)
	r.Header.Set(peers.HeaderNode, "7")
	resp, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	return scan.ReadFrames(resp.Body)
}

// TestPartsLiveAsLongAsTheirScans checks that a coordinator that does not read, because it needs other rows first,
// still gets all rows as long as its scan may last. The server releases the snapshot when the scan's time is over,
// when the connection ends, or when the coordinator has not answered heartbeats for a while.
func TestPartsLiveAsLongAsTheirScans(t *testing.T) {
	never := time.Duration(-1)
	for _, c := range []struct {
		name   string
		lasts  time.Duration
		silent time.Duration // when it stops answering; never: it always answers
		again  time.Duration // when it answers again; never: it does not
		takes  time.Duration // when it reads; never: it does not
		ends   time.Duration // the snapshot is released at this time, and shortly before it is still held
	}{
		{"its turn comes late", 10 * time.Minute, never, never, 9 * time.Minute, 9 * time.Minute},
		{"the scan is over", 3 * time.Minute, never, never, never, 3 * time.Minute},
		{"it hangs", 10 * time.Minute, 2 * time.Minute, never, never, 2*time.Minute + partSilence + partLook},
		{"it hangs from the start", 10 * time.Minute, 0, never, never, partSilence + partLook},
		{"it hangs for a moment", 10 * time.Minute, time.Minute, time.Minute + partSilence - partLook, 5 * time.Minute,
			5 * time.Minute},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				s := &Server{silent: func(n index.NodeID) time.Time {
					age := time.Since(began)
					if n != 7 || c.silent == never || age < c.silent || c.again != never && age >= c.again {
						return time.Time{}
					}
					return began.Add(c.silent)
				}}
				pins := &manyPins{rows: 1000}
				s.pins = pins
				rows, err := openPart(t, s, scan.NodeRequest{Index: 5, Copies: []index.CopyID{1}, Ranges: []scan.Range{{}},
					LastsMS: c.lasts.Milliseconds()})
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(c.ends - partLook - time.Second - time.Since(began))
				if pins.left.Load() != 0 {
					t.Errorf("the snapshot is gone after %v", time.Since(began))
				}
				time.Sleep(partLook + time.Second)
				if c.takes != never {
					for err == nil {
						_, err = rows.Next()
					}
					if !errors.Is(err, io.EOF) || rows.Count() != 1000 {
						t.Errorf("%d rows: %v", rows.Count(), err)
					}
				}
				time.Sleep(time.Second)
				synctest.Wait()
				if pins.left.Load() != 1 || s.parts.Taken() != 0 {
					t.Errorf("the snapshot is held after %v", time.Since(began))
				}
			})
		})
	}
}

// TestInvalidPartRequests checks that the error names what is wrong with a request, also if only its duration is
// invalid.
func TestInvalidPartRequests(t *testing.T) {
	one := []index.CopyID{1}
	for _, c := range []struct {
		req  scan.NodeRequest
		want string
	}{
		{scan.NodeRequest{}, "0 copies"},
		{scan.NodeRequest{Copies: one}, "lasts_ms 0"},
		{scan.NodeRequest{Copies: one, LastsMS: math.MinInt64}, "lasts_ms -9223372036854775808"},
		{scan.NodeRequest{Copies: one, LastsMS: math.MaxInt64}, "lasts_ms 9223372036854775807"},
	} {
		synctest.Test(t, func(t *testing.T) {
			_, err := openPart(t, &Server{pins: &manyPins{}}, c.req)
			if scan.CodeOf(err) != errcode.BadRequest || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}
