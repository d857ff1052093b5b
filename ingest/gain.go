package ingest

// mostGains bounds the gains cached per vbucket. If copies have passed more different sets of events, the cache is
// cleared and refilled.
const mostGains = 8

// gain is the effect of the queued events of a vbucket on parts that have passed the same ones.
type gain struct {
	after, upTo uint64 // see Part
	epoch       uint32
	counted     bool   // some to end are computed
	some        bool   // some event is for them
	empty       bool   // one of these may state that a document has no keys
	top, end    uint64 // highest seqno and highest window end of these
	judged      bool   // straddles is computed
	straddles   uint64 // see vbucket.straddles
}

// gains caches the gains of a vbucket while a batch takes from its queue. Most copies are in the same state, even
// those with lists of their own: each event is examined once for all of them.
type gains struct {
	known []gain
	first uint32 // epoch of the queue's first event; parts whose queues start no later see the same events
}

// begin resets the cache for another vbucket or queue.
func (g *gains) begin(v *vbucket) {
	if g.forget(); len(v.queue) > 0 {
		g.first = v.queue[0].epoch
	}
}

func (g *gains) forget() { g.known = g.known[:0] }

func (g *gains) at(after, upTo uint64, epoch uint32) *gain {
	epoch = max(epoch, g.first) // epochs ascend within a queue
	for i := range g.known {
		if k := &g.known[i]; k.after == after && k.upTo == upTo && k.epoch == epoch {
			return k
		}
	}
	if len(g.known) == mostGains {
		g.forget()
	}
	g.known = append(g.known, gain{after: after, upTo: upTo, epoch: epoch})
	return &g.known[len(g.known)-1]
}

// of returns the gain of a part from events.
func (g *gains) of(pt *Part, events []Entry) *gain {
	k := g.at(pt.after, pt.upTo, pt.epoch)
	if k.counted {
		return k
	}
	k.counted = true
	for i := range events {
		if e := &events[i]; pt.Selects(e) {
			k.some, k.empty = true, k.empty || e.empty
			k.top, k.end = max(k.top, e.Seqno), max(k.end, e.Window.End)
		}
	}
	return k
}

// straddled is a cached vbucket.straddles.
func (g *gains) straddled(v *vbucket, p *part, seqno uint64) uint64 {
	k := g.at(max(p.pos.Main, p.pos.A), seqno, p.from)
	if !k.judged {
		k.judged, k.straddles = true, v.straddles(p, seqno)
	}
	return k.straddles
}
