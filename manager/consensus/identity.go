package consensus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
)

// Keys in the stable store for this server's membership, beside the server id: wiping the log wipes them, too.
var (
	clusterIDKey = []byte("tidemark-cluster-id")
	removedKey   = []byte("tidemark-removed") // the value is the reason
	usersKey     = []byte("tidemark-users")   // the cluster has had users
	memberKey    = []byte("tidemark-member")  // this server was a member
	epochKey     = []byte("tidemark-epoch")   // epoch of the committed part of the log, as last recorded
)

// clusterName is the cluster that this server belongs to. The state holds it, too, but after a restart only once the
// leader has announced what is committed.
type clusterName struct {
	stored   atomic.Pointer[string] // nil before openIdentity
	unstored chan struct{}          // capacity 1: wakes keepCluster
}

// openIdentity reads the stored membership. The error wraps ErrRemoved if this server was removed.
func (st *storage) openIdentity() error {
	reason, err := st.stored(removedKey)
	if err != nil {
		return err
	}
	if reason != "" {
		return st.removedError(reason)
	}
	cluster, err := st.stored(clusterIDKey)
	if err != nil {
		return err
	}
	st.cluster.stored.Store(&cluster)
	users, err := st.stored(usersKey)
	if err != nil {
		return err
	}
	st.users.Store(users != "")
	member, err := st.stored(memberKey)
	st.member.Store(member != "")
	if err != nil {
		return err
	}
	epoch, err := st.stored(epochKey)
	if err != nil || epoch == "" {
		return err
	}
	n, err := strconv.ParseUint(epoch, 10, 64)
	if err != nil {
		return fmt.Errorf("%w: the stored epoch of the log is %q", ErrStore, epoch)
	}
	st.epoch.Store(n)
	return nil
}

// HasUsers reports whether the cluster has users, or had some when this server ran before. After a restart the state
// shows users only once the leader has announced what is committed; until then no caller may be taken for an
// administrator just because the state has no users.
func (st *storage) HasUsers() bool { return st.users.Load() || st.fsm.State().UserCount() > 0 }

// NoteUsers records, once, that the cluster has users, if it does.
func (st *storage) NoteUsers() error {
	if st.users.Load() || st.fsm.State().UserCount() == 0 {
		return nil
	}
	if err := st.store.Set(usersKey, []byte("yes")); err != nil {
		return fmt.Errorf("%w: %w", ErrStore, err)
	}
	st.users.Store(true)
	return nil
}

// New reports whether, as far as it has recorded, this server was never a member and may request to be added. Its log
// is empty, or it has recorded the epoch of its log: its addition was lost with the leader that began it. A log of
// unknown epoch may come from a history that a recovery has discarded, with entries of the same terms, which Raft
// would not replace.
func (st *storage) New() bool {
	if st.member.Load() {
		return false
	}
	if st.Epoch() != 0 {
		return true
	}
	last, err := st.logs.LastIndex()
	return err == nil && last == 0
}

// Epoch returns the epoch of the state or, after a restart before a leader has announced what is committed, the last
// recorded epoch; 0: none was recorded.
func (st *storage) Epoch() uint64 {
	return cmp.Or(st.fsm.State().Epoch(), st.epoch.Load())
}

// NoteEpoch records the state's epoch, once for each value.
func (st *storage) NoteEpoch() error {
	epoch := st.fsm.State().Epoch()
	if epoch == 0 || epoch == st.epoch.Load() {
		return nil
	}
	if err := st.store.Set(epochKey, strconv.AppendUint(nil, epoch, 10)); err != nil {
		return fmt.Errorf("%w: %w", ErrStore, err)
	}
	st.epoch.Store(epoch)
	return nil
}

// NoteMember records, once, that this server was a member, if the state lists it.
func (st *storage) NoteMember() error {
	if st.member.Load() || st.fsm.State().Manager(st.ID()) == nil {
		return nil
	}
	if err := st.store.Set(memberKey, []byte("yes")); err != nil {
		return fmt.Errorf("%w: %w", ErrStore, err)
	}
	st.member.Store(true)
	return nil
}

func (st *storage) removedError(reason string) error {
	return fmt.Errorf("%w (%s): %s; delete the folder %s to let it join as a new one, or leave it stopped", ErrRemoved,
		st.id, reason, st.cfg.Dir)
}

// stored returns a stored text, or "" if there is none.
func (st *storage) stored(key []byte) (string, error) {
	v, err := st.store.Get(key)
	if err != nil && !errors.Is(err, raftboltdb.ErrKeyNotFound) {
		return "", err
	}
	return string(v), nil
}

// ClusterID returns the cluster that this server belongs to, "" if there is none. It never waits for the disk,
// because every connection between managers begins with it, including those by which a leader with a bad disk is
// replaced.
func (st *storage) ClusterID() string {
	stored, now := st.cluster.stored.Load(), st.fsm.State().ClusterID()
	if stored != nil && (now == "" || now == *stored) {
		return *stored
	}
	select {
	case st.cluster.unstored <- struct{}{}:
	default:
	}
	return now
}

// keepCluster stores the cluster id when ClusterID finds that it is not stored. If storing fails, it is tried again
// at the next request for the id.
func (st *storage) keepCluster(ctx context.Context) error {
	for {
		select {
		case <-st.cluster.unstored:
		case <-ctx.Done():
			return nil
		}
		now := st.fsm.State().ClusterID()
		if now == "" || now == *st.cluster.stored.Load() {
			continue
		}
		if err := st.store.Set(clusterIDKey, []byte(now)); err != nil {
			st.cfg.Logger.Warn("cluster id could not be stored", "error", err)
			continue
		}
		st.cluster.stored.Store(&now)
	}
}

// Retire records for ever that this server was removed, and returns the error to exit with. From now on Open refuses
// its folder, so it never votes again.
func (st *storage) Retire(reason string) error {
	if err := st.store.Set(removedKey, []byte(reason)); err != nil {
		return errors.Join(st.removedError(reason), fmt.Errorf("%w: this could not be recorded: %w", ErrStore, err))
	}
	return st.removedError(reason)
}

// Member reports whether the newest configuration of this server includes itself, and whether as a voter. A server
// that is catching up may still have a configuration from before its addition: only the leader's is authoritative.
func (b *base) Member() (member, voter bool) {
	for _, s := range b.configuration() {
		if s.ID == b.id {
			return true, s.Suffrage == raft.Voter
		}
	}
	return false, false
}

func (b *base) isMember(id string) bool {
	for _, s := range b.configuration() {
		if string(s.ID) == id {
			return true
		}
	}
	return false
}

// configuration returns the newest configuration, committed or not; nil before Open has finished.
func (b *base) configuration() []raft.Server {
	r := b.started.Load()
	if r == nil {
		return nil
	}
	f := r.GetConfiguration()
	if f.Error() != nil {
		return nil
	}
	return f.Configuration().Servers
}
