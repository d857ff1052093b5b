package wire_test

import (
	"errors"
	"strings"
	"testing"

	"tidemark/index"
	"tidemark/wire"
)

// TestColumns checks that a table with columns of different lengths is refused with the name of the column.
func TestColumns(t *testing.T) {
	whole := func() wire.BucketState {
		return wire.BucketState{Bucket: "b", VBuckets: []uint16{1, 2}, VBUUIDs: make([]uint64, 2), Seqnos: make([]uint64, 2),
			Complete: make([]uint64, 2), Incarnations: make([]index.Incarnation, 2), Ended: make([]bool, 2)}
	}
	b := whole()
	if err := b.Columns(); err != nil {
		t.Error(err)
	}
	for name, cut := range map[string]func(*wire.BucketState){
		"vbuuids":      func(b *wire.BucketState) { b.VBUUIDs = b.VBUUIDs[:1] },
		"seqnos":       func(b *wire.BucketState) { b.Seqnos = nil },
		"complete":     func(b *wire.BucketState) { b.Complete = append(b.Complete, 1) },
		"incarnations": func(b *wire.BucketState) { b.Incarnations = nil },
		"ended":        func(b *wire.BucketState) { b.Ended = b.Ended[:1] },
	} {
		b := whole()
		cut(&b)
		if err := b.Columns(); !errors.Is(err, wire.ErrColumns) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
