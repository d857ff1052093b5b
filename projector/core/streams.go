package core

import (
	"fmt"

	"tidemark/index"
	"tidemark/wire"
)

// Running is a stream as a bucket keeps it. Level may be called from another goroutine than the worker that handles
// the stream's events.
type Running interface {
	comparable
	Opened() *Start
	Level() Level
}

// Level is a stream's visible progress.
type Level struct {
	Complete uint64 // newest seqno that ends a DCP snapshot
	Lacks    uint64 // KV may have purged deletions up to here
	Ended    bool   // nothing more goes downstream
}

// Streams holds the newest maintenance stream of each vbucket of a bucket, and the incarnations that may still
// request one.
type Streams[S Running] struct {
	newest []S
	fences []incarnations
}

// incarnations is the fence of one vbucket.
type incarnations struct {
	highest index.Incarnation // highest that was claimed
	stopped index.Incarnation // this one and lower ones are refused; zero: none
}

func (i *incarnations) refuses(inc index.Incarnation) bool {
	return inc.Compare(i.highest) < 0 || !i.stopped.IsZero() && inc.Compare(i.stopped) <= 0
}

// NewStreams returns the streams of a bucket that has none yet.
func NewStreams[S Running](vbuckets int) *Streams[S] {
	return &Streams[S]{newest: make([]S, vbuckets), fences: make([]incarnations, vbuckets)}
}

// VBuckets returns the bucket's number of vbuckets.
func (t *Streams[S]) VBuckets() int { return len(t.newest) }

// all calls f for the newest stream of each vbucket that has had one.
func (t *Streams[S]) all(f func(vb int, s S, is Level)) {
	var none S
	for vb, s := range t.newest {
		if s != none {
			f(vb, s, s.Level())
		}
	}
}

// Claim admits a request for the stream of a vbucket that KV hosts. It returns the stream to request from KV, or nil
// and the outcome if the request ends here.
func (t *Streams[S]) Claim(inc index.Incarnation, want *wire.StreamStart, at At) (*Stream, wire.StartResult) {
	vb := want.VBucket
	if int(vb) >= len(t.newest) {
		return nil, Failed(vb, fmt.Sprintf("the bucket has %d vbuckets", len(t.newest)))
	}
	var none S
	seen, now := &t.fences[vb], t.newest[vb]
	switch {
	case seen.refuses(inc):
		return nil, outcome(vb, wire.StartStale, "")
	case now == none || now.Opened().Incarnation != inc:
		seen.highest = inc
		return NewStream(inc, want, at), wire.StartResult{}
	case now.Level().Ended:
		return nil, Failed(vb, "the stream of this incarnation has ended; request it with a new one")
	}
	return nil, now.Opened().Began(at.High, now.Level().Lacks) // a retry
}

// Install makes a stream the vbucket's newest one, unless a newer request or a stop came meanwhile.
func (t *Streams[S]) Install(s S) bool {
	o := s.Opened()
	if t.fences[o.Want.VBucket].refuses(o.Incarnation) {
		return false
	}
	t.newest[o.Want.VBucket] = s
	return true
}

// Stop refuses incarnations up to inc from now on, for these vbuckets, or for all if none is named. It returns the
// streams that the caller has to end.
func (t *Streams[S]) Stop(vbuckets []uint16, inc index.Incarnation) (ending []S) {
	if len(vbuckets) == 0 {
		for vb := range t.newest {
			vbuckets = append(vbuckets, uint16(vb))
		}
	}
	var none S
	for _, vb := range vbuckets {
		if int(vb) >= len(t.newest) {
			continue
		}
		if seen := &t.fences[vb]; seen.stopped.Compare(inc) < 0 {
			seen.stopped = inc
		}
		if s := t.newest[vb]; s != none && s.Opened().Incarnation.Compare(inc) <= 0 && !s.Level().Ended {
			ending = append(ending, s)
		}
	}
	return ending
}

// Newest returns the newest stream of each vbucket that has had one.
func (t *Streams[S]) Newest() []S {
	all := make([]S, 0, len(t.newest))
	t.all(func(_ int, s S, _ Level) { all = append(all, s) })
	return all
}

// Of returns the newest stream of a vbucket, the zero value if it had none.
func (t *Streams[S]) Of(vb int) S { return t.newest[vb] }

// Running returns the number of running streams.
func (t *Streams[S]) Running() (n int) {
	t.all(func(_ int, _ S, is Level) {
		if !is.Ended {
			n++
		}
	})
	return n
}

// Reached reports whether every running stream is complete up to the wanted seqno of its vbucket.
func (t *Streams[S]) Reached(want []uint64) bool {
	reached := true
	t.all(func(vb int, _ S, is Level) {
		reached = reached && (vb >= len(want) || is.Ended || is.Complete >= want[vb])
	})
	return reached
}

// Branches sets in known the branch of each running stream, by vbucket.
func (t *Streams[S]) Branches(known map[uint16]uint64) {
	t.all(func(vb int, s S, is Level) {
		if !is.Ended {
			known[uint16(vb)] = s.Opened().Log.Newest()
		}
	})
}

// Known is the state of a vbucket's stream that the coordinator has acknowledged.
type Known[S Running] struct {
	stream S
	Level
}

// Report adds to r the state of the streams: all of them if before is nil, otherwise those that differ from before,
// the state that the coordinator has acknowledged. A stream that has only moved takes a few bytes. It returns the
// state that the coordinator has once it has received this report.
func (t *Streams[S]) Report(r *wire.StreamStates, before []Known[S]) []Known[S] {
	now := make([]Known[S], len(t.newest))
	t.all(func(vb int, s S, is Level) {
		var was Known[S]
		if before != nil {
			was = before[vb]
		}
		o := s.Opened()
		switch now[vb] = (Known[S]{s, is}); {
		case now[vb] == was:
		case was.stream == s && was.Ended == is.Ended && was.Lacks == is.Lacks:
			r.Move(uint16(vb), o.Incarnation, is.Complete)
		default:
			log := o.Log
			if was.stream == s {
				log = nil
			}
			r.Streams = append(r.Streams, wire.StreamState{VBucket: uint16(vb), Incarnation: o.Incarnation,
				Complete: is.Complete, Ended: is.Ended, Log: log, Purge: is.Lacks, Revision: o.KV.Revision})
		}
	})
	return now
}
