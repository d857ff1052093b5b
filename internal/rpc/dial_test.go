package rpc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// TestAddressesOfAName checks that a name is reached at any of its addresses, whatever the others do, within the time
// of one, and that no connection is left.
func TestAddressesOfAName(t *testing.T) {
	for _, tc := range []struct {
		name      string
		addresses []string // what each does, and its number
		want      string   // the address, or the error
		within    time.Duration
	}{
		{"one address", []string{"good"}, "good.1:7", 0},
		{"the first is dead", []string{"drops", "good"}, "good.2:7", dialStagger},
		{"two are dead", []string{"drops", "drops", "good"}, "good.3:7", 2 * dialStagger},
		{"nothing listens at the first", []string{"refuses", "good"}, "good.2:7", 0},
		{"the first is slow", []string{"slow", "good"}, "good.2:7", dialStagger},
		{"both are slow", []string{"slow", "slow"}, "slow.1:7", 2 * dialStagger},
		{"all refuse", []string{"refuses", "refuses"}, "connection refused", 0},
		{"one refuses and one is silent", []string{"refuses", "drops"}, "deadline exceeded", dialTimeout},
		{"one is silent and one refuses", []string{"drops", "refuses"}, "deadline exceeded", dialTimeout},
		{"no address", nil, "no address", 0},
		{"most are dead", append(slices.Repeat([]string{"drops"}, maxDialed-1), "good"), "good.16:7", dialTimeout},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { reach(t, dialTimeout, tc.addresses, tc.want, tc.within) })
		})
	}
}

// TestAddressesInShortTime checks that all addresses of a name are tried also if the caller has less time than Dial,
// and that too little time for any is no panic.
func TestAddressesInShortTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reach(t, 500*time.Millisecond, []string{"drops", "drops", "drops", "good"}, "good.4:7", 300*time.Millisecond)
	})
	synctest.Test(t, func(t *testing.T) { reach(t, 0, []string{"drops", "good"}, "deadline exceeded", 0) })
}

// zoned returns an address that is written as kind.number:7 in tests.
func zoned(kind string, n int) net.IPAddr {
	return net.IPAddr{IP: net.IPv4(127, 0, 0, byte(n)), Zone: kind}
}

func reach(t *testing.T, limit time.Duration, kinds []string, want string, within time.Duration) {
	var mu sync.Mutex
	var open []net.Conn
	names := map[string]string{} // address: what it does, and its number
	var list []net.IPAddr
	for i, kind := range kinds {
		a := zoned(kind, i+1)
		list = append(list, a)
		names[net.JoinHostPort(a.String(), "7")] = fmt.Sprintf("%s.%d:7", kind, i+1)
	}
	connected := map[net.Conn]string{}
	d := &dialer{lookup: func(context.Context, string) ([]net.IPAddr, error) { return list, nil },
		one: func(ctx context.Context, _, addr string) (net.Conn, error) {
			if ctx.Err() != nil { // as net.Dialer does
				return nil, ctx.Err()
			}
			name := names[addr]
			switch kind, _, _ := strings.Cut(name, "."); kind {
			case "refuses":
				return nil, &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
			case "drops":
				<-ctx.Done()
				return nil, ctx.Err()
			case "slow": // and does not notice that nobody waits any more
				time.Sleep(2 * dialStagger)
			}
			ours, theirs := net.Pipe()
			mu.Lock()
			defer mu.Unlock()
			open, connected[ours] = append(open, theirs), name
			return ours, nil
		}}
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	conn, err := d.dial(ctx, "tcp", "managers.example.org:7")
	took := time.Since(began)
	synctest.Wait()
	time.Sleep(3 * dialStagger)
	synctest.Wait()
	mu.Lock()
	defer mu.Unlock()
	switch {
	case took > within:
		t.Errorf("it took %v, want at most %v", took, within)
	case conn == nil && (err == nil || !strings.Contains(err.Error(), want)):
		t.Errorf("%v, want %s", err, want)
	case conn != nil && connected[conn] != want:
		t.Errorf("connected to %s, want %s", connected[conn], want)
	}
	if conn != nil {
		_ = conn.Close()
	}
	for _, theirs := range open {
		if _, err := theirs.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a connection is left: %v", err)
		}
	}
}
