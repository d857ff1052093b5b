package statecontext

import (
	"tidemark/index"
)

// ledgerEntry is the remembered outcome of a request.
type ledgerEntry struct {
	number   uint64 // in ledgerAge
	bodyHash [32]byte
	timeMS   int64 // state time of the outcome
	outcome  Result
}

func requestKey(r *Request) string { return nameKey(r.Principal, r.Key) }

// Outcome gives what a proposal under this request would be answered without being looked at: the outcome that is
// remembered, or a refusal. known is false for a new request, and for one that is still on its way through the log.
func (s *State) Outcome(r *Request) (out Result, known bool) { return s.recall(r) }

// recall gives the outcome of a request that is known, or refuses one whose body is another.
func (s *State) recall(r *Request) (Result, bool) {
	if len(r.Principal) > MaxKeyBytes || len(r.Key) > MaxKeyBytes || r.Key == "" {
		return Result{CAS: s.cas, Rejection: reject(InvalidArgument, "idempotency key of %d and principal of %d bytes; want 1 to %d and at most %d",
			len(r.Key), len(r.Principal), MaxKeyBytes, MaxKeyBytes)}, true
	}
	e, ok := s.ledger.Get(requestKey(r))
	if !ok || s.timeMS-e.timeMS >= s.limits.LedgerMaxAgeMS {
		return Result{}, false
	}
	if e.bodyHash != r.BodyHash {
		return Result{CAS: s.cas, Rejection: reject(RequestMismatch,
			"idempotency key %q was used for a request with another body; use a new key for a new request", r.Key)}, true
	}
	out := e.outcome
	out.Replayed = true
	return out, true
}

// forgetAtOnce bounds what one request makes the ledger forget, so that no command pays for a quiet day.
const forgetAtOnce = 16

// makeRoom forgets what is too old, and the oldest when the ledger is full, unless that is too young.
func (s *State) makeRoom() *Rejection {
	ledger, age := s.ledger, s.ledgerAge
	for range forgetAtOnce {
		number, key, ok := age.Min()
		if !ok {
			return nil
		}
		e, _ := ledger.Get(key)
		old := s.timeMS - e.timeMS
		full := ledger.Len() >= int(s.limits.LedgerEntries)
		if old < s.limits.LedgerMaxAgeMS && !full {
			return nil
		}
		if old < s.limits.LedgerMinAgeMS {
			return reject(LedgerFull, "%d requests are remembered and the oldest is %d s old; none is forgotten before %d s: try again later",
				ledger.Len(), old/1000, s.limits.LedgerMinAgeMS/1000)
		}
		if ledger == s.ledger { // the first to go: work on copies
			s.ledger, s.ledgerAge = ledger.Copy(), age.Copy()
			ledger, age = s.ledger, s.ledgerAge
		}
		ledger.Delete(key)
		age.Delete(number)
	}
	return nil
}

// remember stores an outcome.
func (s *State) remember(r *Request, out Result) {
	out.Buckets = nil
	s.ledger, s.ledgerAge = s.ledger.Copy(), s.ledgerAge.Copy()
	if old, ok := s.ledger.Get(requestKey(r)); ok { // too old, and not yet forgotten
		s.ledgerAge.Delete(old.number)
	}
	e := &ledgerEntry{number: s.ledgerNext, bodyHash: r.BodyHash, timeMS: s.timeMS, outcome: out}
	s.ledgerNext++
	s.ledger.Set(requestKey(r), e)
	s.ledgerAge.Set(e.number, requestKey(r))
}

func appendLedgerEntry(dst []byte, key string, e *ledgerEntry) []byte {
	dst = appendString(dst, key)
	dst = appendUint(dst, e.number)
	dst = append(dst, e.bodyHash[:]...)
	dst = appendInt(dst, e.timeMS)
	o := &e.outcome
	dst = appendBool(appendUint(dst, o.CAS), o.Changed)
	dst = append(appendUint(dst, uint64(o.Index)), byte(o.Node))
	dst = appendUint(dst, o.Number)
	dst = appendBool(dst, o.Rejection != nil)
	if o.Rejection != nil {
		dst = appendString(appendString(dst, string(o.Rejection.Code)), o.Rejection.Message)
	}
	return dst
}

func (d *decoder) ledgerEntry() (key string, e *ledgerEntry) {
	key, e = d.string(), &ledgerEntry{number: d.uint()}
	d.fixed(e.bodyHash[:])
	e.timeMS = d.int()
	e.outcome = Result{CAS: d.uint(), Changed: d.bool(), Index: index.ID(d.uint()), Node: index.NodeID(d.byte()), Number: d.uint()}
	if d.bool() {
		e.outcome.Rejection = &Rejection{Code: Code(d.string()), Message: d.string()}
	}
	return key, e
}
