package streams

import "tidemark/index"

// traffic is the rate of changes of the vbuckets, derived from KV's high seqnos at successive audits.
type traffic struct {
	rates  []float64 // changes per second, by vbucket
	highs  []uint64  // high seqnos at the last audit
	seenMS []int64   // time of the last audit; 0: none yet
}

// newTraffic returns rates of 0 for n vbuckets.
func newTraffic(n int) traffic {
	return traffic{rates: make([]float64, n), highs: make([]uint64, n), seenMS: make([]int64, n)}
}

// note records KV's high seqno of a vbucket. The rate is the mean of the new measurement and the previous rate, so
// that one burst has no lasting effect. If seqnos went back (a failover, a flush) the measurement starts again.
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

// dealChanges is how many changes per second weigh as much as one idle vbucket. That is about a vbucket's share of
// the cost of a stream for reports and audits.
const dealChanges = 100

// weight returns what a vbucket adds to the load of its projector: 1 plus its weighted rate.
func (t *traffic) weight(v int) float64 { return 1 + t.rates[v]/dealChanges }

// load is the load of one projector by a bucket.
type load struct {
	vbuckets int
	weight   float64
}

// eased reports whether moving a vbucket of this weight to another projector is worth the interruption. It must make
// the loads more equal by half a vbucket at least (a few changes must not prevent equal numbers of vbuckets), and by
// a quarter of the weight of the first one's changes, since these fluctuate. Each such move lowers the sum of the
// squares of all loads, so that moves end.
func (o load) eased(to load, weight float64) bool {
	return o.weight-to.weight >= weight+max(0.5, (o.weight-float64(o.vbuckets))/4)
}

// loads returns the load of each projector.
func (l *Ledger) loads() map[index.ProjectorID]load {
	all := map[index.ProjectorID]load{}
	for v := range l.vbs {
		all[l.vbs[v].Owner] = all[l.vbs[v].Owner].with(1, l.kv.traffic.weight(v))
	}
	return all
}

// with returns the load with n more vbuckets of the given total weight.
func (o load) with(n int, weight float64) load { return load{o.vbuckets + n, o.weight + weight} }
