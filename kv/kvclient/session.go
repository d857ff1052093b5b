package kvclient

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"tidemark/kv/mcbp"
)

// Defaults of Options.
const (
	DefaultDialTimeout = 5 * time.Second
	DefaultOpTimeout   = 5 * time.Second
)

// MaxAgentName bounds the client's name in HELLO, in bytes.
const MaxAgentName = 180

// Options configure connections and clients.
type Options struct {
	// User and Password authenticate. An empty User skips authentication.
	User, Password string
	// Bucket is selected after authentication; empty selects none.
	Bucket string
	// Collection is the collection of a Client's documents, as "scope.collection"; empty: the default one. The names are
	// resolved when the Client connects.
	Collection string
	// Name identifies the client in the node's logs; at most MaxAgentName bytes are sent.
	Name string
	// Features are requested in addition to those that the handshake itself needs.
	Features []mcbp.Feature
	// TLS encrypts the connection if it is not nil.
	TLS *tls.Config
	// Network selects the addresses of the cluster map that a Client uses: mcbp.NetworkDefault, mcbp.NetworkExternal, or
	// empty for the network to which the seed belongs.
	Network string
	// Maps, unless nil, is a source of the map in addition to the nodes, and returns the host:port of the source: for
	// clusters that are addressed by their managers (restmap), and nodes that do not return a map.
	Maps func(ctx context.Context) (config *mcbp.ClusterConfig, addr string, err error)
	// AllowPlain permits the PLAIN mechanism on a connection without TLS, if the node offers nothing better.
	AllowPlain bool
	// DialTimeout bounds connecting and the whole handshake.
	DialTimeout time.Duration
	// OpTimeout bounds one attempt of one request.
	OpTimeout time.Duration
	// Below, unless nil, wraps the TCP connection; TLS is above it.
	Below func(net.Conn) net.Conn
	// Dialed is called with the result of each attempt to connect, possibly concurrently; it may be nil.
	Dialed func(addr string, err error)
	// Logger logs retries and lost connections; it may be nil.
	Logger hclog.Logger
}

// withDefaults replaces zero values by defaults.
func (o Options) withDefaults() Options {
	if o.DialTimeout <= 0 {
		o.DialTimeout = DefaultDialTimeout
	}
	if o.OpTimeout <= 0 {
		o.OpTimeout = DefaultOpTimeout
	}
	if o.Logger == nil {
		o.Logger = hclog.NewNullLogger()
	}
	if len(o.Name) > MaxAgentName {
		o.Name = o.Name[:MaxAgentName]
	}
	return o
}

// Session is a connection after its handshake: HELLO, SASL, SELECT_BUCKET. It is not safe for concurrent use: one
// goroutine at a time calls RoundTrip, until an owner takes over Conn (feed, Conn). No byte has been read ahead.
type Session struct {
	net.Conn
	granted   []mcbp.Feature
	mechanism string // of the login; empty without one
	selected  bool   // a bucket is selected
	opaque    uint32
}

// Handshake connects to addr and completes the handshake. Errors: those of the network, ErrAuth, ErrNoBucket,
// ErrProtocol.
func Handshake(ctx context.Context, addr string, opt Options) (*Session, error) {
	opt = opt.withDefaults()
	ctx, cancel := context.WithTimeout(ctx, opt.DialTimeout)
	defer cancel()
	var d net.Dialer
	nc, err := d.DialContext(ctx, "tcp", addr)
	if opt.Dialed != nil {
		opt.Dialed(addr, err)
	}
	if err != nil {
		return nil, fmt.Errorf("kvclient: connecting to %s: %w", addr, err)
	}
	if opt.Below != nil {
		nc = opt.Below(nc)
	}
	s := &Session{Conn: nc}
	if opt.TLS != nil {
		if s.Conn, err = HandshakeTLS(ctx, nc, addr, opt.TLS); err != nil {
			_ = nc.Close()
			return nil, fmt.Errorf("kvclient: TLS with %s: %w", addr, err)
		}
	}
	if err := s.login(ctx, opt); err != nil {
		_ = s.Close()
		return nil, fmt.Errorf("%w (node %s, user %q, bucket %q)", err, addr, opt.User, opt.Bucket)
	}
	return s, nil
}

// HandshakeTLS encrypts nc. The server's name is the host of addr unless conf has one. A certificate without other
// names is checked by its common name (byCommonName).
func HandshakeTLS(ctx context.Context, nc net.Conn, addr string, conf *tls.Config) (net.Conn, error) {
	if conf.ServerName == "" && !conf.InsecureSkipVerify {
		name, err := serverName(addr)
		if err != nil {
			return nil, err
		}
		conf = conf.Clone()
		conf.ServerName = name
	}
	tc := tls.Client(nc, byCommonName(conf))
	return tc, tc.HandshakeContext(ctx)
}

// DialTLS connects to addr and encrypts the connection (HandshakeTLS). A nil conf trusts the CAs of the system.
func DialTLS(ctx context.Context, dial func(ctx context.Context, network, addr string) (net.Conn, error), network,
	addr string, conf *tls.Config) (net.Conn, error) {
	conn, err := dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	if conf == nil {
		conf = &tls.Config{}
	}
	secure, err := HandshakeTLS(ctx, conn, addr, conf)
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return secure, nil
}

// serverName returns the name that the certificate of host:port must have, without the IPv6 zone of this machine.
func serverName(addr string) (string, error) {
	host, _, err := net.SplitHostPort(addr)
	host, _, _ = strings.Cut(host, "%")
	return host, err
}

// login runs HELLO, SASL and SELECT_BUCKET.
func (s *Session) login(ctx context.Context, opt Options) error {
	if err := s.hello(ctx, opt); err != nil {
		return err
	}
	if opt.User != "" {
		if err := s.authenticate(ctx, opt); err != nil {
			return err
		}
	}
	if opt.Bucket == "" {
		return nil
	}
	if !s.Granted(mcbp.FeatureSelectBucket) {
		return fmt.Errorf("%w: it does not support selecting a bucket; Couchbase Server 5.0 and later do",
			ErrNotSupported)
	}
	f, err := s.RoundTrip(ctx, mcbp.Frame{Header: mcbp.Request(mcbp.OpSelectBucket, 0, 0), Key: []byte(opt.Bucket)})
	if err != nil {
		return err
	}
	err = NewStatusError(f)
	s.selected = err == nil
	return err
}

// Lapsed reports whether an answer means that this connection has lost its user or bucket on the node: it requires a
// new login, or the bucket was deleted. The connection is useless then, and a new one may succeed.
func (s *Session) Lapsed(status mcbp.Status) bool {
	return status == mcbp.StatusAuthStale || status == mcbp.StatusNoBucket && s.selected
}

// hello negotiates the features.
func (s *Session) hello(ctx context.Context, opt Options) error {
	want := []mcbp.Feature{mcbp.FeatureXerror, mcbp.FeatureSelectBucket, mcbp.FeatureJSON, mcbp.FeatureTCPNoDelay}
	for _, f := range opt.Features {
		if !slices.Contains(want, f) {
			want = append(want, f)
		}
	}
	agent, err := json.Marshal(map[string]string{"a": opt.Name})
	if err != nil {
		return err
	}
	f, err := s.RoundTrip(ctx, mcbp.Frame{Header: mcbp.Request(mcbp.OpHello, 0, 0), Key: agent,
		Value: mcbp.AppendFeatures(nil, want)})
	if err != nil {
		return err
	}
	if err := NewStatusError(f); err != nil {
		return err
	}
	s.granted, err = mcbp.DecodeFeatures(f.Value)
	return err
}

// authenticate runs the best mechanism that both sides support.
func (s *Session) authenticate(ctx context.Context, opt Options) error {
	f, err := s.RoundTrip(ctx, mcbp.Frame{Header: mcbp.Request(mcbp.OpSASLList, 0, 0)})
	if err != nil {
		return err
	}
	if err := NewStatusError(f); err != nil {
		if f.Status() == mcbp.StatusNotSupported && certified(opt.TLS) {
			return nil // the node identifies the user by the certificate, and refuses any other login
		}
		return err
	}
	offered := strings.Fields(string(f.Value))
	plain := slices.Contains(offered, mechPlain)
	for _, m := range []string{mechSHA512, mechSHA256, mechSHA1} {
		if !slices.Contains(offered, m) {
			continue
		}
		s.mechanism = m
		err := s.scram(ctx, m, opt)
		if plain && refused(err) && opt.TLS != nil && !opt.TLS.InsecureSkipVerify {
			return s.plain(ctx, opt) // a node does not have the passwords of LDAP users, which SCRAM requires
		}
		return err
	}
	if !plain {
		return fmt.Errorf("%w: the node offers none of SCRAM-SHA512, SCRAM-SHA256, SCRAM-SHA1, PLAIN", ErrAuth)
	}
	if opt.TLS == nil && !opt.AllowPlain {
		return fmt.Errorf("%w: the node offers only PLAIN, which is not allowed without TLS", ErrAuth)
	}
	return s.plain(ctx, opt)
}

// certified reports whether there is a client certificate.
func certified(conf *tls.Config) bool {
	return conf != nil && (conf.GetClientCertificate != nil || len(conf.Certificates) > 0)
}

// refused reports whether the node refused user and password, as opposed to failing to prove its own identity.
func refused(err error) bool {
	var se *StatusError
	return errors.As(err, &se) && se.Status == mcbp.StatusAuthError
}

// plain sends the password in the clear.
func (s *Session) plain(ctx context.Context, opt Options) error {
	s.mechanism = mechPlain
	f, err := s.RoundTrip(ctx, mcbp.Frame{Header: mcbp.Request(mcbp.OpSASLAuth, 0, 0), Key: []byte(mechPlain),
		Value: []byte("\x00" + opt.User + "\x00" + opt.Password)})
	if err != nil {
		return err
	}
	return NewStatusError(f)
}

// scram runs one SCRAM exchange.
func (s *Session) scram(ctx context.Context, mechanism string, opt Options) error {
	x := newScram(mechanism, opt.User, opt.Password, "")
	f, err := s.RoundTrip(ctx, mcbp.Frame{Header: mcbp.Request(mcbp.OpSASLAuth, 0, 0), Key: []byte(mechanism),
		Value: []byte(x.first())})
	if err != nil {
		return err
	}
	if f.Status() != mcbp.StatusAuthContinue {
		if err := NewStatusError(f); err != nil {
			return err
		}
		return fmt.Errorf("%w: %s ended before the node proved itself", ErrAuth, mechanism)
	}
	proof, err := x.final(string(f.Value))
	if err != nil {
		return err
	}
	f, err = s.RoundTrip(ctx, mcbp.Frame{Header: mcbp.Request(mcbp.OpSASLStep, 0, 0), Key: []byte(mechanism),
		Value: []byte(proof)})
	if err != nil {
		return err
	}
	if err := NewStatusError(f); err != nil {
		return err
	}
	return x.verify(string(f.Value))
}

// Granted reports whether the node granted a feature.
func (s *Session) Granted(f mcbp.Feature) bool { return slices.Contains(s.granted, f) }

// Mechanism returns the SASL mechanism of the login; "" without one, and if a certificate was sufficient.
func (s *Session) Mechanism() string { return s.mechanism }

// RoundTrip sends one request and reads its answer, whatever its status, of at most maxHandshakeBody bytes. It sets
// the opaque, and reads exactly one frame. After an error the connection is unusable.
func (s *Session) RoundTrip(ctx context.Context, req mcbp.Frame) (mcbp.Frame, error) {
	s.opaque++
	req.Opaque = s.opaque
	buf, err := mcbp.Append(nil, req)
	if err != nil {
		return mcbp.Frame{}, err
	}
	// A cancelled context interrupts a blocked read or write by a deadline in the past.
	stop := context.AfterFunc(ctx, func() { _ = s.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	f, err := s.exchange(buf)
	if err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("%w (%w)", context.Cause(ctx), err)
		}
		return mcbp.Frame{}, fmt.Errorf("kvclient: %v: %w", req.Op, err)
	}
	if !stop() {
		return mcbp.Frame{}, fmt.Errorf("kvclient: %v: %w", req.Op, context.Cause(ctx))
	}
	if f.Op != req.Op || f.Opaque != req.Opaque {
		return mcbp.Frame{}, fmt.Errorf("%w: %v (opaque %d) was answered with %v (opaque %d)", ErrProtocol, req.Op,
			req.Opaque, f.Op, f.Opaque)
	}
	return f, nil
}

// maxHandshakeBody bounds the answers of a node that is not authenticated yet: features, mechanisms, SASL, and the
// texts of errors.
const maxHandshakeBody = 64 << 10

// exchange writes buf and reads the next response frame.
func (s *Session) exchange(buf []byte) (mcbp.Frame, error) {
	if _, err := s.Write(buf); err != nil {
		return mcbp.Frame{}, err
	}
	f, err := readFrame(s, maxHandshakeBody)
	if err == nil && !f.Magic.IsResponse() {
		err = fmt.Errorf("%w: the node sent the request %v during the handshake", ErrProtocol, f.Op)
	}
	return f, err
}

// ReadFrame reads one frame of at most mcbp.MaxBody bytes into new memory, which grows with the bytes received, not
// with the length in the header.
func ReadFrame(r io.Reader) (mcbp.Frame, error) { return readFrame(r, mcbp.MaxBody) }

// readFrame is ReadFrame with another limit.
func readFrame(r io.Reader, limit int) (mcbp.Frame, error) {
	var head [mcbp.HeaderSize]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return mcbp.Frame{}, err
	}
	h, err := mcbp.ParseHeader(head[:])
	if err != nil {
		return mcbp.Frame{}, err
	}
	if h.BodyLen > limit {
		return mcbp.Frame{}, fmt.Errorf("%w: %v has a body of %d bytes, at most %d are allowed here", mcbp.ErrTooLarge, h.Op,
			h.BodyLen, limit)
	}
	body, err := readBody(r, h.BodyLen)
	if err != nil {
		return mcbp.Frame{}, err
	}
	return h.Frame(body), nil
}

// bodyChunk is how much memory is allocated for a body before its bytes are received.
const bodyChunk = 1 << 20

// readBody reads exactly n bytes.
func readBody(r io.Reader, n int) ([]byte, error) {
	if n <= bodyChunk {
		body := make([]byte, n)
		_, err := io.ReadFull(r, body)
		return body, noEOF(err)
	}
	var b bytes.Buffer
	b.Grow(bodyChunk)
	if _, err := io.CopyN(&b, r, int64(n)); err != nil {
		return nil, noEOF(err)
	}
	return b.Bytes(), nil
}

// noEOF converts io.EOF, within a frame, to io.ErrUnexpectedEOF.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
