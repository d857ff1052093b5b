package kv

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/golang/snappy"
)

// fullDisk mounts a small tmpfs for a node's folder. fill takes all the room that is left on it, free makes room again.
// Without the privilege to mount, the node's small files find no room from fill on, unless their spare file is removed.
func fullDisk(t *testing.T, config *Config) (fill func(n *Node), free func(n *Node)) {
	t.Helper()
	dir := t.TempDir()
	config.Dir = filepath.Join(dir, "node")
	if err := mountSmall(t, dir); err != nil {
		t.Logf("full disk: injected errors, because no tmpfs can be mounted: %v", err)
		return injectFull(config)
	}
	others := filepath.Join(dir, "others")
	return func(*Node) { fillUp(t, others) }, func(*Node) {
		if err := os.Remove(others); err != nil {
			t.Fatal(err)
		}
	}
}

// mountSmall mounts a tmpfs of 8 MiB until the end of the test.
func mountSmall(t *testing.T, dir string) error {
	t.Helper()
	err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=8m")
	if err == nil {
		t.Cleanup(func() {
			if err := syscall.Unmount(dir, 0); err != nil {
				t.Error(err)
			}
		})
	}
	return err
}

// fillUp makes a file take all the room that is left.
func fillUp(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for piece := []byte(strings.Repeat("x", 4096)); err == nil; {
		_, err = f.Write(piece)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
}

func injectFull(config *Config) (fill func(n *Node), free func(n *Node)) {
	set := func(n *Node, put func(string, any) error) {
		s := n.cluster.spare
		s.mu.Lock()
		defer s.mu.Unlock()
		s.put = put
	}
	return func(n *Node) {
			set(n, func(path string, value any) error {
				if _, err := os.Stat(filepath.Join(config.Dir, spareName)); err == nil {
					return fmt.Errorf("write %s: %w", path, syscall.ENOSPC)
				}
				return newSpare(config.Dir).put(path, value)
			})
		}, func(n *Node) {
			set(n, newSpare(config.Dir).put)
		}
}

// TestAFullDiskTakesANewerMap: a node on whose disk others have left no room promises the epoch of a failover, stores
// the map that it brings, and learns of its own failover; when there is room, it keeps some for the next time.
func TestAFullDiskTakesANewerMap(t *testing.T) {
	t.Parallel()
	var fill, free func(*Node)
	g := newGroupWith(t, 3, 1, func(c *Config) {
		if c.NodeID == "kv2" {
			fill, free = fullDisk(t, c)
		}
	})
	kv2, dir := g.nodes["kv2"], g.confs["kv2"].Dir
	hasSpare := func() error {
		_, err := os.Stat(filepath.Join(dir, spareName))
		return err
	}
	eventually(t, hasSpare)
	for i, lost := range []string{"kv3", "kv2"} {
		fill(kv2)
		if err := g.post("kv1", pathFailover, FailoverRequest{Nodes: []string{lost}, Lose: true}, nil); err != nil {
			t.Fatalf("failover of %s: %v", lost, err)
		}
		want := g.nodes["kv1"].cluster.current()
		eventually(t, func() error {
			stored, _, err := loadMap(dir, nil)
			if have := kv2.cluster.current(); err != nil || have.Rev != want.Rev || stored.Rev != want.Rev ||
				stored.RevEpoch != want.RevEpoch {
				return fmt.Errorf("after the failover of %s it shows the map %d.%d, has stored %d.%d (%w), and the others have "+
					"%d.%d", lost, have.RevEpoch, have.Rev, stored.RevEpoch, stored.Rev, err, want.RevEpoch, want.Rev)
			}
			return nil
		})
		free(kv2)
		kv2.cluster.spare.refill(kv2.config.Now().Add(time.Duration(i+1) * 2 * spareEvery))
		if err := hasSpare(); err != nil {
			t.Fatal(err)
		}
	}
	if _, member := kv2.cluster.current().Node("kv2"); member {
		t.Error("it does not know that it was failed over")
	}
}

// compressed returns how many bytes a file takes when it is compressed.
func compressed(t *testing.T, path string) int {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return len(snappy.Encode(nil, b))
}

// TestSpare: the spare file is twice as large as a large map, is made at most once a minute, and is given up for a
// write that finds no room, but not for one that fails otherwise.
func TestSpare(t *testing.T) {
	s := newSpare(t.TempDir())
	now := time.Now()
	size := func() int64 {
		if i, err := os.Stat(filepath.Join(s.dir, spareName)); err == nil {
			return i.Size()
		}
		return 0
	}
	want := func(when string, bytes int64) {
		t.Helper()
		if got := size(); got != bytes {
			t.Errorf("%s the spare file has %d bytes, want %d", when, got, bytes)
		}
	}
	s.refill(now)
	want("at first", leastSpare)
	if n := compressed(t, filepath.Join(s.dir, spareName)); n < leastSpare {
		t.Errorf("a file system that compresses keeps %d bytes free", n)
	}
	large := string(bytes.Repeat([]byte("m"), leastSpare))
	if err := s.write(mapName, large); err != nil {
		t.Fatal(err)
	}
	s.refill(now)
	want("at once", leastSpare)
	now = now.Add(spareEvery)
	s.refill(now)
	want("with a large map", 2*(leastSpare+3)) // quotes, and the end of the line
	full := true
	put := s.put
	s.put = func(path string, value any) error {
		if full && size() > 0 {
			return fmt.Errorf("write: %w", syscall.EDQUOT)
		}
		return put(path, value)
	}
	if err := s.write(promisesName, 1); err != nil {
		t.Errorf("a write in place of the spare file: %v", err)
	}
	want("after it", 0)
	s.put = func(string, any) error { return fmt.Errorf("write: %w", syscall.ENOSPC) }
	if err := s.write(promisesName, 2); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("without a spare file: %v", err)
	}
	now = now.Add(spareEvery)
	s.refill(now)
	s.put = func(string, any) error { return io.ErrClosedPipe }
	if err := s.write(promisesName, 3); !errors.Is(err, io.ErrClosedPipe) {
		t.Error(err)
	}
	want("after another error", 2*(leastSpare+3))
}

// TestSpareOfALargerMap: a spare file that is too small for the map, and finds no room to grow, keeps what it has.
func TestSpareOfALargerMap(t *testing.T) {
	dir := t.TempDir()
	if err := mountSmall(t, dir); err != nil {
		t.Skip("no tmpfs can be mounted: ", err)
	}
	s := newSpare(dir)
	now := time.Now()
	s.refill(now)
	if err := s.write(mapName, strings.Repeat("m", leastSpare)); err != nil {
		t.Fatal(err)
	}
	for _, others := range []string{"all", "more"} { // the second time all that was given up
		fillUp(t, filepath.Join(dir, others))
		now = now.Add(spareEvery)
		s.refill(now)
	}
	if err := s.write(promisesName, strings.Repeat("p", leastSpare/2)); err != nil {
		t.Error(err)
	}
}
