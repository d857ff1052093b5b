package consensus

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
)

// What the stable store keeps of this server's place in the world, beside the server id: what wipes the log wipes it.
var (
	clusterIDKey = []byte("tidemark-cluster-id")
	removedKey   = []byte("tidemark-removed") // holds the reason
	usersKey     = []byte("tidemark-users")   // the cluster has had users
)

// clusterName is the cluster that this server belongs to. The state tells it too, but after a restart only when the
// leader has said what is committed.
type clusterName struct {
	stored   atomic.Pointer[string] // nil before openIdentity
	unstored chan struct{}          // one slot, for keepCluster
}

// openIdentity reads what was stored. The error wraps ErrRemoved when this server was removed.
func (n *Node) openIdentity() error {
	reason, err := n.stored(removedKey)
	if err != nil {
		return err
	}
	if reason != "" {
		return n.removedError(reason)
	}
	cluster, err := n.stored(clusterIDKey)
	if err != nil {
		return err
	}
	n.cluster.stored.Store(&cluster)
	users, err := n.stored(usersKey)
	n.users.Store(users != "")
	return err
}

// HasUsers reports whether the cluster has users, or had some when this server ran before: after a restart the state
// tells it only when the leader has said what is committed, and until then nobody may be taken for an administrator.
func (n *Node) HasUsers() bool { return n.users.Load() || n.fsm.State().UserCount() > 0 }

// NoteUsers stores once that the cluster has users, when it has.
func (n *Node) NoteUsers() error {
	if n.users.Load() || n.fsm.State().UserCount() == 0 {
		return nil
	}
	if err := n.store.Set(usersKey, []byte("yes")); err != nil {
		return fmt.Errorf("%w: %w", ErrStore, err)
	}
	n.users.Store(true)
	return nil
}

func (n *Node) removedError(reason string) error {
	return fmt.Errorf("%w (%s): %s; delete the folder %s to let it join as a new one, or leave it stopped", ErrRemoved,
		n.id, reason, n.cfg.Dir)
}

// stored reads a text, "" when there is none.
func (n *Node) stored(key []byte) (string, error) {
	v, err := n.store.Get(key)
	if err != nil && !errors.Is(err, raftboltdb.ErrKeyNotFound) {
		return "", err
	}
	return string(v), nil
}

// ClusterID is the cluster that this server belongs to, "" while it belongs to none. It never waits for the disk: every
// connection between managers begins with it, those by which a leader with a bad disk is replaced, too.
func (n *Node) ClusterID() string {
	stored, now := n.cluster.stored.Load(), n.fsm.State().ClusterID()
	if stored != nil && (now == "" || now == *stored) {
		return *stored
	}
	select {
	case n.cluster.unstored <- struct{}{}:
	default:
	}
	return now
}

// keepCluster stores the cluster id when somebody asked for it and it is not stored; one that cannot be stored is tried
// again when it is asked for again.
func (n *Node) keepCluster(ctx context.Context) error {
	for {
		select {
		case <-n.cluster.unstored:
		case <-ctx.Done():
			return nil
		}
		now := n.fsm.State().ClusterID()
		if now == "" || now == *n.cluster.stored.Load() {
			continue
		}
		if err := n.store.Set(clusterIDKey, []byte(now)); err != nil {
			n.cfg.Logger.Warn("the cluster id could not be stored", "error", err)
			continue
		}
		n.cluster.stored.Store(&now)
	}
}

// Retire notes for ever that this server was removed, and returns the error to end with: Open refuses its folder from
// now on, so that it never votes again.
func (n *Node) Retire(reason string) error {
	if err := n.store.Set(removedKey, []byte(reason)); err != nil {
		return errors.Join(n.removedError(reason), fmt.Errorf("%w: it could not be noted: %w", ErrStore, err))
	}
	return n.removedError(reason)
}

// Moved returns where a server is to be dialled from now on, whatever the configuration says; it has said so itself.
// The greeting makes sure that it is that server.
func (n *Node) Moved(id, addr string) {
	n.layer.mu.Lock()
	defer n.layer.mu.Unlock()
	if n.layer.moved[id] == addr || !n.isMember(id) { // bounded by the members
		return
	}
	n.layer.moved[id] = addr
}

// Member reports whether the newest configuration that this server has includes itself, and with which vote. One that
// is catching up may read a configuration from before its own time: only the leader's counts.
func (n *Node) Member() (member, voter bool) {
	for _, s := range n.configuration() {
		if s.ID == n.id {
			return true, s.Suffrage == raft.Voter
		}
	}
	return false, false
}

func (n *Node) isMember(id string) bool {
	for _, s := range n.configuration() {
		if string(s.ID) == id {
			return true
		}
	}
	return false
}

// configuration is the newest one, committed or not; none before Open has ended.
func (n *Node) configuration() []raft.Server {
	r := n.started.Load()
	if r == nil {
		return nil
	}
	f := r.GetConfiguration()
	if f.Error() != nil {
		return nil
	}
	return f.Configuration().Servers
}
