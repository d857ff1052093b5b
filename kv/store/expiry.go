package store

import "container/heap"

// Expiry follows the protocol: times up to thirty days are relative to now, later ones absolute, 0 is never.
const relativeExpiryLimit = 30 * 24 * 3600

// AbsoluteExpiry turns a client's expiry into unix seconds.
func AbsoluteExpiry(expiry, now uint32) uint32 {
	if expiry == 0 || expiry > relativeExpiryLimit {
		return expiry
	}
	return now + expiry
}

// expiryEntry says that version seqno of a document is to go at a time. Entries of versions that are gone are skipped.
type expiryEntry struct {
	at    uint32
	id    docID
	seqno uint64
}

// current says whether d is the version meant. The expiry is compared, too: the seqno of a version that was taken back
// is given to another one.
func (e expiryEntry) current(d *Doc) bool {
	return d != nil && d.Seqno == e.seqno && d.Expiry == e.at && !d.Deleted
}

type expiryHeap []expiryEntry

func (h expiryHeap) Len() int           { return len(h) }
func (h expiryHeap) Less(i, j int) bool { return h[i].at < h[j].at }
func (h expiryHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

// Push is part of heap.Interface.
func (h *expiryHeap) Push(x any) { *h = append(*h, x.(expiryEntry)) }

// Pop is part of heap.Interface.
func (h *expiryHeap) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	(*h)[last] = expiryEntry{}
	*h = (*h)[:last]
	return x
}

// trimExpiriesLocked drops the entries of versions that are gone once they outnumber the documents.
func (v *VBucket) trimExpiriesLocked() {
	if len(v.expiries) < pruneAt || len(v.expiries) <= 2*len(v.docs) {
		return
	}
	keep := v.expiries[:0]
	for _, e := range v.expiries {
		if e.current(v.docs[e.id]) {
			keep = append(keep, e)
		}
	}
	clear(v.expiries[len(keep):])
	v.expiries = keep
	heap.Init(&v.expiries)
}

// expire turns up to n documents whose time is up into tombstones and says how many.
func (v *VBucket) expire(now uint32, n int) (int, *Ticket, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	var ticket *Ticket
	done := 0
	if v.sealedLocked(v.bucket.now()) {
		return 0, nil, nil
	}
	for done < n && len(v.expiries) > 0 && v.expiries[0].at <= now && v.state == Active {
		e := v.expiries[0]
		d := v.docs[e.id]
		if e.current(d) {
			t, err := v.expireLocked(d, now)
			if err != nil {
				return done, ticket, err
			}
			ticket = t
			done++
		}
		heap.Pop(&v.expiries)
	}
	return done, ticket, nil
}
