package transport_test

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	"tidemark/keyversion"
	"tidemark/transport"
)

// cpu is the process's CPU time so far.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkStream sends key-versions of one index over loopback, both ends in this process: encode, send, receive,
// decode, acknowledge. cpu-ns/kv is CPU time, user and system, of both ends together.
func BenchmarkStream(b *testing.B) {
	for _, size := range []int{1, 8, 64, 256} {
		b.Run(fmt.Sprintf("batch=%d", size), func(b *testing.B) {
			got := make(chan uint64, 1)
			total := uint64(0)
			f := serve(b, transport.ServerConfig{}, acceptAll(sinkFuncs{
				receive: func(_ context.Context, batch *keyversion.Batch, release func()) error {
					total += uint64(len(batch.Events))
					n := batch.Number
					release()
					if n == uint64((b.N+size-1)/size) {
						got <- total
					}
					return nil
				}}))
			// A frame is built anew for each batch; the ring is longer than what can be under way unacknowledged.
			credits := make(chan struct{}, 1)
			acked, sent := uint64(0), uint64(0)
			_ = acked
			c := dial(b, f.addr, transport.Options{OnAck: func(uint64) {
				select {
				case credits <- struct{}{}:
				default:
				}
			}})
			_ = sent
			batch := keyversion.Batch{}
			var one keyversion.Batch
			if err := keyversion.Decode(frameOf(b, 1, 1, []byte("US\x00Springfield Field\x00")), &one); err != nil {
				b.Fatal(err)
			}
			batch.Events = one.Events
			var e keyversion.Encoder
			ring := make([][]byte, 8192)
			b.ReportAllocs()
			b.ResetTimer()
			start := cpu(b)
			for n, number := 0, uint64(1); n < b.N; number++ {
				slot := number % uint64(len(ring))
				e.Reset(ring[slot])
				for range size {
					ev := &batch.Events[0]
					ev.Seqno++
					if err := e.Append(ev); err != nil {
						b.Fatal(err)
					}
					n++
				}
				ring[slot] = e.Finish(number)
				if err := c.Send(ring[slot]); err != nil {
					b.Fatal(err)
				}
			}
			<-got
			b.ReportMetric(float64(cpu(b)-start)/float64(b.N), "cpu-ns/kv")
		})
	}
}
