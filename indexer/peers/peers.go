// Package peers asks the indexers of a cluster at their scan ports, for scans, verifications and files. It promises
// that nobody waits for a node that has fallen silent, be it in the middle of an answer. It never decides whom to ask.
package peers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/fxamacker/cbor/v2"

	"tidemark/index"
	"tidemark/internal/detector"
	"tidemark/internal/rpc"
	"tidemark/internal/tlsconf"
	"tidemark/wire"
)

// probesAtOnce bounds the connections to another node that are only used to see whether it lives.
const probesAtOnce = 2

// Peers are the indexers of a cluster, this one among them, as they are reached at their scan ports. It is known of
// each whether it answers.
type Peers struct {
	tls    *tlsconf.Source
	here   func() (node index.NodeID, scanPort string)
	known  func() []wire.Endpoint
	alive  *detector.Detector
	probes *rpc.Client
}

// New reaches those that known tells of; here is this one.
func New(tls *tlsconf.Source, here func() (node index.NodeID, scanPort string), known func() []wire.Endpoint) *Peers {
	p := &Peers{tls: tls, here: here, known: known,
		probes: rpc.NewClient(probesAtOnce, tls.Client(tlsconf.HTTP, tlsconf.Indexer))}
	p.alive = detector.New(detector.HTTP(p.probes.HTTP(), func(addr string) string {
		return tls.BaseURL(addr) + "/healthz"
	}))
	return p
}

// Close ends the probes.
func (p *Peers) Close() {
	p.alive.Close()
	p.probes.Close()
}

// Ask returns nodes with so many connections to each, of their own.
func (p *Peers) Ask(atOnce int) *Nodes {
	return &Nodes{Peers: p, http: rpc.NewClient(atOnce, p.tls.Client(tlsconf.HTTP, tlsconf.Indexer)).HTTP()}
}

// IsHere reports whether a node is this one.
func (p *Peers) IsHere(node index.NodeID) bool {
	here, _ := p.here()
	return node == here
}

// Nodes asks indexers.
type Nodes struct {
	*Peers
	http *http.Client
}

// Close gives the connections back that are not used.
func (n *Nodes) Close() { n.http.CloseIdleConnections() }

// Watched is post for an answer that may take long: it fails when the node falls silent, be it in the middle. instead
// returns who could be asked in its place; nil: nobody, and it has its time (package detector).
func (n *Nodes) Watched(ctx context.Context, node index.NodeID, path string, req any,
	instead func() []string) (io.ReadCloser, error) {
	// The caller's context ends this one: the answer is closed, or the caller gives everything up.
	ctx, cancel := context.WithCancel(ctx)
	addr := n.Addr(node)
	var wait detector.Wait
	n.alive.Begin(&wait, addr, instead, cancel)
	body, err := n.Post(ctx, node, path, req)
	switch silent := wait.End(); {
	case silent:
		cancel()
		if err == nil {
			_ = body.Close()
		}
		return nil, fmt.Errorf("%s: %w", addr, detector.ErrSilent)
	case err != nil:
		if !errors.As(err, new(*rpc.Problem)) && ctx.Err() == nil {
			n.alive.Failed(addr)
		}
		cancel()
		return nil, err
	}
	return &nodeBody{detector.Body{ReadCloser: body, Detector: n.alive, Peer: addr, Others: instead, Silent: cancel},
		cancel}, nil
}

// nodeBody ends its request when it is closed.
type nodeBody struct {
	detector.Body
	end func()
}

// Close implements io.Closer.
func (b *nodeBody) Close() error {
	err := b.Body.Close()
	b.end()
	return err
}

// Suspect implements scan.Nodes.
func (p *Peers) Suspect(node index.NodeID) bool {
	return p.alive.Any() && !p.IsHere(node) && p.alive.Suspect(p.Addr(node))
}

// SilentSince returns since when a node answers nothing, not even whether it lives, and has it asked; zero: it does, or
// nobody knows. Who asks again sees what has come of it.
func (p *Peers) SilentSince(node index.NodeID) time.Time {
	addr := p.Addr(node)
	if addr == "" {
		return time.Time{}
	}
	return p.alive.SilentSince(addr)
}

// Name implements scan.Nodes.
func (p *Peers) Name(node index.NodeID) string {
	for _, e := range p.known() {
		if e.Node == node {
			return fmt.Sprintf("%s (%s)", e.Name, e.Scan)
		}
	}
	return fmt.Sprintf("number %d", node)
}

// Addr returns a node's scan port, "" when it is not known.
func (p *Peers) Addr(node index.NodeID) string {
	for _, e := range p.known() {
		if e.Node == node {
			return e.Scan
		}
	}
	return ""
}

// HeaderNode of a request says by its number which indexer asks.
const HeaderNode = "Tidemark-Node"

// Asking returns which indexer asks; false where the request does not say.
func Asking(r *http.Request) (index.NodeID, bool) {
	n, err := strconv.ParseUint(r.Header.Get(HeaderNode), 10, 8)
	return index.NodeID(n), err == nil
}

// Post sends a request to another node's scan port and gives the body of its answer.
func (n *Nodes) Post(ctx context.Context, node index.NodeID, path string, req any) (io.ReadCloser, error) {
	addr := n.Addr(node)
	here, port := n.here()
	if node == here {
		addr = port
	}
	if addr == "" {
		return nil, fmt.Errorf("node %d has no address here", node)
	}
	body, err := cbor.Marshal(req)
	if err != nil {
		return nil, fmt.Errorf("encoding a request for %s: %w", path, err)
	}
	url := n.tls.BaseURL(addr) + path
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", rpc.MediaCBOR)
	r.Header.Set(HeaderNode, strconv.Itoa(int(here)))
	rpc.Outgoing(r)
	resp, err := n.http.Do(r)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		p := rpc.ReadProblem(resp)
		return nil, errors.Join(fmt.Errorf("%s: %w", url, p), resp.Body.Close())
	}
	return resp.Body, nil
}
