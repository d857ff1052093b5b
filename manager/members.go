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

// Times and limits of the care for this manager's own membership.
const (
	registerInterval = 500 * time.Millisecond
	peersInterval    = 5 * time.Second // between two looks at who the others are, while there is a leader
	lonelyAfter      = 3 * time.Second // without a leader: ask whether this one is still a member
	peerTimeout      = time.Second
	maxPeers         = 32
	maxPeerAnswer    = 64 << 10 // bytes of what another one says of itself
)

// lead is what the leader does in a term: the coordinator's duties and the care for the members.
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

// prober asks another manager's REST interface.
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

// registration is what this manager says of itself.
func (m *Manager) registration() *wire.RegisterManager {
	return &wire.RegisterManager{ClusterID: m.raft.ClusterID(), ID: m.raft.ID(), Name: m.cfg.Name, REST: m.url(),
		Raft: m.raft.Addr(), FormatLevel: m.raft.FormatLevel(), New: m.raft.New(), Epoch: m.raft.Epoch()}
}

// note stores beside the log what the state says of this manager.
func (m *Manager) note() error {
	return errors.Join(m.raft.NoteFormatLevel(), m.raft.NoteEpoch(), m.raft.NoteMember())
}

// register keeps this manager's addresses known: those in the state by asking the leader to note them, those that the
// other managers have now by asking them. It ends with consensus.ErrRemoved when this manager was removed. The others
// are asked also while one that is told hangs: maybe no leader can be elected before their addresses are known.
func (m *Manager) register(ctx context.Context) error {
	var telling sync.WaitGroup
	defer telling.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var told chan error // of an announcement that is under way
	tick := time.NewTicker(registerInterval)
	defer tick.Stop()
	led, asked := time.Now(), time.Time{}
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-told:
			if told = nil; err != nil {
				return err
			}
			continue
		case <-tick.C:
		}
		if err := m.note(); err != nil {
			m.log.Warn("what the state says of this manager is not noted", "error", err)
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
		if to := m.toTell(self, ahead, leader.ID, led); told == nil && len(to) > 0 {
			answer := make(chan error, 1)
			told = answer
			telling.Go(func() { answer <- m.announce(ctx, self, to) })
		}
	}
}

// toTell returns the managers who are to be told who this one is; none where there is nothing to tell.
func (m *Manager) toTell(self *wire.RegisterManager, ahead []string, leader string, led time.Time) []string {
	if len(ahead) > 0 { // a recovery has left this one behind, or it is late; they know
		return ahead
	}
	if member, _ := m.raft.Member(); member && m.known(self) && time.Since(led) <= lonelyAfter {
		return nil
	}
	return m.managers(leader)
}

// known reports whether the state says of this manager what is true.
func (m *Manager) known(self *wire.RegisterManager) bool {
	k := m.raft.State().Manager(self.ID)
	return k != nil && k.REST == self.REST && k.Raft == self.Raft && k.Name == self.Name &&
		k.FormatLevel == self.FormatLevel
}

// managers lists the base URLs of the others: the leader first, then those that have answered a greeting, those in
// the state, and those of --join.
func (m *Manager) managers(leader string) (urls []string) {
	add := func(url string) {
		if url != m.url() && !slices.Contains(urls, url) && len(urls) < maxPeers {
			urls = append(urls, url)
		}
	}
	s := m.raft.State()
	if l := s.Manager(leader); l != nil {
		urls = append(urls, l.REST) // this one too
	}
	for _, url := range m.raft.Heard() { // they live, or did a while ago
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

// meet asks the others who they are: where they are to be dialled from now on, and which of them are of a later epoch.
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
				m.complain("a manager of another cluster is at an address of --join", "address", url, "manager", a.ID, "cluster",
					a.ClusterID, "this", cluster)
			}
		})
	}
	asked.Wait()
	return ahead
}

// complain logs what it did not log last.
func (m *Manager) complain(what string, args ...any) {
	text := fmt.Sprint(what, args)
	if last := m.complained.Swap(&text); last == nil || *last != text {
		m.log.Warn(what, args...)
	}
}

// announce tells the managers in turn who this one is, until one answers; each sends it on to its leader. One that
// hangs keeps it from none of the others. The error wraps consensus.ErrRemoved; anything else is tried again with the
// next tick.
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
			m.log.Error("this manager ends", "error", err)
			return err
		case errors.As(err, &p) && !p.Temporary():
			m.complain("this manager cannot register", "at", url, "error", err)
		default:
			m.log.Debug("registration failed", "at", url, "error", err)
		}
	}
	return nil
}

// Recover makes the manager whose data folder dir is the only voter of its cluster, offline; see consensus.Recover.
func Recover(dir string, do consensus.RecoverOptions, log hclog.Logger) (consensus.RecoveryReport, error) {
	return consensus.Recover(consensus.Config{Name: "recover", Dir: filepath.Join(dir, "raft"), Version: version.Number,
		Logger: log},
		fsm.New(log, func(error) {}), do)
}
