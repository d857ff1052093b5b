package kv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"tidemark/kv/clustermap"
)

// TestDamagedFolders: a node of a cluster is killed and its folder damaged. It refuses to serve damaged data and
// reports which file is damaged and what to do, and the other nodes go on. After that advice was followed, every
// acknowledged write is there.
func TestDamagedFolders(t *testing.T) {
	t.Parallel()
	segments := func(t *testing.T, dir string) []string {
		t.Helper()
		names, err := filepath.Glob(filepath.Join(dir, "buckets", "world", "log", "*.seg"))
		if err != nil || len(names) < 3 {
			t.Fatal(names, err)
		}
		return names
	}
	flip := func(t *testing.T, name string) string {
		t.Helper()
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		text[len(text)/2] ^= 0x10
		if err := os.WriteFile(name, text, 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	f := newFire(t, 3, 2, 0)
	damages := []struct {
		name string
		hurt func(t *testing.T, dir string) (file string)
		says string
	}{
		{"a byte in a sealed segment", func(t *testing.T, dir string) string { return flip(t, segments(t, dir)[1]) },
			"tidemark kv failover"},
		{"a byte in the last segment", func(t *testing.T, dir string) string {
			names := segments(t, dir)
			return flip(t, names[len(names)-1])
		}, "truncate -s"},
		{"a missing segment", func(t *testing.T, dir string) string {
			name := segments(t, dir)[1]
			if err := os.Remove(name); err != nil {
				t.Fatal(err)
			}
			return name
		}, "tidemark kv failover"},
		{"a map cut short", func(t *testing.T, dir string) string {
			name := filepath.Join(dir, mapName)
			if err := os.Truncate(name, 100); err != nil {
				t.Fatal(err)
			}
			return name
		}, "restore it from another node's folder"},
		{"a bucket's folder lost", func(t *testing.T, dir string) string {
			name := filepath.Join(dir, "buckets", "world")
			if err := os.RemoveAll(name); err != nil {
				t.Fatal(err)
			}
			return name
		}, "would empty the replicas"},
		{"the folder lost", func(t *testing.T, dir string) string {
			for _, name := range []string{"buckets", mapName, reservedName, promisesName} {
				if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
					t.Fatal(err)
				}
			}
			return filepath.Join(dir, "buckets", "world")
		}, "would empty the replicas"},
	}
	write := func(more int64) { // clients that continue after errors
		ctx, stop := context.WithCancel(context.Background())
		var clients sync.WaitGroup
		for id := range 3 {
			clients.Go(func() { f.client(ctx, id) })
		}
		f.goesOn(more)
		stop()
		clients.Wait()
	}
	for i, d := range damages {
		ok := t.Run(d.name, func(t *testing.T) {
			f.t = t
			write(600)
			f.whole()
			b := f.nodes[1+i%2]
			f.replicated()
			b.t = t
			b.end(9)
			file := d.hurt(t, b.conf.Dir)
			said := b.fails()
			for _, want := range []string{file, d.says} {
				if !strings.Contains(said, want) {
					t.Errorf("it does not say %q:\n%s", want, said)
				}
			}
			if strings.Contains(said, "panic") || strings.Contains(said, "goroutine ") {
				t.Errorf("it panics:\n%s", said)
			}
			if err := f.command(pathFailover, FailoverRequest{Nodes: []string{b.conf.NodeID}}); err != nil {
				t.Fatal(err)
			}
			write(100)
			for _, name := range []string{"buckets", mapName} { // as the error message advised
				if err := os.RemoveAll(filepath.Join(b.conf.Dir, name)); err != nil {
					t.Fatal(err)
				}
			}
			b.start()
			x := clustermap.Node{ID: b.conf.NodeID, Memcached: b.conf.Listen, Admin: b.conf.Admin}
			eventually(t, func() error { return f.command(pathRebalance, RebalanceRequest{Add: []clustermap.Node{x}}) })
			eventually(t, func() error {
				if m, _ := f.view(); m.Operation != nil || len(m.Nodes) != 3 {
					return fmt.Errorf("%d members, operation %v", len(m.Nodes), m.Operation)
				}
				return nil
			})
			f.whole()
		})
		if !ok {
			return
		}
	}
	f.t = t
	f.last()
}

// replicated waits until the replicas have everything, so that a node that dies loses only later writes.
func (f *fire) replicated() {
	f.t.Helper()
	eventually(f.t, func() error {
		_, views := f.view()
		high := map[uint16]uint64{}
		for _, v := range views {
			for _, c := range v.Copies["world"] {
				high[c.VBucket] = max(high[c.VBucket], c.High)
			}
		}
		for id, v := range views {
			for _, c := range v.Copies["world"] {
				if c.High < high[c.VBucket] || c.State == "replica" && (!c.Joined || !c.Whole) {
					return fmt.Errorf("%s has vbucket %d up to %d of %d", id, c.VBucket, c.High, high[c.VBucket])
				}
			}
		}
		return nil
	})
}

// fails starts the node, which must exit with an error, and returns what it has logged.
func (b *nodeProcess) fails() string {
	b.t.Helper()
	path := filepath.Join(b.conf.Dir, "log")
	before, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		b.t.Fatal(err)
	}
	b.start()
	done := make(chan error, 1)
	go func() { done <- b.cmd.Wait() }()
	select {
	case err = <-done:
	case <-within(b.t).Done():
		_ = b.cmd.Process.Kill()
		<-done
		b.t.Fatal("it goes on")
	}
	b.cmd = nil
	after, rerr := os.ReadFile(path)
	if err == nil || rerr != nil {
		b.t.Fatalf("it ended with %v; %v", err, rerr)
	}
	return string(bytes.TrimPrefix(after, before))
}
