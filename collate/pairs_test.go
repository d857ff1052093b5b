package collate_test

import (
	"bytes"
	"cmp"
	"flag"
	"testing"

	"tidemark/collate"
	"tidemark/collate/collatetest"
)

var pairs = flag.Int("pairs", 100_000, "pairs of random values whose order is compared with the model's, at least")

// poolSize values make 101,025 pairs with each other and themselves.
const poolSize = 449

// TestPairs compares each pair of values of pools of random values of every kind: as bytes ascending, as bytes
// descending, and by the model. It also checks that each value is decoded to the same value.
//
//	go test ./collate -run TestPairs -pairs 10000000
func TestPairs(t *testing.T) {
	gen, done, values := collatetest.ValueText(3), 0, 0
	kinds := map[collate.Kind]int{}
	for seed := 1; done < *pairs; seed++ {
		var keys, desc [poolSize][]byte
		var model [poolSize]any
		for i := range poolSize {
			text := []byte(gen.Example(seed*poolSize + i))
			checkRoundTrip(t, text)
			var ok bool
			if model[i], ok = collatetest.Decode(text); !ok {
				t.Fatalf("%s is no JSON", text)
			}
			var err error
			if keys[i], err = collate.AppendJSON(nil, text); err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			desc[i] = bytes.Clone(keys[i])
			collate.Complement(desc[i])
			kinds[collate.KindOf(keys[i], false)]++
			values++
		}
		for i := range poolSize {
			for j := range i + 1 {
				want := cmp.Compare(collatetest.Compare(model[i], model[j]), 0)
				if up := bytes.Compare(keys[i], keys[j]); up != want || bytes.Compare(desc[i], desc[j]) != -want {
					t.Fatalf("%x and %x: %d as bytes, %d by the model (values %d and %d of pool %d)", keys[i], keys[j], up, want, i, j,
						seed)
				}
				done++
			}
		}
	}
	if len(kinds) < 6 {
		t.Errorf("only these kinds of values were generated: %v", kinds)
	}
	t.Logf("%d pairs of %d values: %v", done, values, kinds)
}
