// Package connstr parses how the nodes of a KV cluster are named: a list of addresses, or a connection string as
// Couchbase's SDKs accept it. It only parses: the caller looks up names in the DNS, and chooses the port by whether
// it uses TLS.
package connstr

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// ErrString is wrapped if a text names no nodes; the message states what is wrong and what is expected.
var ErrString = errors.New("no connection string")

// The schemes. Without a scheme, another setting decides about TLS.
const (
	Scheme    = "couchbase"
	SchemeTLS = "couchbases"
	// SchemeREST and SchemeRESTTLS name cluster managers, which return the addresses of the nodes.
	SchemeREST    = "http"
	SchemeRESTTLS = "https"
)

// Default ports of the memcached protocol.
const (
	Port    = 11210
	PortTLS = 11207
	// PortREST and PortRESTTLS are the default ports of a cluster manager.
	PortREST    = 8091
	PortRESTTLS = 18091
)

// Limits.
const (
	// MaxBytes bounds the text in bytes, MaxHosts the number of hosts in it.
	MaxBytes = 4096
	MaxHosts = 64
	// maxHostBytes is the length of the longest DNS name.
	maxHostBytes = 253
)

// wanted is the end of each error message.
const wanted = "want host:port, host,host2, couchbase[s]://host,host2[/bucket][?network=default|external|auto], or " +
	"http[s]://host for cluster managers"

// Host is one of the named nodes.
type Host struct {
	Name string // or an address; IPv6 without brackets
	Port int    // 0: not given
}

// Spec is a parsed text.
type Spec struct {
	// Scheme is one of the schemes above, or empty.
	Scheme string
	Hosts  []Host // at least one
	Bucket string
	// Network selects which addresses of the cluster map are used; empty to detect it.
	Network string
}

// Parse parses a text. Error: ErrString.
func Parse(text string) (Spec, error) {
	s, err := parse(text)
	if err != nil {
		if at := strings.LastIndexByte(text, '@'); at >= 0 { // the part before the @ may contain a password
			text = "…" + text[at:]
		}
		if len(text) > maxHostBytes {
			text = text[:maxHostBytes] + "…"
		}
		return Spec{}, fmt.Errorf("%w: %q: %w; %s", ErrString, text, err, wanted)
	}
	return s, nil
}

func parse(text string) (s Spec, err error) {
	if len(text) > MaxBytes {
		return s, fmt.Errorf("it has %d bytes; the limit is %d", len(text), MaxBytes)
	}
	rest := text
	if scheme, after, ok := strings.Cut(text, "://"); ok {
		rest = after
		switch s.Scheme = strings.ToLower(scheme); s.Scheme {
		case Scheme, SchemeTLS, SchemeREST, SchemeRESTTLS:
		default:
			return s, fmt.Errorf("the scheme %q is unknown", scheme)
		}
	}
	if strings.Contains(rest, "@") {
		return s, errors.New("user and password may not be in it; use their flags")
	}
	rest, options, _ := strings.Cut(rest, "?")
	rest, s.Bucket, _ = strings.Cut(rest, "/")
	if s.Scheme == "" && (s.Bucket != "" || options != "") {
		return s, errors.New("a bucket or an option needs a scheme before it")
	}
	if s.Bucket, err = url.PathUnescape(s.Bucket); err != nil || strings.Contains(s.Bucket, "/") {
		return s, errors.New("the part after the hosts is not a bucket name")
	}
	if s.Network, err = network(options); err != nil {
		return s, err
	}
	s.Hosts, err = hosts(rest, s.REST())
	return s, err
}

// network parses the options, of which there is only one.
func network(options string) (name string, err error) {
	values, err := url.ParseQuery(options)
	if err != nil {
		return "", fmt.Errorf("the options are malformed: %w", err)
	}
	for key, v := range values {
		switch {
		case key != "network":
			return "", fmt.Errorf("the option %q is not supported: network is the only one, the others are flags", key)
		case len(v) != 1 || v[0] == "":
			return "", errors.New("the option network is given without a value, or twice")
		}
		if name = v[0]; name == "auto" {
			name = ""
		}
	}
	return name, nil
}

// hosts parses a list of hosts; rest means that they are cluster managers.
func hosts(list string, rest bool) (out []Host, err error) {
	for _, one := range strings.FieldsFunc(list+",", func(r rune) bool { return r == ',' || r == ';' }) {
		if len(out) == MaxHosts {
			return nil, fmt.Errorf("it has more than %d hosts; a few are enough, the cluster reports the others", MaxHosts)
		}
		h, err := host(strings.TrimSpace(one), rest)
		if err != nil {
			return nil, err
		}
		out = append(out, h)
	}
	if len(out) == 0 {
		return nil, errors.New("it has no host")
	}
	return out, nil
}

// host parses one host: a name, an address, or an IPv6 address with or without brackets, with an optional port.
func host(text string, rest bool) (h Host, err error) {
	name, port, err := split(text)
	if err == nil {
		err = checkName(name)
	}
	if err != nil {
		return h, err
	}
	h.Name = name
	if port != "" {
		h.Port, err = portOf(port, rest)
	}
	return h, err
}

// split separates the host from its port, which is empty if it is not given.
func split(text string) (name, port string, err error) {
	if strings.HasPrefix(text, "[") {
		return splitBrackets(text)
	}
	if strings.Count(text, ":") > 1 {
		if a, err := netip.ParseAddr(text); err != nil || !a.Is6() {
			return "", "", fmt.Errorf("%q is not a host: put an IPv6 address with a port in brackets", text)
		}
		return text, "", nil
	}
	name, port, colon := strings.Cut(text, ":")
	if colon && port == "" {
		return "", "", fmt.Errorf("%q has a colon but no port", text)
	}
	return name, port, nil
}

// splitBrackets is split for [address] and [address]:port.
func splitBrackets(text string) (name, port string, err error) {
	name, after, closed := strings.Cut(text[1:], "]")
	if !closed {
		return "", "", fmt.Errorf("the bracket of %q is not closed", text)
	}
	if a, err := netip.ParseAddr(name); err != nil || !a.Is6() {
		return "", "", fmt.Errorf("%q is not an IPv6 address", name)
	}
	port, colon := strings.CutPrefix(after, ":")
	switch {
	case after != "" && !colon:
		return "", "", fmt.Errorf("%q follows an address", after)
	case colon && port == "":
		return "", "", fmt.Errorf("%q has a colon but no port", text)
	}
	return name, port, nil
}

// portOf parses a port of a node or, with rest, of a cluster manager.
func portOf(text string, rest bool) (int, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	switch {
	case err != nil || n == 0:
		return 0, fmt.Errorf("%q is not a port", text)
	case rest && (n == Port || n == PortTLS):
		return 0, fmt.Errorf("%d is a port for documents; a cluster manager (REST) is at %d, with TLS at %d", n, PortREST,
			PortRESTTLS)
	case !rest && (n == PortREST || n == PortRESTTLS):
		return 0, fmt.Errorf("%d is the port of a cluster manager (REST): write http://HOST:%d or https://HOST:%d; documents "+
			"are at %d, with TLS at %d", n, PortREST, PortRESTTLS, Port, PortTLS)
	}
	return int(n), nil
}

func isAlphanumeric(r rune) bool {
	return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9'
}

// checkName refuses a text that is neither a name nor an address.
func checkName(name string) error {
	if _, err := netip.ParseAddr(name); err == nil {
		return nil
	}
	if name == "" || len(name) > maxHostBytes {
		return fmt.Errorf("a host's name has 1 to %d bytes, %q has %d", maxHostBytes, shortened(name), len(name))
	}
	for _, r := range name {
		if !isAlphanumeric(r) && !strings.ContainsRune(".-_", r) {
			return fmt.Errorf("%q is not allowed in a host name", r)
		}
	}
	return nil
}

func shortened(text string) string {
	const most = 40
	if len(text) > most {
		return text[:most] + "…"
	}
	return text
}

// TLS reports whether to use TLS; asked is the answer if there is no scheme.
func (s Spec) TLS(asked bool) bool {
	return s.Scheme == SchemeTLS || s.Scheme == SchemeRESTTLS || s.Scheme == "" && asked
}

// REST reports whether the hosts are cluster managers.
func (s Spec) REST() bool { return s.Scheme == SchemeREST || s.Scheme == SchemeRESTTLS }

// Managers returns the cluster managers as host:port; none if the hosts are nodes.
func (s Spec) Managers() (out []string) {
	if !s.REST() {
		return nil
	}
	for _, h := range s.Hosts {
		if h.Port == 0 {
			if h.Port = PortREST; s.Scheme == SchemeRESTTLS {
				h.Port = PortRESTTLS
			}
		}
		out = append(out, h.Addr(false))
	}
	return out
}

// Addrs returns the hosts with their ports, for a dialer.
func (s Spec) Addrs(tls bool) []string {
	out := make([]string, len(s.Hosts))
	for i, h := range s.Hosts {
		out[i] = h.Addr(tls)
	}
	return out
}

// Addr returns the host with its port, for a dialer.
func (h Host) Addr(tls bool) string {
	port := h.Port
	switch {
	case port != 0:
	case tls:
		port = PortTLS
	default:
		port = Port
	}
	name := h.Name
	if strings.Contains(name, ":") {
		name = "[" + name + "]"
	}
	return name + ":" + strconv.Itoa(port)
}

// SRV returns service and host of the DNS SRV record that may list the nodes. There is one only for a single host
// name without a port, behind a scheme; otherwise ok is false, and the hosts are the nodes.
func (s Spec) SRV() (service, name string, ok bool) {
	if s.Scheme == "" || s.REST() || len(s.Hosts) != 1 || s.Hosts[0].Port != 0 {
		return "", "", false
	}
	if _, err := netip.ParseAddr(s.Hosts[0].Name); err == nil {
		return "", "", false
	}
	return s.Scheme, s.Hosts[0].Name, true
}
