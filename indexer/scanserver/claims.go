package scanserver

import (
	"tidemark/timestamp"
	"tidemark/wire"
)

// claims collects the current seqnos of KV, by vbucket, as reported by projectors.
type claims struct {
	at       timestamp.Vector
	by       []claim
	owned    int // vbuckets that some projector has reported
	disputes int
}

type claim struct {
	made, disputed bool
	revision       timestamp.MapRevision
}

func newClaims(n int) *claims { return &claims{at: timestamp.New(n), by: make([]claim, n)} }

// add adds a projector's answer. Two projectors may query the same KV node and report the same branch. If they report
// different branches, one of them queries a node that does not know yet that it was failed over; the newer vbucket
// map then decides.
func (c *claims) add(r *wire.SeqnosReply) {
	if len(r.VBUUIDs) != len(r.VBuckets) || len(r.Seqnos) != len(r.VBuckets) {
		return
	}
	for i, vb := range r.VBuckets {
		if int(vb) >= len(c.by) {
			continue
		}
		reported, had, by := timestamp.Position{VBUUID: r.VBUUIDs[i], Seqno: r.Seqnos[i]}, c.at.At(int(vb)), &c.by[vb]
		newer := r.Revision.Compare(by.revision)
		switch same := reported.VBUUID == had.VBUUID; {
		case !by.made:
			c.owned++
		case same: // the newest map that names the branch counts, and the highest seqno of all answers
			reported.Seqno = max(reported.Seqno, had.Seqno)
		case newer < 0:
			continue
		case newer == 0:
			if !by.disputed {
				by.disputed = true
				c.disputes++
			}
			continue
		}
		if newer > 0 {
			if by.revision = r.Revision; by.disputed {
				by.disputed = false
				c.disputes--
			}
		}
		by.made = true
		c.at.Set(int(vb), reported)
	}
}

// missing returns the vbuckets whose seqno is unknown.
func (c *claims) missing() (vbs []uint16) {
	for vb, by := range c.by {
		if !by.made || by.disputed {
			vbs = append(vbs, uint16(vb))
		}
	}
	return vbs
}
