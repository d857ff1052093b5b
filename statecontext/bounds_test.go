package statecontext

import (
	"bytes"
	"crypto/sha256"
	"testing"

	"tidemark/internal/testing/allocbound"
	"tidemark/timestamp"
)

// Counts and lengths in commands, snapshot records and backups do not allocate memory beyond the data present, even
// with correct checksums.
func TestLengthsBoundAllocations(t *testing.T) {
	seen := map[byte]bool{} // one command per size suffices
	for _, data := range append(goldenUsers(t).log, goldenPartitions(t).log...) {
		if size := byte(len(data) / 32); seen[size] {
			continue
		} else {
			seen[size] = true
		}
		allocbound.Check(t, 0, func(b []byte) { _, _ = Decode(seal(b)) }, data[1:len(data)-4])
	}
	allocbound.Check(t, 0, func(b []byte) {
		d := decoder{b: b}
		d.vector()
	}, appendVector(nil, timestamp.New(timestamp.MaxVBuckets)))
	rr := recordReader{r: newReader(snapshot(t, goldenUsers(t).state)[9:])}
	rr.sum = newDigest()
	for {
		kind, payload, err := rr.next()
		if err != nil {
			t.Fatal(err)
		}
		if kind == recordEnd {
			break
		}
		allocbound.Check(t, 0, func(b []byte) {
			d := decoder{b: b}
			New().load(kind, &d)
		}, bytes.Clone(payload))
	}
	const piece = 2 * 64 << 10 // read ahead by readAtMost; under the race detector append and make allocate it twice
	allocbound.Check(t, piece, func(b []byte) { _, _ = ReadSnapshot(bytes.NewReader(b)) },
		snapshot(t, goldenUsers(t).state))
	var w bytes.Buffer
	if err := WriteBackup(&w, goldenUsers(t).state, 1, "1.0"); err != nil {
		t.Fatal(err)
	}
	allocbound.Check(t, piece, func(b []byte) {
		sum := sha256.Sum256(b)
		_, _ = ReadBackup(append(b, sum[:]...))
	}, w.Bytes()[:w.Len()-sha256.Size])
}
