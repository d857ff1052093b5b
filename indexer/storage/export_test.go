package storage

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tidemark/ingest"
	"tidemark/timestamp"
)

// exported creates a copy with some history and exports it; the model is of that moment, and the copy continues.
func exported(t *testing.T, store *Store) (*Slice, *Export, *model) {
	t.Helper()
	s, err := store.Create(testMeta(1))
	must(t, err)
	m := newModel()
	for n := uint64(1); n <= 12; n++ {
		b := historyBatch(n)
		must(t, s.Flush(t.Context(), b))
		m.apply(b)
		if n == 6 {
			must(t, s.Persist(t.Context())) // more than one table
		}
	}
	e, err := s.Export(t.Context(), func() {})
	must(t, err)
	for n := uint64(13); n <= 20; n++ {
		must(t, s.Flush(t.Context(), historyBatch(n)))
	}
	must(t, s.Persist(t.Context()))
	return s, e, m
}

// send copies an export into an Incoming in chunks; it stops after `most` chunks, unless that is negative.
func send(t *testing.T, e *Export, in *Incoming, chunk, most int) (sent int) {
	t.Helper()
	for _, f := range e.Files {
		for at := in.Held(f.Name); at < f.Size; {
			if sent == most {
				return sent
			}
			p := make([]byte, min(int64(chunk), f.Size-at))
			_, err := e.ReadAt(f.Name, p, at)
			must(t, err)
			must(t, in.Append(f.Name, at, p))
			at += int64(len(p))
			sent++
		}
	}
	return sent
}

// TestExportInstall: an export is installed elsewhere unchanged, whatever happened to its copy and to the copy that
// it replaces; it is durable, and both copies continue.
func TestExportInstall(t *testing.T) {
	ctx := context.Background()
	from, to := openTest(t, t.TempDir()), t.TempDir()
	source, e, m := exported(t, from)
	store := openTest(t, to)
	target, err := store.Create(testMeta(9))
	must(t, err)
	must(t, target.Flush(ctx, historyBatch(15))) // of its own
	_, err = target.Checkpoint(ctx, CheckpointMeta{})
	must(t, err)
	before, err := target.Snapshot()
	must(t, err)
	items := before.Items()
	in, err := target.Receive(e.Source, e.Files)
	must(t, err)
	must(t, from.Drop(1)) // the export in progress stays
	send(t, e, in, 100, -1)
	if err := target.Install(ctx, in); !errors.Is(err, ErrInvalid) {
		t.Fatalf("what was not verified: %v", err)
	}
	must(t, in.Verify(ctx, nil))
	must(t, target.Install(ctx, in))
	must(t, in.Discard())
	must(t, e.Close())
	m.sameSlice(t, target)
	if len(target.Checkpoints()) != 0 || before.Items() != items || source.Meta().Copy != 1 {
		t.Errorf("checkpoints %v; the snapshot has %d rows, had %d", target.Checkpoints(), before.Items(), items)
	}
	crashed := t.TempDir()
	must(t, os.CopyFS(crashed, os.DirFS(to)))
	b := historyBatch(13)
	must(t, target.Flush(ctx, b))
	must(t, before.Close())
	again := openTest(t, crashed)
	s, ok := again.Slice(9)
	if !ok || s.Recovery().Outcome != Intact {
		t.Fatalf("after a crash: %v, %+v", ok, s)
	}
	m.sameSlice(t, s)
	must(t, again.Close())
	m.apply(b)
	m.sameSlice(t, target)
	must(t, store.Close())
	must(t, from.Close())
	for _, dir := range []string{to, crashed, from.opts.Dir} {
		if left, _ := filepath.Glob(filepath.Join(dir, "*"+tmpSuffix)); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	}
}

// TestExportKeepsAnAdvancedPosition: a copy whose position is ahead of what it has stored is installed at that
// position.
func TestExportKeepsAnAdvancedPosition(t *testing.T) {
	store := openTest(t, t.TempDir())
	s, err := store.Create(testMeta(1))
	must(t, err)
	must(t, s.Flush(t.Context(), historyBatch(1)))
	at := timestamp.New(testVBuckets)
	c := &ingest.Common{Positions: make([]ingest.Position, testVBuckets),
		Logs: make([]timestamp.FailoverLog, testVBuckets)}
	for vb := range testVBuckets {
		c.Positions[vb] = ingest.Position{VBUUID: 5, Main: 900_000, Side: 900_000, A: 900_000}
		c.Logs[vb] = timestamp.FailoverLog{{VBUUID: 5}}
		at.Set(vb, timestamp.Position{VBUUID: 5, Seqno: 900_000})
	}
	must(t, s.Flush(t.Context(), Batch{Common: c, Timestamp: at}))
	e, err := s.Export(t.Context(), func() {})
	must(t, err)
	target, err := store.Create(testMeta(2))
	must(t, err)
	in, err := target.Receive(e.Source, e.Files)
	must(t, err)
	send(t, e, in, 1<<20, -1)
	must(t, in.Verify(t.Context(), nil))
	must(t, target.Install(t.Context(), in))
	must(t, e.Close())
	d, err := target.Durable()
	must(t, err)
	if stable, exact := target.Timestamp(); !slices.Equal(target.Positions(), c.Positions) || !exact ||
		!stable.Equal(at) || !slices.Equal(d.Positions, c.Positions) || !target.Logs()[3].Equal(c.Logs[3]) {
		t.Errorf("it stands at %+v, durably at %+v", target.Positions()[0], d.Positions[0])
	}
	must(t, store.Close())
}

// TestExportInterrupted: a transfer that ends after any number of chunks leaves the copy unchanged and, after a
// restart, nothing behind; one that continues is complete.
func TestExportInterrupted(t *testing.T) {
	from := openTest(t, t.TempDir())
	_, e, m := exported(t, from)
	own := historyBatch(15)
	for most := 0; ; most++ {
		dir := t.TempDir()
		store := openTest(t, dir)
		target, err := store.Create(testMeta(9))
		must(t, err)
		must(t, target.Flush(t.Context(), own))
		in, err := target.Receive(e.Source, e.Files)
		must(t, err)
		sent := send(t, e, in, 1500, most)
		if sent < most {
			must(t, store.Close())
			break
		}
		if err := in.Verify(t.Context(), nil); sent > 0 && err == nil && sent == most {
			t.Logf("whole after %d chunks", sent)
		} else if !errors.Is(err, ErrDamaged) {
			t.Fatalf("after %d chunks: %v, want ErrDamaged", most, err)
		}
		must(t, store.Close()) // and the process ends
		again := openTest(t, dir)
		s, _ := again.Slice(9)
		want := newModel()
		want.apply(own)
		want.sameSlice(t, s)
		if left, _ := filepath.Glob(filepath.Join(dir, "*"+tmpSuffix)); len(left) > 0 {
			t.Fatalf("after a restart there are %v", left)
		}
		must(t, again.Close())

		store = openTest(t, t.TempDir())
		target, err = store.Create(testMeta(9))
		must(t, err)
		in, err = target.Receive(e.Source, e.Files)
		must(t, err)
		send(t, e, in, 1500, most)
		send(t, e, in, 1500, -1)
		must(t, in.Verify(t.Context(), nil))
		must(t, target.Install(t.Context(), in))
		m.sameSlice(t, target)
		must(t, store.Close())
	}
	must(t, e.Close())
	must(t, from.Close())
}

// TestExportFlipped: a changed byte is found before anything is installed: each byte of the small files and of a
// table's end, each seventh of the rest.
func TestExportFlipped(t *testing.T) {
	from := openTest(t, t.TempDir())
	s, err := from.Create(testMeta(1))
	must(t, err)
	must(t, s.Flush(t.Context(), historyBatch(3)))
	e, err := s.Export(t.Context(), func() {})
	must(t, err)
	store := openTest(t, t.TempDir())
	target, err := store.Create(testMeta(9))
	must(t, err)
	in, err := target.Receive(e.Source, e.Files)
	must(t, err)
	send(t, e, in, 1<<20, -1)
	must(t, in.Verify(t.Context(), nil))
	for _, f := range e.Files {
		path := filepath.Join(in.dir, f.Name)
		was, err := os.ReadFile(path)
		must(t, err)
		for i := range was {
			// blocks have checksums of their own, and opening takes its time
			if isTable(f.Name) && i < len(was)-200 && i%7 > 0 {
				continue
			}
			bad := slices.Clone(was)
			bad[i] ^= 1 << (i % 8)
			must(t, os.WriteFile(path, bad, 0o644))
			if err := in.Verify(t.Context(), nil); !errors.Is(err, ErrDamaged) {
				t.Fatalf("byte %d of %d of %s: %v, want ErrDamaged", i, len(was), f.Name, err)
			}
		}
		must(t, os.WriteFile(path, was, 0o644))
	}
	must(t, in.Verify(t.Context(), nil))
	must(t, in.Discard())
	must(t, store.Close())
	must(t, e.Close())
	must(t, from.Close())
}

// TestReceiveRefuses: names outside the folder, files that were not requested, chunks out of order.
func TestReceiveRefuses(t *testing.T) {
	store := openTest(t, t.TempDir())
	s, err := store.Create(testMeta(1))
	must(t, err)
	cp := File{Name: checkpointName, Size: 10}
	for _, bad := range [][]File{nil, {{Name: "a", Size: 1}}, {cp, {Name: "../a"}}, {cp, {Name: ".."}},
		{cp, {Name: "a/b"}},
		{cp, {Name: ""}}, {cp, cp}, {cp, {Name: "a", Size: -1}}, {cp, {Name: lockName}}} {
		if _, err := s.Receive("a", bad); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v, want ErrInvalid", bad, err)
		}
	}
	if _, err := s.Receive("a", []File{cp, {Name: "large", Size: 1 << 49}}); !errors.Is(err, ErrDiskFull) {
		t.Errorf("no room: %v", err)
	}
	in, err := s.Receive("a", []File{cp, {Name: "a", Size: 4}})
	must(t, err)
	must(t, in.Append("a", 0, []byte("ab")))
	for _, bad := range []struct {
		name string
		at   int64
		n    int
	}{{"a", 0, 1}, {"a", 3, 1}, {"a", 2, 3}, {"b", 0, 1}, {checkpointName, 2, 1}} {
		if err := in.Append(bad.name, bad.at, []byte(strings.Repeat("x", bad.n))); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v, want ErrInvalid", bad, err)
		}
	}
	must(t, in.Append("a", 2, []byte("cd")))
	must(t, in.Discard())
	must(t, store.Close())
}

// TestReceiveResumes: tables received completely before a process ended are not requested again if the source is the
// same; after each number of chunks. Nothing is kept of another source, or of a copy that was dropped.
func TestReceiveResumes(t *testing.T) {
	const chunk = 3000
	from := openTest(t, t.TempDir())
	_, e, m := exported(t, from)
	for most, whole := 0, false; !whole; most++ {
		dir := t.TempDir()
		store := openTest(t, dir)
		target, err := store.Create(testMeta(9))
		must(t, err)
		in, err := target.Receive(e.Source, e.Files)
		must(t, err)
		whole = send(t, e, in, chunk, most) < most
		var held int64
		for _, f := range e.Files {
			if isTable(f.Name) && in.Held(f.Name) == f.Size {
				held += f.Size
			}
		}
		must(t, store.Close())
		store = openTest(t, dir)
		target, _ = store.Slice(9)
		in, err = target.Receive(e.Source, e.Files)
		must(t, err)
		if got := target.Incoming(); got != held {
			t.Fatalf("after %d chunks and a restart %d bytes are here, want %d", most, got, held)
		}
		send(t, e, in, chunk, -1)
		must(t, in.Verify(t.Context(), nil))
		must(t, target.Install(t.Context(), in))
		if m.sameSlice(t, target); target.Incoming() != 0 {
			t.Errorf("%d bytes are incoming", target.Incoming())
		}
		must(t, store.Close())
	}
	store := openTest(t, t.TempDir())
	target, err := store.Create(testMeta(9))
	must(t, err)
	in, err := target.Receive(e.Source, e.Files)
	must(t, err)
	send(t, e, in, chunk, -1)
	last := e.Files[len(e.Files)-1].Name // a table, the largest file
	path := filepath.Join(in.dir, last)
	other, err := os.ReadFile(path)
	must(t, err)
	other[len(other)-1] ^= 1
	must(t, os.WriteFile(path, other, 0o644))
	in, err = target.Receive(e.Source, e.Files)
	if must(t, err); !isTable(last) || in.Held(last) != 0 {
		t.Errorf("%d bytes of another table of that name and size are kept", in.Held(last))
	}
	in, err = target.Receive("another", e.Files)
	if must(t, err); target.Incoming() != 0 || in.Held(e.Files[len(e.Files)-1].Name) != 0 {
		t.Errorf("%d bytes of another source are kept", target.Incoming())
	}
	must(t, in.Discard())
	if exists(store.fs, in.dir) {
		t.Error("the folder stays")
	}
	must(t, store.Drop(9))
	must(t, store.Close())
	if must(t, e.Close()); from.Exported() != 0 {
		t.Errorf("%d bytes are still linked", from.Exported())
	}
	must(t, from.Close())
}

// TestVerifyIsPaced: received files are read no faster than the pace allows, table by table, and no further.
func TestVerifyIsPaced(t *testing.T) {
	ctx := t.Context()
	_, e, _ := exported(t, openTest(t, t.TempDir()))
	target, err := openTest(t, t.TempDir()).Create(testMeta(9))
	must(t, err)
	in, err := target.Receive(e.Source, e.Files)
	must(t, err)
	send(t, e, in, 1<<20, -1)
	enough := errors.New("enough")
	short, end := context.WithCancelCause(ctx)
	if err := in.Verify(short, func(ctx context.Context, _ int) error {
		end(enough)
		return context.Cause(ctx)
	}); !errors.Is(err, enough) || errors.Is(err, ErrDamaged) {
		t.Errorf("a check that is not to go on: %v", err)
	}
	var tables, paid int64
	for _, f := range e.Files {
		if isTable(f.Name) {
			tables += f.Size
		}
	}
	must(t, in.Verify(ctx, func(_ context.Context, n int) error {
		paid += int64(n)
		return nil
	}))
	if tables == 0 || paid < tables/2 {
		t.Errorf("%d bytes were paid for of tables of %d", paid, tables)
	}
	must(t, in.Discard())
	must(t, e.Close())
}
