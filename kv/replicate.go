package kv

import (
	"context"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"tidemark/internal/tlsconf"
	"tidemark/kv/clustermap"
	"tidemark/kv/mcbp"
	"tidemark/kv/store"
	"tidemark/projector/feed"
)

const (
	replicaBufferBytes = 4 << 20 // DCP window of a replication connection
	replicaRequest     = 5 * time.Second
	replicaTick        = 200 * time.Millisecond // between looks at what should be replicated
	replicaPause       = 300 * time.Millisecond // after a connection has ended
	replicaPoll        = 5                      // ticks between two looks at the active copies' seqnos
)

// replicator keeps this node's replicas: one DCP connection per bucket and node with active copies, made by package
// feed.
type replicator struct {
	n    *Node
	wake chan struct{} // 1: the map has changed

	mu     sync.Mutex
	links  map[linkID]*link
	paused map[string]bool // by bucket
	known  map[seenID]*seen
}

type linkID struct {
	bucket bucketID
	source string
}

// copyID names a copy among those of one bucket of a name, seenID of all that ever had it.
type (
	copyID struct {
		bucket string
		vb     uint16
	}
	seenID struct {
		bucket bucketID
		vb     uint16
	}
)

// seen is what a replica knows of the active copy.
type seen struct {
	source string
	joined bool   // its history was accepted by the source
	known  uint64 // highest seqno of the source that was heard of
}

func newReplicator(n *Node) *replicator {
	return &replicator{n: n, wake: make(chan struct{}, 1), links: map[linkID]*link{}, paused: map[string]bool{},
		known: map[seenID]*seen{}}
}

func (r *replicator) kick() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// pause makes the replicas of a bucket (all buckets when it is empty) stay where they are, at the end of a snapshot.
func (r *replicator) pause(bucket string, on bool) {
	r.mu.Lock()
	for _, b := range r.n.buckets() {
		if bucket == "" || bucket == b.name {
			r.paused[b.name] = on
		}
	}
	r.mu.Unlock()
	r.kick()
}

func (r *replicator) isPaused(bucket string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.paused[bucket]
}

// forget drops what is known about a vbucket that changes its state.
func (r *replicator) forget(bucket bucketID, vb uint16) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.known, seenID{bucket, vb})
}

// resume lets a bucket's replication go on: another one of its name is not paused.
func (r *replicator) resume(bucket string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.paused, bucket)
}

// dropped forgets a bucket, which nobody replicates into any more.
func (r *replicator) dropped(id bucketID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.known, func(x seenID, _ *seen) bool { return x.bucket == id })
}

// look returns what is known about a replica of source; nothing where another one is the source by now.
func (r *replicator) look(bucket bucketID, vb uint16, source string) seen {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.known[seenID{bucket, vb}]; s != nil && s.source == source {
		return *s
	}
	return seen{source: source}
}

// note changes what is known about a replica of source; another source's is forgotten. Only the link that has the
// vbucket as a goal may note something.
func (r *replicator) note(bucket bucketID, vb uint16, source string, change func(*seen)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	id := seenID{bucket, vb}
	s := r.known[id]
	if s == nil || s.source != source {
		s = &seen{source: source}
		r.known[id] = s
	}
	change(s)
}

// Run keeps one link for each bucket and source until ctx ends.
func (r *replicator) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for {
		wanted := r.wanted()
		for _, l := range r.running() { // before another link has what this one has no more
			l.keep(wanted[l.id])
		}
		for id, vbuckets := range wanted {
			r.mu.Lock()
			l := r.links[id]
			if l == nil {
				lctx, stop := context.WithCancel(ctx)
				l = &link{r: r, id: id, wake: make(chan struct{}, 1), goal: vbuckets, stop: stop}
				r.links[id] = l
				group.Go(func() error { return l.Run(lctx) })
			}
			r.mu.Unlock()
			l.want(vbuckets)
		}
		select {
		case <-ctx.Done():
			return group.Wait()
		case <-r.wake:
		}
	}
}

func (r *replicator) running() []*link {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Values(r.links))
}

// wanted lists the vbuckets to replicate by source; for a link that has nothing to do any more an empty list.
func (r *replicator) wanted() map[linkID]map[uint16]bool {
	m, self := r.n.cluster.current(), r.n.config.NodeID
	out := map[linkID]map[uint16]bool{}
	r.mu.Lock()
	for id, l := range r.links {
		if m.BucketOf(id.bucket.name, id.bucket.uuid) == nil { // there is nothing to come back to
			l.stop()
			delete(r.links, id)
			continue
		}
		out[id] = map[uint16]bool{}
	}
	r.mu.Unlock()
	for i := range m.Buckets {
		b := &m.Buckets[i]
		for vb := range b.Chains {
			role, source := b.Role(uint16(vb), self)
			if role != clustermap.Replica {
				continue
			}
			id := linkID{bucketID{b.Name, b.UUID}, source}
			if out[id] == nil {
				out[id] = map[uint16]bool{}
			}
			out[id][uint16(vb)] = true
		}
	}
	return out
}

// link replicates the vbuckets of one bucket from one node. No two links have the same vbucket as a goal.
type link struct {
	r    *replicator
	id   linkID
	wake chan struct{} // 1: goal or pause has changed
	stop func()

	mu   sync.Mutex // held while a block is worked through; before a session's mu
	goal map[uint16]bool
}

// keep takes away the goals that are not among vbuckets: when it returns, no event of them is taken any more.
func (l *link) keep(vbuckets map[uint16]bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	kept := map[uint16]bool{} // another one: whoever has asked for the goal reads it
	for vb := range l.goal {
		if vbuckets[vb] {
			kept[vb] = true
		}
	}
	l.goal = kept
}

func (l *link) want(vbuckets map[uint16]bool) {
	l.mu.Lock()
	l.goal = vbuckets
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *link) wanted() map[uint16]bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.goal
}

// note changes what is known about a replica, unless another link has it by now.
func (l *link) note(vb uint16, change func(*seen)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.goal[vb] {
		l.r.note(l.id.bucket, vb, l.id.source, change)
	}
}

// Run connects again and again while there is something to replicate.
func (l *link) Run(ctx context.Context) error {
	log := l.r.n.config.Logger.Named("replication").With("bucket", l.id.bucket.name, "source", l.id.source)
	for told := ""; ctx.Err() == nil; {
		pause := time.Duration(0)
		if len(l.wanted()) > 0 {
			pause = replicaPause
			if err := l.session(ctx); err != nil && ctx.Err() == nil && err.Error() != told {
				told = err.Error()
				log.Warn("replication interrupted; it is tried again", "error", err)
			}
		}
		var timer <-chan time.Time
		if pause > 0 {
			timer = time.After(pause)
		}
		select {
		case <-ctx.Done():
		case <-timer:
		case <-l.wake:
		}
	}
	return nil
}

// memcachedOf is where another node is spoken to: inside TLS where both have it; then it must show a certificate of a
// KV node.
func (n *Node) memcachedOf(id string) (addr string, encrypted *tls.Config) {
	at := n.cluster.contact(id)
	if n.config.TLS == nil || at.MemcachedTLS == "" {
		return at.Memcached, nil
	}
	return at.MemcachedTLS, n.config.TLS.Client(tlsconf.Memcached, tlsconf.KV)
}

// session is one connection.
func (l *link) session(ctx context.Context) error {
	n := l.r.n
	b := n.bucketOf(l.id.bucket)
	if b == nil || !b.enter() {
		return nil // it is not open yet, or goes
	}
	defer b.leave()
	var tag [8]byte
	randomBytes(tag[:])
	addr, encrypted := n.memcachedOf(l.id.source)
	conn, err := feed.Dial(ctx, feed.Config{
		Addr: addr, TLS: encrypted, Bucket: b.name, User: n.config.User, Password: n.config.Password,
		Name:        fmt.Sprintf("replication:%.60s->%.60s:%s", l.id.source, n.config.NodeID, hex.EncodeToString(tag[:])),
		BufferBytes: replicaBufferBytes, RequestTimeout: replicaRequest, Xattrs: true, Tombstones: true,
		Logger: n.config.Logger.Named("feed"),
	})
	switch {
	case errors.Is(err, feed.ErrNoBucket):
		return nil // one of us does not know the newest map yet
	case err != nil:
		return err
	}
	if uuid, err := conn.BucketUUID(ctx); err != nil || uuid != b.uuid { // or has another bucket of the name still
		_ = conn.Close()
		return err
	}
	s := &session{l: l, b: b, conn: conn, streams: map[feed.StreamID]*replica{}, open: map[uint16]*replica{}}
	group, sctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.control(sctx) })
	group.Go(func() error { return s.receive(sctx) })
	err = group.Wait()
	_ = conn.Close()
	if errors.Is(err, errIdle) {
		return nil
	}
	return err
}

// session is the state of one connection; mu is held while a block is worked through.
type session struct {
	l    *link
	b    *bucket
	conn *feed.Conn

	mu      sync.Mutex
	streams map[feed.StreamID]*replica
	open    map[uint16]*replica // streams that were asked for and have not ended
}

// replica is one stream.
type replica struct {
	id      feed.StreamID
	vb      uint16
	v       *store.VBucket
	tracker feed.Tracker
	branch  uint64 // the source's newest one when the stream began; 0: it has not begun
	over    bool   // its events are not taken any more
}

// whole says whether the stream stands at the end of a snapshot.
func (p *replica) whole() bool {
	at := p.tracker.Progress()
	return at.Seqno == at.SnapEnd
}

var errIdle = errors.New("nothing to replicate")

// control opens and closes streams as the map and pauses want it, and asks for the active copies' seqnos.
func (s *session) control(ctx context.Context) error {
	for round := 0; ; round++ {
		goal := s.l.wanted()
		if len(goal) == 0 {
			return errIdle
		}
		if err := s.reconcile(ctx, goal); err != nil {
			return err
		}
		if round%replicaPoll == 0 {
			if _, err := s.poll(ctx, goal); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.conn.Done():
			return s.conn.Err()
		case <-s.l.wake:
		case <-time.After(replicaTick):
		}
	}
}

func (s *session) reconcile(ctx context.Context, goal map[uint16]bool) error {
	paused := s.l.r.isPaused(s.l.id.bucket.name)
	var closing, opening []uint16
	s.mu.Lock()
	for vb, p := range s.open {
		if !goal[vb] || paused && p.whole() {
			p.over = true
		}
		if p.over {
			closing = append(closing, vb)
		}
	}
	for vb := range goal {
		if s.open[vb] == nil && !paused {
			opening = append(opening, vb)
		}
	}
	s.mu.Unlock()
	for _, vb := range closing {
		if err := s.conn.CloseStream(ctx, vb); err != nil && !errors.Is(err, feed.ErrNoStream) {
			return err
		}
		s.mu.Lock()
		delete(s.open, vb)
		s.mu.Unlock()
	}
	if len(opening) == 0 {
		return nil
	}
	there, err := s.poll(ctx, goal)
	if err != nil {
		return err
	}
	// whose source does not know yet that it is the source
	opening = slices.DeleteFunc(opening, func(vb uint16) bool { return !there[vb] })
	return s.begin(ctx, opening)
}

// begin asks for streams from where the replicas stand. Errors end the connection.
func (s *session) begin(ctx context.Context, vbuckets []uint16) error {
	var asked []*replica
	var reqs []feed.StreamRequest
	for _, vb := range vbuckets {
		v := s.b.store.VBucket(vb)
		if state, _ := v.Status(); state != store.Replica {
			continue // the map is about to be applied
		}
		uuid, seqno, w := v.Position()
		p := &replica{id: s.conn.NewStreamID(), vb: vb, v: v, tracker: feed.NewTracker(feed.Position{Seqno: seqno,
			SnapStart: w.Start, SnapEnd: w.End})}
		asked = append(asked, p)
		reqs = append(reqs, feed.StreamRequest{VBucket: vb, ID: p.id, Start: seqno, End: mcbp.EndOfTime, VBUUID: uuid,
			SnapStart: w.Start, SnapEnd: w.End})
	}
	s.mu.Lock()
	for _, p := range asked {
		s.streams[p.id], s.open[p.vb] = p, p
	}
	s.mu.Unlock()
	var first error // of hundreds they are mostly the same
	for i, a := range s.conn.OpenStreams(ctx, reqs) {
		if a.Err == nil {
			continue
		}
		if err := s.refused(asked[i], reqs[i].Start, a.Err); first == nil {
			first = err
		}
	}
	return first
}

// refused takes a refusal to stream. A history that the source does not accept is given up: the replica is filled from
// the beginning. Errors end the connection.
func (s *session) refused(p *replica, seqno uint64, reason error) error {
	s.mu.Lock()
	delete(s.streams, p.id)
	delete(s.open, p.vb)
	s.mu.Unlock()
	switch {
	case errors.Is(reason, feed.ErrRollback), errors.Is(reason, feed.ErrRange):
		return s.refill(p, seqno, reason)
	case errors.Is(reason, feed.ErrNotMyVBucket), errors.Is(reason, feed.ErrTemporary),
		errors.Is(reason, feed.ErrStreamExists):
		return nil // one of us does not know the newest map yet
	}
	return reason
}

// refill empties a replica whose history the source does not accept, unless the map has made something else of it, or
// is about to: then the stream is asked for again, or is not. It does not wait for a change of the map: that may wait
// for the session.
func (s *session) refill(p *replica, seqno uint64, reason error) error {
	n, id := s.l.r.n, s.l.id
	if !n.cluster.changing.TryLock() {
		return nil
	}
	defer n.cluster.changing.Unlock()
	m := n.cluster.current()
	b := m.BucketOf(id.bucket.name, id.bucket.uuid)
	if b == nil {
		return nil
	}
	if role, source := b.Role(p.vb, n.config.NodeID); role != clustermap.Replica || source != id.source {
		return nil
	}
	n.config.Logger.Warn("a replica's history is not that of the active copy; it is filled again", "bucket",
		id.bucket.name, "vbucket", p.vb, "seqno", seqno, "source", id.source, "reason", reason)
	s.l.r.note(id.bucket, p.vb, id.source, func(x *seen) { *x = seen{source: x.source} })
	return p.v.Reset()
}

// poll asks for the active copies' seqnos, and says which are active there.
func (s *session) poll(ctx context.Context, goal map[uint16]bool) (map[uint16]bool, error) {
	all, err := s.conn.Details(ctx)
	if err != nil {
		return nil, err
	}
	there := map[uint16]bool{}
	for vb := range goal {
		d, ok := all[vb]
		if !ok || d.State != store.Active.String() {
			continue
		}
		there[vb] = true
		s.mu.Lock()
		p := s.open[vb]
		whole := p != nil && p.whole()
		// the source was not active meanwhile: the stream may have ended without a word
		if p != nil && p.branch != 0 && d.VBUUID != p.branch {
			p.over, whole = true, false
		}
		s.mu.Unlock()
		s.l.note(vb, func(x *seen) {
			if p == nil { // before a stream is asked for: the source may have begun anew
				x.known = 0
			}
			x.known = max(x.known, d.HighSeqno)
		})
		if whole {
			if err := p.v.RaisePurge(d.PurgeSeqno); err != nil {
				return nil, err
			}
		}
	}
	return there, nil
}

// receive works through what the source sends.
func (s *session) receive(ctx context.Context) error {
	for {
		block, err := s.conn.Next(ctx)
		if err != nil {
			return err
		}
		stored := s.b.store.Replicating()
		last, err := s.block(block)
		if err == nil {
			err = stored(last)
		}
		block.Release()
		if err != nil {
			return err
		}
	}
}

func (s *session) block(block *feed.Block) (last *store.Ticket, err error) {
	paused := s.l.r.isPaused(s.l.id.bucket.name)
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range block.Events {
		e := &block.Events[i]
		p := s.streams[e.Stream]
		if p == nil {
			continue
		}
		if !s.l.goal[p.vb] {
			p.over = true
		}
		t, err := s.event(p, e, paused)
		if err != nil {
			return last, fmt.Errorf("vbucket %d: %w", p.vb, err)
		}
		if t != nil {
			last = t
		}
	}
	return last, nil
}

func (s *session) event(p *replica, e *feed.Event, paused bool) (*store.Ticket, error) {
	switch e.Kind {
	case feed.StreamEnd:
		delete(s.streams, p.id)
		if s.open[p.vb] == p {
			delete(s.open, p.vb)
		}
		return nil, nil
	case feed.StreamBegin:
		if p.over {
			return nil, nil
		}
		return nil, s.join(p, e)
	}
	if p.over || paused && p.whole() {
		p.over = true
		return nil, nil
	}
	empty := p.tracker.Progress().Seqno == 0
	progress, err := p.tracker.Observe(e)
	if err != nil {
		return nil, err
	}
	switch {
	case e.Kind == feed.SnapshotMarker:
		return nil, s.marker(p, e, empty)
	case e.Kind.IsDocument(), e.Kind == feed.SystemEvent:
		d, err := s.version(e)
		if err != nil {
			return nil, err
		}
		t, err := p.v.Replicate(d, store.SnapshotRange{Start: progress.SnapStart, End: progress.SnapEnd})
		if err != nil {
			p.over = true
			return nil, s.fatal(err)
		}
		return t, nil
	}
	return nil, nil
}

// marker takes what a snapshot's beginning says; empty: nothing came to the replica before.
func (s *session) marker(p *replica, e *feed.Event, empty bool) error {
	if empty {
		// What the snapshot lacks, it lacks from its first document on, and for whoever streams from this copy once it is
		// active. Of what lies above the snapshot the deletions come.
		if err := p.v.RaisePurge(min(e.Purge, e.SnapEnd)); err != nil {
			return err
		}
	}
	s.l.r.note(s.l.id.bucket, p.vb, s.l.id.source, func(x *seen) { x.known = max(x.known, e.SnapEnd) })
	return nil
}

// join takes over the failover log of the active copy, which has accepted the replica's position.
func (s *session) join(p *replica, e *feed.Event) error {
	log, err := e.FailoverLog()
	if err != nil {
		return err
	}
	p.branch = log.Newest()
	if err := p.v.Join(log); err != nil {
		p.over = true
		return s.fatal(err)
	}
	s.l.r.note(s.l.id.bucket, p.vb, s.l.id.source, func(x *seen) { x.joined = true })
	return nil
}

// fatal passes on what ends the connection: not that the vbucket is no replica any more.
func (s *session) fatal(err error) error {
	if errors.Is(err, store.ErrNotReplica) {
		return nil
	}
	return err
}

// version copies an event out of the connection's memory.
func (s *session) version(e *feed.Event) (*store.Doc, error) {
	if e.Kind != feed.SystemEvent {
		return document(e), nil
	}
	what, err := mcbp.DecodeCollectionEvent(e.Flags, e.Value)
	if err != nil {
		return nil, err
	}
	d := store.NewEvent(e.Flags, what, e.Key)
	d.Seqno, d.Rev, d.Cas = e.Seqno, 1, e.CAS
	if d.Deleted {
		d.DeleteTime = uint32(s.l.r.n.config.Now().Unix())
	}
	return d, nil
}

// document copies an event out of the connection's memory.
func document(e *feed.Event) *store.Doc {
	d := &store.Doc{
		Key: string(e.Key), Collection: e.Collection, Seqno: e.Seqno, Rev: e.RevSeqno, Cas: e.CAS,
		Flags: e.Flags, Expiry: e.Expiry, Datatype: byte(e.Datatype),
		DeleteTime: e.DeleteTime, Deleted: e.Kind != feed.Mutation, Expired: e.Kind == feed.Expiration,
	}
	attributes := e.Datatype.Has(mcbp.DatatypeXattr) && !e.Undecodable
	if n := len(e.Value) + len(e.Xattrs); n > 0 || attributes { // an empty section is one, too
		if attributes {
			d.Value = mcbp.AppendXattrs(make([]byte, 0, n+4), e.Xattrs)
		}
		d.Value = append(d.Value, e.Value...)
	}
	return d
}
