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
	// Seconds is for how long it has been seen under way.
	Seconds float64
	// Skipped: it was given up, and takes no time.
	Skipped bool
}

// Pace is how quick steps are.
type Pace struct {
	BytesPerSecond float64
	Overhead       float64 // seconds that a step takes beside its bytes
}

// leastDone is how much of a rebalance has to be done before it is told how long the rest takes.
const leastDone = 0.05

// mostWaited is how much of the overhead of a step counts as done while the step is not: some take longer than others.
const mostWaited = 0.9

// Left estimates how long a rebalance still takes, as a multiple of the time that it has taken; known is false while
// too little is done for that.
//
// The time is that of the node that has the most to send or to receive: its bytes go one copy after the other, its
// steps beside each other. So the end, where few nodes have something left to do, is not taken for as quick as the
// beginning, where all have.
func Left(steps []Work, b Bounds, p Pace) (times float64, known bool) {
	type load struct{ all, left float64 } // seconds
	var sends, receives [1 << 8]load      // by NodeID
	for i := range steps {
		y := &steps[i]
		if y.Skipped {
			continue
		}
		bytes, bytesLeft, overhead := y.left(p)
		add := func(l *load, atOnce int) {
			l.all += bytes + p.Overhead/float64(max(atOnce, 1))
			l.left += bytesLeft + overhead/float64(max(atOnce, 1))
		}
		add(&receives[y.Dst], b.Receives)
		if !y.Lost {
			add(&sends[y.Src], b.Sends)
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

// left returns how many seconds the bytes of a step take, and how many what is left of them and of its overhead does.
// Of a step that is under way, the time in which no bytes of it came was overhead.
func (y *Work) left(p Pace) (bytes, bytesLeft, overhead float64) {
	bytes = y.Bytes / p.BytesPerSecond
	switch part := min(max(y.Part, 0), 1); {
	case part == 1:
		return bytes, 0, 0
	case y.Begun:
		waited := min(max(y.Seconds-bytes*part, 0), mostWaited*p.Overhead)
		return bytes, bytes * (1 - part), p.Overhead - waited
	}
	return bytes, bytes, p.Overhead
}

// Watch looks at the steps of a rebalance, and learns how quick they are. The zero value has seen none.
type Watch struct {
	of      uint64 // a rebalance
	nowMS   int64  // of the look that goes on
	looks   int
	running map[uint32]*running

	known          float64 // steps that were seen from their beginning to their end
	seconds        float64 // that these took
	bytes          float64 // of these
	moved, movedIn float64 // bytes that were seen coming, and the seconds in which they came
}

// running is a step that is under way.
type running struct {
	sinceMS int64
	late    bool    // it had begun before it was looked at
	part    float64 // the most that was seen: what files bring and what is behind them are counted one after the other
	partMS  int64   // when it was
}

// Look begins a look at the steps of a rebalance, each of which then goes through See.
func (w *Watch) Look(of uint64, nowMS int64) {
	if w.of != of || nowMS < w.nowMS {
		*w = Watch{of: of, running: map[uint32]*running{}}
	}
	w.looks, w.nowMS = w.looks+1, nowMS
}

// See takes what is seen of a step that is under way, or, with whole, has ended well since; and completes it: by the
// most that was seen of it, and for how long it has been under way.
func (w *Watch) See(step uint32, y *Work, whole bool) {
	r := w.running[step]
	switch {
	case r == nil && whole: // before anything was seen of it
		return
	case r == nil:
		r = &running{sinceMS: w.nowMS, late: w.looks == 1, partMS: w.nowMS}
		w.running[step] = r
	}
	y.Seconds = float64(w.nowMS-r.sinceMS) / 1000
	if whole {
		delete(w.running, step)
		if !r.late {
			w.known++
			w.seconds += y.Seconds
			w.bytes += y.Bytes
		}
		return
	}
	if y.Part > r.part {
		if r.part > 0 && y.Bytes > 0 { // 0: nobody has told how large it is
			w.moved += (y.Part - r.part) * y.Bytes
			w.movedIn += float64(w.nowMS-r.partMS) / 1000
		}
		r.part, r.partMS = y.Part, w.nowMS
	}
	y.Part = r.part
}

// leastMoved is for how many seconds bytes have to be seen coming before it is known how quick they are.
const leastMoved = 2

// Pace returns how quick steps are: what was seen, or else what is presumed.
func (w *Watch) Pace(presumed Pace) Pace {
	if w.movedIn >= leastMoved {
		presumed.BytesPerSecond = w.moved / w.movedIn
	}
	if w.known > 0 {
		// The presumed one counts as one step: the first may be no like the others.
		presumed.Overhead = (presumed.Overhead + max(w.seconds-w.bytes/presumed.BytesPerSecond, 0)) / (1 + w.known)
	}
	return presumed
}
