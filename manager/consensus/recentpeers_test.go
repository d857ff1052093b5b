package consensus

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestRecentPeers: a caller of the same cluster gets the address of the callee's REST interface, another caller does
// not; the newest addresses are kept, each once. A caller that is refused gets the address, too.
func TestRecentPeers(t *testing.T) {
	const rest = "https://m1:9500"
	for name, c := range map[string]struct {
		caller, callee string
		recent         []string
	}{
		"same cluster":          {"0123456789abcdef", "0123456789abcdef", []string{rest}},
		"caller has none":       {"", "0123456789abcdef", nil},
		"callee has none":       {"0123456789abcdef", "", nil},
		"neither has one":       {"", "", nil},
		"refused, another one":  {"fedcba9876543210", "0123456789abcdef", nil},
		"refused, another name": {"0123456789abcdef", "0123456789abcdef", []string{rest}},
	} {
		t.Run(name, func(t *testing.T) {
			of := func(id, cluster, rest string) *stream {
				return &stream{id: id, rest: rest, clusterID: func() string { return cluster },
					epoch: func() uint64 { return 1 }, member: func(string) bool { return true }}
			}
			caller, callee := of("m2", c.caller, "https://m2:9500"), of("m1", c.callee, rest)
			ours, theirs := net.Pipe()
			defer ours.Close()
			go func() {
				defer theirs.Close()
				if who, err := readHandshake(theirs); err == nil {
					_, _ = theirs.Write(callee.answer(who).encode())
				}
			}()
			wants := "m1"
			if name == "refused, another name" {
				wants = "m3"
			}
			err := caller.handshake(ours, wants, time.Minute)
			if refused := strings.HasPrefix(name, "refused"); errors.Is(err, ErrRefused) != refused {
				t.Errorf("handshake: %v", err)
			}
			if !slices.Equal(caller.recentPeers, c.recent) {
				t.Errorf("recent peers %q, want %q", caller.recentPeers, c.recent)
			}
		})
	}
	t.Run("bounded", func(t *testing.T) {
		s := &stream{rest: "http://own"}
		for i := range 3 * maxRecentPeers {
			s.notePeer(fmt.Sprint("http://", i))
			s.notePeer("http://often")
			s.notePeer("")
			s.notePeer("https://other")
		}
		if len(s.recentPeers) != maxRecentPeers || s.recentPeers[maxRecentPeers-1] != "http://often" ||
			s.recentPeers[maxRecentPeers-2] != fmt.Sprint("http://", 3*maxRecentPeers-1) {
			t.Errorf("%d addresses: %q", len(s.recentPeers), s.recentPeers)
		}
	})
}
