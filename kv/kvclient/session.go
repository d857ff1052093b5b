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

// Options say who connects to what, and how.
type Options struct {
	// User and Password authenticate. An empty User skips authentication.
	User, Password string
	// Bucket is selected after authentication; empty selects none.
	Bucket string
	// Collection is the one that a Client's documents are in, as "scope.collection"; empty: the default one. Its names
	// mean the collection that has them when the Client connects.
	Collection string
	// Name identifies the client in the node's logs; at most MaxAgentName bytes are
	// sent.
	Name string
	// Features are asked for besides the ones the handshake itself needs.
	Features []mcbp.Feature
	// TLS encrypts the connection when not nil.
	TLS *tls.Config
	// Network says which addresses of the cluster map a Client uses: mcbp.NetworkDefault, mcbp.NetworkExternal, or empty
	// for the one in which the seed is an address.
	Network string
	// Maps, unless nil, gives a Client the map beside the nodes, and the host:port of whoever showed it: for clusters that
	// are named by their managers (restmap), and nodes that show none.
	Maps func(ctx context.Context) (config *mcbp.ClusterConfig, addr string, err error)
	// AllowPlain permits the PLAIN mechanism on a connection without TLS, if the
	// node offers nothing better.
	AllowPlain bool
	// DialTimeout bounds connecting and the whole handshake.
	DialTimeout time.Duration
	// OpTimeout bounds one attempt of one request.
	OpTimeout time.Duration
	// Dialed is told how each attempt to connect has ended, of several at the same time; nil: nobody is.
	Dialed func(addr string, err error)
	// Logger is told about retries and lost connections; nil is silent.
	Logger hclog.Logger
}

// withDefaults fills what is zero.
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

// Session is a connection after its handshake: HELLO, SASL, SELECT_BUCKET. It is
// not yet shared: one goroutine at a time uses RoundTrip, and whoever takes Conn
// over for himself (feed, Conn) owns it from then on. No byte has been read
// ahead.
type Session struct {
	net.Conn
	granted   []mcbp.Feature
	mechanism string // by which it authenticated; empty if it did not
	selected  bool   // a bucket
	opaque    uint32
}

// Handshake connects to addr and brings the connection to where requests can be
// sent. Errors: those of the network, ErrAuth, ErrNoBucket, ErrProtocol.
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

// HandshakeTLS encrypts nc; the server's name is the host of addr unless given. A certificate that names nobody counts
// for its common name (byCommonName).
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

// serverName is what the certificate of host:port has to name; it knows no zones of this machine.
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
		return fmt.Errorf("%w: it does not grant the feature to select a bucket; Couchbase Server 5.0 and later do",
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

// Lapsed reports whether an answer means that the node knows this connection's user or bucket no more: it asks for the
// login again, or the bucket was deleted under the connection. Nothing else will come of it, and a new one may do
// better.
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

// authenticate picks the best mechanism both sides have and runs it.
func (s *Session) authenticate(ctx context.Context, opt Options) error {
	f, err := s.RoundTrip(ctx, mcbp.Frame{Header: mcbp.Request(mcbp.OpSASLList, 0, 0)})
	if err != nil {
		return err
	}
	if err := NewStatusError(f); err != nil {
		if f.Status() == mcbp.StatusNotSupported && certified(opt.TLS) {
			return nil // the node knows the user by his certificate, and lets nobody be another one then
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
			return s.plain(ctx, opt) // a node does not have the passwords of LDAP's users, which SCRAM needs
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

// certified reports whether we have a certificate to show.
func certified(conf *tls.Config) bool {
	return conf != nil && (conf.GetClientCertificate != nil || len(conf.Certificates) > 0)
}

// refused reports whether the node does not accept user and password, as against one that could not prove itself.
func refused(err error) bool {
	var se *StatusError
	return errors.As(err, &se) && se.Status == mcbp.StatusAuthError
}

// plain sends the password as it is.
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

// Mechanism is the SASL mechanism by which the node knows the user; empty without one, and where a certificate was
// enough.
func (s *Session) Mechanism() string { return s.mechanism }

// RoundTrip sends one request and reads its answer, whatever its status, of at most
// maxHandshakeBody bytes. The opaque is chosen here. It reads exactly one frame. After
// an error the connection is unusable.
func (s *Session) RoundTrip(ctx context.Context, req mcbp.Frame) (mcbp.Frame, error) {
	s.opaque++
	req.Opaque = s.opaque
	buf, err := mcbp.Append(nil, req)
	if err != nil {
		return mcbp.Frame{}, err
	}
	// A cancelled context wakes the blocked read or write by a deadline in the past.
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

// maxHandshakeBody bounds the answers to what is asked before anybody knows who the node is: features, mechanisms,
// SASL, and what an engine says of an error.
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

// ReadFrame reads one frame of at most mcbp.MaxBody bytes into new memory. The
// memory grows with what really arrives, not with what the header announces.
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

// bodyChunk is how much is allocated at once for a body before its bytes are
// seen.
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

// noEOF makes an end within a frame an unexpected one.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
