package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

var (
	// ErrUnreached is wrapped while no server has accepted a connection of this client: no server has received the call.
	ErrUnreached = errors.New("no server could be reached")
	// ErrUntrusted is wrapped if every server has an untrusted certificate, does not use TLS although it was configured,
	// or rejects the certificate of this client: no server has received the call.
	ErrUntrusted = errors.New("no server is trusted, or none trusts this client")
)

// reach tracks a call from server to server and decides when retrying is useless: no server is trusted, or none was
// reached for Options.ReachFor. It is for one goroutine.
type reach struct {
	c         *Client
	began     time.Time
	attempts  int
	connected atomic.Bool      // in the present attempt
	untrusted map[string]error // by server
	unreached map[string]error // by server, until one is reached
}

func (c *Client) reach() *reach {
	return &reach{c: c, began: time.Now()}
}

// attempt returns the context of the next attempt.
func (r *reach) attempt(ctx context.Context) context.Context {
	r.attempts++
	if r.c.reached.Load() {
		return ctx
	}
	r.connected.Store(false)
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { r.connected.Store(true) },
		ConnectDone: func(_, _ string, err error) {
			if err == nil {
				r.connected.Store(true)
			}
		}})
}

// failed records the error of an attempt. over reports that the call has failed with the returned error.
func (r *reach) failed(server string, err error) (_ error, over bool) {
	if r.untrusted == nil { // allocated late: a call that is answered at once needs none
		r.untrusted, r.unreached = map[string]error{}, map[string]error{}
	}
	untrusted := distrusted(err)
	if untrusted {
		r.untrusted[server] = err
	} else {
		delete(r.untrusted, server)
	}
	if len(r.untrusted) == len(r.c.servers) {
		return fmt.Errorf("%w: %s; the trusted CA must be the cluster's, the address one that the server's "+
			"certificate has, and the client's certificate must be issued by that CA", ErrUntrusted, r.each(r.untrusted)), true
	}
	if r.connected.Load() && !untrusted {
		r.c.reached.Store(true)
	}
	if r.c.reached.Load() {
		return err, false
	}
	r.unreached[server] = err
	// An attempt may take longer than the time that was left.
	if took := time.Since(r.began); r.c.reachFor > 0 && r.attempts >= len(r.c.servers) && took >= r.c.reachFor {
		return fmt.Errorf("%w: %w in %v: %s; check that these are managers of the cluster and that it runs", ErrUnavailable,
			ErrUnreached, took.Round(100*time.Millisecond), r.each(r.unreached)), true
	}
	return fmt.Errorf("%w: %w", ErrUnreached, err), false
}

// each lists the servers, each with its error.
func (r *reach) each(errs map[string]error) string {
	var list []string
	for _, server := range r.c.servers {
		err := errs[server]
		if u := (*url.Error)(nil); errors.As(err, &u) { // it repeats the address
			err = u.Err
		}
		if err != nil {
			list = append(list, server+": "+err.Error())
		}
	}
	return strings.Join(list, "; ")
}

// refusedCertificate lists the TLS alerts with which a server rejects a certificate (RFC 8446, 6.2).
var refusedCertificate = []string{"bad certificate", "unsupported certificate", "revoked certificate",
	"expired certificate", "unknown certificate", "unknown certificate authority", "certificate required"}

// distrusted reports whether a server's identity could not be verified, or the server rejected this client's
// certificate. Retrying does not help.
func distrusted(err error) bool {
	for _, is := range []any{new(*tls.CertificateVerificationError), new(x509.UnknownAuthorityError),
		new(x509.HostnameError), new(x509.CertificateInvalidError)} {
		if errors.As(err, is) {
			return true
		}
	}
	if alert := (*net.OpError)(nil); errors.As(err, &alert) && alert.Op == "remote error" { // as crypto/tls names it
		return slices.Contains(refusedCertificate, strings.TrimPrefix(alert.Err.Error(), "tls: "))
	}
	return errors.Is(err, http.ErrSchemeMismatch)
}
