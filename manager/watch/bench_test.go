package watch

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"tidemark/statecontext"
)

// BenchmarkWatchers delivers an update to 1, 100 or 1000 watchers. cpu-ns/event is the process time from applying it
// until the last watcher has its bytes; B/watcher is the memory per watcher, without a connection.
func BenchmarkWatchers(b *testing.B) {
	for _, n := range []int{1, 100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			w := newWorld(b)
			ctx, cancel := context.WithCancel(context.Background())
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			var wg sync.WaitGroup
			var got atomic.Int64
			p := Position{CAS: w.machine.State().CAS()}
			for range n {
				s, err := w.hub.Join(ctx, Request{Kinds: AllKinds(), Since: &p, From: "a"})
				if err != nil {
					b.Fatal(err)
				}
				wg.Go(func() {
					defer s.Close()
					for {
						chunks, err := s.Next(ctx)
						if err != nil {
							return
						}
						got.Add(int64(len(chunks)))
					}
				})
			}
			runtime.ReadMemStats(&after)
			start, events := cpu(), int64(0)
			for b.Loop() {
				w.history = w.history[:0]
				w.apply(&statecontext.RegisterProjector{Projector: statecontext.Projector{ID: "p", Admin: fmt.Sprint(events)}})
				w.hub.pull()
				events++
				for got.Load() < events*int64(n) {
					runtime.Gosched()
				}
			}
			b.ReportMetric(float64(cpu()-start)/float64(events), "cpu-ns/event")
			b.ReportMetric(float64(after.HeapAlloc+after.StackInuse-before.HeapAlloc-before.StackInuse)/float64(n), "B/watcher")
			cancel()
			wg.Wait()
		})
	}
}

func cpu() int64 {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // cannot fail for this process
	return u.Utime.Nano() + u.Stime.Nano()
}
