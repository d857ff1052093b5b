package manager

import (
	"context"
	"time"

	"tidemark/manager/auth"
	"tidemark/statecontext"
)

// FirstAdmin is the name of the first administrator.
const FirstAdmin = "admin"

// adminInterval is the interval of the checks for a cluster without users.
const adminInterval = 500 * time.Millisecond

// noteUsers adds the first administrator if this manager leads a cluster without users. On every manager it records
// when the cluster has users, so that a restart does not open a cluster that was closed. Failures are retried.
func (m *Manager) noteUsers(ctx context.Context) error {
	tick := time.NewTicker(adminInterval)
	defer tick.Stop()
	hash, logged := "", ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		s := m.raft.State()
		if s.UserCount() > 0 {
			if err := m.raft.NoteUsers(); err != nil {
				m.log.Warn("cannot store that the cluster has users; trying again", "error", err)
				continue
			}
			return nil
		}
		if _, leads := m.raft.Serving(); !leads || s.ClusterID() == "" || m.cfg.InitialAdmin == "" {
			continue
		}
		var err error
		if hash == "" { // only once: hashing takes a core for a while
			hash, err = auth.HashPassword(m.cfg.InitialAdmin)
		}
		if err == nil {
			err = m.addAdmin(ctx, hash)
		}
		switch {
		case err == nil:
			m.log.Info("first administrator added", "user", FirstAdmin)
		case err.Error() != logged: // log it once as long as it stays the same
			logged = err.Error()
			m.log.Warn("first administrator cannot be added; trying again", "error", err)
		}
	}
}

func (m *Manager) addAdmin(ctx context.Context, hash string) error {
	res, err := m.raft.Propose(ctx, statecontext.Command{Body: &statecontext.PutUser{Mode: statecontext.PutFirst,
		Name: FirstAdmin, Role: statecontext.UserAdmin, Hash: hash}})
	if err != nil {
		return err
	}
	return res.Err()
}
