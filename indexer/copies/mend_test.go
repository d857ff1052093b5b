package copies

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"tidemark/index"
	"tidemark/indexer/storage"
)

// TestDamagedIdleCopyIsReopened: a copy in which a scan has found a bad block is reopened although nothing is written
// to it, and its bucket continues from what the copy holds then; other copies are not affected.
func TestDamagedIdleCopyIsReopened(t *testing.T) {
	f := newFallen(t, 2, 2)
	f.k.node.Marks = noMarks(t)
	all := []*storage.Slice{f.k.slices[1], f.k.slices[2]}
	for _, s := range all {
		if err := s.Persist(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	damageNewestTable(t, filepath.Join(f.dir, all[0].Meta().Copy.String()))
	snap, err := all[0].Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	err = snap.Iterate(t.Context(), storage.Range{}, false, func(_, _ []byte) error { return nil })
	if cerr := snap.Close(); !errors.Is(err, storage.ErrDamaged) || cerr != nil || all[0].Broken() == nil {
		t.Fatalf("the scan: %v, then %v", err, errors.Join(all[0].Broken(), cerr))
	}
	f.run(t)
	held := func(id index.CopyID) (main uint64) {
		if err := f.k.do(t.Context(), func() {
			p, _ := f.k.st.Position(id, 0)
			main = p.Main
		}); err != nil {
			t.Fatal(err)
		}
		return main
	}
	for end := time.Now().Add(patience); held(1) != 10; time.Sleep(time.Millisecond) {
		if MendBroken(all, []*Bucket{f.k}); time.Now().After(end) {
			t.Fatalf("it holds %d, and is broken: %v", held(1), all[0].Broken())
		}
	}
	if r := all[0].Recovery(); r.Outcome != storage.FromCheckpoint || all[0].Broken() != nil {
		t.Errorf("recovered: %+v, then %v", r, all[0].Broken())
	}
	if said := f.k.node.Health.First(); said != "" {
		t.Errorf("then health %q", said)
	}
	if g := all[1].Stats().Generation; g != 1 || held(2) != 20 {
		t.Errorf("the other one is of generation %d and holds %d", g, held(2))
	}
}

// damageNewestTable changes a byte in the rows of the newest table of a copy.
func damageNewestTable(t *testing.T, copy string) {
	t.Helper()
	tables, err := filepath.Glob(filepath.Join(copy, "db-1", "*.sst")) // in the order of their numbers
	if err != nil || len(tables) == 0 {
		t.Fatal(tables, err)
	}
	file, err := os.OpenFile(tables[len(tables)-1], os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 1)
	_, err = file.ReadAt(b, 10)
	if err == nil {
		b[0] ^= 1
		_, err = file.WriteAt(b, 10)
	}
	if err = errors.Join(err, file.Close()); err != nil {
		t.Fatal(err)
	}
}
