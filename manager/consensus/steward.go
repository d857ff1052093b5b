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
	// ErrUnknownMember is wrapped when no member has that id or name.
	ErrUnknownMember = errors.New("no such manager")
	// ErrMemberConflict is wrapped when a server cannot be added beside those that are there.
	ErrMemberConflict = errors.New("the manager cannot be added")
	// ErrQuorumAtRisk is wrapped when a change would leave fewer living voters than a majority.
	ErrQuorumAtRisk = errors.New("a majority would be missing")
	// ErrNotMember is wrapped when a server that has Raft state of this cluster is no member: it was removed.
	ErrNotMember = errors.New("it is not a member of this cluster any more")
)

// StewardConfig holds what a Steward works with.
type StewardConfig struct {
	Node         *Node
	PromoteAfter time.Duration // DefaultPromoteAfter
	Every        time.Duration // between two rounds; a third of PromoteAfter, at most a second
}

// Steward is the leader's care for the members: it takes in new servers without a vote, gives them their vote when they
// have caught up and stayed, writes down new addresses, removes whom it is told to, one change at a time and never
// below a majority, and forgets the registrations of those who are no members. Its methods are safe for concurrent use;
// they work on the leader only (NotLeaderError).
type Steward struct {
	cfg   StewardConfig
	node  *Node
	shown atomic.Pointer[[]Sighting]
	wake  chan struct{} // one slot: look again at once
	turn  chan struct{} // one slot: held by who decides about members, which may take some time

	mu     sync.Mutex
	roster *roster // of this term
}

// NewSteward makes it; Run does the duty.
func NewSteward(cfg StewardConfig) *Steward {
	if cfg.PromoteAfter == 0 {
		cfg.PromoteAfter = DefaultPromoteAfter
	}
	if cfg.Every == 0 {
		cfg.Every = min(cfg.PromoteAfter/3, time.Second)
	}
	return &Steward{cfg: cfg, node: cfg.Node, wake: make(chan struct{}, 1), turn: make(chan struct{}, 1)}
}

// take waits for the turn to decide about members; give ends it.
func (s *Steward) take(ctx context.Context) error {
	select {
	case s.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: another change of members is under way: %w", ErrBusy, ctx.Err())
	}
}

func (s *Steward) give() { <-s.turn }

// Run does the duty while this node leads; it ends with ctx.
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

// Sightings returns how the members do; nothing while this node does not lead.
func (s *Steward) Sightings() []Sighting {
	if p := s.shown.Load(); p != nil {
		return *p
	}
	return nil
}

// look asks every member and gives what to do.
func (s *Steward) look(ctx context.Context) (step, error) {
	servers, err := s.node.Servers()
	if err != nil {
		return step{}, err
	}
	n := s.node
	last := n.raft.LastIndex() // before they are asked: what comes while one is waited for, none of the others lacks
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

// act does what a round has found; what fails, or takes too long, is found again by the next.
func (s *Steward) act(ctx context.Context, next step) {
	ctx, cancel := context.WithTimeout(ctx, memberTimeout)
	defer cancel()
	if s.take(ctx) != nil {
		return
	}
	defer s.give()
	n := s.node
	if a := next.readdress; a != nil {
		n.cfg.Logger.Info("this manager has a new address", "server", a.ID, "raft", a.Raft)
		s.report("new address", n.AddVoter(ctx, *a, next.seen))
	}
	if p := next.promote; p != nil {
		n.cfg.Logger.Info("a new manager has caught up and gets its vote", "server", p.ID)
		s.report("promotion", n.AddVoter(ctx, *p, next.seen))
	}
	for _, id := range next.forget {
		_, err := n.Propose(ctx, statecontext.Command{Body: &statecontext.RemoveManager{ID: id}})
		s.report("forgetting "+id, err)
	}
}

func (s *Steward) report(what string, err error) {
	if err != nil {
		s.node.cfg.Logger.Info("a change of members will be tried again", "what", what, "error", err)
	}
}

// JoinRequest is what a server says of itself that wants to be, or is, a member.
type JoinRequest struct {
	Manager statecontext.Manager
	New     bool   // it was no member yet, as far as it knows: it asks to be added
	Epoch   uint64 // as far as its state goes
}

// Join takes a server in, without a vote at first, or takes over its new addresses. Nothing changed is a success.
// Errors wrap wire.ErrForeignCluster (by the caller), ErrNotMember, ErrMemberConflict, NotLeaderError or those of
// Propose.
func (s *Steward) Join(ctx context.Context, req JoinRequest) error {
	if m := &req.Manager; m.Raft == "" || m.ID == "" || m.Name == "" || strings.Contains(m.ID+m.Raft, "@") {
		return fmt.Errorf("%w: id %q, name %q and Raft address %q must be given, without @", ErrMemberConflict, m.ID, m.Name,
			m.Raft)
	}
	if err := statecontext.CheckManager(&req.Manager); err != nil { // before it is a member
		return err
	}
	if err := s.take(ctx); err != nil {
		return err
	}
	defer s.give()
	if err := s.node.ReadBarrier(ctx); err != nil { // a deposed leader must not say who is no member
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
	if err != nil && changed && !errors.Is(err, ErrNotLeader) { // it may be asked for again, but not that nothing was done
		err = fmt.Errorf("%w: %s is a member, and its addresses are not noted: %w", ErrUnknownOutcome, req.Manager.ID, err)
	}
	return err
}

// enter makes a server a member, or takes over its address; changed: it was none, or had another one.
func (s *Steward) enter(ctx context.Context, req *JoinRequest) (changed bool, err error) {
	servers, err := s.node.Servers()
	if err != nil {
		return false, err
	}
	m, level, epoch := &req.Manager, s.node.State().FormatLevel(), s.node.State().Epoch()
	at := slices.IndexFunc(servers, func(s Server) bool { return s.ID == m.ID })
	switch {
	case at < 0 && (!req.New || req.Epoch != 0 && req.Epoch != epoch): // what it has applied may not be in this log
		return false, fmt.Errorf("%w: %s has Raft state, and was removed from cluster %s: delete its data folder, it then "+
			"joins as a new one", ErrNotMember, m.ID, s.node.ClusterID())
	case at < 0 && m.FormatLevel < level:
		return false, fmt.Errorf("%w: %s knows format levels up to %d, the cluster is at %d: install a newer version of "+
			"tidemark on it", ErrMemberConflict, m.ID, m.FormatLevel, level)
	}
	if m.ID == s.node.ID() && m.Raft != s.node.Addr() { // who leads knows where it is
		return false, s.twofold(m.ID, s.node.Addr())
	}
	if at < 0 {
		return true, s.add(ctx, servers, Server{ID: m.ID, Raft: m.Raft}, m.Name)
	}
	return servers[at].Raft != m.Raft, s.readdress(ctx, servers[at], m.Raft)
}

// readdress takes over a member's new address. A second process with a copy of its folder is refused.
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
	s.node.cfg.Logger.Info("a manager has a new address", "server", m.ID, "was", m.Raft, "is", addr)
	m.Raft = addr
	if m.Voter {
		return s.node.AddVoter(ctx, m, nil)
	}
	return s.node.AddNonvoter(ctx, m, nil)
}

// twofold is why a second process with a copy of a member's folder is refused.
func (s *Steward) twofold(id, lives string) error {
	return fmt.Errorf("%w: server %s lives at %s: two processes have copies of one data folder; stop one and delete its "+
		"folder", ErrMemberConflict, id, lives)
}

// add adds a new server, without a vote. One that lost its folder and came back under a new id takes the place of its
// former self, where that leaves a majority.
func (s *Steward) add(ctx context.Context, servers []Server, fresh Server, name string) error {
	if len(servers) >= MaxMembers {
		return fmt.Errorf("%w: the cluster has %d managers, at most %d", ErrMemberConflict, len(servers), MaxMembers)
	}
	here, err := s.formerSelves(ctx, servers, fresh, name)
	if err != nil {
		return err
	}
	for _, old := range here {
		s.node.cfg.Logger.Warn("a manager has lost its folder and joins anew; its former self is removed", "was", old.ID,
			"is", fresh.ID)
		if _, err := s.remove(ctx, old.ID, false, nil); err != nil {
			return fmt.Errorf("%w: %s lost its data and has to be removed first: %w", ErrMemberConflict, old.ID, err)
		}
	}
	s.node.cfg.Logger.Info("a new manager joins, without a vote until it has caught up", "server", fresh.ID, "raft",
		fresh.Raft)
	return s.node.AddNonvoter(ctx, fresh, nil)
}

// formerSelves returns the members that a new server, of this name, was before at its address. Members that have its
// name or its address and live are in its way; those of its name that are silent at other addresses may come back, and
// are removed when somebody says so. All are asked at once: who joins waits for one call's time, however many they are.
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
			return nil, fmt.Errorf("%w: %s has its name or its address %s, and lives; give the new one others (--id, --raft)",
				ErrMemberConflict, old.ID, old.Raft)
		case old.Raft != fresh.Raft:
		case !isNamed(old.ID, name):
			return nil, fmt.Errorf("%w: %s, which does not answer, has its address %s; remove that one first: tidemark cluster "+
				"remove %s", ErrMemberConflict, old.ID, old.Raft, old.ID)
		default:
			here = append(here, old)
		}
	}
	return here, nil
}

// isNamed reports whether a server has this name by its id, which ends in a random suffix.
func isNamed(id, name string) bool {
	return strings.HasPrefix(id, name+"-") && len(id) == len(name)+1+2*suffixBytes
}

// Find returns the member with this server id or, when only one has it, name.
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
	return Server{}, fmt.Errorf("%w: %q is the name of several, say which: %s, %s", ErrMemberConflict, idOrName,
		found[0].ID, found[1].ID)
}

// Remove removes a member for ever, by its server id; the leader itself hands leadership on first and answers with a
// NotLeaderError. It is refused (ErrQuorumAtRisk) where fewer voters than a majority would be left alive: the removal
// would wait for them, and with it everything else. With force, voters that do not answer are removed before it, one by
// one and as few as will do; also gives their ids. As long as there is a leader that is always possible.
//
// note, unless nil, writes what has to be in the log before the members change, as under which request: what it is
// refused with refuses the removal. It may be that no majority stores it before the removal: then it was proposed, and
// the removal goes on.
//
// Where ctx ends, the error says what is known: ErrUnknownOutcome that the removal may be done, any other that it is
// not.
func (s *Steward) Remove(ctx context.Context, id string, force bool,
	note func(context.Context) error) (also []string, err error) {
	if err := s.take(ctx); err != nil {
		return nil, err
	}
	defer s.give()
	if also, err = s.remove(ctx, id, force, note); err == nil || len(also) == 0 {
		return also, err
	}
	if errors.Is(err, ErrBusy) { // something was done
		err = fmt.Errorf("%w: %w", ErrUnknownOutcome, err)
	}
	return also, fmt.Errorf("%w; removed already, for good: %s", err, strings.Join(also, ", "))
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
			return also, fmt.Errorf("%w: %s is the only voter; add others first, or end the cluster by stopping it",
				ErrQuorumAtRisk, id)
		case alive < need && !force:
			return also, fmt.Errorf("%w: without %s there are %d voters, of which %d answer and %d are needed: nothing could "+
				"be written; %s",
				ErrQuorumAtRisk, id, voters, alive, need, deadInTheWay(all, id))
		case id == s.node.ID(): // the next leader goes on with it
			s.node.cfg.Logger.Info("this manager is to be removed and hands leadership on first")
			if err := s.node.TransferLeadership(ctx); err != nil {
				return also, err
			}
			return also, s.node.notLeader()
		case alive >= need:
			return also, s.end(ctx, id, voters, alive, need)
		}
		dead := silent(all, id)
		if dead == "" {
			return also, fmt.Errorf("%w: of the %d voters besides %s only %d answer: nothing can be changed any more; bring "+
				"others back or, if their folders are lost for ever, run tidemark cluster recover",
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
	// storePatience is how long a member that answers may take to store what all others have.
	storePatience = 3 * time.Second
	storePause    = 50 * time.Millisecond
)

// storing returns how the members do, where Alive is who answers and stores what is written: one whose disk is full
// answers as before, and no change counts with it. A little is written for that, by note or else of no meaning; where
// no majority stores it, those count that answer.
func (s *Steward) storing(ctx context.Context, note func(context.Context) error) ([]Sighting, error) {
	written, err := s.write(ctx, note)
	if err != nil {
		return nil, err
	}
	for end := time.Now().Add(storePatience); ; {
		last := !time.Now().Before(end) // before they are asked, as one that is silent may be waited for until then
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

// write writes a little, and returns an index up to which all have to store then; 0 where no majority stores it in
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

// errNotBegun is for who has no more time before the members were changed for him.
func errNotBegun(ctx context.Context) error {
	return fmt.Errorf("%w: it was not known in time which members store what is written: %w", ErrBusy, ctx.Err())
}

// Gone reports whether a server is no member any more, for certain: also a leader that is elected now knows of it.
func (s *Steward) Gone(ctx context.Context, id string) (bool, error) {
	servers, err := s.node.Servers()
	if err != nil || slices.ContainsFunc(servers, func(m Server) bool { return m.ID == id }) {
		return false, err
	}
	if err := s.node.Barrier(ctx); err != nil {
		return false, fmt.Errorf("whether %s is removed: %w", id, err)
	}
	return true, nil
}

// deadInTheWay says what to do about voters that do not answer.
func deadInTheWay(all []Sighting, but string) string {
	var dead []string
	for _, m := range all {
		if m.Voter && !m.Alive && m.ID != but {
			dead = append(dead, m.ID)
		}
	}
	return fmt.Sprintf("%s does not answer, or stores nothing, as its disk is full or hangs: bring it back, or remove it "+
		"first (tidemark cluster remove %s); --yes-lose-data removes such voters too",
		strings.Join(dead, ", "), dead[0])
}

// end removes a member.
func (s *Steward) end(ctx context.Context, id string, voters, alive, need int) error {
	s.node.cfg.Logger.Warn("a manager is removed", "server", id, "voters_left", voters, "alive", alive, "needed", need)
	if err := s.node.RemoveServer(ctx, id, nil); err != nil {
		return err
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
	return nil
}

// survey asks servers for a sign of life, all at once, and waits for all, each for as long as a call may take, or until
// ctx ends. It asks in the term that this node serves in: a question in a later one would be taken for that of its
// leader, and the true one would step down.
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
			came <- answer{m.ID, answerOf{}} // the caller knows
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
