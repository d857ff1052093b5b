package kvclient

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"tidemark/kv/connstr"
)

// srvTimeout bounds the DNS request.
const srvTimeout = 5 * time.Second

// Resolver looks up the DNS records of services; *net.Resolver implements it.
type Resolver interface {
	LookupSRV(ctx context.Context, service, proto, name string) (cname string, records []*net.SRV, err error)
}

// Seeds returns the addresses through which a Client finds the cluster that spec names: the nodes in its DNS SRV
// record, or else the hosts in spec. note, unless empty, is a notice for the user. As in Couchbase's SDKs, a failed
// DNS request is not an error. A nil resolver is the system's.
func Seeds(ctx context.Context, spec connstr.Spec, tls bool, resolver Resolver) (addrs []string,
	note string) {
	service, name, ok := spec.SRV()
	if !ok {
		return spec.Addrs(tls), ""
	}
	if resolver == nil {
		resolver = net.DefaultResolver
	}
	ctx, cancel := context.WithTimeout(ctx, srvTimeout)
	defer cancel()
	_, records, err := resolver.LookupSRV(ctx, service, "tcp", name)
	record := fmt.Sprintf("_%s._tcp.%s", service, name)
	for _, r := range records {
		if host := strings.TrimSuffix(r.Target, "."); host != "" {
			addrs = append(addrs, connstr.Host{Name: host, Port: int(r.Port)}.Addr(tls))
		}
	}
	switch missing := (*net.DNSError)(nil); {
	case len(addrs) > connstr.MaxHosts:
		note = fmt.Sprintf("the DNS has %d nodes under %s: the first %d are tried, and the cluster names the others",
			len(addrs), record, connstr.MaxHosts)
		return addrs[:connstr.MaxHosts], note
	case len(addrs) > 0:
		return addrs, ""
	case errors.As(err, &missing) && missing.IsNotFound:
		return spec.Addrs(tls), ""
	}
	return spec.Addrs(tls), fmt.Sprintf("the DNS has no record %s (%v): %s itself is used as a node", record,
		cmp.Or(err, errors.New("it has no node")), name)
}
