package manager

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sync/errgroup"

	"tidemark/errcode"
	"tidemark/fsm"
	"tidemark/internal/rpc"
	"tidemark/internal/version"
	"tidemark/manager/consensus"
	"tidemark/wire"
)

// Times and limits of maintaining this manager's own membership.
const (
	registerInterval = 500 * time.Millisecond
	peersInterval    = 5 * time.Second // interval of the probes of the other managers while there is a leader
	lonelyAfter      = 3 * time.Second // without a leader for this long: check whether this manager is still a member
	peerTimeout      = time.Second
	maxPeers         = 32
	maxPeerAnswer    = 64 << 10 // bytes of a manager's answer to a probe
)

// lead runs the leader's duties of a term: the coordinator and the steward of the members.
func (m *Manager) lead(ctx context.Context, term uint64) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return m.coord.Run(ctx, term) })
	g.Go(func() error { return m.steward.Run(ctx) })
	return g.Wait()
}

// form brings an empty manager into a cluster.
func (m *Manager) form(ctx context.Context) error {
	err := m.raft.Form(ctx, prober{m}, m.cfg.Join, m.cfg.BootstrapExpect, formInterval)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// prober calls another manager's REST interface.
type prober struct{ m *Manager }

// Probe implements consensus.PeerProbe.
func (p prober) Probe(ctx context.Context, addr string) (consensus.PeerAnswer, error) {
	var a consensus.PeerAnswer
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.m.cfg.TLS.BaseURL(addr)+"/v1/bootstrap", nil)
	if err != nil {
		return a, err
	}
	resp, err := p.m.peers.HTTP().Do(req)
	if err != nil {
		return a, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return a, rpc.ReadProblem(resp)
	}
	b, err := rpc.ReadAnswer(resp, maxPeerAnswer)
	if err == nil {
		err = json.Unmarshal(b, &a)
	}
	return a, err
}

// Join implements consensus.PeerProbe.
func (p prober) Join(ctx context.Context, addr string) error {
	return p.m.peers.Do(ctx, http.MethodPost, p.m.cfg.TLS.BaseURL(addr)+"/v1/cluster/managers", p.m.registration(),
		&wire.OK{})
}

// registration returns the registration of this manager.
func (m *Manager) registration() *wire.RegisterManager {
	return &wire.RegisterManager{ClusterID: m.raft.ClusterID(), ID: m.raft.ID(), Name: m.cfg.Name, REST: m.url(),
		Raft: m.raft.Addr(), FormatLevel: m.raft.FormatLevel(), New: m.raft.New(), Epoch: m.raft.Epoch()}
}

// note records beside the log what the state contains about this manager.
func (m *Manager) note() error {
	return errors.Join(m.raft.NoteFormatLevel(), m.raft.NoteEpoch(), m.raft.NoteMember())
}

// register keeps this manager's addresses up to date in the state, by requests to the leader, and tracks the present
// addresses of the other managers by probing them. It returns consensus.ErrRemoved if this manager was removed. It
// probes the others even while an announcement hangs: a leader may need their addresses to be elected.
func (m *Manager) register(ctx context.Context) error {
	var announcing sync.WaitGroup
	defer announcing.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var announced chan error // of the announcement in flight
	tick := time.NewTicker(registerInterval)
	defer tick.Stop()
	led, asked := time.Now(), time.Time{}
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-announced:
			if announced = nil; err != nil {
				return err
			}
			continue
		case <-tick.C:
		}
		if err := m.note(); err != nil {
			m.log.Warn("registration of this manager cannot be updated in the state", "error", err)
		}
		self := m.registration()
		if self.ClusterID == "" {
			continue
		}
		m.peers.SetCluster(self.ClusterID)
		leader := m.raft.Leader()
		if leader.Known {
			led = time.Now()
		}
		var ahead []string
		if !leader.Known || time.Since(asked) > peersInterval {
			asked = time.Now()
			ahead = m.meet(ctx, self.ClusterID)
		}
		if to := m.announceTargets(self, ahead, leader.ID, led); announced == nil && len(to) > 0 {
			answer := make(chan error, 1)
			announced = answer
			announcing.Go(func() { answer <- m.announce(ctx, self, to) })
		}
	}
}

// announceTargets returns the managers to which this one has to be announced; nil if there is nothing to announce.
func (m *Manager) announceTargets(self *wire.RegisterManager, ahead []string, leader string, led time.Time) []string {
	if len(ahead) > 0 { // this manager missed a recovery, or lags; they have the newer epoch
		return ahead
	}
	if member, _ := m.raft.Member(); member && m.known(self) && time.Since(led) <= lonelyAfter {
		return nil
	}
	return m.managers(leader)
}

// known reports whether the state has the right registration of this manager.
func (m *Manager) known(self *wire.RegisterManager) bool {
	k := m.raft.State().Manager(self.ID)
	return k != nil && k.REST == self.REST && k.Raft == self.Raft && k.Name == self.Name &&
		k.FormatLevel == self.FormatLevel
}

// managers returns the base URLs of the other managers: the leader first, then those that have answered a handshake,
// those in the state, and those from --join.
func (m *Manager) managers(leader string) (urls []string) {
	add := func(url string) {
		if url != m.url() && !slices.Contains(urls, url) && len(urls) < maxPeers {
			urls = append(urls, url)
		}
	}
	s := m.raft.State()
	if l := s.Manager(leader); l != nil {
		urls = append(urls, l.REST) // even if it is this manager
	}
	for _, url := range m.raft.RecentPeers() { // they are, or recently were, reachable
		add(url)
	}
	for k := range s.Managers() {
		add(k.REST)
	}
	for _, addr := range m.cfg.Join {
		add(m.cfg.TLS.BaseURL(addr))
	}
	return urls
}

// meet probes the other managers. It records their present addresses and returns those of a later epoch.
func (m *Manager) meet(ctx context.Context, cluster string) (ahead []string) {
	ctx, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	epoch := m.raft.State().Epoch()
	var mu sync.Mutex
	var asked sync.WaitGroup
	for _, url := range m.managers("") {
		asked.Go(func() {
			a, err := prober{m}.Probe(ctx, url)
			if err != nil || a.ID == m.raft.ID() {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			switch {
			case a.ClusterID == cluster:
				m.raft.Moved(a.ID, a.Raft)
				if a.Epoch > epoch && epoch > 0 {
					ahead = append(ahead, url)
				}
			case a.ClusterID != "":
				m.complain("manager at an address of --join belongs to another cluster", "address", url, "manager", a.ID, "cluster",
					a.ClusterID, "this", cluster)
			}
		})
	}
	asked.Wait()
	return ahead
}

// complain logs a warning unless it equals the previous one.
func (m *Manager) complain(what string, args ...any) {
	text := fmt.Sprint(what, args)
	if last := m.complained.Swap(&text); last == nil || *last != text {
		m.log.Warn(what, args...)
	}
}

// announce sends this manager's registration to the managers in turn until one answers; each forwards it to the
// leader. A manager that hangs does not delay the next. The error wraps consensus.ErrRemoved if this manager was
// removed; any other error is retried at the next tick.
func (m *Manager) announce(ctx context.Context, self *wire.RegisterManager, urls []string) error {
	ctx, cancel := context.WithTimeout(ctx, m.raft.JoinTimeout())
	defer cancel()
	for url, err := range rpc.Hedged(ctx, urls, func(ctx context.Context, url string) error {
		return m.peers.Do(ctx, http.MethodPost, url+"/v1/cluster/managers", self, &wire.OK{})
	}) {
		var p *rpc.Problem
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return nil
		case errors.As(err, &p) && p.Code == errcode.NodeRemoved:
			err = m.raft.Retire(p.Detail)
			m.log.Error("manager stops", "error", err)
			return err
		case errors.As(err, &p) && !p.Temporary():
			m.complain("manager cannot register", "at", url, "error", err)
		default:
			m.log.Debug("registration failed", "at", url, "error", err)
		}
	}
	return nil
}

// Recover makes the manager with data folder dir the only voter of its cluster, offline; see consensus.Recover.
func Recover(dir string, do consensus.RecoverOptions, log hclog.Logger) (consensus.RecoveryReport, error) {
	return consensus.Recover(consensus.Config{Name: "recover", Dir: filepath.Join(dir, "raft"), Version: version.Number,
		Logger: log},
		fsm.New(log, func(error) {}), do)
}
