package scale

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"tidemark/index"
	"tidemark/timestamp"
)

// world is the state that the simulated components share: KV's seqnos, and which projector streams which vbucket.
type world struct {
	buckets  []*kvBucket
	byName   map[string]*kvBucket
	managers []string // base URLs
	began    time.Time

	requests, stabilities atomic.Int64 // commands of the leader, and those of them with stability timestamps
	reports, refused      atomic.Int64 // reports answered by a leader that has the component registered, and other reports
	reopened              atomic.Int64 // streams begun
	latency               histogram    // from the mutation to the stability timestamp that covers it, at each indexer
}

// kvBucket is a bucket whose vbuckets get mutations at a steady rate.
type kvBucket struct {
	name, uuid string
	branches   []timestamp.FailoverLog // by vbucket

	mu      sync.Mutex
	rate    float64 // mutations per second
	base    float64 // mutations when rate was set
	since   time.Time
	streams []stream // by vbucket
	version uint64   // of streams
}

type stream struct {
	projector index.ProjectorID // "": none
	inc       index.Incarnation
}

func newWorld(buckets, vbuckets int) *world {
	w := &world{byName: map[string]*kvBucket{}, began: time.Now()}
	for i := range buckets {
		b := &kvBucket{name: fmt.Sprintf("b%02d", i), uuid: fmt.Sprintf("uuid-%02d", i), since: time.Now(),
			streams: make([]stream, vbuckets)}
		for v := range vbuckets {
			b.branches = append(b.branches,
				timestamp.FailoverLog{{VBUUID: uint64(0x9E3779B97F4A7C15)*uint64(i*vbuckets+v+1) | 1}})
		}
		w.buckets, w.byName[b.name] = append(w.buckets, b), b
	}
	return w
}

// setRate changes the mutation rate of all buckets together.
func (w *world) setRate(perSecond float64) {
	for _, b := range w.buckets {
		b.mu.Lock()
		now := time.Now()
		b.base, b.since, b.rate = b.base+b.rate*now.Sub(b.since).Seconds(), now, perSecond/float64(len(w.buckets))
		b.mu.Unlock()
	}
}

// total returns how many mutations a bucket has had, distributed over the vbuckets in turn.
func (b *kvBucket) total() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return uint64(b.base + b.rate*time.Since(b.since).Seconds())
}

// high returns the seqno of a vbucket after the given number of mutations of its bucket.
func (b *kvBucket) high(v int, total uint64) uint64 {
	n := uint64(len(b.branches))
	return (total + n - 1 - uint64(v)) / n
}

// hw returns the positions of all vbuckets after the given number of mutations of the bucket.
func (b *kvBucket) hw(total uint64) timestamp.Vector {
	hw := timestamp.New(len(b.branches))
	for v := range b.branches {
		if seqno := b.high(v, total); seqno > 0 {
			hw.Set(v, timestamp.Position{VBUUID: b.branches[v].Newest(), Seqno: seqno})
		}
	}
	return hw
}

// age returns how long ago the bucket had that number of mutations; negative if that is unknown.
func (b *kvBucket) age(total uint64) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rate == 0 || float64(total) < b.base {
		return -1
	}
	return time.Since(b.since) - time.Duration((float64(total)-b.base)/b.rate*float64(time.Second))
}

// begin records the streams that a projector has begun.
func (b *kvBucket) begin(p index.ProjectorID, v int, inc index.Incarnation) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.streams[v] = stream{p, inc}
	b.version++
}

// present returns a copy of the streams, unless the caller already has that version.
func (b *kvBucket) present(version uint64) ([]stream, uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if version == b.version {
		return nil, version
	}
	return slices.Clone(b.streams), b.version
}

// histogram is a histogram of durations, in milliseconds.
type histogram struct {
	mu sync.Mutex
	ms []float64
}

func (h *histogram) add(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ms = append(h.ms, float64(d.Microseconds())/1000)
}

// take returns quantiles of the durations added since the last call.
func (h *histogram) take(qs ...float64) (out []float64, n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	slices.Sort(h.ms)
	for _, q := range qs {
		if len(h.ms) > 0 {
			out = append(out, h.ms[min(int(q*float64(len(h.ms))), len(h.ms)-1)])
		} else {
			out = append(out, 0)
		}
	}
	n, h.ms = len(h.ms), h.ms[:0]
	return out, n
}
