// Package kvclienttest is a KV node for tests: it does the handshake (HELLO, SASL with SCRAM or PLAIN, SELECT_BUCKET,
// GET_CLUSTER_CONFIG) like a real node and leaves everything else to the test's handler, which may answer, not
// answer, answer wrongly, or close the connection.
//
// It shares the frame codec with the product but not the SCRAM code.
package kvclienttest

import (
	"bufio"
	"bytes"
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"hash"
	"io"
	"net"
	"slices"
	"strings"
	"sync"

	"tidemark/kv/mcbp"
)

// Server is one node. Set the fields before Start.
type Server struct {
	User, Password, Bucket string
	// Mechanisms is the answer to SASL_LIST; empty means the three of SCRAM.
	Mechanisms string
	// Directory simulates passwords in an external directory: every SCRAM exchange fails.
	Directory bool
	// TLS encrypts connections if it is not nil.
	TLS *tls.Config
	// Features are granted on request; nil means those of the embedded node.
	Features []mcbp.Feature
	// Config returns the answer to GET_CLUSTER_CONFIG; if it is nil the answer has one node that owns 4 vbuckets.
	Config func(s *Server) []byte
	// Handle is called for every frame that is not part of the handshake, one after the other per connection. If it
	// returns false the connection is closed.
	Handle func(p *Peer, f mcbp.Frame) bool
	// Before is called first for every frame; if it returns true the frame is not processed further.
	Before func(p *Peer, f mcbp.Frame) bool

	ln    net.Listener
	wg    sync.WaitGroup
	mu    sync.Mutex
	peers map[*Peer]bool
	down  bool
}

// Peer is one connection of a client.
type Peer struct {
	net.Conn
	Server   *Server
	Features []mcbp.Feature // granted
	r        *bufio.Reader
	wmu      sync.Mutex
	mech     string
	scram    *scramServer
	authed   bool
	selected bool
}

// Start listens on a loopback port.
func (s *Server) Start() error { return s.StartAt("127.0.0.1:0") }

// StartAt listens on addr.
func (s *Server) StartAt(addr string) error {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	if s.TLS != nil {
		ln = tls.NewListener(ln, s.TLS)
	}
	s.ln, s.peers, s.down = ln, map[*Peer]bool{}, false
	s.wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			p := &Peer{Conn: c, Server: s}
			s.mu.Lock()
			s.peers[p] = true
			if s.down {
				_ = c.Close()
			}
			s.mu.Unlock()
			s.wg.Go(func() { s.serve(p) })
		}
	})
	return nil
}

// Addr returns host:port.
func (s *Server) Addr() string { return s.ln.Addr().String() }

// Port returns the port.
func (s *Server) Port() int { return s.ln.Addr().(*net.TCPAddr).Port }

// Stop closes the listener and all connections, and waits for their end.
func (s *Server) Stop() {
	_ = s.ln.Close()
	s.mu.Lock()
	s.down = true
	s.mu.Unlock()
	s.DropAll()
	s.wg.Wait()
}

// DropAll closes all connections, but not the listener. It returns those that it closed; their last frames may still be
// processed until they are no longer Connected.
func (s *Server) DropAll() (dropped []*Peer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p := range s.peers {
		_ = p.Close()
		dropped = append(dropped, p)
	}
	return dropped
}

// Connected reports whether a connection is open.
func (s *Server) Connected(p *Peer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, is := s.peers[p]
	return is
}

// serve processes frames until the connection ends.
func (s *Server) serve(p *Peer) {
	defer func() {
		_ = p.Close()
		s.mu.Lock()
		delete(s.peers, p)
		s.mu.Unlock()
	}()
	p.r = bufio.NewReaderSize(p, 64<<10)
	for {
		f, err := p.Next()
		if err != nil {
			return
		}
		if s.Before != nil && s.Before(p, f) {
			continue
		}
		if !s.handle(p, f) {
			return
		}
	}
}

// Next reads the next frame: only for a handler that takes the connection over.
func (p *Peer) Next() (mcbp.Frame, error) {
	var head [mcbp.HeaderSize]byte
	if _, err := io.ReadFull(p.r, head[:]); err != nil {
		return mcbp.Frame{}, err
	}
	h, err := mcbp.ParseHeader(head[:])
	if err != nil {
		return mcbp.Frame{}, err
	}
	body := make([]byte, h.BodyLen)
	if _, err := io.ReadFull(p.r, body); err != nil {
		return mcbp.Frame{}, err
	}
	return h.Frame(body), nil
}

// Buffered returns the number of bytes read ahead.
func (p *Peer) Buffered() int { return p.r.Buffered() }

// Send writes a frame.
func (p *Peer) Send(f mcbp.Frame) {
	b, err := mcbp.Append(nil, f)
	if err == nil {
		p.Raw(b)
	}
}

// Raw writes bytes.
func (p *Peer) Raw(b []byte) {
	p.wmu.Lock()
	defer p.wmu.Unlock()
	_, _ = p.Write(b)
}

// Reply answers f; the header of with is ignored except for Datatype and CAS.
func (p *Peer) Reply(f mcbp.Frame, status mcbp.Status, with mcbp.Frame) {
	h := mcbp.Response(f.Header, status)
	h.Datatype, h.CAS = with.Datatype, with.CAS
	with.Header = h
	p.Send(with)
}

// Selected reports whether the client is authenticated and has selected the bucket.
func (p *Peer) Selected() bool { return p.selected }

// defaultFeatures are those that the embedded node grants.
var defaultFeatures = []mcbp.Feature{
	mcbp.FeatureMutationToken, mcbp.FeatureXattr, mcbp.FeatureXerror, mcbp.FeatureSelectBucket, mcbp.FeatureJSON,
	mcbp.FeatureSnappy, mcbp.FeatureFlexibleFrames, mcbp.FeatureCollections, mcbp.FeatureKnownConfig,
	mcbp.FeatureDedupNMVB,
}

// handle processes the requests of the handshake.
func (s *Server) handle(p *Peer, f mcbp.Frame) bool {
	switch f.Op {
	case mcbp.OpHello:
		s.hello(p, f)
	case mcbp.OpSASLList:
		list := s.Mechanisms
		if list == "" {
			list = "SCRAM-SHA512 SCRAM-SHA256 SCRAM-SHA1"
		}
		p.Reply(f, mcbp.StatusOK, mcbp.Frame{Value: []byte(list)})
	case mcbp.OpSASLAuth:
		s.auth(p, f)
	case mcbp.OpSASLStep:
		s.step(p, f)
	case mcbp.OpSelectBucket:
		p.selected = (p.authed || s.User == "") && string(f.Key) == s.Bucket
		if !p.selected {
			p.Reply(f, mcbp.StatusNoAccess, mcbp.Frame{})
			return true
		}
		p.Reply(f, mcbp.StatusOK, mcbp.Frame{})
	case mcbp.OpGetClusterConfig:
		if !p.selected {
			p.Reply(f, mcbp.StatusNoBucket, mcbp.Frame{})
			return true
		}
		p.Reply(f, mcbp.StatusOK, mcbp.Frame{Header: mcbp.Header{Datatype: mcbp.DatatypeJSON}, Value: s.ConfigJSON()})
	default:
		if s.Handle == nil {
			p.Reply(f, mcbp.StatusUnknownCommand, mcbp.Frame{})
			return true
		}
		return s.Handle(p, f)
	}
	return true
}

// ConfigJSON returns the cluster config of the node.
func (s *Server) ConfigJSON() []byte {
	if s.Config != nil {
		return s.Config(s)
	}
	return ClusterMap(1, []*Server{s}, [][]int{{0}, {0}, {0}, {0}})
}

// ClusterMap returns a config with the given nodes and map.
func ClusterMap(rev int64, nodes []*Server, vbmap [][]int) []byte {
	c := mcbp.ClusterConfig{Rev: rev, RevEpoch: 1, Name: nodes[0].Bucket, NodeLocator: "vbucket",
		BucketCapabilities: []string{"dcp"}}
	for _, n := range nodes {
		c.Nodes = append(c.Nodes, mcbp.ConfigNode{Hostname: "127.0.0.1:8091"})
		services := map[string]int{"kv": n.Port(), "mgmt": 8091}
		if n.TLS != nil {
			services["kvSSL"], services["mgmtSSL"] = n.Port(), 18091
		}
		c.NodesExt = append(c.NodesExt, mcbp.ConfigNodeExt{Hostname: mcbp.HostPlaceholder, Services: services})
	}
	c.VBucketServerMap = mcbp.VBucketServerMap{HashAlgorithm: "CRC", VBucketMap: vbmap}
	b, err := c.Marshal()
	if err != nil {
		return []byte(err.Error())
	}
	return b
}

// hello grants the requested features that the server has.
func (s *Server) hello(p *Peer, f mcbp.Frame) {
	offer := s.Features
	if offer == nil {
		offer = defaultFeatures
	}
	asked, err := mcbp.DecodeFeatures(f.Value)
	if err != nil {
		p.Reply(f, mcbp.StatusInvalid, mcbp.Frame{})
		return
	}
	p.Features = nil
	for _, a := range asked {
		if slices.Contains(offer, a) {
			p.Features = append(p.Features, a)
		}
	}
	p.Reply(f, mcbp.StatusOK, mcbp.Frame{Value: mcbp.AppendFeatures(nil, p.Features)})
}

// auth processes the first message of SASL.
func (s *Server) auth(p *Peer, f mcbp.Frame) {
	p.mech = string(f.Key)
	if p.mech == "PLAIN" {
		part := bytes.Split(f.Value, []byte{0})
		p.authed = len(part) == 3 && string(part[1]) == s.User && string(part[2]) == s.Password
		status := mcbp.StatusAuthError
		if p.authed {
			status = mcbp.StatusOK
		}
		p.Reply(f, status, mcbp.Frame{})
		return
	}
	password := s.Password
	if s.Directory {
		password = rand.Text()
	}
	p.scram = newScramServer(p.mech, s.User, password)
	if p.scram == nil {
		p.Reply(f, mcbp.StatusAuthError, mcbp.Frame{})
		return
	}
	out, ok := p.scram.first(string(f.Value))
	if !ok {
		p.Reply(f, mcbp.StatusAuthError, mcbp.Frame{})
		return
	}
	p.Reply(f, mcbp.StatusAuthContinue, mcbp.Frame{Value: []byte(out)})
}

// step processes the last message of SASL.
func (s *Server) step(p *Peer, f mcbp.Frame) {
	if p.scram == nil {
		p.Reply(f, mcbp.StatusInvalid, mcbp.Frame{})
		return
	}
	out, ok := p.scram.final(string(f.Value))
	if !ok {
		p.Reply(f, mcbp.StatusAuthError, mcbp.Frame{})
		return
	}
	p.authed = true
	p.Reply(f, mcbp.StatusOK, mcbp.Frame{Value: []byte(out)})
}

// scramServer is the server side of RFC 5802.
type scramServer struct {
	h               func() hash.Hash
	user, password  string
	bare, firstSent string
	nonce           string
	salt            []byte
}

const scramRounds = 128

func newScramServer(mech, user, password string) *scramServer {
	m := map[string]func() hash.Hash{"SCRAM-SHA512": sha512.New, "SCRAM-SHA256": sha256.New, "SCRAM-SHA1": sha1.New}
	if m[mech] == nil {
		return nil
	}
	return &scramServer{h: m[mech], user: user, password: password}
}

func (s *scramServer) first(in string) (string, bool) {
	bare, ok := strings.CutPrefix(in, "n,,n=")
	name, nonce, ok2 := strings.Cut(bare, ",r=")
	name = strings.NewReplacer("=2C", ",", "=3D", "=").Replace(name)
	if !ok || !ok2 || name != s.user {
		return "", false
	}
	s.bare = in[3:]
	rnd := make([]byte, 34)
	_, _ = rand.Read(rnd)
	s.salt = rnd[:16]
	s.nonce = nonce + base64.StdEncoding.EncodeToString(rnd[16:])
	s.firstSent = fmt.Sprintf("r=%s,s=%s,i=%d", s.nonce, base64.StdEncoding.EncodeToString(s.salt), scramRounds)
	return s.firstSent, true
}

func (s *scramServer) mac(key []byte, msg string) []byte {
	m := hmac.New(s.h, key)
	m.Write([]byte(msg))
	return m.Sum(nil)
}

func (s *scramServer) final(in string) (string, bool) {
	head, proof64, ok := strings.Cut(in, ",p=")
	proof, err := base64.StdEncoding.DecodeString(proof64)
	if !ok || err != nil || head != "c=biws,r="+s.nonce {
		return "", false
	}
	salted, err := pbkdf2.Key(s.h, s.password, s.salt, scramRounds, s.h().Size())
	if err != nil {
		return "", false
	}
	msg := s.bare + "," + s.firstSent + "," + head
	hs := s.h()
	hs.Write(s.mac(salted, "Client Key"))
	stored := hs.Sum(nil)
	key := s.mac(stored, msg)
	if len(proof) != len(key) {
		return "", false
	}
	for i := range key {
		key[i] ^= proof[i]
	}
	hs = s.h()
	hs.Write(key)
	if !hmac.Equal(hs.Sum(nil), stored) {
		return "", false
	}
	return "v=" + base64.StdEncoding.EncodeToString(s.mac(s.mac(salted, "Server Key"), msg)), true
}
