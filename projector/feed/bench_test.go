package feed_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"tidemark/kv/kvclient/kvclienttest"
	"tidemark/kv/mcbp"
	"tidemark/projector/feed"
	"tidemark/timestamp"
)

// blastEnv makes the test binary a node in a process of its own, so that its CPU time does not count as the
// consumer's.
const blastEnv = "TIDEMARK_FEED_BLAST"

// blastIfAsked runs the node until its standard input ends.
func blastIfAsked() bool {
	size := 0
	if _, err := fmt.Sscan(os.Getenv(blastEnv), &size); err != nil {
		return false
	}
	b := &blaster{size: size}
	b.User, b.Password, b.Bucket = "u", "p", "b"
	b.cond = sync.NewCond(&b.mu)
	b.Handle = b.handle
	if err := b.Start(); err != nil {
		fmt.Println("error", err)
		return true
	}
	fmt.Println(b.Addr())
	_, _ = io.Copy(io.Discard, os.Stdin)
	return true
}

// blaster sends as many mutations as a stream requests, from prepared bytes, and honours flow control.
type blaster struct {
	kvclienttest.Server
	size    int
	mu      sync.Mutex
	cond    *sync.Cond
	unacked int
	window  int
}

func (b *blaster) handle(p *kvclienttest.Peer, f mcbp.Frame) bool {
	switch f.Op {
	case mcbp.OpDCPControl:
		if string(f.Key) == mcbp.ControlBufferSize {
			b.mu.Lock()
			_, _ = fmt.Sscan(string(f.Value), &b.window)
			b.unacked = 0
			b.mu.Unlock()
		}
		p.Reply(f, mcbp.StatusOK, mcbp.Frame{})
	case mcbp.OpDCPBufferAck:
		v, _ := mcbp.DecodeBufferAck(f.Extras)
		b.mu.Lock()
		b.unacked -= int(v)
		b.mu.Unlock()
		b.cond.Signal()
	case mcbp.OpDCPStreamReq:
		req, err := mcbp.DecodeStreamRequest(f.Extras)
		if err != nil {
			return false
		}
		p.Reply(f, mcbp.StatusOK, mcbp.Frame{Value: mcbp.AppendFailoverLog(nil, timestamp.FailoverLog{{VBUUID: 1}})})
		go b.blast(p, f.Opaque, req.End)
	default:
		p.Reply(f, mcbp.StatusOK, mcbp.Frame{})
	}
	return true
}

func (b *blaster) blast(p *kvclienttest.Peer, opaque uint32, count uint64) {
	const batch = 60
	value := `{"v":"` + strings.Repeat("x", max(b.size-8, 0)) + `"}`
	var buf []byte
	var at []int
	for i := range batch {
		at = append(at, len(buf)+mcbp.HeaderSize)
		buf, _ = mcbp.Append(buf, mutation(0, opaque, 0, fmt.Sprintf("document-%06d", i), value))
	}
	one := len(buf) / batch
	p.Send(marker(0, opaque, 0, count))
	for s := uint64(0); s < count; s += batch {
		n := int(min(batch, count-s))
		for i := range n {
			binary.BigEndian.PutUint64(buf[at[i]:], s+uint64(i)+1)
		}
		b.mu.Lock()
		for b.unacked >= b.window {
			b.cond.Wait()
		}
		b.unacked += n * one
		b.mu.Unlock()
		p.Raw(buf[:n*one])
	}
	p.Send(streamEnd(0, opaque, mcbp.EndOK))
}

// startBlaster runs the node's process and returns its address.
func startBlaster(b *testing.B, size int) string {
	b.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", blastEnv, size))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = in.Close(); _ = cmd.Wait() })
	addr, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	return strings.TrimSpace(addr)
}

// cpu returns the process's user and system time.
func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkConsume measures the consumer alone: CPU time of this process (including system calls) per mutation of one
// stream, with the tracker running and every key and value read.
func BenchmarkConsume(b *testing.B) {
	for _, size := range []int{100, 1024, 16 << 10} {
		b.Run(fmt.Sprint(size, "B"), func(b *testing.B) {
			c := dial(b, feed.Config{Addr: startBlaster(b, size), Bucket: "b", User: "u", Password: "p", Name: "bench"})
			b.ReportAllocs()
			b.ResetTimer()
			start := cpu()
			if _, err := c.OpenStream(within(b, time.Minute), feed.StreamRequest{End: uint64(b.N)}); err != nil {
				b.Fatal(err)
			}
			tr := feed.NewTracker(feed.Position{})
			seen, bytes, blocks := 0, 0, 0
			for open := true; open; {
				block, err := c.Next(context.Background())
				if err != nil {
					b.Fatal(err)
				}
				blocks++
				for i := range block.Events {
					e := &block.Events[i]
					if _, err := tr.Observe(e); err != nil {
						b.Fatal(err)
					}
					if e.Kind == feed.Mutation {
						seen++
						bytes += len(e.Key) + len(e.Value)
					}
					open = open && e.Kind != feed.StreamEnd
				}
				block.Release()
			}
			used := cpu() - start
			b.StopTimer()
			if seen != b.N || tr.Progress().Complete != uint64(b.N) {
				b.Fatalf("%d of %d mutations, complete %d", seen, b.N, tr.Progress().Complete)
			}
			b.SetBytes(int64(bytes / b.N))
			b.ReportMetric(float64(used.Nanoseconds())/float64(b.N), "cpu-ns/op")
			b.ReportMetric(float64(b.N)/float64(blocks), "events/block")
		})
	}
}
