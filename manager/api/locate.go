package api

import (
	"net/http"
	"time"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/indexer/scanport"
	"tidemark/internal/rpc"
	"tidemark/manager/api/v1"
	"tidemark/manager/auth"
	"tidemark/statecontext"
)

// ticketLife is how long a ticket for the indexers is valid. Clients request a new one long before.
const ticketLife = 10 * time.Minute

// locateRoute returns the route by which clients find out how to scan at an indexer directly.
func (g *scans) locateRoute() route {
	return route{method: "POST", path: "/v1/indexes/{ref:.+}:locate", handle: g.locate, role: RoleRead,
		limit: v1.ReadTimeout,
		doc: operation{
			id: "locateIndex", tag: tagScans, summary: "List the indexers that hold an index, with a ticket for scans on " +
				"their own ports",
			answers: []answer{{status: 200, means: "the indexers' scan ports, and the ticket", body: v1.ScanRoute{}}},
			codes:   []errcode.Code{errcode.UnknownIndex, errcode.IndexNotReady}}}
}

// locate answers from this manager's own state: a client that cannot use the answer scans through a manager, which
// reads a newer one.
func (g *scans) locate(w http.ResponseWriter, r *http.Request) error {
	if g.cfg.Tickets == nil {
		return rpc.Refuse(errcode.NotFound, "this manager issues no tickets")
	}
	x, err := g.find(g.cfg.Raft.State(), r.PathValue("ref"))
	if err != nil {
		return err
	}
	if x.Definition.State != index.Maintenance {
		return rpc.Refuse(errcode.IndexNotReady, "index %s on %s is in state %s", x.Definition.Name, x.Definition.Keyspace(),
			x.Definition.State)
	}
	who, ok := r.Context().Value(identityKey{}).(*auth.Identity)
	if !ok {
		who = &auth.Identity{Name: rpc.Anonymous, Role: statecontext.UserReads}
	}
	ticket, err := g.cfg.Tickets.Issue(who, ticketLife)
	if err != nil {
		return err
	}
	rpc.Write(w, r, http.StatusOK, v1.ScanRoute{Index: x.Definition.ID, ScanPorts: g.scanners(x), Ticket: ticket,
		TicketMS: ticketLife.Milliseconds()})
	return nil
}

// checkTicket reports to an indexer whether a ticket of this manager still belongs to a user who may scan.
func (g components) checkTicket(w http.ResponseWriter, r *http.Request) error {
	var req scanport.Check
	if err := rpc.Read(r, &req); err != nil {
		return err
	}
	if g.cfg.Tickets == nil {
		return rpc.Refuse(errcode.Unauthenticated, "this manager issues no tickets")
	}
	who, err := g.cfg.Tickets.Open(req.Ticket)
	if err == nil && who.OfUser() {
		if err := g.ensureCurrent(r.Context()); err != nil {
			return err
		}
	}
	switch {
	case err != nil:
		return rpc.Refuse(errcode.Unauthenticated, "%v", err)
	case !g.still(who):
		return rpc.Refuse(errcode.Unauthenticated, "the user or token of %s was changed or removed since the ticket was "+
			"issued",
			who.Name)
	case who.Role < RoleRead.needs():
		return rpc.Refuse(errcode.Forbidden, "%s has %s; a scan needs role %s", who.Name, roleName(who), RoleRead)
	}
	rpc.Write(w, r, http.StatusOK, scanport.Checked{Principal: who.Name})
	return nil
}
