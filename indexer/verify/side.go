package verify

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/indexer/core"
	"tidemark/indexer/pace"
	"tidemark/indexer/packed"
	"tidemark/indexer/scan"
	"tidemark/indexer/transport"
	"tidemark/keyversion"
	"tidemark/timestamp"
	"tidemark/wire"
)

const (
	// verifyTopic marks the catchup topics of verifications.
	verifyTopic = "/verify-"
	// MaxBytes bounds what the streams of one verification hold in memory. A vbucket with more is compared page by
	// page.
	MaxBytes = 64 << 20
	// verifyPatience bounds how long a verification tries to read vbuckets that no projector streams.
	verifyPatience = 60 * time.Second
	// sideSilence is how long a stream may deliver nothing before it is given up.
	sideSilence = 30 * time.Second
	// stopTimeout bounds the request that stops a stream which is not needed any more.
	stopTimeout = 100 * time.Millisecond
	// verifyHeld is how many seconds the rate may delay one message of a stream.
	verifyHeld = 10
)

var (
	// errVerifyLarge means that KV's data of some vbuckets exceeds the memory.
	errVerifyLarge = errors.New("more keys than fit in memory")
	// errVerifyBranch means that KV has left the branch of the timestamp.
	errVerifyBranch = errors.New("KV has left the branch of the timestamp")
	errVerifyStream = errors.New("the stream was cut")
)

// stretch is what a verification needs of a vbucket: the newest versions of documents with seqnos in (from, to].
type stretch struct {
	from, to         uint64
	fromUUID, toUUID uint64
}

// packedEvent is an event packed by packed.Arena, and its Rest.
type packedEvent struct {
	data []byte
	rest *keyversion.Places
}

// kvVersion is KV's newest version of a document. It has several events if slices were sent separate ones.
type kvVersion struct {
	seqno   uint64
	events  []packedEvent
	refused []index.SliceID // slices of keys that were not packed, see packed.Arena
}

// vbRead is what was read of one vbucket.
type vbRead struct {
	stretch
	vb    uint16
	last  uint64
	begun bool
	over  bool
	// reach bounds what was missed: every document of the stretch that was not read has a newer version in (to,
	// reach].
	reach uint64
	docs  map[string]*kvVersion

	projector index.ProjectorID
	// arrived sums up the events received, each version once: newest is the last one, and parts the number of its
	// parts received.
	arrived  keyversion.Sums
	newest   uint64 // a seqno
	parts    uint16 // parts of newest received so far
	promised keyversion.Sums
}

// arrive adds a data event to the sums, unless it was repeated after a reconnection.
func (v *vbRead) arrive(e *keyversion.Event) {
	switch {
	case e.Seqno > v.newest:
		v.newest, v.parts = e.Seqno, 0
	case e.Seqno < v.newest || e.Part < v.parts:
		return
	}
	v.parts = e.Part + 1
	v.arrived.AddEvent(e)
}

// lost describes the difference between what was evaluated for a slice and what arrived; "": none.
func (v *vbRead) lost(id index.ID, slice index.SliceID) string {
	promised, arrived := v.promised.Of(id, slice), v.arrived.Of(id, slice)
	if promised == arrived {
		return ""
	}
	return fmt.Sprintf("projector %s evaluated %d keys of vbucket %d for this slice in seqnos %d to %d, %d were "+
		"received, with hash %x instead of %x: lost between its router and this indexer",
		v.projector, promised.Keys, v.vb, v.from, v.to, arrived.Keys, arrived.Hash, promised.Hash)
}

// sideRead is a side stream for a verification, like those of builds and catchups, but read into memory.
type sideRead struct {
	now   func() time.Time
	id    uint64
	topic string
	pace  *pace.Pace
	page  page

	mu      sync.Mutex
	mem     packed.Arena
	refused []index.SliceID // slices of keys refused while the current event is packed
	vbs     map[uint16]*vbRead
	open    int
	bytes   *budget
	err     error
	cut     error // why the last vbucket that ended early did
	moved   time.Time
	done    chan struct{} // closed with the last vbucket, or the first error
}

// budget is what remains of a limit.
type budget struct {
	mu   sync.Mutex
	left int64
}

func (b *budget) take(n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left -= n
	return b.left >= 0
}

// expect registers a side stream with the data port, until forget.
func (v *Verifier) expect(r *sideRead) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.reads[r.topic] = r
}

func (v *Verifier) forget(r *sideRead) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.reads, r.topic)
}

// SinkFor returns the sink for a verification's topic on the catchup port, see IsTopic.
func (v *Verifier) SinkFor(topic string) (transport.Sink, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if r := v.reads[topic]; r != nil {
		return r, nil
	}
	return nil, fmt.Errorf("topic %q: no verification uses it", topic)
}

// Receive implements transport.Sink. It delays its return according to the rate, which slows down the router, and
// thereby KV.
func (r *sideRead) Receive(ctx context.Context, b *keyversion.Batch, release func()) error {
	began := r.now()
	n, err := r.take(b)
	if err != nil {
		return err
	}
	release()
	r.pace.Worked(r.now().Sub(began))
	// with a longer delay the stream would be given up as silent
	return r.pace.Wait(ctx, min(n, int(min(verifyHeld*r.pace.PerSecond(), 1<<30))))
}

// Closed implements transport.Sink. The router reconnects and repeats what was not acknowledged.
func (r *sideRead) Closed(error) {}

func (r *sideRead) take(b *keyversion.Batch) (docs int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.moved = r.now()
	for i := range b.Events {
		e := &b.Events[i]
		v := r.vbs[e.VBucket]
		if v == nil || v.over || e.Incarnation.Counter != r.id {
			continue
		}
		if e.Kind.Data() {
			docs += 1 + eventBytes(e)/verifyUnit
		}
		if err := r.event(v, e); err != nil {
			r.fail(fmt.Errorf("vbucket %d: %w", e.VBucket, err))
			return docs, r.err
		}
	}
	return docs, nil
}

// eventBytes returns the size of an event's keys in bytes.
func eventBytes(e *keyversion.Event) (n int) {
	for i := range e.Statements {
		n += size(e.Statements[i].Keys)
	}
	return n
}

// event processes one event. The caller holds the lock.
func (r *sideRead) event(v *vbRead, e *keyversion.Event) error {
	switch e.Kind {
	case keyversion.StreamBegin:
		if e.Begin.Start > max(v.from, v.last) {
			return fmt.Errorf("%w: it continues after %d, the last was %d", errVerifyStream, e.Begin.Start, v.last)
		}
		v.begun = true
	case keyversion.DropData:
		r.cut = fmt.Errorf("%w: vbucket %d: it ended before seqno %d, want %d", errVerifyStream, e.VBucket, e.Seqno, v.to)
		r.leave(v.vb) // it is requested again; the others continue
	case keyversion.StreamEnd:
		if !v.begun || e.Seqno < v.to {
			return fmt.Errorf("%w: it ended at %d, want %d", errVerifyStream, e.Seqno, v.to)
		}
		v.over, v.reach, v.promised = true, max(v.to, e.Window.End), e.Sums
		if r.open--; r.open == 0 {
			r.end()
		}
	case keyversion.Insert, keyversion.Delete, keyversion.UpsertDeletion:
		v.last = max(v.last, e.Seqno)
		v.arrive(e)
		return r.data(v, e)
	case keyversion.Sync, keyversion.DSync: // a router that reconnects continues there
		v.last = max(v.last, e.Seqno)
	}
	return nil
}

// mapEntry is the approximate memory of a document in addition to its bytes.
const mapEntry = 128

func (r *sideRead) data(v *vbRead, e *keyversion.Event) error {
	if !r.page.has(e.DocID) {
		return nil
	}
	d := v.docs[string(e.DocID)]
	switch {
	case d == nil:
		d = &kvVersion{}
		v.docs[string(e.DocID)] = d
	case d.seqno > e.Seqno:
		return nil
	}
	packed := r.mem.Pack(e)
	refused := r.refused
	r.refused = nil
	if !r.bytes.take(int64(len(packed) + len(e.DocID) + mapEntry)) {
		return errVerifyLarge
	}
	if d.seqno < e.Seqno {
		d.seqno, d.events, d.refused = e.Seqno, d.events[:0], nil
	}
	d.events, d.refused = append(d.events, packedEvent{packed, e.Rest}), append(d.refused, refused...)
	return nil
}

// fail and end close done once. The caller holds the lock.
func (r *sideRead) fail(err error) {
	if r.err == nil && r.open > 0 {
		r.err = err
		close(r.done)
	}
}

func (r *sideRead) end() {
	if r.err == nil {
		close(r.done)
	}
}

// without removes a vbucket that will not be streamed.
func (r *sideRead) without(vb uint16) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leave(vb)
}

// leave is without for a caller that holds the lock.
func (r *sideRead) leave(vb uint16) {
	if v := r.vbs[vb]; v != nil && !v.over {
		delete(r.vbs, vb)
		if r.open--; r.open == 0 {
			r.end()
		}
	}
}

// result returns the vbuckets that were read completely, and the errors.
func (r *sideRead) result() (map[uint16]*vbRead, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	got := map[uint16]*vbRead{}
	for vb, v := range r.vbs {
		if v.over {
			got[vb] = v
		}
	}
	return got, errors.Join(r.err, r.cut)
}

// silent reports whether nothing has arrived for too long.
func (r *sideRead) silent() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now().Sub(r.moved) > sideSilence
}

// read returns KV's data of the stretches. It requests each vbucket from the projector that owns it, and on retries
// from the others in turn.
func (v *verification) read(ctx context.Context, want map[uint16]stretch) (map[uint16]*vbRead, error) {
	got := map[uint16]*vbRead{}
	room := &budget{left: v.room}
	deadline, before := v.now().Add(verifyPatience), 0
	for tries := 0; len(got) < len(want); tries++ {
		parts, err := v.byProjector(ctx, want, got, tries)
		if err != nil {
			return nil, err
		}
		var mu sync.Mutex
		var last error
		var g errgroup.Group
		for p, vbs := range parts {
			g.Go(func() error {
				some, err := v.readFrom(ctx, p, vbs, room)
				mu.Lock()
				defer mu.Unlock()
				for vb, r := range some {
					got[vb] = r
				}
				if err != nil {
					last = err
				}
				return nil
			})
		}
		_ = g.Wait() // the errors are collected
		if len(got) > before {
			deadline, before = v.now().Add(verifyPatience), len(got)
		}
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case errors.Is(last, errVerifyLarge) || errors.Is(last, errVerifyBranch):
			return nil, last
		case len(got) < len(want) && v.now().After(deadline):
			return nil, scan.Errorf(errcode.VBucketsUnavailable, "%d of %d vbuckets of bucket %q could not be read from KV (%w)",
				len(want)-len(got), len(want), v.k.Name(), last)
		case len(got) < len(want):
			if err := pace.Sleep(ctx, askAgain); err != nil {
				return nil, err
			}
		}
	}
	return got, nil
}

// byProjector returns which vbuckets to request from which projector.
func (v *verification) byProjector(ctx context.Context, want map[uint16]stretch, got map[uint16]*vbRead,
	tries int) (map[wire.ProjectorEndpoint]map[uint16]stretch, error) {
	d := v.role.Definitions()
	if len(d.Projectors) == 0 || d.Revision == 0 {
		return nil, scan.Errorf(errcode.Unavailable, "the leader has not sent this indexer any projector yet: try again")
	}
	owners, err := v.k.Owners(ctx)
	if err != nil {
		return nil, err
	}
	parts := map[wire.ProjectorEndpoint]map[uint16]stretch{}
	for vb, s := range want {
		if got[vb] != nil {
			continue
		}
		p := core.ChooseProjector(d.Projectors, owners[vb], tries)
		if parts[p] == nil {
			parts[p] = map[uint16]stretch{}
		}
		parts[p][vb] = s
	}
	return parts, nil
}

// readFrom reads vbuckets from one projector, as far as it streams them.
func (v *verification) readFrom(ctx context.Context, p wire.ProjectorEndpoint, want map[uint16]stretch,
	room *budget) (map[uint16]*vbRead, error) {
	e := v.role.Endpoint()
	id := v.last.Add(1)
	r := &sideRead{now: v.now, id: id, topic: fmt.Sprintf("/catchup/%d%s%d", e.Node, verifyTopic, id), pace: v.pace,
		page: v.page, vbs: map[uint16]*vbRead{}, bytes: room,
		open: len(want), moved: v.now(), done: make(chan struct{})}
	r.mem.Refused = func(_ *keyversion.Event, s *keyversion.Statement, _ []byte) {
		if s.Index == v.def.ID {
			r.refused = append(r.refused, s.Slice)
		}
	}
	side := &wire.SideTarget{Revision: v.role.Definitions().Revision, Node: e.Node, BootID: e.BootID, Endpoint: e.Catchup,
		Sums: true}
	for _, c := range v.copies {
		side.Copies = append(side.Copies, c.place.ID)
	}
	part := wire.StreamBucket{Bucket: v.k.Name(), BucketUUID: v.k.UUID()}
	for vb, s := range want {
		r.vbs[vb] = &vbRead{stretch: s, vb: vb, last: s.from, docs: map[string]*kvVersion{}, projector: p.ID}
		part.Restart.Add(wire.StreamStart{VBucket: vb, VBUUID: s.fromUUID, Seqno: s.from,
			Window: timestamp.Window{Start: s.from, End: s.from}, End: s.to,
			Branch: s.toUUID})
	}
	req := &wire.StreamRequest{Fence: wire.Fence{ClusterID: v.role.ClusterID()}, Topic: r.topic,
		Incarnation: index.Incarnation{Counter: id},
		Buckets:     []wire.StreamBucket{part}, Side: side}
	v.expect(r)
	defer v.forget(r)
	reply, err := v.projectors.Streams(ctx, p.Admin, req)
	if err != nil {
		return nil, fmt.Errorf("projector %s: %w", p.ID, err)
	}
	err = begun(r, reply)
	if err == nil || !errors.Is(err, errVerifyBranch) {
		err = errors.Join(err, r.await(ctx))
	}
	got, failed := r.result()
	if len(got) < len(want) {
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		// the stream also ends on its own
		_ = v.projectors.Stop(stop, p.Admin, &wire.StreamStop{Fence: req.Fence, Topic: r.topic})
		cancel()
	}
	return got, errors.Join(err, failed)
}

// begun removes the vbuckets that the projector did not start, and returns the reason.
func begun(r *sideRead, reply *wire.StreamReply) error {
	if len(reply.Buckets) != 1 {
		return fmt.Errorf("%w: an answer about %d buckets", errVerifyStream, len(reply.Buckets))
	}
	var why error
	answered := map[uint16]bool{}
	for i := range reply.Buckets[0].Results {
		o := &reply.Buckets[0].Results[i]
		answered[o.VBucket] = true
		switch o.Outcome {
		case wire.StartBegun:
			continue
		case wire.StartStale, wire.StartFailover, wire.StartRollback:
			why = fmt.Errorf("%w: vbucket %d: %s %s", errVerifyBranch, o.VBucket, o.Outcome, o.Detail)
		default:
			if why == nil {
				why = fmt.Errorf("vbucket %d: %s %s", o.VBucket, o.Outcome, o.Detail)
			}
		}
		r.without(o.VBucket)
	}
	r.mu.Lock()
	var forgotten []uint16
	for vb := range r.vbs {
		if !answered[vb] {
			forgotten = append(forgotten, vb)
		}
	}
	r.mu.Unlock()
	for _, vb := range forgotten {
		r.without(vb)
	}
	return why
}

// await waits until every vbucket has ended, or nothing arrives any more.
func (r *sideRead) await(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-r.done:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
			if r.silent() {
				return fmt.Errorf("%w: nothing was received for %s", errVerifyStream, sideSilence)
			}
		}
	}
}

// IsTopic reports whether a topic is one of a verification.
func IsTopic(topic string) bool { return strings.Contains(topic, verifyTopic) }
