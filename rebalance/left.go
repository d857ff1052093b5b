package rebalance

import "tidemark/index"

// Work is what a step of a rebalance has to do, and how much of it is done.
type Work struct {
	Src, Dst index.NodeID
	// Lost: the node that it comes from sends nothing.
	Lost  bool
	Bytes float64
	// Begun: it has been; Part is how much of its bytes is done, 0 to 1, where 1 is that it is done.
	Begun bool
	Part  float64
	// Skipped: it was given up, and takes no time.
	Skipped bool
}

// leastDone is how much of a rebalance has to be done before it is told how long the rest takes.
const leastDone = 0.05

// Left estimates how long a rebalance still takes, as a multiple of the time that it has taken; known is false while
// too little is done for that. overhead is as how many bytes counts what a step takes beside its bytes.
//
// The time is that of the node that has the most to send or to receive: its bytes go one copy after the other, its
// steps beside each other. So the end, where few nodes have something left to do, is not taken for as quick as the
// beginning, where all have.
func Left(steps []Work, b Bounds, overhead float64) (times float64, known bool) {
	type load struct{ all, left float64 }
	var sends, receives [1 << 8]load // by NodeID
	add := func(l *load, y *Work, overhead float64) {
		l.all += y.Bytes + overhead
		switch part := min(max(y.Part, 0), 1); {
		case part == 1:
		case y.Begun: // some of the overhead lies before the bytes, some behind them
			l.left += y.Bytes*(1-part) + overhead/2
		default:
			l.left += y.Bytes + overhead
		}
	}
	for i := range steps {
		y := &steps[i]
		if y.Skipped {
			continue
		}
		add(&receives[y.Dst], y, overhead/float64(max(b.Receives, 1)))
		if !y.Lost {
			add(&sends[y.Src], y, overhead/float64(max(b.Sends, 1)))
		}
	}
	var most load
	for n := range receives {
		most.all = max(most.all, sends[n].all, receives[n].all)
		most.left = max(most.left, sends[n].left, receives[n].left)
	}
	if done := most.all - most.left; most.all > 0 && done >= leastDone*most.all {
		return most.left / done, true
	}
	return 0, false
}
