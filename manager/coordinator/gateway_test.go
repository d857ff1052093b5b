package coordinator

import (
	"testing"

	"github.com/hashicorp/go-hclog"

	"tidemark/manager/coordinator/core"
	"tidemark/wire"
)

// TestFencesAtAnAddress checks that each command is newer than all that were sent before to its address, whichever
// component they were meant for: the process there has seen them.
func TestFencesAtAnAddress(t *testing.T) {
	g := newGateway(Config{}, wire.Leader{}, hclog.NewNullLogger())
	open := func(to, instead core.Receiver, addr string, counter uint64) {
		g.Do(core.Open{To: to, Instead: instead, Addr: addr, Fence: wire.Fence{ClusterID: "c", Counter: counter}})
	}
	seen := map[string]uint64{}
	check := func(what string, to core.Receiver, addr string) {
		t.Helper()
		f := g.receiver(to).fences.next()
		if f.ClusterID != "c" || f.Counter <= seen[addr] {
			t.Errorf("%s: a command has the fence %+v, the process there has seen counter %d", what, f, seen[addr])
		}
		seen[addr] = f.Counter
	}
	open(1, 0, "x", 100)
	check("the first", 1, "x")
	open(2, 0, "y", 200)
	check("another one", 2, "y")
	open(3, 1, "y", 300) // the first moves to where the second was
	check("the first at the second's address", 3, "y")
	check("the second, which is there all the same", 2, "y")
	check("the first after it", 3, "y")
	open(4, 3, "y", 250) // its process has begun anew; a counter never moves back
	check("the first again", 4, "y")
	open(5, 4, "x", 400)
	check("the first back at its own address", 5, "x")
	check("the second", 2, "y")
}
