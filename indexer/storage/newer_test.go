package storage

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/atomicfs"

	"tidemark/index"
)

// newer returns a function that turns a small file into one of the next version.
func newer(name string) func(content []byte) []byte {
	return func(content []byte) []byte {
		_, body, _ := bytes.Cut(content, []byte{'\n'})
		head := fmt.Sprintf("%s %s %d %08x\n", fileMagic, name, fileVersion+1, smallSum(name, fileVersion+1, body))
		return append([]byte(head), body...)
	}
}

// TestNewerIsRefused: a folder with a copy of a newer version of the program is not opened, the error names what it
// is and where, and nothing is changed: it is not considered damaged. The newer version opens it unchanged.
func TestNewerIsRefused(t *testing.T) {
	for _, c := range []struct {
		name  string
		write func(t *testing.T, fs vfs.FS, s *Slice) (undo func())
	}{
		{"meta", func(t *testing.T, fs vfs.FS, s *Slice) func() {
			path := fs.PathJoin(s.dir, metaName)
			was, err := readFile(fs, path)
			must(t, err)
			must(t, writeSynced(fs, path, newer(metaName)(was)))
			return func() { must(t, writeSynced(fs, path, was)) }
		}},
		{"tables", func(t *testing.T, fs vfs.FS, s *Slice) func() {
			move := func(to string) {
				m, _, err := atomicfs.LocateMarker(fs, s.generationDir(s.number), formatMarker)
				must(t, err)
				must(t, m.Move(to))
				must(t, m.Close())
			}
			move(fmt.Sprintf("%03d", formatVersion+1))
			return func() { move(formatVersion.String()) }
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			fs := vfs.NewMem()
			open := func(o *Options) { o.FS = fs }
			store := openTest(t, "data", open)
			var all []*Slice
			for id := range 2 {
				s, err := store.Create(testMeta(index.CopyID(id + 1)))
				must(t, err)
				fillVBuckets(t, s, 10, 20)
				all = append(all, s)
			}
			must(t, store.Close())
			undo := c.write(t, fs, all[1])
			before := listing(fs, all[1].dir)
			if s, err := Open(Options{Dir: "data", FS: fs}); !errors.Is(err, ErrNewer) || errors.Is(err, ErrDamaged) ||
				!strings.Contains(err.Error(), all[1].dir) {
				t.Errorf("opened: %v, %v", s != nil, err)
			}
			if after := listing(fs, all[1].dir); after != before {
				t.Errorf("it was\n%s\nand is\n%s", before, after)
			}
			undo()
			store = openTest(t, "data", open)
			for _, s := range store.Slices() {
				holds(t, s, 10)
			}
			if n := len(store.Slices()); n != 2 || len(store.Damaged()) != 0 {
				t.Errorf("%d copies, damaged: %v", n, store.Damaged())
			}
			must(t, store.Close())
		})
	}
}

// listing returns all files in a folder, with their sizes.
func listing(fs vfs.FS, dir string) string {
	var all strings.Builder
	names, _ := fs.List(dir)
	slices.Sort(names)
	for _, name := range names {
		path := fs.PathJoin(dir, name)
		info, err := fs.Stat(path)
		if err == nil && info.IsDir() {
			all.WriteString(listing(fs, path))
			continue
		}
		fmt.Fprintln(&all, path, info.Size(), err)
	}
	return all.String()
}
