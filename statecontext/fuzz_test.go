package statecontext

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"reflect"
	"slices"
	"testing"
)

// seal makes an entry of fuzzed bytes with a valid format byte and checksum, so that the fuzzer gets past them.
func seal(body []byte) []byte {
	data := append([]byte{FormatLevel}, body...)
	return binary.LittleEndian.AppendUint32(data, crc32.Checksum(data, castagnoli))
}

// FuzzApply: a committed entry either does not decode, or decodes to commands that encode and decode again to the
// same, and leaves a state that satisfies every invariant.
func FuzzApply(f *testing.F) {
	n := goldenRestore(f)
	for _, data := range slices.Concat(n.log, goldenEvict(f).log, goldenUsers(f).log, goldenPartitions(f).log,
		goldenNames(f).log, goldenAbsence(f).log) {
		f.Add(data[1 : len(data)-4])
	}
	withUsers := goldenUsers(f).state
	f.Fuzz(func(t *testing.T, body []byte) {
		data := seal(body)
		commands, err := Decode(data)
		if err != nil {
			if !errors.Is(err, ErrUndecodable) {
				t.Fatalf("error of another kind: %v", err)
			}
			return
		}
		again, err := Encode(commands...)
		if err != nil {
			t.Fatalf("decoded and does not encode: %v", err)
		}
		twice, err := Decode(again)
		if err != nil || !reflect.DeepEqual(commands, twice) {
			t.Fatalf("%+v became %+v (%v)", commands, twice, err)
		}
		for _, s := range []*State{New(), n.state, withUsers} {
			before := Hash(s)
			next, results, _, err := Apply(s, 1000, data)
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(Check(next), checkStep(s, next)); err != nil {
				t.Fatalf("%v after %+v: %+v", err, commands, results)
			}
			if Hash(s) != before {
				t.Fatal("Apply changed the state it was given")
			}
			back, err := ReadSnapshot(bytes.NewReader(snapshot(t, next)))
			if err != nil || Hash(back) != Hash(next) {
				t.Fatalf("the state does not come back from a snapshot: %v", err)
			}
		}
	})
}

// FuzzRecord: a snapshot record with a valid checksum and any content never panics; it is refused or reads back
// unchanged.
func FuzzRecord(f *testing.F) {
	for _, s := range []*State{populated(f).state, goldenUsers(f).state, goldenAbsence(f).state} {
		rr := recordReader{r: newReader(snapshot(f, s)[9:])}
		rr.sum = newDigest()
		for {
			kind, payload, err := rr.next()
			if err != nil {
				f.Fatal(err)
			}
			if kind == recordEnd {
				break
			}
			f.Add(kind, bytes.Clone(payload))
		}
	}
	f.Fuzz(func(t *testing.T, kind byte, payload []byte) {
		s := New()
		d := decoder{b: payload}
		s.load(kind, &d)
		if d.end() != nil || Check(s) != nil {
			return
		}
		back, err := ReadSnapshot(bytes.NewReader(snapshot(t, s)))
		if err != nil || Hash(back) != Hash(s) {
			t.Fatalf("does not come back: %v", err)
		}
	})
}

// FuzzSnapshot: arbitrary bytes never panic and are refused with ErrSnapshotCorrupt or ErrSnapshotVersion.
func FuzzSnapshot(f *testing.F) {
	f.Add(snapshot(f, New()))
	f.Add(snapshot(f, populated(f).state))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := ReadSnapshot(bytes.NewReader(data))
		if err != nil {
			if !errors.Is(err, ErrSnapshotCorrupt) && !errors.Is(err, ErrSnapshotVersion) {
				t.Fatalf("error of another kind: %v", err)
			}
			return
		}
		if err := Check(s); err != nil {
			t.Fatal(err)
		}
	})
}

// FuzzBackup: any file is refused with a named error or yields a state that satisfies every invariant. Checksums are
// fixed, so that the fuzzer gets past them.
func FuzzBackup(f *testing.F) {
	for _, g := range goldens {
		var w bytes.Buffer
		if err := WriteBackup(&w, g.play(f).state, 1, "1.0"); err != nil {
			f.Fatal(err)
		}
		f.Add(w.Bytes()[:w.Len()-sha256.Size])
	}
	running := goldenRestore(f).state
	f.Fuzz(func(t *testing.T, body []byte) {
		sum := sha256.Sum256(body)
		for _, data := range [][]byte{body, append(bytes.Clone(body), sum[:]...)} {
			b, err := ReadBackup(data)
			if err != nil {
				if !errors.Is(err, ErrBackupCorrupt) && !errors.Is(err, ErrBackupVersion) {
					t.Fatalf("error of another kind: %v", err)
				}
				continue
			}
			if err := Check(b.State); err != nil {
				t.Fatal(err)
			}
			for _, mode := range []RestoreMode{RestoreInPlace, RestoreNewCluster} { // it may be refused but never panics
				_, _ = PlanRestore(running, b.State, mode, b.Epoch+1, nil, nil)
			}
		}
	})
}
