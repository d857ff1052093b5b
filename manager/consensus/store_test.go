package consensus

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"pgregory.net/rapid"

	"tidemark/fsm"
	_ "tidemark/internal/testing/draws"
)

// TestSealNamesEveryFlippedBit: if any bit of a stored entry changes, the entry is refused; an unchanged entry reads
// back as it was.
func TestSealNamesEveryFlippedBit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := &raft.Log{Index: rapid.Uint64Min(1).Draw(t, "index"), Term: rapid.Uint64().Draw(t, "term"),
			Type: raft.LogType(rapid.IntRange(0, 5).Draw(t, "type")), Data: rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "data"),
			Extensions: rapid.SliceOfN(rapid.Byte(), 0, 9).Draw(t, "extensions")}
		stored := *l
		stored.Extensions = seal(l)
		back := stored
		if err := unseal(&back, l.Index); err != nil || !bytes.Equal(back.Extensions, l.Extensions) ||
			!bytes.Equal(back.Data, l.Data) {
			t.Fatalf("%+v came back as %+v, %v", l, back, err)
		}
		bad := stored
		bad.Data, bad.Extensions = bytes.Clone(stored.Data), bytes.Clone(stored.Extensions)
		switch bit := rapid.IntRange(0, 63).Draw(t, "bit"); rapid.IntRange(0, 4).Draw(t, "where") {
		case 0:
			bad.Index ^= 1 << bit
		case 1:
			bad.Term ^= 1 << bit
		case 2:
			bad.Type ^= 1 << (bit % 8)
		case 3:
			if len(bad.Data) == 0 {
				bad.Data = []byte{0}
				break
			}
			bad.Data[bit%len(bad.Data)] ^= 1 << (bit % 8)
		case 4:
			bad.Extensions[bit%len(bad.Extensions)] ^= 1 << (bit % 8)
		}
		if err := unseal(&bad, l.Index); !errors.Is(err, ErrDamaged) {
			t.Fatalf("%+v is taken for %+v: %v", bad, l, err)
		}
	})
}

// FuzzStoredEntry: no stored value makes the examination panic, and an accepted entry encodes to the same bytes.
func FuzzStoredEntry(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 7},
		[]byte("\x86\xa5Index\x07\xa4Term\x01\xa4Type\x00\xa4Data\xa1x\xaaExtensions\xc0\xaaAppendedAt\xc0"))
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 7}, []byte("\x81\xa5Index\x07"))
	f.Add([]byte{7}, []byte{0xc1})
	f.Fuzz(func(t *testing.T, key, value []byte) {
		index, err := examineEntry(key, value)
		if err == nil && len(key) != 8 {
			t.Errorf("key %x is entry %d", key, index)
		}
	})
}

// oneNode creates a store with entries and state snapshots, closed in order.
func oneNode(t *testing.T, dir string, snapshots int) {
	t.Helper()
	machine := fsm.New(hclog.NewNullLogger(), func(err error) { t.Error(err) })
	n, err := Open(Config{Name: "m1", Dir: dir, RaftAddr: "127.0.0.1:0", TrailingLogs: 16,
		SnapshotThreshold: 1000}, machine)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := n.Bootstrap([]Server{{ID: n.ID(), Raft: n.Addr(), Voter: true}}); err != nil &&
		!errors.Is(err, ErrHasState) {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); n.raft.State() != raft.Leader; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no leader")
		}
	}
	for range snapshots + 1 {
		for range 30 {
			if _, err := n.beginTerm(t.Context()); err != nil { // entries with commands
				t.Fatal(err)
			}
		}
		if snapshots--; snapshots >= 0 {
			if err := n.Snapshot(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestExamine: a damaged store is refused, with the file and what to do, before anything is changed; an intact one is
// opened.
func TestExamine(t *testing.T) {
	good := t.TempDir()
	oneNode(t, good, 2)
	edit := func(pattern string, change func(b []byte) []byte) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			paths, err := filepath.Glob(filepath.Join(dir, pattern))
			if err != nil || len(paths) == 0 {
				t.Fatalf("no %s: %v", pattern, err)
			}
			for _, path := range paths {
				b, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, change(b), 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	flipAfter := func(mark string, off int) func([]byte) []byte {
		return func(b []byte) []byte {
			for from := 0; ; {
				i := bytes.Index(b[from:], []byte(mark))
				if i < 0 {
					return b
				}
				if at := from + i + len(mark) + off; at < len(b) {
					b[at] ^= 0x10
				}
				from += i + 1
			}
		}
	}
	newest := func(t *testing.T, dir string) string {
		all, err := os.ReadDir(filepath.Join(dir, "snapshots"))
		if err != nil || len(all) != 2 {
			t.Fatalf("%v %v", all, err)
		}
		name := ""
		for _, e := range all {
			if len(e.Name()) > len(name) || len(e.Name()) == len(name) && e.Name() > name {
				name = e.Name()
			}
		}
		return filepath.Join("snapshots", name)
	}
	for _, tc := range []struct {
		name   string
		damage func(t *testing.T, dir string)
		want   string // empty: the store opens
	}{
		{"whole", func(*testing.T, string) {}, ""},
		{"cut", edit("raft.db", func(b []byte) []byte { return b[:len(b)/2] }), "raft.db"},
		{"cut at a page", edit("raft.db", func(b []byte) []byte { return b[:4*4096] }), "raft.db"},
		{"term of an entry", edit("raft.db", flipAfter("\xa4Term", 0)), "log entry"},
		{"type of an entry", edit("raft.db", flipAfter("\xa4Type", 0)), "log entry"},
		{"data of an entry", edit("raft.db", flipAfter("\xa4Data", 7)), "log entry"},
		{"pages", edit("raft.db", func(b []byte) []byte {
			for page := 2 * 4096; page < len(b); page += 4096 {
				b[page+8] ^= 0x10 // the flags in its header
			}
			return b
		}), "raft.db"},
		{"all snapshots", edit("snapshots/*/state.bin", func(b []byte) []byte { b[len(b)/2] ^= 1; return b }),
			"state snapshot"},
		{"all descriptions", edit("snapshots/*/meta.json", func(b []byte) []byte { return b[:len(b)/2] }), "state snapshot"},
		{"an index in a description", edit("snapshots/*/meta.json", func(b []byte) []byte { return bytes.Replace(b, []byte(`"Index":`), []byte(`"Index":1`), 1) }), "its description belongs to"},
		{"the newest snapshot, the log does not reach back", func(t *testing.T, dir string) {
			edit(filepath.Join(newest(t, dir), "state.bin"), func(b []byte) []byte { b[len(b)/2] ^= 1; return b })(t, dir)
		}, "the entries in between are missing"},
		{"the snapshots are gone", func(t *testing.T, dir string) { os.RemoveAll(filepath.Join(dir, "snapshots")) },
			"the entries in between are missing"},
		{"the log is gone", func(t *testing.T, dir string) { os.Remove(filepath.Join(dir, "raft.db")) },
			"no server id"},
		{"the log is empty", edit("raft.db", func([]byte) []byte { return nil }), "no server id"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.CopyFS(dir, os.DirFS(good)); err != nil {
				t.Fatal(err)
			}
			tc.damage(t, dir)
			n, err := Open(Config{Name: "m1", Dir: dir, RaftAddr: "127.0.0.1:0"}, fsm.New(hclog.NewNullLogger(), func(error) {}))
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
			if !errors.Is(err, ErrStore) || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), dir) {
				t.Errorf("got %v, want %s", err, tc.want)
			}
			if !strings.Contains(err.Error(), "Remedy") {
				t.Errorf("no remedy: %v", err)
			}
		})
	}
}
