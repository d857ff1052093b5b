package consensus

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"pgregory.net/rapid"

	"tidemark/fsm"
)

// openRecord opens a record of server m1.
func openRecord(t rapid.TB, path string) (c *committed, unread error) {
	t.Helper()
	c, unread, err := openCommitted(path, "m1", newDisk(&Config{}), hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	return c, unread
}

// TestCommitRecord checks that a record is read as it was noted last, also one that was never closed. A file
// that is torn, cut off, or of another server has an older record or none, never a wrong one, and is noted in again.
func TestCommitRecord(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		path := filepath.Join(dir, "committed")
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
		c, unread := openRecord(t, path)
		if unread != nil || c.end() != (position{}) {
			t.Fatalf("a new one has %v, %v", c.end(), unread)
		}
		noted := map[position]bool{{}: true}
		var newest position
		for range rapid.IntRange(1, 9).Draw(t, "notes") {
			p := position{index: rapid.Uint64Range(1, 20).Draw(t, "index")}
			p.term = 1 + p.index/3
			c.note(rapid.IntRange(0, noters-1).Draw(t, "by"), p)
			if noted[p] = true; p.index > newest.index {
				newest = p
			}
		}
		if c.end() != newest {
			t.Fatalf("it has %v, want %v", c.end(), newest)
		}
		if rapid.Bool().Draw(t, "closed") {
			if err := c.close(); err != nil {
				t.Fatal(err)
			}
		} else { // as the end of a process
			c.file.Close()
		}
		again, unread := openRecord(t, path)
		again.file.Close()
		if unread != nil || again.end() != newest {
			t.Fatalf("it is read as %v, %v; want %v", again.end(), unread, newest)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for range rapid.IntRange(1, 5).Draw(t, "damages") {
			at := rapid.IntRange(0, len(b)-1).Draw(t, "at")
			switch rapid.IntRange(0, 2).Draw(t, "damage") {
			case 0:
				b = b[:max(1, at)]
			case 1:
				b[at] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
			case 2: // a sector that was never written
				clear(b[at/placeBytes*placeBytes : min(len(b), (at/placeBytes+1)*placeBytes)])
			}
		}
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		again, _ = openRecord(t, path)
		if !noted[again.end()] {
			t.Fatalf("the damaged file is read as %v, which was never noted", again.end())
		}
		after := position{newest.index + 1, newest.term}
		again.note(byMachine, after)
		again.file.Close()
		if again, _ = openRecord(t, path); again.end() != after {
			t.Fatalf("after the damage %v was noted, and is read as %v", after, again.end())
		}
		again.file.Close()
		other, unread, err := openCommitted(path, "m2", newDisk(&Config{}), hclog.NewNullLogger())
		if err != nil || unread == nil || other.end() != (position{}) {
			t.Fatalf("another server reads %v, %v, %v", other, unread, err)
		}
		other.file.Close()
	})
}

// led opens the only server of a cluster and waits until it leads.
func led(t *testing.T, dir string) *Node {
	t.Helper()
	n, err := Open(Config{Name: "m1", Dir: dir, RaftAddr: "127.0.0.1:0"},
		fsm.New(hclog.NewNullLogger(), func(err error) { t.Error(err) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := n.Bootstrap([]Server{{ID: n.ID(), Raft: n.Addr(), Voter: true}}); err != nil {
		t.Fatal(err)
	}
	waits(t, "a leader", func() bool { return n.raft.State() == raft.Leader })
	return n
}

func waits(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

// TestCommitIsRecordedBeforeItIsShown checks that what was acknowledged is in the file, a change of members, too,
// although the file was neither synced nor closed.
func TestCommitIsRecordedBeforeItIsShown(t *testing.T) {
	n := led(t, t.TempDir())
	onDisk := func() position {
		c, unread, err := openCommitted(n.cfg.committed(), n.ID(), n.disk, n.cfg.Logger)
		if err != nil || unread != nil {
			t.Fatal(err, unread)
		}
		defer c.file.Close()
		return c.end()
	}
	for range 20 {
		r, err := n.beginTerm(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if p := onDisk(); p.index < r.began || p.term != r.term {
			t.Fatalf("entry %d of term %d is acknowledged, the record ends at %+v", r.began, r.term, p)
		}
	}
	before := onDisk()
	if err := n.AddNonvoter(t.Context(), Server{ID: "m2", Raft: "127.0.0.1:1"}, nil); err != nil {
		t.Fatal(err)
	}
	if p := onDisk(); p.index != before.index+1 {
		t.Errorf("a member was added after entry %d, the record ends at %+v", before.index, p)
	}
}

// TestLogThatLacksACommittedEntry checks that a log that lacks an entry, or has another in its place, is not opened
// beside a record that has it; a record that cannot be read, or is older, refuses nothing.
func TestLogThatLacksACommittedEntry(t *testing.T) {
	good := t.TempDir()
	oneNode(t, good, 0)
	opened := func(dir string) (*Node, error) {
		return Open(Config{Name: "m1", Dir: dir, RaftAddr: "127.0.0.1:0"}, fsm.New(hclog.NewNullLogger(), func(error) {}))
	}
	n, err := opened(good)
	if err != nil {
		t.Fatal(err)
	}
	end, id := n.store.committed.end(), n.ID()
	if err := n.Close(); err != nil || end.index < 30 {
		t.Fatalf("the record ends at %+v, %v", end, err)
	}
	whole, err := os.ReadFile(filepath.Join(good, "committed"))
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name   string
		record func(b []byte) []byte // nil: none
		want   string                // of the refusal; empty: it opens
	}{
		{"whole", func(b []byte) []byte { return b }, ""},
		{"none", nil, ""},
		{"empty", func([]byte) []byte { return nil }, ""},
		{"torn", func(b []byte) []byte { return b[:7] }, ""},
		{"damaged", func(b []byte) []byte { b[5] ^= 1; return b }, ""},
		{"older", func([]byte) []byte { return encodeRecord(position{3, end.term}, id) }, ""},
		{"the log is older", func([]byte) []byte { return encodeRecord(position{5000, end.term}, id) },
			"entry 5000 of term"},
		{"the log has another one", func([]byte) []byte { return encodeRecord(position{end.index - 1, 77}, id) },
			"of term 77 was committed here"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.CopyFS(dir, os.DirFS(good)); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, "committed")
			if tc.record == nil {
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
			} else if err := os.WriteFile(path, tc.record(slices.Clone(whole)), 0o600); err != nil {
				t.Fatal(err)
			}
			n, err := opened(dir)
			if n != nil {
				if err := n.Close(); err != nil {
					t.Error(err)
				}
			}
			if tc.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if !errors.Is(err, ErrStore) || !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), tc.want) ||
				!strings.Contains(err.Error(), "Remedy") || !strings.Contains(err.Error(), path) {
				t.Errorf("got %v, want %s", err, tc.want)
			}
		})
	}
}

// hung is a file whose writes hang until it is closed.
type hung struct {
	io.WriterAt
	in, out chan struct{}
}

func (h hung) WriteAt(b []byte, off int64) (int, error) {
	select {
	case h.in <- struct{}{}:
	default:
	}
	<-h.out
	return h.WriterAt.WriteAt(b, off)
}

// TestHungCommitRecord checks that a disk that hangs on the record counts as hung, as on the log: this node stops
// acting as leader, and what it shows continues to advance. When the disk is back, so is the node, and nothing is
// missing.
func TestHungCommitRecord(t *testing.T) {
	n := led(t, t.TempDir())
	first, err := n.beginTerm(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	h := hung{WriterAt: n.store.committed.to, in: make(chan struct{}, 1), out: make(chan struct{})}
	n.store.committed.to = h
	done := make(chan error, 1)
	go func() {
		_, err := n.beginTerm(t.Context())
		done <- err
	}()
	<-h.in
	waits(t, "the disk counts as hung", n.disk.hangs)
	if faults := n.Disk().Faults; len(faults) != 1 || !strings.Contains(faults[0], "disk hangs") {
		t.Errorf("faults: %v", faults)
	}
	var none raft.AppendEntriesResponse
	err = n.trans.AppendEntries("m2", "127.0.0.1:1", &raft.AppendEntriesRequest{}, &none)
	if !errors.Is(err, errDiskHangs) {
		t.Errorf("it still acts as leader: %v", err)
	}
	if at := n.State().AppliedIndex(); at != first.began {
		t.Errorf("the state is at entry %d, want %d", at, first.began)
	}
	select {
	case err := <-done:
		t.Errorf("an entry is acknowledged that is not noted: %v", err)
	default:
	}
	close(h.out)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if n.disk.hangs() || n.store.committed.end().index != n.State().AppliedIndex() {
		t.Errorf("afterwards: %v, noted %v, applied %d", n.Disk(), n.store.committed.end(), n.State().AppliedIndex())
	}
}

// full is a file on a disk that is full.
type full struct{}

func (full) WriteAt([]byte, int64) (int, error) { return 0, syscall.ENOSPC }

// TestUnwritableCommitRecord: on a full disk what is committed is known until the process ends; this is logged once.
// The next note after that makes up for all.
func TestUnwritableCommitRecord(t *testing.T) {
	var said bytes.Buffer
	path := filepath.Join(t.TempDir(), "committed")
	c, _, err := openCommitted(path, "m1", newDisk(&Config{}), hclog.New(&hclog.LoggerOptions{Output: &said}))
	if err != nil {
		t.Fatal(err)
	}
	c.note(byMachine, position{1, 1})
	c.to = full{}
	c.note(byMachine, position{2, 1})
	c.note(byMachine, position{3, 1})
	if n := strings.Count(said.String(), "cannot be noted"); n != 1 || !strings.Contains(said.String(), path) {
		t.Errorf("it is said %d times:\n%s", n, &said)
	}
	if again, _ := openRecord(t, path); c.end().index != 3 || again.end().index != 1 || again.file.Close() != nil {
		t.Errorf("known is %+v, noted %+v", c.end(), again.end())
	}
	c.to = c.file
	c.note(byMachine, position{4, 1})
	if err := c.close(); err != nil {
		t.Fatal(err)
	}
	if again, _ := openRecord(t, path); again.end().index != 4 || again.file.Close() != nil {
		t.Errorf("noted is %+v", again.end())
	}
}

// BenchmarkNote measures a note while the log is written and synced on the same disk all the time, as in service.
func BenchmarkNote(b *testing.B) {
	dir := b.TempDir()
	c, unread, err := openCommitted(filepath.Join(dir, "committed"), "m1", newDisk(&Config{}), hclog.NewNullLogger())
	if err != nil || unread != nil {
		b.Fatal(err, unread)
	}
	defer c.close()
	log, err := raftboltdb.NewBoltStore(filepath.Join(dir, "raft.db"))
	if err != nil {
		b.Fatal(err)
	}
	defer log.Close()
	stop, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		for i := uint64(1); ; i++ {
			select {
			case <-stop:
				ended <- nil
				return
			default:
			}
			if err := log.StoreLog(&raft.Log{Index: i, Term: 1, Data: make([]byte, 1000)}); err != nil {
				ended <- err
				return
			}
		}
	}()
	took := make([]time.Duration, 0, b.N)
	for i := uint64(1); b.Loop(); i++ {
		b.StopTimer()
		time.Sleep(50 * time.Microsecond) // about as often as entries are committed under load
		b.StartTimer()
		began := time.Now()
		c.note(byMachine, position{i, 1})
		took = append(took, time.Since(began))
	}
	close(stop)
	if err := <-ended; err != nil {
		b.Fatal(err)
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1000, "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds())/1000, "p99-µs")
}
