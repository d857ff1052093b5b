package manager

import (
	"context"
	"time"

	"tidemark/manager/auth"
	"tidemark/statecontext"
)

// FirstAdmin is the name of the first administrator.
const FirstAdmin = "admin"

// adminInterval is how often a cluster without users is looked for.
const adminInterval = 500 * time.Millisecond

// noteUsers adds the first administrator, on the leader of a cluster without users, and stores on every manager when
// there are some, so that a restart does not open what was closed. What fails is tried again.
func (m *Manager) noteUsers(ctx context.Context) error {
	tick := time.NewTicker(adminInterval)
	defer tick.Stop()
	hash, told := "", ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		s := m.raft.State()
		if s.UserCount() > 0 {
			if err := m.raft.NoteUsers(); err != nil {
				m.log.Warn("that the cluster has users could not be stored; trying again", "error", err)
				continue
			}
			return nil
		}
		if _, leads := m.raft.Serving(); !leads || s.ClusterID() == "" || m.cfg.InitialAdmin == "" {
			continue
		}
		var err error
		if hash == "" { // once: it takes a core for a while
			hash, err = auth.HashPassword(m.cfg.InitialAdmin)
		}
		if err == nil {
			err = m.addAdmin(ctx, hash)
		}
		switch {
		case err == nil:
			m.log.Info("the first administrator was added", "user", FirstAdmin)
		case err.Error() != told: // once for as long as it is the same
			told = err.Error()
			m.log.Warn("the first administrator could not be added; trying again", "error", err)
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
