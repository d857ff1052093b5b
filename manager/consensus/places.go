package consensus

import (
	"net"
)

// Bounds on accepted connections. A connection without a handshake cost its opener nothing, so only few are allowed.
// Members have slots of their own, which no other server can fill.
const (
	silentPerAddress = 16  // without a handshake, per remote address
	silentAtOnce     = 64  // without a handshake, in total
	nonMembersAtOnce = 16  // identified, from servers that are not members
	perMember        = 32  // identified, per member: a pipeline and a few idle ones are usual
	knownAddresses   = 256 // remote addresses from which members have identified themselves
)

// places tracks the accepted connections. If there are too many of a kind, the oldest of that kind is closed: a
// legitimate peer that loses its connection dials again. Callers hold the stream's lock.
type places struct {
	order  uint64
	of     map[*guarded]*place
	member map[string]bool // addresses from which members have identified themselves
}

// place describes one accepted connection.
type place struct {
	order      uint64
	address    string
	identified bool
	id         string // server id, if it is an identified member
}

func newPlaces() *places { return &places{of: map[*guarded]*place{}, member: map[string]bool{}} }

// add records a new connection, without a handshake so far; the caller must close victim, unless it is nil.
func (p *places) add(g *guarded, remote net.Addr) (victim *guarded) {
	p.order++
	own := &place{order: p.order, address: hostOf(remote)}
	p.of[g] = own
	silent := map[string]int{}
	all := 0
	for _, c := range p.of {
		if !c.identified {
			silent[c.address]++
			all++
		}
	}
	switch {
	case silent[own.address] > silentPerAddress:
		return p.oldest(func(c *place) bool { return !c.identified && c.address == own.address })
	case all > silentAtOnce:
		most, address := 0, ""
		for a, n := range silent {
			if !p.member[a] && (n > most || n == most && a < address) {
				most, address = n, a
			}
		}
		return p.oldest(func(c *place) bool { return !c.identified && (most == 0 || c.address == address) })
	}
	return nil
}

// identify records that a connection comes from a server, which may be a member; the caller must close victim, unless
// it is nil.
func (p *places) identify(g *guarded, id string, member bool) (victim *guarded) {
	own := p.of[g]
	if own == nil {
		return nil
	}
	own.identified = true
	most := nonMembersAtOnce
	if member {
		own.id, most = id, perMember
		if len(p.member) >= knownAddresses {
			clear(p.member) // connected members soon dial again
		}
		p.member[own.address] = true
	}
	alike := func(c *place) bool { return c.identified && c.id == own.id }
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

// known returns the connections that have identified themselves, with the server ids of members.
func (p *places) known() map[*guarded]string {
	found := map[*guarded]string{}
	for g, c := range p.of {
		if c.identified {
			found[g] = c.id
		}
	}
	return found
}

func (p *places) oldest(of func(*place) bool) (found *guarded) {
	for g, c := range p.of {
		if of(c) && (found == nil || c.order < p.of[found].order) {
			found = g
		}
	}
	return found
}

// hostOf returns an address without its port.
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
