package core

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"tidemark/index"
	"tidemark/ingest"
	"tidemark/timestamp"
	"tidemark/wire"
)

const (
	// sideGather is the longest time for which the wants of a bucket wait for more while its streams are still
	// beginning.
	sideGather = 150 * time.Millisecond
	// sideFirst and sideMost bound the growing pause before a vbucket is requested again. One request covers all
	// vbuckets of a projector, so a short pause costs little; a long one would outlast the obstacle.
	sideFirst = 100 * time.Millisecond
	sideMost  = time.Second
	// sideSilence is how long a side stream may deliver nothing before the node gives it up.
	sideSilence = 30 * time.Second
	// sideResume is how long a side stream may be without a connection before the node gives it up: its router
	// reconnects at once unless the stream has ended.
	sideResume = 5 * time.Second
	// sideRequests bounds the calls in flight to one projector. Further wants wait without blocking the loop: a hung
	// projector holds each call for StreamTimeout, and wants of other projectors must not wait for that.
	sideRequests = 8
	// sidePatience is how long a projector without room for another call may complete none of those in flight before
	// its vbuckets are requested from other projectors. A busy projector completes some within moments, a hung one
	// does not.
	sidePatience = time.Second
)

// Sides decides which side streams a node requests, from which projector and when again, and which it gives up (PR-11
// forms 2 and 3). For each bucket the caller runs Watch and then Ask, both in the bucket's loop, so that nothing
// arrives before it is expected; then Settle, and Sent for each request that it sends. Each call that was sent
// finishes with Ended, a request with Answered before that.
type Sides struct {
	last     uint64                          // id of the newest request
	attempts map[string]map[int]*sideAttempt // by bucket and vbucket
	open     map[uint64]*sideOpen            // requests that may still be running at a projector, by id
	calls    map[string]sideCalls            // calls in flight, by the projector's address
	gathers  map[string]time.Time            // when each bucket began to wait for more wants
}

// NewSides returns a Sides without requests. Its request ids start above last, which must be above every id that this
// node has used, also before a restart.
func NewSides(last uint64) *Sides {
	return &Sides{last: last, attempts: map[string]map[int]*sideAttempt{}, open: map[uint64]*sideOpen{},
		calls: map[string]sideCalls{}, gathers: map[string]time.Time{}}
}

// sideAttempt tracks the requests for one vbucket.
type sideAttempt struct {
	tries int       // projectors that refused since a stream last began
	waits int       // pauses since everything wanted arrived, or a stream last delivered something
	after time.Time // earliest time of the next request
	id    uint64    // request id of the open stream that is watched
	at    uint64
	moved time.Time // when the stream last delivered something, or was excused for not doing so
	lost  time.Time // when it was first seen without a connection; zero while it has one
}

// sideOpen is a request that may still be running at a projector.
type sideOpen struct {
	bucket, addr string
	abandoned    bool
	began, came  bool // already reported: all vbuckets have begun, everything has arrived
}

// sideCalls tracks the calls in flight to one projector.
type sideCalls struct {
	n     int
	moved time.Time // when the first of them began, the limit was reached, or a call last ended
}

// SideWants is what a bucket wants from side streams, and what Ask needs to know to choose the projectors.
type SideWants struct {
	Bucket     string
	Streams    []ingest.SideProgress // open streams
	Wants      []ingest.Want
	Making     map[index.CopyID]bool // copies that are being made: they will want more in a moment
	Joining    bool                  // some of the copies have maintenance streams that have not begun yet
	Projectors []wire.ProjectorEndpoint
	Revision   uint64                      // of the definitions; 0 if there are none yet
	Owner      func(int) index.ProjectorID // owner of a vbucket's maintenance stream, "" if unknown
	// ComesBack reports whether the copies, although never whole, are not new. Nothing waits for such copies, so they
	// catch up at the rate of returning copies rather than at that of a build.
	ComesBack func([]index.CopyID) bool
}

// SideRequest requests, from one projector, all wanted vbuckets of a bucket that the projector is assumed to own.
type SideRequest struct {
	Bucket    string
	ID        uint64
	Projector wire.ProjectorEndpoint
	Build     bool   // a build; otherwise a catchup
	Revision  uint64 // of the definitions that the request is based on
	Wants     []ingest.Want
	Copies    []index.CopyID // copies of the wants, sorted
	Restart   wire.RestartTimestamp
	attempts  []*sideAttempt // parallel to Wants
}

// SideGivenUp is a stream that the caller must treat as failed.
type SideGivenUp struct {
	ingest.SideProgress
	Silent bool // it delivered nothing for too long; otherwise its connection was lost and did not come back
}

// SideSettled reports the progress of requests that were sent earlier.
type SideSettled struct {
	Began []uint64 // requests of which all vbuckets have begun
	Came  []uint64 // requests of which everything has arrived
	Over  []uint64 // requests that deliver nothing any more, including those in Stop
	Stop  []SideStop
}

// SideStop is a request that may still be running although nothing wants it: the caller sends the projector a stop.
type SideStop struct {
	ID   uint64
	Addr string
}

// SideFate is the consequence of a projector's answer for one want.
type SideFate uint8

// Fates of a want.
const (
	SideBegins  SideFate = iota
	SideRefused          // KV refuses the start position: the vbucket is built from seqno 0
	SideFails            // the want is requested again later
)

// SideAnswer is a projector's answer to one want.
type SideAnswer struct {
	ingest.Want
	Fate   SideFate
	Result *wire.StartResult // nil if the answer does not mention the want
}

// Watch returns the streams of a bucket that have delivered nothing for too long or have lost their connection. deaf
// means that the bucket currently takes nothing from any stream, which excuses silence.
func (s *Sides) Watch(bucket string, streams []ingest.SideProgress, deaf bool, now time.Time) (up []SideGivenUp) {
	moving := map[uint64]bool{} // requests of which some vbucket advances: its siblings may be silent meanwhile
	for i := range streams {
		p := &streams[i]
		if a := s.attempt(bucket, p.VBucket); a.id != p.ID || a.at != p.At {
			moving[p.ID] = true
		}
	}
	for i := range streams {
		p := &streams[i]
		a := s.attempt(bucket, p.VBucket)
		if a.disconnected(p, now) {
			up = append(up, SideGivenUp{SideProgress: *p})
		}
		if a.silent(p, deaf || moving[p.ID], now) {
			up = append(up, SideGivenUp{SideProgress: *p, Silent: true})
		}
	}
	return up
}

// disconnected reports whether a stream has been without a connection for too long.
func (a *sideAttempt) disconnected(p *ingest.SideProgress, now time.Time) bool {
	if !p.Lost || a.id != p.ID {
		a.lost = time.Time{}
	}
	switch {
	case p.Finished:
	case p.Lost && a.lost.IsZero():
		a.lost = now
	case p.Lost && now.Sub(a.lost) > sideResume:
		a.lost = time.Time{}
		return true
	}
	return false
}

// silent reports whether a stream has delivered nothing for too long. waits excuses it: other vbuckets of the same
// connection advance, or the bucket takes nothing from any stream.
func (a *sideAttempt) silent(p *ingest.SideProgress, waits bool, now time.Time) bool {
	if a.id != p.ID || a.at != p.At {
		if a.id == p.ID && p.Begun {
			a.waits = 0
		}
		a.id, a.at, a.moved = p.ID, p.At, now
		return false
	}
	if waits {
		a.moved = now
	}
	if now.Sub(a.moved) > sideSilence && !p.Finished {
		a.moved = now
		return true
	}
	return false
}

// Ask returns the requests to send now. The caller must open each want of a request under the request's id before
// anything else happens to the bucket.
func (s *Sides) Ask(w *SideWants, now time.Time) (all []*SideRequest) {
	if s.waitsForMore(w, now) {
		return nil
	}
	busy := map[int]bool{}
	for i := range w.Streams {
		busy[w.Streams[i].VBucket] = true
	}
	for _, want := range w.Wants {
		busy[want.VBucket] = true
		if !slices.ContainsFunc(want.Copies, func(id index.CopyID) bool { return !w.Making[id] }) {
			continue // the definitions wake the loop
		}
		all = s.group(all, w, want, now)
	}
	s.satisfied(w.Bucket, busy)
	return all
}

// waitsForMore reports whether the wants of a bucket should wait for further ones. A bucket's streams begin one after
// the other, and each request is a connection to KV whose handshake costs the engine as much for ten vbuckets as for
// a thousand. If streams do not begin, a group of wants waits for sideGather and no longer.
func (s *Sides) waitsForMore(w *SideWants, now time.Time) bool {
	since, ok := s.gathers[w.Bucket]
	switch {
	case len(w.Wants) == 0 || !w.Joining:
	case !ok:
		s.gathers[w.Bucket] = now
		return true
	case now.Sub(since) < sideGather:
		return true
	}
	delete(s.gathers, w.Bucket)
	return false
}

// group adds a want to the request for the same projector and class, if the want may be requested now.
func (s *Sides) group(all []*SideRequest, w *SideWants, want ingest.Want, now time.Time) []*SideRequest {
	a := s.attempt(w.Bucket, want.VBucket)
	if now.Before(a.after) || len(w.Projectors) == 0 || w.Revision == 0 {
		return all
	}
	p, ok := s.roomy(w.Projectors, w.Owner(want.VBucket), a, now)
	if !ok {
		return all // the end of a call wakes the loop
	}
	build := want.Build && !w.ComesBack(want.Copies)
	i := slices.IndexFunc(all, func(r *SideRequest) bool { return r.Projector.ID == p.ID && r.Build == build })
	if i < 0 && !s.room(p.Admin, all...) {
		return all
	}
	if i < 0 {
		s.last++
		i, all = len(all), append(all, &SideRequest{Bucket: w.Bucket, ID: s.last, Projector: p, Build: build,
			Revision: w.Revision})
	}
	a.after = now.Add(sidePause(a.waits))
	a.tries++
	a.waits++
	all[i].attempts = append(all[i].attempts, a)
	all[i].Add(want)
	return all
}

// Add adds a want to the request.
func (r *SideRequest) Add(w ingest.Want) {
	r.Wants = append(r.Wants, w)
	for _, c := range w.Copies {
		if i, ok := slices.BinarySearch(r.Copies, c); !ok {
			r.Copies = slices.Insert(r.Copies, i, c)
		}
	}
	r.Restart.Add(wire.StreamStart{VBucket: uint16(w.VBucket), VBUUID: w.VBUUID, Seqno: w.From, End: w.To,
		Window: timestamp.Window{Start: w.From, End: w.From}, Branch: w.Branch, Previous: w.Previous})
}

// Message returns the request in wire form. e is the endpoint of the requesting indexer, uuid that of the bucket.
func (r *SideRequest) Message(clusterID, uuid string, e *wire.Endpoint) *wire.StreamRequest {
	class, port := "catchup", e.Catchup
	if r.Build {
		class, port = "backfill", e.Backfill
	}
	return &wire.StreamRequest{
		Fence: wire.Fence{ClusterID: clusterID}, Topic: fmt.Sprintf("/%s/%d/%d", class, e.Node, r.ID),
		Incarnation: index.Incarnation{Counter: r.ID},
		Buckets:     []wire.StreamBucket{{Bucket: r.Bucket, BucketUUID: uuid, Restart: r.Restart}},
		Side: &wire.SideTarget{Copies: r.Copies, Revision: r.Revision, Node: e.Node, BootID: e.BootID,
			Endpoint: port},
	}
}

// roomy returns the projector to send the next request to. A projector at its limit of calls is waited for, unless it
// has completed none for sidePatience: then it may hang for long, and another projector may serve the vbucket. ok is
// false if the want has to wait; then no try is counted.
func (s *Sides) roomy(all []wire.ProjectorEndpoint, owner index.ProjectorID, a *sideAttempt, now time.Time) (
	wire.ProjectorEndpoint, bool) {
	for n := range 2 * len(all) { // ChooseProjector has returned each projector by then
		switch p := ChooseProjector(all, owner, a.tries+n); {
		case s.room(p.Admin):
			a.tries += n
			return p, true
		case now.Sub(s.calls[p.Admin].moved) <= sidePatience: // it completes calls, so it does not hang
			return wire.ProjectorEndpoint{}, false
		}
	}
	return wire.ProjectorEndpoint{}, false
}

// satisfied resets the failures of vbuckets that want nothing and have no open stream: the next want is a fresh one
// and must not inherit the pause of an older one.
func (s *Sides) satisfied(bucket string, busy map[int]bool) {
	for vb, a := range s.attempts[bucket] {
		if !busy[vb] {
			a.tries, a.waits, a.after = 0, 0, time.Time{}
		}
	}
}

func (s *Sides) attempt(bucket string, vb int) *sideAttempt {
	of := s.attempts[bucket]
	if of == nil {
		of = map[int]*sideAttempt{}
		s.attempts[bucket] = of
	}
	a := of[vb]
	if a == nil {
		a = &sideAttempt{}
		of[vb] = a
	}
	return a
}

// sidePause returns the pause after a number of earlier pauses.
func sidePause(waits int) time.Duration { return min(sideFirst<<min(waits, 10), sideMost) }

// Settle returns the progress of a bucket's requests, derived from the open streams and from the ids of abandoned
// requests. Each stop that it returns counts as a call in flight until Ended.
func (s *Sides) Settle(bucket string, streams []ingest.SideProgress, abandoned []uint64, now time.Time) (
	is SideSettled) {
	for _, id := range abandoned {
		if o := s.open[id]; o != nil {
			o.abandoned = true
		}
	}
	progress := map[uint64]*sideProgress{}
	for i := range streams {
		progress[streams[i].ID] = progress[streams[i].ID].add(&streams[i])
	}
	for _, id := range slices.Sorted(maps.Keys(s.open)) {
		switch o, p := s.open[id], progress[id]; {
		case o.bucket != bucket:
		case p != nil:
			o.note(id, p, &is)
		case !o.abandoned:
			delete(s.open, id)
			is.Over = append(is.Over, id)
		case s.room(o.addr): // the projector may still be running it
			delete(s.open, id)
			is.Over, is.Stop = append(is.Over, id), append(is.Stop, SideStop{id, o.addr})
			s.begin(o.addr, now)
		}
	}
	return is
}

// Gone settles the requests of buckets that are no longer on this node, as Settle does, and forgets their wants.
func (s *Sides) Gone(here func(bucket string) bool, now time.Time) (is SideSettled) {
	gone := map[string][]uint64{}
	for id, o := range s.open {
		if !here(o.bucket) {
			gone[o.bucket] = append(gone[o.bucket], id)
		}
	}
	for _, bucket := range slices.Sorted(maps.Keys(gone)) {
		of := s.Settle(bucket, nil, gone[bucket], now)
		is.Over, is.Stop = append(is.Over, of.Over...), append(is.Stop, of.Stop...)
	}
	maps.DeleteFunc(s.attempts, func(bucket string, _ map[int]*sideAttempt) bool { return !here(bucket) })
	maps.DeleteFunc(s.gathers, func(bucket string, _ time.Time) bool { return !here(bucket) })
	return is
}

// sideProgress counts the vbuckets of a request that still have a stream.
type sideProgress struct{ open, begun, finished int }

func (o *sideProgress) add(p *ingest.SideProgress) *sideProgress {
	if o == nil {
		o = &sideProgress{}
	}
	o.open++
	if p.Begun {
		o.begun++
	}
	if p.Finished {
		o.finished++
	}
	return o
}

// note adds to is what has newly begun or arrived for the request. A request is over only when everything is written,
// which Settle detects by the absence of its streams.
func (o *sideOpen) note(id uint64, p *sideProgress, is *SideSettled) {
	if !o.began && p.begun == p.open {
		o.began, is.Began = true, append(is.Began, id)
	}
	if !o.came && p.finished == p.open {
		o.came, is.Came = true, append(is.Came, id)
	}
}

// Sent records that a request is being sent. It counts as in flight until Ended.
func (s *Sides) Sent(r *SideRequest, now time.Time) {
	s.open[r.ID] = &sideOpen{bucket: r.Bucket, addr: r.Projector.Admin}
	s.begin(r.Projector.Admin, now)
}

// room reports whether another call may be made to a projector, counting the requests in beside, which are about to
// be sent.
func (s *Sides) room(addr string, beside ...*SideRequest) bool {
	n := s.calls[addr].n
	for _, r := range beside {
		if r.Projector.Admin == addr {
			n++
		}
	}
	return n < sideRequests
}

func (s *Sides) begin(addr string, now time.Time) {
	c := s.calls[addr]
	if c.n++; c.n == 1 || c.n == sideRequests { // sidePatience starts when the limit is reached
		c.moved = now
	}
	s.calls[addr] = c
}

// Ended records that a call to a projector is over, and reports whether other requests may have been waiting for
// that.
func (s *Sides) Ended(addr string, now time.Time) (look bool) {
	c := s.calls[addr]
	look = c.n >= sideRequests
	if c.n, c.moved = c.n-1, now; c.n == 0 {
		delete(s.calls, addr)
		return look
	}
	s.calls[addr] = c
	return look
}

// Answered returns the consequence of a reply for each want of the request. failed means that there was no reply.
func (s *Sides) Answered(r *SideRequest, reply *wire.StreamReply, failed bool) []SideAnswer {
	outcomes := map[uint16]*wire.StartResult{}
	if !failed {
		for i := range reply.Buckets {
			for n := range reply.Buckets[i].Results {
				o := &reply.Buckets[i].Results[n]
				outcomes[o.VBucket] = o
			}
		}
	}
	all := make([]SideAnswer, len(r.Wants))
	for i, w := range r.Wants {
		o := outcomes[uint16(w.VBucket)]
		all[i] = SideAnswer{Want: w, Fate: SideFails, Result: o}
		switch {
		case o == nil:
		case o.Outcome == wire.StartBegun:
			all[i].Fate = SideBegins
			r.attempts[i].tries = 0 // this was the right projector to ask
		case o.Outcome == wire.StartRollback:
			all[i].Fate = SideRefused
		}
	}
	return all
}
