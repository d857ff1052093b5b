package scanserver

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"tidemark/errcode"
	"tidemark/indexer/scanport"
	"tidemark/internal/rpc"
	"tidemark/manager/auth"
)

const (
	// TicketTrust is how long a manager's word on a ticket is taken for true: a user or token that is taken away scans no
	// longer than that.
	TicketTrust = 4 * time.Second
	// ticketRenew is when the manager is asked again, while scans go on.
	ticketRenew = 2 * time.Second
	// maxTickets bounds those that are remembered.
	maxTickets = 4096
)

// Managers say whether a ticket that one of them has issued is good.
type Managers interface {
	CheckTicket(ctx context.Context, manager, ticket string) (*scanport.Checked, error)
}

// tickets knows which tickets are good: the managers that have issued them say so.
type tickets struct {
	managers Managers
	now      func() time.Time
	asking   singleflight.Group
	renewals sync.WaitGroup

	mu    sync.Mutex
	known map[string]verdict
}

// verdict is what a manager has said of a ticket.
type verdict struct {
	principal string
	at        time.Time
	renewing  bool
}

func newTickets(managers Managers, now func() time.Time) *tickets {
	return &tickets{managers: managers, now: now, known: map[string]verdict{}}
}

// check gives whose ticket it is. Errors are *rpc.Problem: UNAUTHENTICATED or FORBIDDEN when the manager says no, or
// none can be asked; the client then goes by way of the managers.
func (t *tickets) check(ctx context.Context, ticket string) (string, error) {
	if ticket == "" || len(ticket) > scanport.MaxTicket {
		return "", rpc.Refuse(errcode.Unauthenticated, "the header %s is missing, or too long: a manager issues "+
			"tickets (POST /v1/indexes/{bucket}/{name}:locate)", scanport.HeaderTicket)
	}
	t.mu.Lock()
	v, ok := t.known[ticket]
	age := t.now().Sub(v.at)
	renew := ok && age >= ticketRenew && age < TicketTrust && !v.renewing
	if renew {
		v.renewing = true
		t.known[ticket] = v
	}
	t.mu.Unlock()
	switch {
	case renew:
		// at most as long as the call's own deadline; who comes later sees what it has found
		t.renewals.Go(func() { _, _ = t.ask(ticket) })
		return v.principal, nil
	case ok && age < TicketTrust:
		return v.principal, nil
	}
	asked := t.asking.DoChan(ticket, func() (any, error) { return t.ask(ticket) })
	select {
	case r := <-asked:
		if r.Err != nil {
			return "", r.Err
		}
		return r.Val.(string), nil
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// ask asks the manager that has issued a ticket.
func (t *tickets) ask(ticket string) (string, error) {
	at := t.now()
	manager, err := auth.TicketIssuer(ticket)
	var said *scanport.Checked
	if err == nil {
		said, err = t.managers.CheckTicket(context.Background(), manager, ticket)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil {
		delete(t.known, ticket)
		var p *rpc.Problem
		if errors.As(err, &p) && (p.Code == errcode.Unauthenticated || p.Code == errcode.Forbidden) {
			return "", p
		}
		return "", rpc.Refuse(errcode.Unauthenticated, "the manager that has issued the ticket cannot be asked: %v", err)
	}
	if len(t.known) >= maxTickets {
		t.forget()
	}
	t.known[ticket] = verdict{principal: said.Principal, at: at}
	return said.Principal, nil
}

// forget lets those go that count no more, or all: they come back one by one. The lock is held.
func (t *tickets) forget() {
	for k, v := range t.known {
		if t.now().Sub(v.at) >= TicketTrust {
			delete(t.known, k)
		}
	}
	if len(t.known) >= maxTickets {
		clear(t.known)
	}
}
