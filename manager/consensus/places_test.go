package consensus

import (
	"fmt"
	"math/rand"
	"testing"
)

type remote string

func (r remote) Network() string { return "tcp" }
func (r remote) String() string  { return string(r) }

// TestPlacesOfMembers: the number of connections is bounded. Identified connections of members stay as long as each
// member has few, and a member that reconnects from a known address can complete its handshake even while hundreds of
// silent connections come from elsewhere.
func TestPlacesOfMembers(t *testing.T) {
	for seed := range int64(50) {
		r := rand.New(rand.NewSource(seed))
		p := newPlaces()
		closed := map[*guarded]bool{}
		drop := func(g *guarded) {
			if g != nil {
				closed[g] = true
				delete(p.of, g)
			}
		}
		open := func(from string) *guarded {
			g := &guarded{}
			drop(p.add(g, remote(from)))
			return g
		}
		var members []*guarded
		for i := range 8 {
			g := open(fmt.Sprintf("10.0.0.%d:7", i%4))
			drop(p.identify(g, fmt.Sprint("m", i%4), true))
			members = append(members, g)
		}
		var fresh *guarded
		for range 2000 {
			switch r.Intn(4) {
			case 0: // from many addresses
				open(fmt.Sprintf("192.0.2.%d:1", r.Intn(200)))
			case 1: // from one address
				open("198.51.100.1:1")
			case 2: // non-members that identify themselves
				g := open(fmt.Sprintf("203.0.113.%d:1", r.Intn(20)))
				drop(p.identify(g, fmt.Sprint("x", r.Intn(99)), false))
			case 3: // a member's host opens one, others come, and it identifies itself
				if fresh != nil && r.Intn(3) == 0 {
					if closed[fresh] {
						t.Fatalf("seed %d: a member could not identify itself", seed)
					}
					drop(p.identify(fresh, "m0", true))
					drop(fresh) // and closes it
					fresh = nil
				} else if fresh == nil {
					fresh = open("10.0.0.0:9")
				}
			}
			if most := silentAtOnce + nonMembersAtOnce + len(members) + perMember; len(p.of) > most {
				t.Fatalf("seed %d: %d connections, at most %d", seed, len(p.of), most)
			}
		}
		for _, g := range members {
			if closed[g] {
				t.Fatalf("seed %d: a member's connection was closed for others' sake", seed)
			}
		}
	}
}
