package storage

import (
	"context"

	"tidemark/partition"
)

// Of a sample: so many entries are enough when most of what is read are tombstones.
const fewSamples = 4096

// Sample reads entries of whole vbuckets by the back index, until it has as many as are wanted, and returns leading
// components of their keys. Which vbucket a document belongs to says nothing of its keys: they are a sample of all. One
// vbucket is read at least, and all when there are no more entries than are wanted.
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

// SampleKeys reads entries as Sample does, and returns keys of at most n of them, of at most so many bytes together, as
// likely those of one as of any other; and of how many they are. Keys are as they are stored.
func (s *Snapshot) SampleKeys(ctx context.Context, wanted, n, most int) (keys [][]byte, of int, err error) {
	var samples partition.Samples
	err = s.sample(ctx, wanted, func(key []byte) error {
		samples.AddWhole(key)
		return nil
	})
	keys, of = samples.Some(n, most)
	return keys, of, err
}

// sample calls fn for each key of what Sample reads.
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

// spread is a step by which each of n places is met once, far from those before.
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
