package storage

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"tidemark/collate"
	"tidemark/ingest"
	"tidemark/kv/mcbp"
	"tidemark/partition"
)

// TestSample: a sample of keys that depend on the ids of their documents, most of them near one end, and some of them
// twice, yields the exact quantiles within its stated accuracy, and reads no more keys than necessary. Tombstones do
// not count.
func TestSample(t *testing.T) {
	const docs, vbuckets, wanted, parts = 60_000, 128, 6_000, 20
	for _, desc := range []bool{false, true} {
		store := openTest(t, t.TempDir())
		meta := testMeta(1)
		meta.VBuckets, meta.Desc = vbuckets, []bool{desc}
		slice, err := store.Create(meta)
		must(t, err)
		b, sorted := Batch{}, []float64(nil)
		for vb := range uint16(vbuckets) {
			b.Positions = append(b.Positions, VBPosition{VBucket: vb, Position: ingest.Position{VBUUID: 77, Main: docs}})
		}
		for i := range docs {
			u := Update{DocID: fmt.Appendf(nil, "order::%07d", i), Seqno: uint64(i + 1)}
			u.VBucket = mcbp.VBucket(u.DocID, vbuckets)
			v := float64(int(1e15 * math.Pow(float64(i)/docs, 6)))
			for range 1 + i%5/4 - i%7/6 { // none: a tombstone
				parts := [][]byte{fmt.Append(nil, int(v)), fmt.Append(nil, len(u.Keys))}
				key, err := collate.AppendComposite(nil, parts, meta.Desc)
				must(t, err)
				u.Keys, sorted = append(u.Keys, key), append(sorted, v)
			}
			b.Updates = append(b.Updates, u)
		}
		must(t, slice.Flush(t.Context(), b))
		snap, err := slice.Snapshot()
		must(t, err)
		slices.Sort(sorted)
		for _, want := range []int{1, wanted, 2 * docs} {
			samples, err := snap.Sample(t.Context(), want)
			must(t, err)
			keys, of := samples.Spread(4096, 1<<20)
			if share := (want + docs/vbuckets) * 5 / 4; of < min(want, len(sorted)) || of > share {
				t.Errorf("descending %v: %d entries were read, %d wanted", desc, of, want)
			}
			cuts, err := partition.Quantiles([]partition.Sample{{Rows: snap.Items(), Of: int64(of), Keys: keys}}, parts)
			must(t, err)
			if int(snap.Items()) != len(sorted) || len(cuts.Values) != parts-1 ||
				want > docs && cuts.Error > 1.0/4096 || cuts.Error > 0.1 && want > 1 {
				t.Errorf("descending %v, %d wanted: %d of %d items, %d cuts, off by %v", desc, want, snap.Items(),
					len(sorted), len(cuts.Values), cuts.Error)
			}
			for i, text := range cuts.Values {
				v := 0.0
				if _, err := fmt.Sscan(string(text), &v); err != nil {
					t.Fatal(err)
				}
				at, _ := slices.BinarySearch(sorted, v)
				got, exact := float64(at)/float64(len(sorted)), float64(i+1)/parts
				if math.Abs(got-exact) > cuts.Error+2.0/float64(len(sorted)) {
					t.Errorf("descending %v, %d wanted: cut %d is at %v, off by more than %v", desc, want, i+1, got,
						cuts.Error)
				}
			}
		}
		must(t, snap.Close())
		must(t, store.Close())
	}
}

func TestSpreadMeetsEachPlaceOnce(t *testing.T) {
	for n := 1; n <= 1100; n++ {
		met := map[int]bool{}
		for i := range n {
			met[i*spread(n)%n] = true
		}
		if len(met) != n {
			t.Fatalf("%d of %d", len(met), n)
		}
	}
}
