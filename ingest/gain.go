package ingest

// mostGains bounds the gains that are kept of a vbucket: copies of which more have passed different events are looked
// at one by one.
const mostGains = 8

// gain is what queued events of a vbucket are to parts that have passed the same of them.
type gain struct {
	after, upTo uint64 // see Part
	epoch       uint32
	counted     bool   // of what a segment has
	some        bool   // something of it is for them
	empty       bool   // and may say that a document has no keys
	top, end    uint64 // its highest seqno, and highest end of a window
	judged      bool   // straddles
	straddles   uint64 // see vbucket.straddles
}

// gains are those of a vbucket, while a batch takes from its queue. Copies stand alike most often, also those that have
// lists of their own: each event is looked at once for all of them.
type gains struct {
	known []gain
	first uint32 // epoch of the queue's first event; all parts whose queues start no later have the same of it
}

// begin begins with another vbucket, or queue.
func (g *gains) begin(v *vbucket) {
	if g.forget(); len(v.queue) > 0 {
		g.first = v.queue[0].epoch
	}
}

func (g *gains) forget() { g.known = g.known[:0] }

func (g *gains) at(after, upTo uint64, epoch uint32) *gain {
	epoch = max(epoch, g.first) // they ascend in a queue
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

// of is what events are to a part.
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

// straddled is vbucket.straddles.
func (g *gains) straddled(v *vbucket, p *part, seqno uint64) uint64 {
	k := g.at(max(p.pos.Main, p.pos.A), seqno, p.from)
	if !k.judged {
		k.judged, k.straddles = true, v.straddles(p, seqno)
	}
	return k.straddles
}
