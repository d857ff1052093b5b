package statecontext

import (
	"strings"

	"github.com/tidwall/btree"

	"tidemark/errcode"
	"tidemark/index"
)

// ledger holds the remembered outcomes of requests in persistent maps: a copy of the struct is a version of its own.
type ledger struct {
	entries *btree.Map[string, *ledgerEntry]               // by requestKey
	ages    *btree.Map[uint64, string]                     // by number, oldest first
	shares  *btree.Map[string, *btree.Map[uint64, string]] // the same for each principal; derived from entries
	next    uint64                                         // number of the next entry
}

func newLedger() ledger {
	return ledger{entries: btree.NewMap[string, *ledgerEntry](0), ages: btree.NewMap[uint64, string](0),
		shares: btree.NewMap[string, *btree.Map[uint64, string]](0)}
}

// cleared returns an empty ledger whose entry numbers continue.
func (l *ledger) cleared() ledger {
	empty := newLedger()
	empty.next = l.next
	return empty
}

// ledgerEntry is the remembered outcome of a request.
type ledgerEntry struct {
	number   uint64 // key in ages
	bodyHash [32]byte
	timeMS   int64 // state time of the outcome
	outcome  Result
}

func requestKey(r *Request) string { return nameKey(r.Principal, r.Key) }

// principalOf returns the principal of a requestKey.
func principalOf(key string) string {
	principal, _, _ := strings.Cut(key, "\x00")
	return principal
}

func (l *ledger) len() int { return l.entries.Len() }

// share returns the number of entries of a principal.
func (l *ledger) share(principal string) int {
	if own, ok := l.shares.Get(principal); ok {
		return own.Len()
	}
	return 0
}

// oldest returns the oldest entry of a principal, or of all principals if all is set.
func (l *ledger) oldest(principal string, all bool) (string, *ledgerEntry) {
	ages := l.ages
	if !all {
		ages, _ = l.shares.Get(principal)
	}
	if ages == nil {
		return "", nil
	}
	_, key, _ := ages.Min()
	e, _ := l.entries.Get(key)
	return key, e
}

// put adds an entry to this version; del removes one.
func (l *ledger) put(key string, e *ledgerEntry) {
	l.entries.Set(key, e)
	l.ages.Set(e.number, key)
	own, ok := l.shares.Get(principalOf(key))
	if ok {
		own = own.Copy()
	} else {
		own = btree.NewMap[uint64, string](0)
	}
	own.Set(e.number, key)
	l.shares.Set(principalOf(key), own)
}

func (l *ledger) del(key string, e *ledgerEntry) {
	l.entries.Delete(key)
	l.ages.Delete(e.number)
	own, _ := l.shares.Get(principalOf(key))
	if own = own.Copy(); own.Len() == 1 {
		l.shares.Delete(principalOf(key))
		return
	}
	own.Delete(e.number)
	l.shares.Set(principalOf(key), own)
}

// version copies the maps, so that this version may modify them.
func (l *ledger) version() {
	l.entries, l.ages, l.shares = l.entries.Copy(), l.ages.Copy(), l.shares.Copy()
}

// Outcome returns the result that a proposal under this request would get without being applied: the remembered
// outcome, or a rejection. known is false for a new request and for one that is still in the log.
func (s *State) Outcome(r *Request) (out Result, known bool) {
	if !r.keyed() {
		return Result{}, false
	}
	return s.recall(r)
}

// recall returns the remembered outcome of a request with a key, or a rejection if the request has another body.
func (s *State) recall(r *Request) (Result, bool) {
	if len(r.Principal) > MaxKeyBytes || len(r.Key) > MaxKeyBytes {
		return Result{CAS: s.cas,
			Rejection: reject(errcode.InvalidArgument, "an idempotency key of %d and a principal of %d bytes; "+
				"want at most %d each",
				len(r.Key), len(r.Principal), MaxKeyBytes)}, true
	}
	e, ok := s.ledger.entries.Get(requestKey(r))
	if !ok || s.timeMS-e.timeMS >= s.limits.LedgerMaxAgeMS {
		return Result{}, false
	}
	if e.bodyHash != r.BodyHash {
		return Result{CAS: s.cas, Rejection: reject(errcode.RequestMismatch,
			"idempotency key %q was used for a request with another body; use a new key for a new request", r.Key)}, true
	}
	out := e.outcome
	out.Replayed = true
	return out, true
}

const (
	// forgetAtOnce bounds how many entries one request makes the ledger forget, so that no single command pays for a
	// long idle time.
	forgetAtOnce = 16
	// reservedPart is the part of the ledger (one in so many entries) that is reserved for administrators.
	reservedPart = 16
)

// makeRoom forgets entries that are too old, and, if the request has no room otherwise, one that is old enough. It
// rejects the request rather than forget a young entry.
//
// A principal may hold as many entries as are free: a single one gets half of the ledger, and whatever a principal
// holds, as much is left for the next. Beyond that its own oldest entry is evicted or, while it holds less than an
// equal share, the oldest of all. Administrators are not limited in this way and have a reserve besides, so that they
// can always revoke a user's right to write.
func (s *State) makeRoom(c *Command) *Rejection {
	for range forgetAtOnce {
		if key, e := s.ledger.oldest("", true); e != nil && s.timeMS-e.timeMS >= s.limits.LedgerMaxAgeMS {
			s.forget(key, e)
		} else {
			break
		}
	}
	principal := c.Request.Principal
	most := int(s.limits.LedgerEntries)
	own, all := s.ledger.share(principal), true
	if s.administers(c) {
		if s.ledger.len() < most {
			return nil
		}
	} else {
		most -= most / reservedPart
		if own < most-s.ledger.len() {
			return nil
		}
		all = own < most/(s.ledger.shares.Len()+1)
	}
	for range forgetAtOnce {
		key, e := s.ledger.oldest(principal, all)
		if e == nil {
			return nil
		}
		if old := s.timeMS - e.timeMS; old < s.limits.LedgerMinAgeMS {
			return reject(errcode.LedgerFull, "%d requests are remembered, %d of them of %q, and there is no room for "+
				"more of these: the oldest removable one is %d s old; "+
				"a request is remembered for at least %d s: try again later", s.ledger.len(), own, principal, old/1000,
				s.limits.LedgerMinAgeMS/1000)
		}
		if s.forget(key, e); s.ledger.len() < most {
			return nil
		}
	}
	return nil
}

// administers reports whether a command comes from an administrator: the principal has the role, or the command is
// one that only administrators may send (package api).
func (s *State) administers(c *Command) bool {
	if u := s.User(c.Request.Principal); u != nil && u.Role == UserAdmin {
		return true
	}
	switch c.Body.kind() {
	case kindCreateIndex, kindBuildIndexes, kindDropIndex, kindAlterIndex, kindSplitIndex, kindCancelSplit, kindByName,
		kindSetAutoSplit:
		return false
	}
	return true
}

// forget removes an entry.
func (s *State) forget(key string, e *ledgerEntry) {
	s.ledger.version()
	s.ledger.del(key, e)
}

// remember stores an outcome.
func (s *State) remember(r *Request, out Result) {
	out.Buckets = nil
	key := requestKey(r)
	if old, ok := s.ledger.entries.Get(key); ok { // expired, but not yet forgotten
		s.forget(key, old)
	}
	s.ledger.version()
	s.ledger.put(key, &ledgerEntry{number: s.ledger.next, bodyHash: r.BodyHash, timeMS: s.timeMS, outcome: out})
	s.ledger.next++
}

// appendLedgerEntry appends an entry; with texts false it leaves out messages for people.
func appendLedgerEntry(dst []byte, key string, e *ledgerEntry, texts bool) []byte {
	dst = appendString(dst, key)
	dst = appendUint(dst, e.number)
	dst = append(dst, e.bodyHash[:]...)
	dst = appendInt(dst, e.timeMS)
	o := &e.outcome
	dst = appendBool(appendUint(dst, o.CAS), o.Changed)
	dst = append(appendUint(dst, uint64(o.Index)), byte(o.Node))
	dst = appendString(appendUint(dst, o.Number), o.Member)
	dst = appendBool(dst, o.Rejection != nil)
	if o.Rejection != nil {
		dst = appendString(dst, string(o.Rejection.Code))
		if texts {
			dst = appendString(dst, o.Rejection.Message)
		}
	}
	dst = appendUint(dst, uint64(len(o.Indexes)))
	for _, id := range o.Indexes {
		dst = appendUint(dst, uint64(id))
	}
	return dst
}

func (d *decoder) ledgerEntry() (key string, e *ledgerEntry) {
	key, e = d.string(), &ledgerEntry{number: d.uint()}
	d.fixed(e.bodyHash[:])
	e.timeMS = d.int()
	e.outcome = Result{CAS: d.uint(), Changed: d.bool(), Index: index.ID(d.uint()), Node: index.NodeID(d.byte()),
		Number: d.uint(), Member: d.string()}
	if d.bool() {
		e.outcome.Rejection = &Rejection{Code: errcode.Code(d.string()), Message: d.string()}
	}
	e.outcome.Indexes = ids[index.ID](d)
	return key, e
}
