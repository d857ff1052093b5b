package store

import "container/heap"

// By the protocol, expiry values up to thirty days are relative to now, later ones absolute, and 0 means never.
const relativeExpiryLimit = 30 * 24 * 3600

// AbsoluteExpiry converts a client's expiry to unix seconds.
func AbsoluteExpiry(expiry, now uint32) uint32 {
	if expiry == 0 || expiry > relativeExpiryLimit {
		return expiry
	}
	return now + expiry
}

// expiryEntry schedules the expiry of one version of a document. Entries of versions that are gone are skipped.
type expiryEntry struct {
	at    uint32
	id    docID
	seqno uint64
}

// current reports whether d is the scheduled version. It also compares the expiry, because the seqno of a version
// that was taken back is assigned to another one.
func (e expiryEntry) current(d *Doc) bool {
	return d != nil && d.Seqno == e.seqno && d.Expiry == e.at && !d.Deleted
}

type expiryHeap []expiryEntry

func (h expiryHeap) Len() int           { return len(h) }
func (h expiryHeap) Less(i, j int) bool { return h[i].at < h[j].at }
func (h expiryHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

// Push implements heap.Interface.
func (h *expiryHeap) Push(x any) { *h = append(*h, x.(expiryEntry)) }

// Pop implements heap.Interface.
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

// expire turns up to n expired documents into tombstones and returns their number.
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
