package ports

import (
	"bufio"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// TestRangesAreNotShared checks that two tests of a process, or two processes, never share a range, and that a range
// is free again after its test has ended or its process was killed.
func TestRangesAreNotShared(t *testing.T) {
	if os.Getenv("TIDEMARK_TEST_RANGE") != "" { // the other process prints its range and waits to be killed
		_, _ = os.Stdout.WriteString("range " + strconv.Itoa(Range(t)) + "\n")
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
		return
	}
	taken := map[int]bool{}
	for range 3 {
		taken[Range(t)] = true
	}
	cmd := exec.Command(os.Args[0], "-test.run", "^TestRangesAreNotShared$")
	cmd.Env = append(os.Environ(), "TIDEMARK_TEST_RANGE=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(line, "range ")))
	if err != nil {
		t.Fatal(err)
	}
	taken[theirs] = true
	if len(taken) != 4 {
		t.Fatalf("a range was given twice: %v", taken)
	}
	if l, err := net.Listen("tcp", address(theirs+Size)); err == nil {
		_ = l.Close()
		t.Error("the range of another process is not held")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed on purpose
	var ended int
	t.Run("a test that ends", func(t *testing.T) { ended = Range(t) })
	for _, base := range []int{theirs, ended} {
		l, err := net.Listen("tcp", address(base+Size))
		if err != nil {
			t.Errorf("range %d is still held: %v", base, err)
			continue
		}
		_ = l.Close() // both may be the same range
	}
}

// TestPortInUse checks that a range is not given out while a program that does not use this package listens in it.
func TestPortInUse(t *testing.T) {
	base := Range(t)
	if err := allFree(base); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", address(base+Size/2))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if allFree(base) == nil {
		t.Error("a port in use was not seen")
	}
}

// TestAddrs checks that no address is given out twice at a time, and that those of a finished test are reused.
func TestAddrs(t *testing.T) {
	seen := map[string]bool{}
	t.Run("first", func(t *testing.T) {
		for _, n := range []int{1, Size, 7} {
			for _, a := range Addrs(t, n) {
				if seen[a] {
					t.Errorf("%s was given twice", a)
				}
				seen[a] = true
			}
		}
	})
	held := len(pool.guards)
	for range 3 {
		t.Run("again", func(t *testing.T) { Addrs(t, Size) })
	}
	if len(pool.guards) != held {
		t.Errorf("%d ranges after %d", len(pool.guards), held)
	}
}
