package gocb

import (
	"context"
	"net"
	"time"

	"tidemark/kv/mcbp"
)

// nodeMap is the map of a connection's node, as it was asked for last.
type nodeMap struct {
	token  chan struct{} // room for one: who has put it there may use the rest
	config *mcbp.ClusterConfig
	asked  time.Time
	vain   vain
	stale  time.Time // since when gocbcore has had another map than config; zero: it has the same
}

// vain is the newest question for the map, when it has failed.
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

// renew asks for the map, for a request that came then. What was asked in vain while it waited was asked for it, too:
// behind a node that does not answer, each of many would wait for all that came before it.
func (m *nodeMap) renew(ctx context.Context, came time.Time,
	ask func(context.Context) (*mcbp.ClusterConfig, error)) error {
	if m.vain.err != nil && m.vain.began.After(came) {
		return m.vain.err
	}
	m.vain.began = time.Now()
	config, err := ask(ctx)
	if m.vain.err = err; ctx.Err() != nil {
		m.vain.err = nil // that was the caller's alone
	}
	if err != nil {
		return err
	}
	if m.config == nil || m.config.Rev != config.Rev || m.config.RevEpoch != config.RevEpoch {
		m.stale = time.Time{}
	}
	m.config, m.asked = config, time.Now()
	return nil
}

// self is our node's place in the map: where it says so, or else where its address is; -1 if nowhere.
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
