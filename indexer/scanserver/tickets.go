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
	// TicketTrust is how long a manager's verdict on a ticket is cached: a deleted user or token can scan no longer
	// than that.
	TicketTrust = 4 * time.Second
	// ticketRenew is the age at which the verdict is renewed in the background.
	ticketRenew = 2 * time.Second
	// maxTickets bounds the cached verdicts.
	maxTickets = 4096
)

// Managers checks tickets at the managers that have issued them.
type Managers interface {
	CheckTicket(ctx context.Context, manager, ticket string) (*scanport.Checked, error)
}

// tickets caches which tickets are valid, as reported by the managers that have issued them.
type tickets struct {
	managers Managers
	now      func() time.Time
	checks   singleflight.Group
	renewals sync.WaitGroup

	mu    sync.Mutex
	known map[string]verdict
}

// verdict is a manager's answer about a ticket.
type verdict struct {
	principal string
	at        time.Time
	renewing  bool
}

func newTickets(managers Managers, now func() time.Time) *tickets {
	return &tickets{managers: managers, now: now, known: map[string]verdict{}}
}

// check returns the owner of a ticket. Errors are *rpc.Problem: UNAUTHENTICATED or FORBIDDEN if the manager refuses
// the ticket or cannot be reached; the client then scans through the managers.
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
		// bounded by the call's own timeout; later callers see its result
		t.renewals.Go(func() { _, _ = t.query(ticket) })
		return v.principal, nil
	case ok && age < TicketTrust:
		return v.principal, nil
	}
	result := t.checks.DoChan(ticket, func() (any, error) { return t.query(ticket) })
	select {
	case r := <-result:
		if r.Err != nil {
			return "", r.Err
		}
		return r.Val.(string), nil
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// query sends the ticket to the manager that has issued it.
func (t *tickets) query(ticket string) (string, error) {
	at := t.now()
	manager, err := auth.TicketIssuer(ticket)
	var checked *scanport.Checked
	if err == nil {
		checked, err = t.managers.CheckTicket(context.Background(), manager, ticket)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil {
		delete(t.known, ticket)
		var p *rpc.Problem
		if errors.As(err, &p) && (p.Code == errcode.Unauthenticated || p.Code == errcode.Forbidden) {
			return "", p
		}
		return "", rpc.Refuse(errcode.Unauthenticated, "the manager that issued the ticket does not answer: %v", err)
	}
	if len(t.known) >= maxTickets {
		t.prune()
	}
	t.known[ticket] = verdict{principal: checked.Principal, at: at}
	return checked.Principal, nil
}

// prune drops expired verdicts, or all if that does not suffice: they are fetched again one by one. The caller holds
// the lock.
func (t *tickets) prune() {
	for k, v := range t.known {
		if t.now().Sub(v.at) >= TicketTrust {
			delete(t.known, k)
		}
	}
	if len(t.known) >= maxTickets {
		clear(t.known)
	}
}
