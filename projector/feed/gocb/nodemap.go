package gocb

import (
	"context"
	"net"
	"time"

	"tidemark/kv/mcbp"
)

// nodeMap is the cluster map of the connection's node, as last read.
type nodeMap struct {
	token  chan struct{} // capacity 1: its holder may use the other fields
	config *mcbp.ClusterConfig
	at     time.Time
	vain   vain
	stale  time.Time // since when gocbcore's map differs from config; zero if it does not
}

// vain is the newest query for the map, if it failed.
type vain struct {
	began time.Time
	err   error
}

func newNodeMap() nodeMap { return nodeMap{token: make(chan struct{}, 1)} }

func (m *nodeMap) lock(ctx context.Context) error {
	select {
	case m.token <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (m *nodeMap) unlock() { <-m.token }

// renew reads the map for a request that arrived at came. If a query that began later has failed, its error is
// returned without another query: otherwise, with a node that does not answer, each of many requests would wait for
// all earlier ones.
func (m *nodeMap) renew(ctx context.Context, came time.Time,
	query func(context.Context) (*mcbp.ClusterConfig, error)) error {
	if m.vain.err != nil && m.vain.began.After(came) {
		return m.vain.err
	}
	m.vain.began = time.Now()
	config, err := query(ctx)
	if m.vain.err = err; ctx.Err() != nil {
		m.vain.err = nil // the caller's context ended, which concerns no other caller
	}
	if err != nil {
		return err
	}
	if m.config == nil || m.config.Rev != config.Rev || m.config.RevEpoch != config.RevEpoch {
		m.stale = time.Time{}
	}
	m.config, m.at = config, time.Now()
	return nil
}

// self returns the node's position in the map: the one that the map marks, or else that of its address; -1 if
// neither.
func (m *nodeMap) self(dialled string, tls bool) int {
	if n := m.config.ThisNode(); n >= 0 {
		return n
	}
	host, _, err := net.SplitHostPort(dialled)
	if err != nil {
		return -1
	}
	for n := range m.config.NumNodes() {
		if addr, err := m.config.KVAddr(n, host, tls); err == nil && addr == dialled {
			return n
		}
	}
	return -1
}
