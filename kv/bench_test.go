package kv

import (
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"tidemark/kv/mcbp"
)

// benchValue returns a JSON document of about n bytes.
func benchValue(n int) string { return `{"name":"` + strings.Repeat("x", n-12) + `"}` }

// pipeline sends b.N sets over one connection without waiting and reads all answers.
func pipeline(b *testing.B, c *rawClient, n int, value string, keys int) {
	const batch = 256
	done := make(chan error, 1)
	go func() {
		var buf []byte
		var err error
		extras := mcbp.Store{}.AppendExtras(nil)
		for i := 0; i < n && err == nil; i += batch {
			buf = buf[:0]
			for j := i; j < min(n, i+batch); j++ {
				key := fmt.Appendf(nil, "bench::%08d", j%keys)
				buf, _ = mcbp.Append(buf, mcbp.Frame{Header: mcbp.Request(mcbp.OpSet, mcbp.VBucket(key, 16), uint32(j)),
					Extras: extras, Key: key, Value: []byte(value)})
			}
			_, err = c.nc.Write(buf)
		}
		done <- err
	}()
	for i := range n {
		f, err := c.tryRead()
		if err != nil || f.Status() != mcbp.StatusOK || f.Opaque != uint32(i) {
			b.Fatalf("answer %d: %v %v opaque %d", i, err, f.Status(), f.Opaque)
		}
	}
	if err := <-done; err != nil {
		b.Fatal(err)
	}
}

func BenchmarkSetPipelined(b *testing.B) {
	for _, size := range []int{100, 1024} {
		b.Run(fmt.Sprintf("%dB", size), func(b *testing.B) {
			n, _ := runNode(b, testConfig(b.TempDir()))
			c := login(b, n.MemcachedAddr(), mcbp.FeatureMutationToken)
			b.ResetTimer()
			pipeline(b, c, b.N, benchValue(size), 100_000)
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "sets/s")
		})
	}
}

func BenchmarkSetOneByOne(b *testing.B) {
	n, _ := runNode(b, testConfig(b.TempDir()))
	c := login(b, n.MemcachedAddr(), mcbp.FeatureMutationToken)
	b.ResetTimer()
	for i := range b.N {
		key := fmt.Sprintf("bench::%08d", i%1000)
		c.want(setFrame(mcbp.VBucket([]byte(key), 16), key, benchValue(1024)), mcbp.StatusOK)
	}
}

// BenchmarkDCPStream streams documents of 100 and 1,024 bytes from memory over one connection; an operation is one
// mutation.
func BenchmarkDCPStream(b *testing.B) {
	for _, size := range []int{100, 1024} {
		b.Run(fmt.Sprintf("%dB", size), func(b *testing.B) {
			n, _ := runNode(b, testConfig(b.TempDir()))
			const docs = 100_000
			pipeline(b, login(b, n.MemcachedAddr()), docs, benchValue(size), docs)
			c := openDCP(b, n.MemcachedAddr(), "bench", 0)
			got, bytes := 0, 0
			buf := make([]byte, 1<<20)
			b.ResetTimer()
			for got < b.N {
				for vb := range uint16(16) {
					c.send(streamFrame(vb, mcbp.StreamRequest{End: n.buckets()[0].store.VBucket(vb).Info().High}))
				}
				held := 0
				for ends := 0; ends < 16; {
					k, err := c.r.Read(buf[held:])
					if err != nil && err != io.EOF {
						b.Fatal(err)
					}
					held += k
					bytes += k
					at := 0
					for {
						f, used, err := mcbp.Parse(buf[at:held])
						if err != nil {
							break
						}
						at += used
						switch f.Op {
						case mcbp.OpDCPMutation:
							got++
						case mcbp.OpDCPStreamEnd:
							ends++
						}
					}
					held = copy(buf, buf[at:held])
				}
			}
			b.ReportMetric(float64(got)/b.Elapsed().Seconds(), "mutations/s")
			b.ReportMetric(float64(bytes)/b.Elapsed().Seconds()/(1<<20), "MiB/s")
		})
	}
}

// BenchmarkFreshness writes 10,000 documents of 1 KiB per second (one batch of 50 every 5 ms) and measures the time
// from the request to the mutation on a DCP stream, with the log synced every second.
func BenchmarkFreshness(b *testing.B) {
	const batch, pause = 50, 5 * time.Millisecond
	n, _ := runNode(b, testConfig(b.TempDir()))
	c := openDCP(b, n.MemcachedAddr(), "bench", 0)
	for vb := range uint16(16) {
		c.want(fromZero(vb), mcbp.StatusOK)
	}
	total := max(b.N, 4*batch)
	total -= total % batch
	delays := make([]time.Duration, 0, total)
	done := make(chan error, 1)
	go func() {
		for len(delays) < total {
			f, err := c.tryRead()
			if err != nil {
				done <- err
				return
			}
			if f.Op == mcbp.OpDCPMutation {
				delays = append(delays, time.Since(time.Unix(0, int64(binary.BigEndian.Uint64(f.Value)))))
			}
		}
		done <- nil
	}()
	kv := login(b, n.MemcachedAddr())
	answered := make(chan error, 1)
	go func() {
		for range total {
			if _, err := kv.tryRead(); err != nil {
				answered <- err
				return
			}
		}
		answered <- nil
	}()
	b.ResetTimer()
	value := make([]byte, 1024)
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for i := 0; i < total; i += batch {
		<-tick.C
		var frames []mcbp.Frame
		binary.BigEndian.PutUint64(value, uint64(time.Now().UnixNano()))
		for j := i; j < i+batch; j++ {
			key := fmt.Appendf(nil, "bench::%08d", j)
			frames = append(frames, setFrame(mcbp.VBucket(key, 16), string(key), string(value)))
		}
		kv.send(frames...)
	}
	for _, ch := range []chan error{answered, done} {
		if err := <-ch; err != nil {
			b.Fatal(err)
		}
	}
	b.StopTimer()
	slices.Sort(delays)
	for _, q := range []struct {
		name string
		at   float64
	}{{"p50-ms", 0.5}, {"p99-ms", 0.99}, {"max-ms", 1}} {
		b.ReportMetric(float64(delays[min(len(delays)-1, int(q.at*float64(len(delays))))].Microseconds())/1000, q.name)
	}
}
