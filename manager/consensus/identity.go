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

// What the stable store keeps of this server's place in the world, beside the server id: what wipes the log wipes it.
var (
	clusterIDKey = []byte("tidemark-cluster-id")
	removedKey   = []byte("tidemark-removed") // holds the reason
	usersKey     = []byte("tidemark-users")   // the cluster has had users
	memberKey    = []byte("tidemark-member")  // this server was a member
	epochKey     = []byte("tidemark-epoch")   // of what was committed of the log, as far as it was known
)

// clusterName is the cluster that this server belongs to. The state tells it too, but after a restart only when the
// leader has said what is committed.
type clusterName struct {
	stored   atomic.Pointer[string] // nil before openIdentity
	unstored chan struct{}          // one slot, for keepCluster
}

// openIdentity reads what was stored. The error wraps ErrRemoved when this server was removed.
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
		return fmt.Errorf("%w: the epoch of the log is noted as %q", ErrStore, epoch)
	}
	st.epoch.Store(n)
	return nil
}

// HasUsers reports whether the cluster has users, or had some when this server ran before: after a restart the state
// tells it only when the leader has said what is committed, and until then nobody may be taken for an administrator.
func (st *storage) HasUsers() bool { return st.users.Load() || st.fsm.State().UserCount() > 0 }

// NoteUsers stores once that the cluster has users, when it has.
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

// New reports whether this server was no member yet, as far as it knows, and may ask to be added: its log is empty, or
// it knows of which epoch its log is, as an addition was lost with the leader that began it. One that does not may have
// the log of a history that a recovery has given up, with entries of the same terms, which Raft would not replace.
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

// Epoch is that of the state, or, after a restart before some leader has said what is committed, that of the state when
// it was noted last; 0: none was.
func (st *storage) Epoch() uint64 {
	return cmp.Or(st.fsm.State().Epoch(), st.epoch.Load())
}

// NoteEpoch stores the state's epoch, once for each.
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

// NoteMember stores once that this server was a member, when the state says so.
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

// stored reads a text, "" when there is none.
func (st *storage) stored(key []byte) (string, error) {
	v, err := st.store.Get(key)
	if err != nil && !errors.Is(err, raftboltdb.ErrKeyNotFound) {
		return "", err
	}
	return string(v), nil
}

// ClusterID is the cluster that this server belongs to, "" while it belongs to none. It never waits for the disk: every
// connection between managers begins with it, those by which a leader with a bad disk is replaced, too.
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

// keepCluster stores the cluster id when somebody asked for it and it is not stored; one that cannot be stored is tried
// again when it is asked for again.
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
			st.cfg.Logger.Warn("the cluster id could not be stored", "error", err)
			continue
		}
		st.cluster.stored.Store(&now)
	}
}

// Retire notes for ever that this server was removed, and returns the error to end with: Open refuses its folder from
// now on, so that it never votes again.
func (st *storage) Retire(reason string) error {
	if err := st.store.Set(removedKey, []byte(reason)); err != nil {
		return errors.Join(st.removedError(reason), fmt.Errorf("%w: it could not be noted: %w", ErrStore, err))
	}
	return st.removedError(reason)
}

// Member reports whether the newest configuration that this server has includes itself, and with which vote. One that
// is catching up may read a configuration from before its own time: only the leader's counts.
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

// configuration is the newest one, committed or not; none before Open has ended.
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
