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
	// sideGather is how long what a copy wants waits at most for the rest of it, as long as streams of the bucket begin.
	sideGather = 150 * time.Millisecond
	// sideFirst and sideMost bound the growing pause before a vbucket is asked for again. One request asks for all
	// vbuckets of a projector, so that a short one costs little; a long one would go on after what was in the way has
	// passed.
	sideFirst = 100 * time.Millisecond
	sideMost  = time.Second
	// sideSilence is how long a side stream may bring nothing before it is given up.
	sideSilence = 30 * time.Second
	// sideResume is how long a side stream may be without a connection before it is given up: its router opens another one
	// at once, unless it has ended.
	sideResume = 5 * time.Second
	// sideRequests bounds the requests that are under way to one projector. What is wanted beyond waits, and the loop does
	// not: a projector that hangs keeps each of them for StreamTimeout, and nobody waits for it who wants others.
	sideRequests = 8
	// sidePatience is how long a projector that has no room for another request may end none of those under way before
	// others are asked for what it owns: one that is busy ends them within moments, one that hangs does not.
	sidePatience = time.Second
)

// Sides decides which side streams a node asks for, of whom and when again, and which it gives up (PR-11 forms 2 and
// 3). A look at a bucket is Watch, then Ask for what it wants by then, both in the bucket's loop so that nothing comes
// before it is expected; then Settle, and Sent for each request that goes out. Whatever was sent is Ended, a request
// Answered before.
type Sides struct {
	last     uint64                          // id of the newest request
	attempts map[string]map[int]*sideAttempt // by bucket and vbucket
	open     map[uint64]*sideOpen            // requests that may still run at a projector, by id
	under    map[string]sideCalls            // what is under way, by the projector's address
	gathers  map[string]time.Time            // buckets whose wants wait for more, and since when
}

// NewSides returns one that has asked for nothing. Its requests have ids above last, as no other one of the node has,
// also before a restart.
func NewSides(last uint64) *Sides {
	return &Sides{last: last, attempts: map[string]map[int]*sideAttempt{}, open: map[uint64]*sideOpen{},
		under: map[string]sideCalls{}, gathers: map[string]time.Time{}}
}

// sideAttempt is what is known about asking for one vbucket.
type sideAttempt struct {
	tries int       // of projectors that said no, since one has begun
	waits int       // pauses since all that was wanted came, or something did
	after time.Time // not before
	id    uint64    // of the open stream that is watched
	at    uint64
	moved time.Time // when it brought something, or could not be heard
	lost  time.Time // when it was found without a connection; zero while it has one
}

// sideOpen is a request that may still run at a projector.
type sideOpen struct {
	bucket, addr string
	abandoned    bool
	began, came  bool // it was said that all have begun, and that everything has arrived
}

// sideCalls are the calls that are under way to one projector.
type sideCalls struct {
	n     int
	moved time.Time // when the first of them began, there was no room any more, or another one ended
}

// SideWants is what a bucket wants, and who may bring it.
type SideWants struct {
	Bucket     string
	Streams    []ingest.SideProgress // that are open
	Wants      []ingest.Want
	Making     map[index.CopyID]bool // copies that are being made: they want more in a moment
	Joining    bool                  // copies that want something are to be fed by streams that have not begun
	Projectors []wire.ProjectorEndpoint
	Revision   uint64                      // of the definitions, 0: there are none yet
	Owner      func(int) index.ProjectorID // of a vbucket's maintenance stream, "" where it is not known
	// ComesBack reports whether copies that were never whole are no new ones. Nobody waits for those, so that they catch
	// up at the rate of others that come back.
	ComesBack func([]index.CopyID) bool
}

// SideRequest asks one projector for all vbuckets of a bucket that it is believed to own.
type SideRequest struct {
	Bucket    string
	ID        uint64
	Projector wire.ProjectorEndpoint
	Build     bool   // else a catchup
	Revision  uint64 // of the definitions that it goes by
	Wants     []ingest.Want
	Copies    []index.CopyID // of the wants, ascending
	Restart   wire.RestartTimestamp
	attempts  []*sideAttempt // of the wants
}

// SideGivenUp is a stream that is to be taken for failed.
type SideGivenUp struct {
	ingest.SideProgress
	Silent bool // it brings nothing; else its connection was lost and does not come back
}

// SideSettled is what has become of requests that were sent before.
type SideSettled struct {
	Began []uint64 // all their vbuckets have begun
	Came  []uint64 // everything has arrived
	Over  []uint64 // they bring nothing any more, those to be stopped among them
	Stop  []SideStop
}

// SideStop is a request that may go on for nobody: the projector is to be told.
type SideStop struct {
	ID   uint64
	Addr string
}

// SideFate is what a projector's answer makes of what is wanted of a vbucket.
type SideFate uint8

// Fates of a side stream that was asked for.
const (
	SideBegins  SideFate = iota
	SideRefused          // KV refuses its start: the vbucket is taken from 0
	SideFails            // it is to be asked for again
)

// SideAnswer is what was answered of one want.
type SideAnswer struct {
	ingest.Want
	Fate   SideFate
	Result *wire.StartResult // nil: nothing was said of it
}

// Watch returns the streams of a bucket that have brought nothing for too long, or have lost their connection. deaf:
// nothing is taken of any.
func (s *Sides) Watch(bucket string, streams []ingest.SideProgress, deaf bool, now time.Time) (up []SideGivenUp) {
	moving := map[uint64]bool{} // requests of which some vbucket goes on: it is the turn of that one
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

// silent reports whether a stream has brought nothing for too long. waits: it is the turn of other vbuckets of the same
// connection, or nothing is taken from any.
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

// Ask returns what is to be asked for now. Each want of a request is to be opened under its id before anything else
// happens to the bucket.
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
			continue // definitions wake us
		}
		all = s.group(all, w, want, now)
	}
	s.satisfied(w.Bucket, busy)
	return all
}

// waitsForMore reports whether what is wanted waits for what will be: a bucket's streams begin one after the other, and
// each request is a connection to KV with questions that cost an engine as much for ten vbuckets as for a thousand.
// Where streams do not begin, each lot waits for sideGather and no longer.
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

// group adds a want to the request that goes to the same projector in the same class, if it may be asked for now.
func (s *Sides) group(all []*SideRequest, w *SideWants, want ingest.Want, now time.Time) []*SideRequest {
	a := s.attempt(w.Bucket, want.VBucket)
	if now.Before(a.after) || len(w.Projectors) == 0 || w.Revision == 0 {
		return all
	}
	p, ok := s.roomy(w.Projectors, w.Owner(want.VBucket), a, now)
	if !ok {
		return all // the end of a request wakes us
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

// Add adds what is wanted of a vbucket.
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

// Message is the request as the projector gets it: whose indexer e is, which uuid the bucket has.
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

// roomy returns whom to ask next: whoever has no room is waited for, unless it hangs, which may last, and another one
// may serve the vbucket. false: it has to wait, and nothing was tried.
func (s *Sides) roomy(all []wire.ProjectorEndpoint, owner index.ProjectorID, a *sideAttempt, now time.Time) (
	wire.ProjectorEndpoint, bool) {
	for n := range 2 * len(all) { // ChooseProjector has named each by then
		switch p := ChooseProjector(all, owner, a.tries+n); {
		case s.room(p.Admin):
			a.tries += n
			return p, true
		case now.Sub(s.under[p.Admin].moved) <= sidePatience: // it ends some: it does not hang
			return wire.ProjectorEndpoint{}, false
		}
	}
	return wire.ProjectorEndpoint{}, false
}

// satisfied forgets the failures of vbuckets that want nothing and have no stream: what comes next is a fresh want,
// which pays nothing for older ones.
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

// sidePause is the pause after so many others.
func sidePause(waits int) time.Duration { return min(sideFirst<<min(waits, 10), sideMost) }

// Settle says what has become of a bucket's requests, by the streams that Watch saw and by those that nobody wants any
// more. What it says is to be stopped is under way until Ended.
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
		case s.room(o.addr): // it may go on for nobody
			delete(s.open, id)
			is.Over, is.Stop = append(is.Over, id), append(is.Stop, SideStop{id, o.addr})
			s.begin(o.addr, now)
		}
	}
	return is
}

// Gone says what becomes of the requests of buckets that are not here any more, as Settle does, and forgets what was
// wanted of them.
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

// sideProgress counts the vbuckets of a request that have a stream still.
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

// note says what has come since. What a request ends with is that everything is written.
func (o *sideOpen) note(id uint64, p *sideProgress, is *SideSettled) {
	if !o.began && p.begun == p.open {
		o.began, is.Began = true, append(is.Began, id)
	}
	if !o.came && p.finished == p.open {
		o.came, is.Came = true, append(is.Came, id)
	}
}

// Sent takes over that a request goes out. It is under way until Ended.
func (s *Sides) Sent(r *SideRequest, now time.Time) {
	s.open[r.ID] = &sideOpen{bucket: r.Bucket, addr: r.Projector.Admin}
	s.begin(r.Projector.Admin, now)
}

// room reports whether another call may be made to a projector, beside requests that are about to go out.
func (s *Sides) room(addr string, beside ...*SideRequest) bool {
	n := s.under[addr].n
	for _, r := range beside {
		if r.Projector.Admin == addr {
			n++
		}
	}
	return n < sideRequests
}

func (s *Sides) begin(addr string, now time.Time) {
	c := s.under[addr]
	if c.n++; c.n == 1 || c.n == sideRequests { // patience begins when there is no room any more
		c.moved = now
	}
	s.under[addr] = c
}

// Ended takes over that something that was sent to a projector is over, and reports whether others may have waited for
// that.
func (s *Sides) Ended(addr string, now time.Time) (look bool) {
	c := s.under[addr]
	look = c.n >= sideRequests
	if c.n, c.moved = c.n-1, now; c.n == 0 {
		delete(s.under, addr)
		return look
	}
	s.under[addr] = c
	return look
}

// Answered returns what an answer makes of each want. failed: there was none.
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
			r.attempts[i].tries = 0 // it was the right one to ask
		case o.Outcome == wire.StartRollback:
			all[i].Fate = SideRefused
		}
	}
	return all
}
