// Package peers sends requests to the scan ports of a cluster's indexers, for scans, verifications and files. It
// guarantees that no caller waits for a node that has fallen silent, even in the middle of an answer. It never
// decides which node to use.
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

// probesAtOnce bounds the connections to another node that only check whether it is alive.
const probesAtOnce = 2

// Peers reaches the indexers of a cluster, including this one, at their scan ports. It tracks which of them answer.
type Peers struct {
	tls    *tlsconf.Source
	here   func() (node index.NodeID, scanPort string)
	known  func() []wire.Endpoint
	alive  *detector.Detector
	probes *rpc.Client
}

// New returns Peers for the endpoints that known returns. here returns this node.
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

// Ask returns Nodes with up to atOnce connections of its own to each node.
func (p *Peers) Ask(atOnce int) *Nodes {
	return &Nodes{Peers: p, http: rpc.NewClient(atOnce, p.tls.Client(tlsconf.HTTP, tlsconf.Indexer)).HTTP()}
}

// IsHere reports whether a node is this one.
func (p *Peers) IsHere(node index.NodeID) bool {
	here, _ := p.here()
	return node == here
}

// Nodes sends requests to indexers.
type Nodes struct {
	*Peers
	http *http.Client
}

// Close closes idle connections.
func (n *Nodes) Close() { n.http.CloseIdleConnections() }

// Watched is Post for an answer that may take long: it fails when the node falls silent, even in the middle of the
// answer. instead returns the addresses that could replace the node; if it is nil there is none, and the node gets
// more time (package detector).
func (n *Nodes) Watched(ctx context.Context, node index.NodeID, path string, req any,
	instead func() []string) (io.ReadCloser, error) {
	// ctx ends when the answer is closed, or when the caller's context ends.
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

// SilentSince returns since when a node has not answered, not even probes, and starts a probe. It returns zero if the
// node answers or its state is unknown. A later call sees the result of the probe.
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

// Addr returns a node's scan port, "" if unknown.
func (p *Peers) Addr(node index.NodeID) string {
	for _, e := range p.known() {
		if e.Node == node {
			return e.Scan
		}
	}
	return ""
}

// HeaderNode of a request has the number of the requesting indexer.
const HeaderNode = "Tidemark-Node"

// Asking returns the requesting indexer; false if the request does not name it.
func Asking(r *http.Request) (index.NodeID, bool) {
	n, err := strconv.ParseUint(r.Header.Get(HeaderNode), 10, 8)
	return index.NodeID(n), err == nil
}

// Post sends a request to another node's scan port and returns the body of its answer.
func (n *Nodes) Post(ctx context.Context, node index.NodeID, path string, req any) (io.ReadCloser, error) {
	addr := n.Addr(node)
	here, port := n.here()
	if node == here {
		addr = port
	}
	if addr == "" {
		return nil, fmt.Errorf("this indexer has no address of node %d", node)
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
