package consensus

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"tidemark/internal/tlsconf"
)

// links holds the connections to the other servers.
type links struct {
	*base
	storage *storage
	trans   addressed
	layer   *stream
	asking  sync.WaitGroup // calls of confirmer and steward and changes of members that may outlive their callers
}

func (l *links) openTransport() error {
	listener := l.cfg.Listener
	if listener == nil {
		var err error
		if listener, err = net.Listen("tcp", l.cfg.RaftAddr); err != nil {
			return fmt.Errorf("%w: listen for Raft: %w", ErrConfig, err)
		}
	}
	if l.cfg.Advertise == "" {
		l.cfg.Advertise = listener.Addr().String()
	}
	if host, _, err := net.SplitHostPort(l.cfg.Advertise); err == nil && net.ParseIP(host).IsUnspecified() ||
		strings.Contains(l.cfg.Advertise, "@") {
		return errors.Join(fmt.Errorf("%w: other nodes cannot dial %q; set an address to advertise", ErrConfig,
			l.cfg.Advertise), listener.Close())
	}
	dial := l.cfg.Dial
	if dial == nil {
		dial = l.cfg.TLS.Dial(tlsconf.Raft, tlsconf.Manager)
	}
	l.layer = &stream{
		Listener: l.cfg.TLS.Listen(listener, tlsconf.Raft, tlsconf.Manager), id: string(l.id), advertise: l.cfg.Advertise,
		rest: l.cfg.REST, dial: dial,
		clusterID: l.storage.ClusterID, epoch: func() uint64 { return l.fsm.State().Epoch() }, member: l.isMember,
		log: l.cfg.Logger.Named("transport"), accepted: newPlaces(), moved: make(map[string]string),
		refused: make(map[string]string),
	}
	l.trans = addressed{disk: l.storage.disk, in: &incoming{calls: make(chan raft.RPC), ended: make(chan struct{})},
		patience: transportTimeout(l.cfg.Heartbeat), activity: l.activity, markAt: l.storage.markAt,
		NetworkTransport: raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
			Logger:                  l.cfg.Logger.Named("transport"),
			Stream:                  l.layer,
			MaxPool:                 transportPool,
			Timeout:                 transportTimeout(l.cfg.Heartbeat),
			MsgpackUseNewTimeFormat: true,
		})}
	return nil
}

// Moved records the address at which a server, by its own report, is to be dialled from now on, in place of that of
// the configuration. The handshake verifies that it is that server.
func (l *links) Moved(id, addr string) {
	l.layer.mu.Lock()
	defer l.layer.mu.Unlock()
	if l.layer.moved[id] == addr || !l.isMember(id) { // limited to members, which bounds the map
		return
	}
	l.layer.moved[id] = addr
}

// RecentPeers returns the REST addresses of the servers that have answered this server's handshakes since it started,
// newest first. These servers belong to its cluster, at least by their own account.
func (l *links) RecentPeers() []string {
	l.layer.mu.Lock()
	defer l.layer.mu.Unlock()
	recent := slices.Clone(l.layer.recentPeers)
	slices.Reverse(recent)
	return recent
}

// renew closes the connections of both directions periodically, each after its current call. The next call opens a
// new one, and both sides present their certificates again.
func (l *links) renew(ctx context.Context, every time.Duration) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			l.trans.CloseStreams()
		case <-ctx.Done():
			return nil
		}
	}
}

// recheckEvery is how often the certificates of callers are checked again.
const recheckEvery = 5 * time.Second

// recheck closes the connections of callers whose certificates are no longer valid. Without it, a leader whose
// certificate has expired would lead on over the connections that it has, until they are renewed, while neither
// clients nor other components could reach it; so the followers elect another one.
func (l *links) recheck(ctx context.Context, every time.Duration) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			l.layer.recheck(l.cfg.TLS.Recheck)
		case <-ctx.Done():
			return nil
		}
	}
}

// heartbeat sends a heartbeat of a term in which this node led, as the library does, and returns the answer. After a
// failure it pauses as long as the library's heartbeats do.
func (l *links) heartbeat(id raft.ServerID, addr raft.ServerAddress, term uint64) (theirs uint64, yes bool) {
	resp, err := l.beat(term, id, addr)
	if err != nil {
		rest := time.NewTimer(l.cfg.Heartbeat / heartbeatsPerCall)
		defer rest.Stop()
		select {
		case <-rest.C:
		case <-l.done:
		}
		return 0, false
	}
	return resp.Term, resp.Success
}

// signOfLife sends a heartbeat of a term in which this node led, and returns what it shows about the member.
func (l *links) signOfLife(m Server, term uint64) answerOf {
	resp, err := l.beat(term, raft.ServerID(m.ID), raft.ServerAddress(m.Raft))
	if err != nil {
		return answerOf{problem: err.Error()}
	}
	return answerOf{last: resp.LastLog}
}

// beat sends one heartbeat of a term and returns the response.
func (l *links) beat(term uint64, id raft.ServerID, addr raft.ServerAddress) (resp raft.AppendEntriesResponse,
	err error) {
	req := &raft.AppendEntriesRequest{Term: term, RPCHeader: raft.RPCHeader{
		ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(l.id), Addr: l.trans.EncodePeer(l.id, l.trans.LocalAddr()),
	}}
	err = l.trans.AppendEntries(id, addr, req, &resp)
	return resp, err
}
