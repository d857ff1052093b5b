package auth

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"tidemark/statecontext"
)

// Tickets issues tickets: for a short time a ticket stands for a client that this process has authenticated, so that
// the client need not send its credentials to other processes. Only the process that issued a ticket can verify it,
// and only while it runs, because no other process has the key.
type Tickets struct {
	issuer string
	key    [sha256.Size]byte
	now    func() time.Time
}

// NewTickets returns an issuer with a new key; issuer is the address at which other processes reach this one.
func NewTickets(issuer string, now func() time.Time) (*Tickets, error) {
	t := &Tickets{issuer: issuer, now: now}
	if _, err := rand.Read(t.key[:]); err != nil {
		return nil, fmt.Errorf("making the key of tickets: %w", err)
	}
	return t, nil
}

// claim is the content of a ticket. It is signed, but not secret.
type claim struct {
	Issuer   string                `json:"by"`
	Name     string                `json:"name"`
	Role     statecontext.UserRole `json:"role"`
	User     string                `json:"user,omitempty"`
	Modified uint64                `json:"modified,omitempty"`
	Token    string                `json:"token,omitempty"`
	EndsMS   int64                 `json:"ends"`
}

var ticketText = base64.RawURLEncoding

// Issue returns a ticket for an identity; it expires after good.
func (t *Tickets) Issue(id *Identity, good time.Duration) (string, error) {
	b, err := json.Marshal(claim{Issuer: t.issuer, Name: id.Name, Role: id.Role, User: id.user, Modified: id.modified,
		Token: id.token, EndsMS: t.now().Add(good).UnixMilli()})
	if err != nil {
		return "", fmt.Errorf("encoding a ticket: %w", err)
	}
	return ticketText.EncodeToString(b) + "." + ticketText.EncodeToString(t.sign(b)), nil
}

func (t *Tickets) sign(b []byte) []byte {
	m := hmac.New(sha256.New, t.key[:])
	_, _ = m.Write(b) // a hash never fails
	return m.Sum(nil)
}

// Open returns the identity for which a ticket was issued; Authenticator.Still reports whether it would be accepted
// now. The error wraps ErrUnauthenticated if the ticket is not from this process or has expired.
func (t *Tickets) Open(ticket string) (*Identity, error) {
	c, b, sum, err := readTicket(ticket)
	switch {
	case err != nil:
		return nil, err
	case !hmac.Equal(sum, t.sign(b)):
		return nil, fmt.Errorf("%w: the ticket was issued by another manager, or before this one "+
			"restarted", ErrUnauthenticated)
	case c.EndsMS <= t.now().UnixMilli():
		return nil, fmt.Errorf("%w: the ticket has expired", ErrUnauthenticated)
	}
	return &Identity{Name: c.Name, Role: c.Role, user: c.User, modified: c.Modified, token: c.Token}, nil
}

// TicketIssuer returns the address of the process that can verify a ticket, as stated in the ticket.
func TicketIssuer(ticket string) (string, error) {
	c, _, _, err := readTicket(ticket)
	return c.Issuer, err
}

func readTicket(ticket string) (c claim, signed, sum []byte, err error) {
	head, tail, ok := strings.Cut(ticket, ".")
	if ok {
		if signed, err = ticketText.DecodeString(head); err == nil {
			sum, err = ticketText.DecodeString(tail)
		}
		if err == nil {
			err = json.Unmarshal(signed, &c)
		}
	}
	if !ok || err != nil {
		return c, nil, nil, fmt.Errorf("%w: the ticket is malformed", ErrUnauthenticated)
	}
	return c, signed, sum, nil
}
