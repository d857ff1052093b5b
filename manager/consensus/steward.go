package consensus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"tidemark/statecontext"
)

var (
	// ErrUnknownMember is wrapped if no member has that id or name.
	ErrUnknownMember = errors.New("no such manager")
	// ErrMemberConflict is wrapped if a server cannot be added beside the present members.
	ErrMemberConflict = errors.New("the manager cannot be added")
	// ErrQuorumAtRisk is wrapped if a change would leave fewer answering voters than a majority.
	ErrQuorumAtRisk = errors.New("a majority would be missing")
	// ErrNotMember is wrapped if a server that has Raft state of this cluster is not a member: it was removed.
	ErrNotMember = errors.New("the manager is no longer a member of this cluster")
)

// StewardConfig configures a Steward.
type StewardConfig struct {
	Node         *Node
	PromoteAfter time.Duration // default DefaultPromoteAfter
	Every        time.Duration // interval of the rounds; default a third of PromoteAfter, at most a second
}

// Steward manages the members for the leader. It adds new servers as nonvoters, promotes them once they have caught
// up and stayed, records new addresses, removes members on request, one change at a time and never below a majority,
// and removes registrations of servers that are not members. Its methods are safe for concurrent use; they work on
// the leader only (NotLeaderError).
type Steward struct {
	cfg   StewardConfig
	node  *Node
	shown atomic.Pointer[[]Sighting]
	wake  chan struct{} // capacity 1: start the next round at once
	turn  chan struct{} // capacity 1: held while a decision about members is made, which may take some time

	mu     sync.Mutex
	roster *roster // of the current term
}

// NewSteward creates a Steward; Run does its work.
func NewSteward(cfg StewardConfig) *Steward {
	if cfg.PromoteAfter == 0 {
		cfg.PromoteAfter = DefaultPromoteAfter
	}
	if cfg.Every == 0 {
		cfg.Every = min(cfg.PromoteAfter/3, time.Second)
	}
	return &Steward{cfg: cfg, node: cfg.Node, wake: make(chan struct{}, 1), turn: make(chan struct{}, 1)}
}

// take waits for the turn to decide about members; give releases it.
func (s *Steward) take(ctx context.Context) error {
	select {
	case s.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: another change of members is under way: %w", ErrBusy, ctx.Err())
	}
}

func (s *Steward) give() { <-s.turn }

// Run manages the members while this node leads, until ctx ends.
func (s *Steward) Run(ctx context.Context) error {
	s.mu.Lock()
	s.roster = newRoster(s.cfg.PromoteAfter)
	s.mu.Unlock()
	defer s.shown.Store(nil)
	tick := time.NewTicker(s.cfg.Every)
	defer tick.Stop()
	for {
		if next, err := s.look(ctx); err == nil && ctx.Err() == nil {
			s.act(ctx, next)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-s.wake:
		}
	}
}

// Sightings returns the leader's view of the members; nil while this node does not lead.
func (s *Steward) Sightings() []Sighting {
	if p := s.shown.Load(); p != nil {
		return *p
	}
	return nil
}

// look surveys all members and returns what to do.
func (s *Steward) look(ctx context.Context) (step, error) {
	servers, err := s.node.Servers()
	if err != nil {
		return step{}, err
	}
	n := s.node
	last := n.raft.LastIndex() // before the survey: no server counts as lagging because of entries written during it
	answers, err := n.survey(ctx, servers)
	if err != nil {
		return step{}, err
	}
	v := view{nowMS: n.clock.steadyMS(), self: Server{ID: n.ID(), Raft: n.Addr()}, servers: servers, answers: answers,
		last: last}
	for m := range n.State().Managers() {
		v.known = append(v.known, m.ID)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.roster == nil {
		s.roster = newRoster(s.cfg.PromoteAfter)
	}
	next := s.roster.step(v)
	next.seen = servers
	all := s.roster.sightings(servers)
	s.shown.Store(&all)
	return next, nil
}

// act carries out the findings of a round. If something fails or takes too long, the next round finds it again.
func (s *Steward) act(ctx context.Context, next step) {
	ctx, cancel := context.WithTimeout(ctx, memberTimeout)
	defer cancel()
	if s.take(ctx) != nil {
		return
	}
	defer s.give()
	n := s.node
	if a := next.readdress; a != nil {
		n.cfg.Logger.Info("address of this manager has changed", "server", a.ID, "raft", a.Raft)
		s.report("new address", n.AddVoter(ctx, *a, next.seen))
	}
	if p := next.promote; p != nil {
		n.cfg.Logger.Info("new manager has caught up and becomes a voter", "server", p.ID)
		s.report("promotion", n.AddVoter(ctx, *p, next.seen))
	}
	for _, id := range next.forget {
		_, err := n.Propose(ctx, statecontext.Command{Body: &statecontext.RemoveManager{ID: id}})
		s.report("forgetting "+id, err)
	}
}

func (s *Steward) report(what string, err error) {
	if err != nil {
		s.node.cfg.Logger.Info("change of members failed; trying again", "what", what, "error", err)
	}
}

// JoinRequest describes a server that requests to be a member, or that reports a new address.
type JoinRequest struct {
	Manager statecontext.Manager
	New     bool   // as far as it has recorded, it was never a member: it requests to be added
	Epoch   uint64 // of its state
}

// Join adds a server, as a nonvoter at first, or records its new addresses. If nothing changes, it succeeds. Errors
// wrap wire.ErrForeignCluster (by the caller), ErrNotMember, ErrMemberConflict, NotLeaderError or those of Propose.
func (s *Steward) Join(ctx context.Context, req JoinRequest) error {
	if m := &req.Manager; m.Raft == "" || m.ID == "" || m.Name == "" || strings.Contains(m.ID+m.Raft, "@") {
		return fmt.Errorf("%w: id %q, name %q and Raft address %q must not be empty or contain "+
			"@", ErrMemberConflict, m.ID, m.Name,
			m.Raft)
	}
	if err := statecontext.CheckManager(&req.Manager); err != nil { // check it before it becomes a member
		return err
	}
	if err := s.take(ctx); err != nil {
		return err
	}
	defer s.give()
	if err := s.node.ReadBarrier(ctx); err != nil { // a deposed leader must not decide who is a member
		return err
	}
	changed, err := s.enter(ctx, &req)
	if err != nil {
		return err
	}
	if known := s.node.State().Manager(req.Manager.ID); known != nil {
		now := req.Manager
		if now.ModifiedCAS = known.ModifiedCAS; now == *known {
			return nil
		}
	}
	res, err := s.node.Propose(ctx, statecontext.Command{Body: &statecontext.RegisterManager{Manager: req.Manager}})
	if err == nil {
		err = res.Err()
	}
	if err != nil && changed && !errors.Is(err, ErrNotLeader) { // a retry is fine, but "nothing was done" would be wrong
		err = fmt.Errorf("%w: %s is a member, but its addresses could not be stored: "+
			"%w", ErrUnknownOutcome, req.Manager.ID, err)
	}
	return err
}

// enter makes a server a member or records its address; changed reports whether anything changed.
func (s *Steward) enter(ctx context.Context, req *JoinRequest) (changed bool, err error) {
	servers, err := s.node.Servers()
	if err != nil {
		return false, err
	}
	m, level, epoch := &req.Manager, s.node.State().FormatLevel(), s.node.State().Epoch()
	at := slices.IndexFunc(servers, func(s Server) bool { return s.ID == m.ID })
	switch {
	case at < 0 && (!req.New || req.Epoch != 0 && req.Epoch != epoch): // this log may lack what that server has applied
		return false, fmt.Errorf("%w: %s has Raft state but was removed from cluster %s: delete its data folder, it then "+
			"joins as a new one", ErrNotMember, m.ID, s.node.ClusterID())
	case at < 0 && m.FormatLevel < level:
		return false, fmt.Errorf("%w: %s supports format levels up to %d, the cluster is at %d: install a newer version of "+
			"tidemark on it", ErrMemberConflict, m.ID, m.FormatLevel, level)
	}
	if m.ID == s.node.ID() && m.Raft != s.node.Addr() { // the leader has its own address right
		return false, s.twofold(m.ID, s.node.Addr())
	}
	if at < 0 {
		return true, s.add(ctx, servers, Server{ID: m.ID, Raft: m.Raft}, m.Name)
	}
	return servers[at].Raft != m.Raft, s.readdress(ctx, servers[at], m.Raft)
}

// readdress records a member's new address. A second process with a copy of the member's folder is refused.
func (s *Steward) readdress(ctx context.Context, m Server, addr string) error {
	if m.Raft == addr {
		s.node.Moved(m.ID, addr) // an older one may have been noted
		return nil
	}
	answers, err := s.node.survey(ctx, []Server{m})
	if err != nil {
		return err
	}
	if m.ID != s.node.ID() && answers[m.ID].problem == "" {
		s.node.layer.mu.Lock()
		dialled := s.node.layer.moved[m.ID]
		s.node.layer.mu.Unlock()
		if dialled != addr {
			return s.twofold(m.ID, m.Raft)
		}
	}
	s.node.Moved(m.ID, addr)
	s.node.cfg.Logger.Info("address of a manager has changed", "server", m.ID, "was", m.Raft, "is", addr)
	m.Raft = addr
	if m.Voter {
		return s.node.AddVoter(ctx, m, nil)
	}
	return s.node.AddNonvoter(ctx, m, nil)
}

// twofold returns the error for a second process with a copy of a member's folder.
func (s *Steward) twofold(id, lives string) error {
	return fmt.Errorf("%w: server %s already runs at %s: two processes have copies of one data folder; stop one and "+
		"delete its folder", ErrMemberConflict, id, lives)
}

// add adds a new server as a nonvoter. A server that lost its folder and comes back under a new id replaces its
// former self, if that leaves a majority.
func (s *Steward) add(ctx context.Context, servers []Server, fresh Server, name string) error {
	if len(servers) >= MaxMembers {
		return fmt.Errorf("%w: the cluster has %d managers; the limit is %d", ErrMemberConflict, len(servers), MaxMembers)
	}
	here, err := s.formerSelves(ctx, servers, fresh, name)
	if err != nil {
		return err
	}
	for _, old := range here {
		s.node.cfg.Logger.Warn("manager has lost its folder and joins again; its former registration is "+
			"removed", "was", old.ID,
			"is", fresh.ID)
		if _, err := s.remove(ctx, old.ID, false, nil); err != nil {
			return fmt.Errorf("%w: %s lost its data and must be removed first: %w", ErrMemberConflict, old.ID, err)
		}
	}
	s.node.cfg.Logger.Info("new manager joins, without a vote until it has caught up", "server", fresh.ID, "raft",
		fresh.Raft)
	return s.node.AddNonvoter(ctx, fresh, nil)
}

// formerSelves returns the members that a new server with this name used to be at its address. A member with its name
// or address that answers is a conflict. A silent member with its name at another address may come back, and is
// removed only on request. All are surveyed concurrently, so that the join waits for the duration of one call.
func (s *Steward) formerSelves(ctx context.Context, servers []Server, fresh Server, name string) (here []Server,
	err error) {
	var alike []Server
	for _, m := range servers {
		if isNamed(m.ID, name) || m.Raft == fresh.Raft {
			alike = append(alike, m)
		}
	}
	answers, err := s.node.survey(ctx, alike)
	if err != nil {
		return nil, err
	}
	for _, old := range alike {
		switch {
		case old.ID == s.node.ID() || answers[old.ID].problem == "":
			return nil, fmt.Errorf("%w: the running manager %s has the same name or the address %s; give the new one others "+
				"(--id, --raft)",
				ErrMemberConflict, old.ID, old.Raft)
		case old.Raft != fresh.Raft:
		case !isNamed(old.ID, name):
			return nil, fmt.Errorf("%w: manager %s, which does not answer, has the address %s; remove it first: tidemark "+
				"cluster remove %s", ErrMemberConflict, old.ID, old.Raft, old.ID)
		default:
			here = append(here, old)
		}
	}
	return here, nil
}

// isNamed reports whether a server id, which ends in a random suffix, belongs to this name.
func isNamed(id, name string) bool {
	return strings.HasPrefix(id, name+"-") && len(id) == len(name)+1+2*suffixBytes
}

// Find returns the member with this server id or, if only one member has it, this name.
func (s *Steward) Find(idOrName string) (Server, error) {
	servers, err := s.node.Servers()
	if err != nil {
		return Server{}, err
	}
	var found []Server
	for _, m := range servers {
		known := s.node.State().Manager(m.ID)
		if m.ID == idOrName {
			return m, nil
		}
		if known != nil && known.Name == idOrName || known == nil && isNamed(m.ID, idOrName) {
			found = append(found, m)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return Server{}, fmt.Errorf("%w as %q; tidemark cluster status lists them", ErrUnknownMember, idOrName)
	}
	return Server{}, fmt.Errorf("%w: several managers have the name %q; use the server id: %s, "+
		"%s", ErrMemberConflict, idOrName,
		found[0].ID, found[1].ID)
}

// Remove removes a member for ever, by its server id. If the member is the leader itself, it transfers leadership
// first and returns a NotLeaderError. The removal is refused (ErrQuorumAtRisk) if fewer voters than a majority would
// remain that answer: the removal would wait for them, and with it every other write. With force, silent voters are
// removed before it, one by one and as few as suffice; also returns their ids. That is possible as long as there is a
// leader.
//
// note, unless nil, writes what has to be in the log before the members change, such as the request that removes the
// member; an error of note refuses the removal. If no majority stores it in time, it was proposed, and the removal
// continues.
//
// If ctx ends, ErrUnknownOutcome means that the removal may be done, any other error that it is not.
func (s *Steward) Remove(ctx context.Context, id string, force bool,
	note func(context.Context) error) (also []string, err error) {
	if err := s.take(ctx); err != nil {
		return nil, err
	}
	defer s.give()
	if also, err = s.remove(ctx, id, force, note); err == nil || len(also) == 0 {
		return also, err
	}
	if errors.Is(err, ErrBusy) { // something was done already
		err = fmt.Errorf("%w: %w", ErrUnknownOutcome, err)
	}
	return also, fmt.Errorf("%w; already removed permanently: %s", err, strings.Join(also, ", "))
}

func (s *Steward) remove(ctx context.Context, id string, force bool,
	note func(context.Context) error) (also []string, err error) {
	for {
		all, err := s.storing(ctx, note)
		if err != nil {
			return also, err
		}
		note = nil
		voters, alive, need := quorumAfter(all, id)
		switch {
		case voters == 0:
			return also, fmt.Errorf("%w: %s is the only voter; add other managers first, or stop it to end the cluster",
				ErrQuorumAtRisk, id)
		case alive < need && !force:
			return also, fmt.Errorf("%w: without %s there are %d voters, of which %d answer and %d are needed: no write would "+
				"succeed; %s",
				ErrQuorumAtRisk, id, voters, alive, need, deadVotersAdvice(all, id))
		case id == s.node.ID(): // the next leader continues the removal
			s.node.cfg.Logger.Info("this manager is being removed; transferring leadership first")
			if err := s.node.TransferLeadership(ctx); err != nil {
				return also, err
			}
			return also, s.node.notLeader()
		case alive >= need:
			return also, s.end(ctx, id, voters, alive, need)
		}
		dead := silent(all, id)
		if dead == "" {
			return also, fmt.Errorf("%w: of the %d voters besides %s only %d answer: no change can be committed; bring "+
				"the others back or, if their folders are lost, run tidemark cluster recover",
				ErrQuorumAtRisk, voters, id, alive)
		}
		voters, alive, need = quorumAfter(all, dead)
		if err := s.end(ctx, dead, voters, alive, need); err != nil {
			return also, err
		}
		also = append(also, dead)
	}
}

const (
	// storePatience is how long an answering member may take to store what all others have stored.
	storePatience = 3 * time.Second
	storePause    = 50 * time.Millisecond
)

// storing returns the leader's view of the members, where Alive means that a member answers and stores new entries: a
// member with a full disk answers as before but does not count for any change. To find out, it writes a little, by
// note or else a barrier. If no majority stores it, Alive means only that a member answers.
func (s *Steward) storing(ctx context.Context, note func(context.Context) error) ([]Sighting, error) {
	written, err := s.write(ctx, note)
	if err != nil {
		return nil, err
	}
	for end := time.Now().Add(storePatience); ; {
		last := !time.Now().Before(end) // before the survey, which may wait that long for a silent member
		if _, err := s.look(ctx); ctx.Err() != nil {
			return nil, errNotBegun(ctx)
		} else if err != nil {
			return nil, err
		}
		all, waits := slices.Clone(s.Sightings()), false
		for i := range all {
			m := &all[i]
			waits = waits || m.Alive && m.LastIndex < written
			m.Alive = m.Alive && m.LastIndex >= written
		}
		if !waits || last {
			return all, nil
		}
		select {
		case <-time.After(storePause):
		case <-ctx.Done():
			return nil, errNotBegun(ctx)
		}
	}
}

// write writes a little and returns an index that all members then have to store, or 0 if no majority stores it in
// time.
func (s *Steward) write(ctx context.Context, note func(context.Context) error) (uint64, error) {
	if note == nil {
		note = s.node.Barrier
	}
	within, cancel := context.WithTimeout(ctx, storePatience)
	defer cancel()
	switch err := note(within); {
	case err == nil:
		return s.node.raft.CommitIndex(), nil
	case ctx.Err() != nil:
		return 0, errNotBegun(ctx)
	case within.Err() != nil:
		return 0, nil
	default:
		return 0, err
	}
}

// errNotBegun returns the error for a caller whose time ended before the members were changed.
func errNotBegun(ctx context.Context) error {
	return fmt.Errorf("%w: the check which members store writes did not finish in time: %w", ErrBusy, ctx.Err())
}

// Gone reports whether a server is certainly not a member any more, so that even a leader elected now agrees.
func (s *Steward) Gone(ctx context.Context, id string) (bool, error) {
	servers, err := s.node.Servers()
	if err != nil || slices.ContainsFunc(servers, func(m Server) bool { return m.ID == id }) {
		return false, err
	}
	if err := s.node.Barrier(ctx); err != nil {
		return false, fmt.Errorf("checking whether %s is removed: %w", id, err)
	}
	return true, nil
}

// deadVotersAdvice returns what to do about voters that do not answer.
func deadVotersAdvice(all []Sighting, but string) string {
	var dead []string
	for _, m := range all {
		if m.Voter && !m.Alive && m.ID != but {
			dead = append(dead, m.ID)
		}
	}
	return fmt.Sprintf("%s does not answer, or its disk is full or hangs: repair and restart it, or remove it "+
		"first (tidemark cluster remove %s); --yes-lose-data removes such voters too",
		strings.Join(dead, ", "), dead[0])
}

// end removes a member.
func (s *Steward) end(ctx context.Context, id string, voters, alive, need int) error {
	s.node.cfg.Logger.Warn("manager removed", "server", id, "voters_left", voters, "alive", alive, "needed", need)
	if err := s.node.RemoveServer(ctx, id, nil); err != nil {
		return err
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
	return nil
}

// survey requests a sign of life from all servers concurrently and waits for all, each for at most the duration of a
// call, or until ctx ends. It uses the term in which this node serves: in a later term it would be taken for a
// request of that term's leader, and the real leader would step down.
func (ms *members) survey(ctx context.Context, servers []Server) (map[string]answerOf, error) {
	term, serves := ms.reigns.Serving()
	if !serves {
		return nil, ms.notLeader()
	}
	answers := make(map[string]answerOf, len(servers))
	type answer struct {
		id string
		of answerOf
	}
	came := make(chan answer, len(servers))
	for _, m := range servers {
		if m.ID != ms.ID() {
			ms.links.asking.Go(func() { came <- answer{m.ID, ms.links.signOfLife(m, term)} })
		} else {
			came <- answer{m.ID, answerOf{}} // the caller has the answer
		}
	}
	for range servers {
		select {
		case a := <-came:
			answers[a.id] = a.of
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return answers, nil
}
