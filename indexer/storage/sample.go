package storage

import (
	"context"

	"tidemark/partition"
)

// fewSamples is the number of keys that suffices for a sample if most entries read are tombstones.
const fewSamples = 4096

// Sample reads entries of whole vbuckets from the back index until it has the wanted number of keys, and returns
// their leading components. The vbucket of a document is independent of its keys, so they are a sample of all. It
// reads at least one vbucket, and all if there are no more entries than wanted.
func (s *Snapshot) Sample(ctx context.Context, wanted int) (*partition.Samples, error) {
	samples, space := &partition.Samples{}, []byte(nil)
	err := s.sample(ctx, wanted, func(key []byte) (err error) {
		var component []byte
		if component, space, err = leading(key, s.slice.meta.descends(), space); err == nil {
			samples.Add(component)
		}
		return err
	})
	return samples, err
}

// SampleKeys reads entries like Sample and returns a uniform choice of at most n of their keys, with at most `most`
// bytes together, and the number of keys that they were chosen from. Keys are in stored form.
func (s *Snapshot) SampleKeys(ctx context.Context, wanted, n, most int) (keys [][]byte, of int, err error) {
	var samples partition.Samples
	err = s.sample(ctx, wanted, func(key []byte) error {
		samples.AddWhole(key)
		return nil
	})
	keys, of = samples.Some(n, most)
	return keys, of, err
}

// sample calls fn for each key that Sample reads.
func (s *Snapshot) sample(ctx context.Context, wanted int, fn func(key []byte) error) error {
	documents, keysRead := 0, 0
	take := func(_ []byte, _ uint64, keys [][]byte) error {
		documents++
		for _, k := range keys {
			if err := fn(k); err != nil {
				return &CorruptError{Copy: s.slice.meta.Copy, File: s.gen.dir, Err: err}
			}
			keysRead++
		}
		return nil
	}
	n := len(s.at.positions)
	for i, stride := 0, spread(n); i < n; i++ {
		if keysRead >= wanted || documents >= 16*wanted && keysRead >= fewSamples {
			break
		}
		if err := s.Back(ctx, uint16(i*stride%n), take); err != nil {
			return err
		}
	}
	return nil
}

// spread returns a step that visits each of n places once, far from the previous ones.
func spread(n int) int {
	step := max(n*5/8, 1)
	for gcd(step, n) != 1 {
		step++
	}
	return step
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
