package manager

import (
	"context"
	"time"

	"tidemark/auth"
	"tidemark/statecontext"
)

// FirstAdmin is the name of the first administrator.
const FirstAdmin = "admin"

// adminInterval is how often a cluster without users is looked for.
const adminInterval = 500 * time.Millisecond

// firstAdmin adds the first administrator, on the leader of a cluster without users, until there are some. What fails is
// tried again.
func (m *Manager) firstAdmin(ctx context.Context) error {
	if m.cfg.InitialAdmin == "" {
		return nil
	}
	tick := time.NewTicker(adminInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		s := m.raft.State()
		if s.UserCount() > 0 {
			return nil
		}
		if _, leads := m.raft.Serving(); !leads || s.ClusterID() == "" {
			continue
		}
		if err := m.addAdmin(ctx); err != nil {
			m.log.Warn("the first administrator could not be added; trying again", "error", err)
			continue
		}
		m.log.Info("the first administrator was added", "user", FirstAdmin)
	}
}

func (m *Manager) addAdmin(ctx context.Context) error {
	hash, err := auth.HashPassword(m.cfg.InitialAdmin)
	if err != nil {
		return err
	}
	res, err := m.raft.Propose(ctx, statecontext.Command{TimeMS: time.Now().UnixMilli(),
		Body: &statecontext.PutUser{Mode: statecontext.PutFirst, Name: FirstAdmin, Role: statecontext.UserAdmin, Hash: hash}})
	if err != nil {
		return err
	}
	return res.Err()
}
