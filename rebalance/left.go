package rebalance

import "tidemark/index"

// Work is the amount of work of a step of a rebalance, and how much of it is done.
type Work struct {
	Src, Dst index.NodeID
	// Lost reports whether the source node sends nothing.
	Lost  bool
	Bytes float64
	// Begun reports whether the step has begun. Part is the fraction of its bytes that is done, 0 to 1; at 1 the step is
	// done.
	Begun bool
	Part  float64
	// Seconds is how long the step has been observed in progress.
	Seconds float64
	// Skipped reports whether the step was given up; it then takes no time.
	Skipped bool
}

// Pace is the speed of steps.
type Pace struct {
	BytesPerSecond float64
	Overhead       float64 // seconds that a step takes in addition to the transfer of its bytes
}

// leastDone is the fraction of a rebalance that has to be done before its remaining time is estimated.
const leastDone = 0.05

// mostWaited is the largest fraction of a step's overhead that counts as done before the step is: some steps take
// longer than others.
const mostWaited = 0.9

// Left estimates how long a rebalance still takes, as a multiple of the time it has taken; known is false while too
// little is done to tell.
//
// The estimate is that of the node with the most to send or receive: its bytes are transferred one copy after
// another, while the overheads of its steps overlap. So the end of a rebalance, when few nodes still have work, is
// not expected to be as quick as the beginning, when all have.
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

// left returns the seconds for all bytes of a step, for its remaining bytes, and for its remaining overhead. For a
// step in progress, the time without transfer counts as overhead.
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

// Watch observes the steps of a rebalance and measures their speed. The zero value has no observations.
type Watch struct {
	of      uint64 // id of the rebalance
	nowMS   int64  // time of the current observation
	looks   int
	running map[uint32]*running

	known          float64 // number of steps observed from beginning to end
	seconds        float64 // total duration of these steps
	bytes          float64 // total bytes of these steps
	moved, movedIn float64 // bytes observed in transfer, and the seconds they took
}

// running is a step in progress.
type running struct {
	sinceMS int64
	late    bool    // it had begun before the first observation
	part    float64 // largest fraction observed; bytes from files and what follows them are counted one after the other
	partMS  int64   // when part was last raised
}

// Look begins an observation of the steps of a rebalance; each of them is then passed to See.
func (w *Watch) Look(of uint64, nowMS int64) {
	if w.of != of || nowMS < w.nowMS {
		*w = Watch{of: of, running: map[uint32]*running{}}
	}
	w.looks, w.nowMS = w.looks+1, nowMS
}

// See records the observation of a step in progress, or, if whole, of one that has completed since. It completes y
// with the largest fraction observed and the time in progress.
func (w *Watch) See(step uint32, y *Work, whole bool) {
	r := w.running[step]
	switch {
	case r == nil && whole: // it was never observed in progress
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
		if r.part > 0 && y.Bytes > 0 { // at 0 its size was not known
			w.moved += (y.Part - r.part) * y.Bytes
			w.movedIn += float64(w.nowMS-r.partMS) / 1000
		}
		r.part, r.partMS = y.Part, w.nowMS
	}
	y.Part = r.part
}

// leastMoved is for how many seconds transfers must have been observed before their rate is used.
const leastMoved = 2

// Pace returns the measured speed of steps, or the presumed one where nothing was measured.
func (w *Watch) Pace(presumed Pace) Pace {
	if w.movedIn >= leastMoved {
		presumed.BytesPerSecond = w.moved / w.movedIn
	}
	if w.known > 0 {
		// The presumed value counts as one step, because the first step may not be typical.
		presumed.Overhead = (presumed.Overhead + max(w.seconds-w.bytes/presumed.BytesPerSecond, 0)) / (1 + w.known)
	}
	return presumed
}
