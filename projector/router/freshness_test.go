package router_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tidemark/index"
	"tidemark/keyversion"
	"tidemark/projector/router"
)

var (
	freshFor  = flag.Duration("fresh.for", time.Second, "how long each run of TestFreshness is")
	freshPlot = flag.String("fresh.plots", "", "folder that TestFreshness writes its plots to")
)

const (
	freshRate = 5000    // documents a second
	freshKey  = 2 << 10 // bytes of each key
	freshSlow = 1 << 20 // bytes a second that a slow endpoint accepts; ten times as much arrives
	freshTick = 50 * time.Millisecond
)

// pacedConn accepts frames at a rate, and acknowledges what it has accepted.
type pacedConn struct {
	rate  int // bytes a second; 0: any
	taken *atomic.Uint64
	onAck func(uint64)
	done  chan struct{}
	once  sync.Once
}

func (c *pacedConn) Send(frame []byte) error {
	var b keyversion.Batch
	if err := keyversion.Decode(bytes.Clone(frame), &b); err != nil {
		return err
	}
	if c.rate > 0 {
		select {
		case <-time.After(time.Duration(len(frame)) * time.Second / time.Duration(c.rate)):
		case <-c.done:
			return c.Err()
		}
	}
	for i := range b.Events {
		if n := b.Events[i].Seqno; n > c.taken.Load() {
			c.taken.Store(n)
		}
	}
	c.onAck(b.Number)
	return nil
}
func (c *pacedConn) Done() <-chan struct{} { return c.done }
func (c *pacedConn) Err() error            { return errors.New("closed") }
func (c *pacedConn) Close() error          { c.once.Do(func() { close(c.done) }); return nil }

// freshness runs a topic with three endpoints, the first `slow` of them slow. Every freshTick it records for each
// endpoint the age of the oldest document that has not arrived there. Documents are made at a steady rate.
func freshness(t *testing.T, smart bool, slow int) (curves [3][]time.Duration, stats []router.EndpointStats) {
	var taken [3]atomic.Uint64
	dial := func(_ context.Context, _ string, h keyversion.Hello, onAck func(uint64)) (router.Conn, error) {
		n := int(h.Node) - 1
		c := &pacedConn{taken: &taken[n], onAck: onAck, done: make(chan struct{})}
		if n < slow {
			c.rate = freshSlow
		}
		return c, nil
	}
	r := newRouter(t, router.Config{Dial: dial, Connections: 1, Smart: smart, QueueBytes: 4 << 20})
	topic, err := r.Open(maintenance(1))
	if err != nil {
		t.Fatal(err)
	}
	if err := topic.Begin(t.Context(), view(t, 1, one(1, 1, 2, 3)), streamAt(0, inc(1), 0)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), *freshFor)
	defer cancel()
	began := time.Now()
	made := func() uint64 { return uint64(time.Since(began).Seconds() * freshRate) }
	var work sync.WaitGroup
	work.Go(func() {
		key := [][]byte{bytes.Repeat([]byte("k"), freshKey)}
		d := router.Doc{VBUUID: 77, DocID: []byte("d"), Keys: [][][]byte{key}}
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for next := uint64(1); ; {
			for ; next <= made(); next++ {
				d.Seqno, d.Window = next, windowOf(next)
				if topic.Mutation(ctx, 0, &d) != nil {
					return
				}
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	})
	tick := time.NewTicker(freshTick)
	defer tick.Stop()
	for ctx.Err() == nil {
		select {
		case <-tick.C:
		case <-ctx.Done():
			continue
		}
		for n := range taken {
			waiting := time.Since(began) - time.Duration(float64(taken[n].Load()+1)/freshRate*float64(time.Second))
			curves[n] = append(curves[n], max(0, waiting))
		}
	}
	work.Wait()
	return curves, r.Stats()
}

// The freshness of the fast endpoints with a slow minority and a slow majority, for both ways to throttle. The longer
// run behind the plots in docs/performance.md is
// go test ./projector/router -run TestFreshness -v -fresh.for 20s -fresh.plots ../../docs/plots
func TestFreshness(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, title string
		smart       bool
		slow        int
	}{
		{"minority-all", "one of three is slow, --throttle all", false, 1},
		{"minority-smart", "one of three is slow, --throttle smart", true, 1},
		{"majority-smart", "two of three are slow, --throttle smart", true, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			curves, stats := freshness(t, c.smart, c.slow)
			slices.SortFunc(stats, func(a, b router.EndpointStats) int { return int(a.Node) - int(b.Node) })
			for n, curve := range curves {
				if len(curve) == 0 {
					t.Fatal("nothing was measured")
				}
				sorted := slices.Sorted(slices.Values(curve))
				t.Logf("endpoint %d: waiting p50 %s, most %s; held others up %.2f s, given up %d times, %d documents dropped", n+1,
					sorted[len(sorted)/2].Round(time.Millisecond), sorted[len(sorted)-1].Round(time.Millisecond), stats[n].Held,
					stats[n].Slow, stats[n].DroppedEvents)
			}
			if !c.smart && stats[0].DroppedEvents+stats[0].Slow > 1 { // one: the one that the end cut short
				t.Errorf("%+v", stats[0])
			}
			if *freshPlot != "" {
				if err := os.WriteFile(filepath.Join(*freshPlot, "freshness-"+c.name+".svg"), plot(c.title, curves),
					0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// plot draws curves as SVG: time on the x axis, waiting time on the y axis.
func plot(title string, curves [3][]time.Duration) []byte {
	const width, height, left, low, top = 640, 240, 50, 30, 24
	most := time.Second
	for _, c := range curves {
		most = max(most, slices.Max(c))
	}
	points := len(curves[0])
	x := func(i int) float64 { return left + float64(width-left-10)*float64(i)/float64(max(points-1, 1)) }
	y := func(d time.Duration) float64 {
		return height - low - float64(height-low-top)*d.Seconds()/most.Seconds()
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="11">`+"\n", width, height)
	fmt.Fprintf(&b, `<rect width="100%%" height="100%%" fill="white"/><text x="%d" y="14" font-size="13">%s</text>`+"\n", left, title)
	for i := range 5 {
		d := most * time.Duration(i) / 4
		fmt.Fprintf(&b, `<path d="M%d %.1fH%d" stroke="#ccc"/><text x="4" y="%.1f">%.1f s</text>`+"\n", left, y(d), width-10, y(d)+4, d.Seconds())
		at := time.Duration(points-1) * freshTick * time.Duration(i) / 4
		fmt.Fprintf(&b, `<text x="%.1f" y="%d">%.0f s</text>`+"\n", x((points-1)*i/4)-8, height-12, at.Seconds())
	}
	for n, colour := range []string{"#d55e00", "#0072b2", "#009e73"} {
		var path []string
		for i, d := range curves[n] {
			path = append(path, fmt.Sprintf("%.1f,%.1f", x(i), y(d)))
		}
		fmt.Fprintf(&b, `<polyline fill="none" stroke="%s" stroke-width="%d" points="%s"/><text x="%d" y="14" fill="%s">endpoint %d</text>`+"\n", colour, 3-n,
			strings.Join(path, " "), 380+85*n, colour, index.NodeID(n+1))
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}
