package localcluster

import (
	"fmt"
	"net"
	"strconv"
)

// portChooser chooses free loopback ports, one after the other, and holds them until release so that none is chosen
// twice.
type portChooser struct {
	next int
	held []net.Listener
	err  error
}

// take returns the next free host:port; after an error it returns "".
func (p *portChooser) take() string {
	if p.err != nil {
		return ""
	}
	for range portsToTry {
		addr := net.JoinHostPort(loopback, strconv.Itoa(p.next))
		p.next++
		l, err := net.Listen("tcp", addr)
		if err == nil {
			p.held = append(p.held, l)
			return addr
		}
	}
	p.err = fmt.Errorf("no free port among %d to %d on %s", p.next-portsToTry, p.next-1, loopback)
	return ""
}

func (p *portChooser) release() {
	for _, l := range p.held {
		_ = l.Close()
	}
}

// portFree returns an error if addr cannot be listened on.
func portFree(addr string) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	return l.Close()
}
