package stability

import (
	"testing"

	"pgregory.net/rapid"

	"tidemark/index"
	_ "tidemark/internal/testing/draws"
	"tidemark/timestamp"
)

// The multiplication by the reciprocal must equal division, for every possible divisor.
func TestDivide(t *testing.T) {
	for d := uint64(1); d <= 256; d++ {
		numbers := []uint64{0, 1, d - 1, d, d + 1, 1<<62 - 1, (1<<62 - 1) / d * d, (1<<62-1)/d*d - 1}
		want := make([]uint64, len(numbers))
		for i, x := range numbers {
			want[i] = x / d
		}
		divide(numbers, d)
		for i := range numbers {
			if numbers[i] != want[i] {
				t.Errorf("divided by %d: %d, want %d", d, numbers[i], want[i])
			}
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		x, d := rapid.Uint64Max(1<<62-1).Draw(t, "x"), rapid.Uint64Range(1, 256).Draw(t, "d")
		got := []uint64{x}
		if divide(got, d); got[0] != x/d {
			t.Fatalf("%d/%d: %d, want %d", x, d, got[0], x/d)
		}
	})
}

// mean is the reference: per vbucket, rounded down, without overflow.
func mean(vectors []timestamp.Vector) []uint64 {
	count := uint64(len(vectors))
	out := make([]uint64, vectors[0].Len())
	for v := range out {
		var quotient, remainder uint64
		for _, t := range vectors {
			quotient, remainder = quotient+t.Seqnos[v]/count, remainder+t.Seqnos[v]%count
		}
		out[v] = quotient + remainder/count
	}
	return out
}

// The fast mean must equal the reference, for any number of members.
func TestPlainMean(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const n = 5
		b, err := New(Config{Source: Heartbeat, MaxOutstanding: 4, RingSize: 4, SilentAfter: 1, StalledAfter: 1, LateFor: 1,
			QueueLow: 1, QueueHigh: 2},
			timestamp.Stability{Vector: timestamp.New(n)})
		if err != nil {
			t.Fatal(err)
		}
		most := rapid.SampledFrom([]uint64{100, 1<<54 - 1, timestamp.Infinity}).Draw(t, "most")
		var all []timestamp.Vector
		for node := range rapid.IntRange(1, 19).Draw(t, "members") {
			hw := timestamp.New(n)
			for v := range n {
				hw.Seqnos[v] = rapid.Uint64Max(most).Draw(t, "hw")
			}
			b.Report(index.NodeID(node), 0, Report{Active: true, HW: hw})
			all = append(all, hw)
		}
		members, _ := b.members(0)
		b.meanHW(members)
		want := mean(all)
		for v, s := range b.mean {
			if s != want[v] {
				t.Fatalf("mean %v, want %v", b.mean, want)
			}
		}
	})
}
