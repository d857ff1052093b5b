package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/internal/rpc"
	"tidemark/manager/api/v1"
	"tidemark/manager/consensus"
	"tidemark/manager/coordinator"
	"tidemark/statecontext"
	"tidemark/wire"
)

const (
	handOnPoll = 20 * time.Millisecond // between two checks whether another manager leads
	loseData   = "lose-data"           // the value of ?yes=
)

// memberRoutes change the members of the cluster.
func (g members) memberRoutes() []route {
	yes := param{name: "yes", enum: []string{loseData}, means: "lose-data: if a majority of the remaining managers " +
		"would be missing, first remove managers that do not answer"}
	force := param{name: "force", enum: []string{"true", "false"}, means: "true: also a node that is running, or that " +
		"holds the only copies"}
	return []route{
		{method: "POST", path: "/v1/cluster/managers:join", handle: g.joinManager, role: RoleAdmin, leader: true,
			limit: max(v1.JoinTimeout, v1.ReadTimeout+g.cfg.JoinTimeout), doc: operation{
				id: "joinManager", tag: tagCluster, summary: "Add a manager that waits for a cluster, without a vote " +
					"until it has caught up",
				body: v1.JoinRequest{}, answers: []answer{{status: 200, means: "it is a member", body: v1.MemberReply{}}},
				codes: []errcode.Code{errcode.MemberConflict, errcode.NodeRemoved, errcode.ForeignCluster}}},
		{method: "POST", path: "/v1/cluster/managers:transfer-leadership", handle: g.transferAny, role: RoleAdmin,
			leader: true, handsOn: true, limit: v1.MemberTimeout, doc: operation{
				id: "transferLeadership", tag: tagCluster, summary: "Transfer leadership to the most up-to-date voter",
				answers: []answer{{status: 200, means: "another manager leads", body: v1.MemberReply{}}},
				codes:   []errcode.Code{errcode.TransferFailed}}},
		{method: "POST", path: "/v1/cluster/managers/{id}:transfer-leadership", handle: g.transferTo, role: RoleAdmin,
			leader: true, handsOn: true, limit: v1.MemberTimeout, doc: operation{
				id: "transferLeadershipTo", tag: tagCluster, summary: "Transfer leadership to a manager, by its name or server id",
				answers: []answer{{status: 200, means: "it leads", body: v1.MemberReply{}}},
				codes:   []errcode.Code{errcode.UnknownNode, errcode.TransferFailed, errcode.MemberConflict}}},
		{method: "DELETE", path: "/v1/cluster/managers/{id:[^/:]+}", handle: g.removeManager, role: RoleAdmin, leader: true,
			handsOn: true, limit: v1.MemberTimeout, doc: operation{
				id: "removeManager", tag: tagCluster, summary: "Remove a manager permanently, by its name or server id; the " +
					"leader transfers leadership first",
				params: []param{yes}, headers: []string{HeaderKey},
				answers: []answer{{status: 200, means: "it is no longer a member", body: v1.MemberReply{}}},
				codes: []errcode.Code{errcode.UnknownNode, errcode.QuorumAtRisk, errcode.MemberConflict, errcode.TransferFailed,
					errcode.OutcomeUnknown}}},
		{method: "DELETE", path: "/v1/cluster/indexers/{id}", handle: g.removeIndexer, role: RoleAdmin, leader: true,
			limit: v1.MemberTimeout, doc: operation{
				id: "removeIndexer", tag: tagCluster, summary: "Remove an indexer permanently, by its name, node number or uuid; " +
					"its copies are placed on other indexers",
				params: []param{force, {name: paramDryRun, enum: []string{"true", "false"},
					means: "true: only report what would be done"}}, headers: []string{HeaderKey},
				answers: []answer{{status: 200, means: "it is removed, or with dry_run would be, with the consequences",
					body: v1.IndexerRemoval{}},
					{status: 202, means: "its removal is stored and continues in the background; the same call waits for its end",
						body: v1.IndexerRemoval{}}},
				codes: []errcode.Code{errcode.UnknownNode, errcode.NodeAlive, errcode.LastCopies, errcode.Unavailable,
					errcode.PlacementImpossible, errcode.MemberConflict, errcode.IndexChanged, errcode.FormatTooOld}}},
		{method: "DELETE", path: "/v1/cluster/projectors/{id}", handle: g.removeProjector, role: RoleAdmin, leader: true,
			limit: v1.MemberTimeout, doc: operation{
				id: "removeProjector", tag: tagCluster, summary: "Remove a projector, by its id",
				params: []param{force}, headers: []string{HeaderKey},
				answers: []answer{{status: 200, means: "it is removed, with the consequences", body: v1.MemberReply{}}},
				codes:   []errcode.Code{errcode.UnknownNode, errcode.NodeAlive}}},
	}
}

// joinManager asks the manager at an address for its identity, and adds it.
func (g members) joinManager(w http.ResponseWriter, r *http.Request) error {
	var req v1.JoinRequest
	if err := rpc.Read(r, &req); err != nil {
		return err
	}
	if _, _, err := net.SplitHostPort(strings.TrimPrefix(strings.TrimPrefix(req.Address, "https://"),
		"http://")); err != nil {
		return rpc.Refuse(errcode.BadRequest, "address %q: %v; want the REST address of the manager that waits, host:port",
			req.Address, err)
	}
	peer, err := g.askPeer(r.Context(), req.Address)
	if err != nil {
		return rpc.Refuse(errcode.Unavailable, "the manager at %s did not report its identity: %v", req.Address, err)
	}
	m := wire.RegisterManager{ClusterID: peer.ClusterID, ID: peer.ID, Name: peer.Name, REST: peer.REST, Raft: peer.Raft,
		FormatLevel: peer.NewestFormat, New: peer.New, Epoch: peer.Epoch}
	if err := g.admitManager(r.Context(), &m); err != nil {
		return err
	}
	rpc.Write(w, r, http.StatusOK, v1.MemberReply{ID: m.Name, ServerID: m.ID,
		Detail: "it becomes a voter once it has caught up and been stable for some seconds"})
	return nil
}

// maxPeerAnswer limits the answer of such a manager, in bytes.
const maxPeerAnswer = 64 << 10

// askPeer asks a manager that may not belong to a cluster yet for its identity.
func (g members) askPeer(ctx context.Context, addr string) (p consensus.PeerAnswer, err error) {
	ctx, cancel := context.WithTimeout(ctx, v1.ReadTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, g.cfg.TLS.BaseURL(addr)+"/v1/bootstrap", nil)
	if err != nil {
		return p, err
	}
	resp, err := g.rpc.HTTP().Do(req)
	if err != nil {
		return p, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return p, rpc.ReadProblem(resp)
	}
	b, err := rpc.ReadAnswer(resp, maxPeerAnswer)
	if err == nil {
		err = json.Unmarshal(b, &p)
	}
	return p, err
}

// registerManager admits a manager that requests it, and records its addresses; managers call it themselves.
func (g components) registerManager(w http.ResponseWriter, r *http.Request) error {
	var m wire.RegisterManager
	if err := rpc.Read(r, &m); err != nil {
		return err
	}
	if err := g.members.admitManager(r.Context(), &m); err != nil {
		g.cfg.Logger.Warn("registration of a manager was refused", "manager", m.ID, "rest", m.REST, "error", err)
		return err
	}
	rpc.Write(w, r, http.StatusOK, wire.OK{})
	return nil
}

func (g members) admitManager(ctx context.Context, m *wire.RegisterManager) error {
	if own := g.cfg.Raft.ClusterID(); m.ClusterID != "" && m.ClusterID != own {
		return fmt.Errorf("%w: manager %s belongs to cluster %s, this is cluster "+
			"%s", wire.ErrForeignCluster, m.ID, m.ClusterID,
			own)
	}
	if _, _, err := net.SplitHostPort(m.Raft); err != nil {
		return rpc.Refuse(errcode.BadRequest, "Raft address %q: %v; want host:port", m.Raft, err)
	}
	return g.cfg.Steward.Join(ctx, consensus.JoinRequest{New: m.New, Epoch: m.Epoch,
		Manager: statecontext.Manager{ID: m.ID, Name: m.Name, REST: m.REST,
			Raft: m.Raft, FormatLevel: m.FormatLevel}})
}

func (g members) transferAny(w http.ResponseWriter, r *http.Request) error {
	if err := g.cfg.Raft.TransferLeadership(r.Context()); err != nil {
		return err
	}
	return g.handedOn(w, r)
}

func (g members) transferTo(w http.ResponseWriter, r *http.Request) error {
	if err := g.cfg.Raft.ReadBarrier(r.Context()); err != nil { // a deposed leader must not tell who is a member, or leads
		return err
	}
	m, err := g.cfg.Steward.Find(r.PathValue("id"))
	if err != nil {
		return err
	}
	if m.ID == g.cfg.Raft.ID() {
		rpc.Write(w, r, http.StatusOK, v1.MemberReply{ID: g.cfg.Name, ServerID: m.ID, Detail: "it is already the leader"})
		return nil
	}
	if err := g.cfg.Raft.TransferLeadershipTo(r.Context(), m); err != nil {
		return err
	}
	return g.handedOn(w, r)
}

// handedOn waits until the new leader is known.
func (g members) handedOn(w http.ResponseWriter, r *http.Request) error {
	l, err := g.nextLeader(r.Context())
	if err != nil {
		return err
	}
	reply := v1.MemberReply{ID: l.ID, ServerID: l.ID, Detail: "it is the leader " +
		"now"} // it may not have registered its name yet
	if m := g.cfg.Raft.State().Manager(l.ID); m != nil {
		reply.ID = m.Name
	}
	rpc.Write(w, r, http.StatusOK, reply)
	return nil
}

// nextLeader waits until a manager other than this one leads.
func (g members) nextLeader(ctx context.Context) (consensus.Leader, error) {
	tick := time.NewTicker(handOnPoll)
	defer tick.Stop()
	for {
		if l := g.cfg.Raft.Leader(); l.Known && l.ID != g.cfg.Raft.ID() {
			return l, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return consensus.Leader{}, noLeader("leadership was transferred, but no new leader is known yet: %v; try "+
				"again", ctx.Err())
		}
	}
}

// removeManager removes a manager in three steps: the request with its meaning, so that a retry means the same;
// Raft's membership, which alone determines whether it is done; the registration. Every check that may refuse the
// request is made by the end of the first step, or before Raft's membership changes.
func (g members) removeManager(w http.ResponseWriter, r *http.Request) error {
	words := r.URL.Query().Get("yes")
	if words != "" && words != loseData {
		return rpc.Refuse(errcode.BadRequest, "yes=%s: the only allowed value is yes=%s", words, loseData)
	}
	id := r.PathValue("id")
	req, err := request(r, 0, []byte(id))
	if err != nil {
		return err
	}
	m, gone, err := g.toRemove(r.Context(), req, id)
	if err != nil {
		return err
	}
	reply := v1.MemberReply{ID: m.ID, ServerID: m.ID, Detail: "its process ends once it learns of the removal; its " +
		"folder has no data that the cluster needs"}
	if known := g.cfg.Raft.State().Manager(m.ID); known != nil {
		reply.ID = known.Name
	}
	if gone {
		reply.ID, reply.Detail = id, doneBefore
		g.forgetManager(r.Context(), m.ID)
		rpc.Write(w, r, http.StatusOK, reply)
		return nil
	}
	note := g.noteRemoval(req, m.ID)
	also, err := g.cfg.Steward.Remove(r.Context(), m.ID, words == loseData, note)
	if len(also) > 0 {
		reply.Detail += "; first removed, because they do not answer: " + strings.Join(also, ", ") +
			" (each process ends once it learns of the removal; to join again, it needs an empty folder)"
	}
	if m.ID == g.cfg.Raft.ID() && isNotLeader(err) { // leadership was transferred: the next leader removes it
		if _, err := g.nextLeader(r.Context()); err != nil {
			return err
		}
		r.Header.Del(HeaderForwarded)
		return g.forward(w, r, &route{method: r.Method, role: RoleAdmin, limit: v1.MemberTimeout})
	}
	if err != nil {
		return err
	}
	if _, known := g.cfg.Raft.State().Outcome(req); req != nil && !known { // it could not be stored before
		_ = note(r.Context()) // the removal is done, even if a retry cannot return its outcome
	}
	g.forgetManager(r.Context(), m.ID)
	rpc.Write(w, r, http.StatusOK, reply)
	return nil
}

// toRemove finds the manager to remove. A repeated request means the manager that it meant at first, whichever has
// the name by now. gone reports that this one was removed.
func (g members) toRemove(ctx context.Context, req *statecontext.Request, id string) (m consensus.Server, gone bool,
	err error) {
	if err := g.cfg.Raft.ReadBarrier(ctx); err != nil { // a deposed leader must not tell who is no member
		return m, false, err
	}
	res, known := g.cfg.Raft.State().Outcome(req)
	switch {
	case !known:
		m, err = g.cfg.Steward.Find(id)
		return m, false, err
	case res.Err() != nil:
		return m, false, res.Err()
	}
	if gone, err = g.cfg.Steward.Gone(ctx, res.Member); gone || err != nil {
		return consensus.Server{ID: res.Member}, gone, err
	}
	m, err = g.cfg.Steward.Find(res.Member)
	return m, false, err
}

// doneBefore is the detail for a repeated request.
const doneBefore = "an earlier attempt of this request removed it"

// doneBefore reports whether a request was executed before.
func (g members) doneBefore(req *statecontext.Request) bool {
	if req == nil {
		return false
	}
	res, known := g.cfg.Raft.State().Outcome(req)
	return known && res.Err() == nil
}

// noteRemoval returns a function that stores which manager a request removes; nil for a request without a key, which
// is not stored.
func (g members) noteRemoval(req *statecontext.Request, id string) func(context.Context) error {
	if req == nil {
		return nil
	}
	return func(ctx context.Context) error {
		res, err := g.cfg.Raft.Propose(ctx, statecontext.Command{Request: req, Body: &statecontext.BeginRemoval{ID: id}})
		if err != nil {
			return err
		}
		return res.Err()
	}
}

// forgetManager removes a manager that is no longer a member from the state. If that fails, the steward does it soon.
func (g members) forgetManager(ctx context.Context, id string) {
	if g.cfg.Raft.State().Manager(id) == nil {
		return
	}
	_, err := g.cfg.Raft.Propose(ctx, statecontext.Command{Body: &statecontext.RemoveManager{ID: id}})
	if err != nil {
		g.cfg.Logger.Info("removed manager is still registered; the removal of its registration is "+
			"retried", "server", id, "error", err)
	}
}

func isNotLeader(err error) bool { return errors.Is(err, consensus.ErrNotLeader) }

func isTrue(r *http.Request, name string) (bool, error) {
	switch v := r.URL.Query().Get(name); v {
	case "", "false":
		return false, nil
	case "true":
		return true, nil
	default:
		return false, rpc.Refuse(errcode.BadRequest, "%s=%s: want true or false", name, v)
	}
}

func (g members) removeIndexer(w http.ResponseWriter, r *http.Request) error {
	force, err := isTrue(r, "force")
	if err != nil {
		return err
	}
	dry, err := isTrue(r, paramDryRun)
	if err != nil {
		return err
	}
	req, err := request(r, 0, []byte(r.URL.RawQuery))
	if err != nil {
		return err
	}
	plan, err := g.cfg.Coordinator.RemoveIndexer(r.Context(), coordinator.RemoveIndexerRequest{ID: r.PathValue("id"),
		Force: force, DryRun: dry, Request: req})
	if err != nil {
		return err
	}
	reply := v1.IndexerRemoval{ID: plan.Indexer.Name, Node: plan.Indexer.Node, UUID: plan.Indexer.UUID,
		Alive: plan.Alive, Removed: plan.Done,
		Evicting: !plan.Done && !dry, Waits: plan.Waits, Indexes: []v1.IndexLoss{}}
	for _, l := range plan.Losses {
		reply.Indexes = append(reply.Indexes, v1.IndexLoss{Index: l.Index, Name: l.Name, Bucket: l.Bucket,
			Copies: l.Copies, LastCopies: l.LastCopies, Rebuilt: l.Rebuilt})
	}
	status := http.StatusOK
	if reply.Evicting {
		status = http.StatusAccepted
	}
	rpc.Write(w, r, status, reply)
	return nil
}

func (g members) removeProjector(w http.ResponseWriter, r *http.Request) error {
	force, err := isTrue(r, "force")
	if err != nil {
		return err
	}
	id := index.ProjectorID(r.PathValue("id"))
	req, err := request(r, 0, []byte(r.URL.RawQuery))
	if err != nil {
		return err
	}
	if g.doneBefore(req) {
		rpc.Write(w, r, http.StatusOK, v1.MemberReply{ID: string(id), Detail: doneBefore})
		return nil
	}
	streams, alive, err := g.cfg.Coordinator.RemoveProjector(r.Context(), id, force, req)
	if err != nil {
		return err
	}
	reply := v1.MemberReply{ID: string(id), Detail: fmt.Sprintf("the %d vbuckets that it streamed move to other "+
		"projectors of their KV nodes; a KV node without a projector is not streamed", streams)}
	if alive {
		reply.Detail += "; it still runs, and registers again until it is stopped"
	}
	rpc.Write(w, r, http.StatusOK, reply)
	return nil
}
