package consensus

import (
	"net"
)

// Bounds of accepted connections. One that has not greeted yet costs who opened it nothing, so there are few; members
// have places of their own, which nobody else can fill.
const (
	silentPerAddress = 16  // that have not greeted, from one address
	silentAtOnce     = 64  // from all
	strangersAtOnce  = 16  // that have greeted, of servers that are no members
	perMember        = 32  // that have greeted, of one member: a pipeline and a few idle ones are usual
	knownAddresses   = 256 // from which members have greeted
)

// places are the accepted connections. Where there are too many of a kind, the oldest of it goes: who is cut off for
// nothing dials again. A caller holds the stream's lock.
type places struct {
	order  uint64
	of     map[*guarded]*place
	member map[string]bool // addresses from which members have greeted
}

// place is what is known of a connection.
type place struct {
	order   uint64
	address string
	greeted bool
	id      string // of a member that has greeted
}

func newPlaces() *places { return &places{of: map[*guarded]*place{}, member: map[string]bool{}} }

// add takes a connection in that has not greeted; victim, unless nil, has to go.
func (p *places) add(g *guarded, remote net.Addr) (victim *guarded) {
	p.order++
	own := &place{order: p.order, address: hostOf(remote)}
	p.of[g] = own
	silent := map[string]int{}
	all := 0
	for _, c := range p.of {
		if !c.greeted {
			silent[c.address]++
			all++
		}
	}
	switch {
	case silent[own.address] > silentPerAddress:
		return p.oldest(func(c *place) bool { return !c.greeted && c.address == own.address })
	case all > silentAtOnce:
		most, address := 0, ""
		for a, n := range silent {
			if !p.member[a] && (n > most || n == most && a < address) {
				most, address = n, a
			}
		}
		return p.oldest(func(c *place) bool { return !c.greeted && (most == 0 || c.address == address) })
	}
	return nil
}

// greeted notes that a connection is of a server, which may be a member; victim, unless nil, has to go.
func (p *places) greeted(g *guarded, id string, member bool) (victim *guarded) {
	own := p.of[g]
	if own == nil {
		return nil
	}
	own.greeted = true
	most := strangersAtOnce
	if member {
		own.id, most = id, perMember
		if len(p.member) >= knownAddresses {
			clear(p.member) // those that are there greet again before long
		}
		p.member[own.address] = true
	}
	alike := func(c *place) bool { return c.greeted && c.id == own.id }
	n := 0
	for _, c := range p.of {
		if alike(c) {
			n++
		}
	}
	if n > most {
		return p.oldest(alike)
	}
	return nil
}

func (p *places) oldest(of func(*place) bool) (found *guarded) {
	for g, c := range p.of {
		if of(c) && (found == nil || c.order < p.of[found].order) {
			found = g
		}
	}
	return found
}

// hostOf returns the address without the port.
func hostOf(a net.Addr) string {
	if a == nil {
		return ""
	}
	host, _, err := net.SplitHostPort(a.String())
	if err != nil {
		return a.String()
	}
	return host
}
