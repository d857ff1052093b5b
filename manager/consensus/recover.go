package consensus

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/hashicorp/raft"

	"tidemark/statecontext"
)

// RecoveryReport describes what a recovery from a lost majority would do, or has done.
type RecoveryReport struct {
	ServerID  string   `json:"server_id"` // of the survivor, from now on the only voter
	ClusterID string   `json:"cluster_id"`
	Members   []Server `json:"members"`    // in the newest configuration of this server
	Forgotten []string `json:"forgotten"`  // servers that may never vote in the cluster again
	Snapshot  uint64   `json:"snapshot"`   // log index of the newest snapshot
	LastIndex uint64   `json:"last_index"` // of the log: all entries up to it become committed
	// Tail is the number of log entries after the snapshot; those that were not committed become so.
	Tail     uint64 `json:"tail"`
	CAS      uint64 `json:"cas"` // of the state after all entries
	Indexes  int    `json:"indexes"`
	OldEpoch uint64 `json:"old_epoch"`
	Epoch    uint64 `json:"epoch"` // from now on; 0 if nothing was done
	// LimitsReset reports whether the limits were set to the defaults.
	LimitsReset bool `json:"limits_reset,omitempty"`
}

// RecoverOptions controls a recovery.
type RecoverOptions struct {
	Act         bool // carry it out; otherwise only report
	ResetLimits bool // also set the default limits
}

// ErrNothingToRecover is wrapped if a folder holds no state of a cluster.
var ErrNothingToRecover = errors.New("nothing to recover")

// Recover makes the server with folder cfg.Dir the only voter of its cluster, offline, after a majority of the others
// is lost for ever. Everything in its log becomes committed, even entries that no majority had; what only the lost
// servers had is gone. The epoch rises, so that projectors and indexers refuse servers that come back from before,
// and numbers that the lost history may have assigned are skipped. Without Act it only reports what it would do. The
// machine must be new. Errors wrap ErrInUse, ErrStore, ErrRemoved or ErrNothingToRecover.
func Recover(cfg Config, machine StateMachine, do RecoverOptions) (RecoveryReport, error) {
	var r RecoveryReport
	if _, err := os.Stat(cfg.database()); err != nil { // opening would create the file
		return r, fmt.Errorf("%w in %s: %w", ErrNothingToRecover, cfg.Dir, err)
	}
	cfg.RaftAddr = "unused:0"
	if err := cfg.withDefaults(); err != nil {
		return r, err
	}
	st := assemble(cfg, machine).storage
	if err := st.openStore(); err != nil {
		return r, err
	}
	r, err := st.recover(do)
	return r, errors.Join(err, st.store.Close())
}

func (st *storage) recover(do RecoverOptions) (RecoveryReport, error) {
	r := RecoveryReport{ServerID: st.ID()}
	if has, err := st.HasState(); err != nil || !has {
		return r, errors.Join(fmt.Errorf("%w: %s was never part of a cluster", ErrNothingToRecover, st.cfg.Dir), err)
	}
	members, err := st.replay(&r)
	if err != nil {
		return r, fmt.Errorf("%w: %w", ErrStore, err)
	}
	state := st.fsm.State()
	r.ClusterID, r.CAS, r.Indexes, r.OldEpoch = state.ClusterID(), state.CAS(), state.IndexCount(), state.Epoch()
	if r.ClusterID == "" {
		return r, fmt.Errorf("%w: the log in %s ends before its cluster got an id; start a new cluster with empty folders",
			ErrNothingToRecover, st.cfg.Dir)
	}
	own := raft.Server{ID: st.id, Suffrage: raft.Voter}
	for _, m := range members {
		r.Members = append(r.Members, Server{ID: string(m.ID), Raft: string(m.Address), Voter: m.Suffrage == raft.Voter})
		if m.ID == st.id {
			own.Address = m.Address
		} else {
			r.Forgotten = append(r.Forgotten, string(m.ID))
		}
	}
	if own.Address == "" {
		return r, fmt.Errorf("%w: %s is not among the members in its log: %v", ErrNothingToRecover, st.id, r.Members)
	}
	if !do.Act {
		return r, nil
	}
	epoch := max(r.OldEpoch+1, uint64(max(0, st.cfg.Now().Unix())))
	raise, err := statecontext.EncodeAs(st.cfg.Version, statecontext.Command{WallMS: st.cfg.Now().UnixMilli(),
		Body: &statecontext.RaiseEpoch{Epoch: epoch, SkipNumbers: true, ResetLimits: do.ResetLimits}})
	if err != nil {
		return r, err
	}
	_, trans := raft.NewInmemTransport(own.Address)
	again := &recovering{StateMachine: st.fsm, raise: raise}
	err = raft.RecoverCluster(st.cfg.raft(st.id, nil), again, st.logs, st.store, st.snaps, trans,
		raft.Configuration{Servers: []raft.Server{own}})
	if err != nil {
		return r, fmt.Errorf("%w: %w", ErrStore, err)
	}
	r.Epoch, r.LimitsReset = epoch, do.ResetLimits
	if err := st.store.Set(contradictedKey, nil); err != nil { // its history is the cluster's now
		return r, fmt.Errorf("%w: %w", ErrStore, err)
	}
	return r, nil
}

// replay applies all stored entries to the machine and returns the newest configuration.
func (st *storage) replay(r *RecoveryReport) (members []raft.Server, err error) {
	snaps, err := st.snaps.List()
	if err != nil {
		return nil, err
	}
	for _, s := range snaps { // the newest intact one
		meta, source, e := st.snaps.Open(s.ID)
		if e == nil {
			e = st.fsm.Restore(source)
		}
		if err = e; e == nil {
			r.Snapshot, members = meta.Index, meta.Configuration.Servers
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("no readable snapshot: %w", err)
	}
	last, err := st.logs.LastIndex()
	if err != nil {
		return nil, err
	}
	r.LastIndex = max(r.Snapshot, last)
	for i := r.Snapshot + 1; i <= last; i++ {
		var entry raft.Log
		if err := st.logs.GetLog(i, &entry); err != nil {
			return nil, fmt.Errorf("log entry %d: %w", i, err)
		}
		switch entry.Type {
		case raft.LogCommand:
			if err, failed := st.fsm.Apply(&entry).(error); failed {
				return nil, err
			}
		case raft.LogConfiguration:
			members = raft.DecodeConfiguration(entry.Data).Servers
		}
		r.Tail++
	}
	return slices.Clone(members), nil
}

// recovering is the state machine for the library's recovery. Its snapshot has the new epoch; writing that snapshot
// performs the recovery atomically. Before it the library repeats the replay into the same machine.
type recovering struct {
	StateMachine
	raise []byte
}

// Apply skips entries that the machine has already applied.
func (r *recovering) Apply(l *raft.Log) any {
	if l.Index <= r.State().AppliedIndex() {
		return nil
	}
	return r.StateMachine.Apply(l)
}

// Snapshot first raises the epoch, as part of the newest entry.
func (r *recovering) Snapshot() (raft.FSMSnapshot, error) {
	if err, failed := r.StateMachine.Apply(&raft.Log{Index: r.State().AppliedIndex(), Type: raft.LogCommand,
		Data: r.raise}).(error); failed {
		return nil, err
	}
	return r.StateMachine.Snapshot()
}
