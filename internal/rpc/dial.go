package rpc

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"time"
)

const (
	dialTimeout = 2 * time.Second
	// dialStagger is how long the addresses of a name that were tried may be silent before the next one is tried, too;
	// less if otherwise there were no time for all (staggerOf).
	dialStagger = 250 * time.Millisecond
	maxDialed   = 16 // addresses of a name that are tried
)

// dialer connects to host:port. Of a name's addresses the next one is tried as soon as one has failed, or none has
// answered for a while: net.Dialer would give all the time that there is to one that drops packets.
type dialer struct {
	one    func(ctx context.Context, network, addr string) (net.Conn, error)
	lookup func(ctx context.Context, host string) ([]net.IPAddr, error)
}

func newDialer() *dialer {
	return &dialer{(&net.Dialer{Timeout: dialTimeout, KeepAlive: 5 * time.Second}).DialContext,
		net.DefaultResolver.LookupIPAddr}
}

// Dial connects to host:port, at whichever of a name's addresses answers, within 2 s, the lookup included. The error is
// that of the lookup or of an address: refused only if all of them refuse.
func Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	return newDialer().dial(ctx, network, addr)
}

func (d *dialer) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(addr)
	if _, literal := netip.ParseAddr(host); err != nil || host == "" || literal == nil {
		return d.one(ctx, network, addr)
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	addresses, err := d.lookup(ctx, host)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: err}
	}
	all := make([]string, min(len(addresses), maxDialed))
	for i := range all {
		all[i] = net.JoinHostPort(addresses[i].String(), port)
	}
	return d.first(ctx, network, all)
}

// dialed is the outcome of one address.
type dialed struct {
	conn net.Conn
	err  error
}

// first returns the first connection to one of the addresses, and closes others that come later.
func (d *dialer) first(ctx context.Context, network string, all []string) (net.Conn, error) {
	outcomes, open := make(chan dialed, len(all)), 0
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		go closeLater(outcomes, open)
	}()
	next := time.NewTicker(staggerOf(ctx, len(all)))
	defer next.Stop()
	failure := errors.New("the name has no address")
	for tried := 0; tried < len(all) || open > 0; {
		if tried < len(all) {
			addr := all[tried]
			tried++
			open++
			go func() {
				conn, err := d.one(ctx, network, addr)
				outcomes <- dialed{conn, err}
			}()
		}
		select {
		case o := <-outcomes:
			open--
			if o.err == nil {
				return o.conn, nil
			}
			// That one refuses does not show that the server is dead while others are silent.
			if tried-open == 1 || errors.Is(failure, syscall.ECONNREFUSED) {
				failure = o.err
			}
		case <-next.C:
		}
	}
	return nil, failure
}

// staggerOf returns the pause between two of n addresses that leaves the last one as long to answer as each of the
// others, if the context has a deadline.
func staggerOf(ctx context.Context, n int) time.Duration {
	ends, limited := ctx.Deadline()
	if !limited {
		return dialStagger
	}
	return max(min(dialStagger, time.Until(ends)/time.Duration(n+1)), time.Millisecond) // a ticker needs a pause
}

func closeLater(outcomes <-chan dialed, open int) {
	for range open {
		if o := <-outcomes; o.conn != nil {
			_ = o.conn.Close()
		}
	}
}

// handshakeTimeout limits the handshake of TLS.
const handshakeTimeout = 5 * time.Second

// dialTLS connects to a server that has to prove its name. net/http would look for a certificate with the zone of an
// IPv6 address.
func dialTLS(ctx context.Context, dial func(ctx context.Context, network, addr string) (net.Conn, error), network,
	addr string, conf *tls.Config) (net.Conn, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	own := conf.Clone()
	own.ServerName, _, _ = strings.Cut(host, "%")
	conn, err := dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	secure := tls.Client(conn, own)
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return secure, nil
}
