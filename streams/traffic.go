package streams

import "tidemark/index"

// traffic is how many changes a second the vbuckets take, as KV's high seqnos at successive audits show it.
type traffic struct {
	rates  []float64 // changes a second, by vbucket
	highs  []uint64  // what the newest audit told
	seenMS []int64   // when it did; 0: none has
}

// newTraffic knows nothing of n vbuckets: their rates are 0.
func newTraffic(n int) traffic {
	return traffic{rates: make([]float64, n), highs: make([]uint64, n), seenMS: make([]int64, n)}
}

// note takes KV's high seqno of a vbucket. What an audit finds counts for half, what was known before for the other:
// one burst moves nothing for long. Where seqnos went back (a failover, a flush) it begins anew from there.
func (t *traffic) note(v int, nowMS int64, high uint64) {
	before, sinceMS := t.highs[v], t.seenMS[v]
	if nowMS <= sinceMS && sinceMS > 0 {
		return
	}
	t.highs[v], t.seenMS[v] = high, max(nowMS, 1)
	if sinceMS == 0 || high < before {
		return
	}
	found := float64(high-before) * 1000 / float64(nowMS-sinceMS)
	t.rates[v] = (t.rates[v] + found) / 2
}

// dealChanges is how many changes a second weigh as much as one vbucket that takes none: its share of what a stream
// costs, told and audited, is about that.
const dealChanges = 100

// weight is what a vbucket adds to the load of who streams it: 1 and what it takes.
func (t *traffic) weight(v int) float64 { return 1 + t.rates[v]/dealChanges }

// load is what one projector streams of a bucket.
type load struct {
	vbuckets int
	weight   float64
}

// eased reports whether moving a vbucket of such a weight to another projector is worth its interruption: both are left
// with more equal loads, by half a vbucket at least (a few changes must not keep two from having as many), and by a
// quarter of what the first one's changes weigh, as these come and go. Each such move lowers the sum of the squares
// of all loads: there is a last one.
func (o load) eased(to load, weight float64) bool {
	return o.weight-to.weight >= weight+max(0.5, (o.weight-float64(o.vbuckets))/4)
}

// loads returns what each projector streams.
func (l *Ledger) loads() map[index.ProjectorID]load {
	all := map[index.ProjectorID]load{}
	for v := range l.vbs {
		all[l.vbs[v].Owner] = all[l.vbs[v].Owner].with(1, l.kv.traffic.weight(v))
	}
	return all
}

// with returns the load with n vbuckets of that weight together more.
func (o load) with(n int, weight float64) load { return load{o.vbuckets + n, o.weight + weight} }
