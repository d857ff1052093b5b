package transport_test

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"tidemark/indexer/transport"
	"tidemark/keyversion"
)

// cpu returns the CPU time of the process so far, user and system.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// flood encodes b.N key-versions of one index in batches and sends them. It reuses a frame's memory only when acked
// shows that the frame was acknowledged. It returns when the last one is acknowledged, and reports the CPU time of
// everything in this process.
func flood(b *testing.B, size int, send func(frame []byte) error, acked *atomic.Uint64) {
	var one keyversion.Batch
	if err := keyversion.Decode(frameOf(b, 1, 1, []byte("US\x00Springfield Field\x00")), &one); err != nil {
		b.Fatal(err)
	}
	ev := one.Events[0]
	var e keyversion.Encoder
	ring := make([][]byte, 4096)
	b.ReportAllocs()
	b.ResetTimer()
	start := cpu(b)
	number := uint64(0)
	for n := 0; n < b.N; {
		number++
		slot := number % uint64(len(ring))
		if number > uint64(len(ring)) {
			await(b, "room", func() bool { return acked.Load() > number-uint64(len(ring)) })
		}
		e.Reset(ring[slot])
		for range size {
			ev.Seqno++
			if err := e.Append(&ev); err != nil {
				b.Fatal(err)
			}
			n++
		}
		ring[slot] = e.Finish(number)
		if err := send(ring[slot]); err != nil {
			b.Fatal(err)
		}
	}
	await(b, "the last batch", func() bool { return acked.Load() == number })
	b.ReportMetric(float64(cpu(b)-start)/float64(b.N), "cpu-ns/kv")
}

// BenchmarkStream measures the whole path of a key-version over loopback, with both ends in this process: encode,
// send, receive, decode, acknowledge. BenchmarkBareTCP does the same without gRPC, for comparison.
func BenchmarkStream(b *testing.B) {
	for _, size := range []int{1, 8, 64, 256} {
		b.Run(fmt.Sprintf("batch=%d", size), func(b *testing.B) {
			f := serve(b, transport.ServerConfig{}, acceptAll(sinkFuncs{}))
			var acked atomic.Uint64
			c := dial(b, f.addr, transport.Options{OnAck: func(n uint64) { acked.Store(n) }})
			flood(b, size, c.Send, &acked)
		})
	}
}

func BenchmarkBareTCP(b *testing.B) {
	for _, size := range []int{1, 8, 64, 256} {
		b.Run(fmt.Sprintf("batch=%d", size), func(b *testing.B) {
			lis, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				b.Fatal(err)
			}
			defer lis.Close()
			var acked atomic.Uint64
			done := make(chan error, 1)
			go func() { done <- receiveBare(lis, &acked) }()
			conn, err := net.Dial("tcp", lis.Addr().String())
			if err != nil {
				b.Fatal(err)
			}
			flood(b, size, func(frame []byte) error {
				_, err := conn.Write(frame)
				return err
			}, &acked)
			conn.Close()
			if err := <-done; !errors.Is(err, io.EOF) {
				b.Fatal(err)
			}
		})
	}
}

// receiveBare reads frames from a socket by the length in their header, and acknowledges them in memory.
func receiveBare(lis net.Listener, acked *atomic.Uint64) error {
	conn, err := lis.Accept()
	if err != nil {
		return err
	}
	defer conn.Close()
	r := bufio.NewReaderSize(conn, 64<<10)
	var frame []byte
	var batch keyversion.Batch
	for {
		header, err := r.Peek(keyversion.HeaderSize)
		if err != nil {
			return err
		}
		n := keyversion.HeaderSize + int(binary.LittleEndian.Uint32(header[4:]))
		if n > cap(frame) {
			frame = make([]byte, n)
		}
		if _, err := io.ReadFull(r, frame[:n]); err != nil {
			return err
		}
		if err := keyversion.Decode(frame[:n], &batch); err != nil {
			return err
		}
		acked.Store(batch.Number)
	}
}
