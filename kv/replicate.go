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
	replicaBufferBytes = 4 << 20 // DCP flow-control window of a replication connection, bytes
	replicaRequest     = 5 * time.Second
	replicaTick        = 200 * time.Millisecond // interval at which streams are reconciled with the map
	replicaPause       = 300 * time.Millisecond // pause after a connection has ended
	replicaPoll        = 5                      // ticks between two polls of the active copies' seqnos
)

// replicator maintains this node's replicas: one DCP connection, made by package feed, per bucket and node with
// active copies.
type replicator struct {
	n    *Node
	wake chan struct{} // capacity 1: the map has changed

	mu     sync.Mutex
	links  map[linkID]*link
	paused map[string]bool // by bucket
	known  map[seenID]*seen
}

type linkID struct {
	bucket bucketID
	source string
}

// copyID identifies a copy by its bucket's name, seenID by its bucket's name and uuid.
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

// seen is what is known about the active copy of a replica.
type seen struct {
	source string
	joined bool   // the source has accepted its history
	known  uint64 // highest known seqno of the source
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

// pause stops the replicas of a bucket (all buckets if it is empty) at the end of a snapshot, or resumes them.
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

// forget drops what is known about a vbucket whose state changes.
func (r *replicator) forget(bucket bucketID, vb uint16) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.known, seenID{bucket, vb})
}

// resume ends the pause of a bucket: another bucket of that name is not paused.
func (r *replicator) resume(bucket string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.paused, bucket)
}

// dropped forgets a bucket into which nothing replicates any more.
func (r *replicator) dropped(id bucketID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.known, func(x seenID, _ *seen) bool { return x.bucket == id })
}

// look returns what is known about a replica of source; empty if another node is the source by now.
func (r *replicator) look(bucket bucketID, vb uint16, source string) seen {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.known[seenID{bucket, vb}]; s != nil && s.source == source {
		return *s
	}
	return seen{source: source}
}

// note changes what is known about a replica of source, and discards what is known of another source. Only the link
// whose goal includes the vbucket may call it.
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

// Run maintains one link for each bucket and source until ctx ends.
func (r *replicator) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for {
		wanted := r.wanted()
		for _, l := range r.running() { // first take away what another link is about to get
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

// wanted returns the vbuckets to replicate by source; for a link with nothing left to do, an empty set.
func (r *replicator) wanted() map[linkID]map[uint16]bool {
	m, self := r.n.cluster.current(), r.n.config.NodeID
	out := map[linkID]map[uint16]bool{}
	r.mu.Lock()
	for id, l := range r.links {
		if m.BucketOf(id.bucket.name, id.bucket.uuid) == nil { // the bucket is gone: end the link
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

// link replicates the vbuckets of one bucket from one node. No two links have the same vbucket in their goals.
type link struct {
	r    *replicator
	id   linkID
	wake chan struct{} // capacity 1: goal or pause has changed
	stop func()

	trouble store.Repeated // what the log has about sessions that fail

	mu   sync.Mutex // held while a block is processed; taken before a session's mu
	goal map[uint16]bool
}

// keep removes goals that are not in vbuckets: after it returns, no more events of them are applied.
func (l *link) keep(vbuckets map[uint16]bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	kept := map[uint16]bool{} // a new map: callers of wanted may read the old one
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

// Run reconnects as long as there is something to replicate.
func (l *link) Run(ctx context.Context) error {
	log := l.r.n.config.Logger.Named("replication").With("bucket", l.id.bucket.name, "source", l.id.source)
	for ctx.Err() == nil {
		pause := time.Duration(0)
		if len(l.wanted()) > 0 {
			pause = replicaPause
			if err := l.session(ctx); err != nil && ctx.Err() == nil && l.trouble.First("", err) {
				log.Warn("replication interrupted; trying again", "error", err)
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

// memcachedOf returns the memcached address of another node: over TLS if both nodes support it; the other node must
// then present a certificate of a KV node.
func (n *Node) memcachedOf(id string) (addr string, encrypted *tls.Config) {
	at := n.cluster.contact(id)
	if n.config.TLS == nil || at.MemcachedTLS == "" {
		return at.Memcached, nil
	}
	return at.MemcachedTLS, n.config.TLS.Client(tlsconf.Memcached, tlsconf.KV)
}

// session runs one connection.
func (l *link) session(ctx context.Context) error {
	n := l.r.n
	b := n.bucketOf(l.id.bucket)
	if b == nil || !b.enter() {
		return nil // it is not open yet, or is being closed
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
		return nil // one of the two nodes has not got the newest map yet
	case err != nil:
		return err
	}
	if uuid, err := conn.BucketUUID(ctx); err != nil || uuid != b.uuid { // or it still has another bucket of that name
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

// session is the state of one connection; mu is held while a block is processed.
type session struct {
	l    *link
	b    *bucket
	conn *feed.Conn

	mu      sync.Mutex
	streams map[feed.StreamID]*replica
	open    map[uint16]*replica // streams requested and not ended
}

// replica is one stream.
type replica struct {
	id      feed.StreamID
	vb      uint16
	v       *store.VBucket
	tracker feed.Tracker
	branch  uint64 // newest branch of the source when the stream began; 0: it has not begun
	over    bool   // its events are no longer applied
}

// whole reports whether the stream is at the end of a snapshot.
func (p *replica) whole() bool {
	at := p.tracker.Progress()
	return at.Seqno == at.SnapEnd
}

var errIdle = errors.New("nothing to replicate")

// control opens and closes streams according to the map and pauses, and polls the active copies' seqnos.
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
	// Leave out vbuckets whose source does not know yet that it is the source.
	opening = slices.DeleteFunc(opening, func(vb uint16) bool { return !there[vb] })
	return s.begin(ctx, opening)
}

// begin requests streams from the positions of the replicas. Errors end the connection.
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
	var first error // of hundreds, which are mostly the same
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

// refused handles a refusal to stream. If the source does not accept the replica's history, the replica is emptied
// and filled from the beginning. Errors end the connection.
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
		return nil // one of the two nodes has not got the newest map yet
	}
	return reason
}

// refill empties a replica whose history the source does not accept, unless the map has given the vbucket another
// state or is about to: the stream is then requested again, or not at all. It does not wait for a change of the map,
// which may be waiting for the session.
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
	n.config.Logger.Warn("history of a replica differs from the active copy's; the replica is filled again", "bucket",
		id.bucket.name, "vbucket", p.vb, "seqno", seqno, "source", id.source, "reason", reason)
	s.l.r.note(id.bucket, p.vb, id.source, func(x *seen) { *x = seen{source: x.source} })
	return p.v.Reset()
}

// poll reads the source's seqnos, and returns which vbuckets are active there.
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
		// The source was not active for a while: the stream may have ended without STREAM_END.
		if p != nil && p.branch != 0 && d.VBUUID != p.branch {
			p.over, whole = true, false
		}
		s.mu.Unlock()
		s.l.note(vb, func(x *seen) {
			if p == nil { // before a stream is requested: the source may have been created anew
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

// receive applies what the source sends.
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
		if last != nil {
			s.l.trouble.First("", nil) // the source answers, and the disk has room
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

// marker handles the beginning of a snapshot; empty reports whether the replica was empty before.
func (s *session) marker(p *replica, e *feed.Event, empty bool) error {
	if empty {
		// What the snapshot lacks is missing from its first document on, also for consumers that stream from this copy once
		// it is active. The deletions above the snapshot will come.
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

// fatal returns err if it ends the connection: nil if the vbucket is merely no longer a replica.
func (s *session) fatal(err error) error {
	if errors.Is(err, store.ErrNotReplica) {
		return nil
	}
	return err
}

// version copies an event out of the connection's buffer.
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

// document copies a document's event out of the connection's buffer.
func document(e *feed.Event) *store.Doc {
	d := &store.Doc{
		Key: string(e.Key), Collection: e.Collection, Seqno: e.Seqno, Rev: e.RevSeqno, Cas: e.CAS,
		Flags: e.Flags, Expiry: e.Expiry, Datatype: byte(e.Datatype),
		DeleteTime: e.DeleteTime, Deleted: e.Kind != feed.Mutation, Expired: e.Kind == feed.Expiration,
	}
	attributes := e.Datatype.Has(mcbp.DatatypeXattr) && !e.Undecodable
	if n := len(e.Value) + len(e.Xattrs); n > 0 || attributes { // an empty section of attributes is one, too
		if attributes {
			d.Value = mcbp.AppendXattrs(make([]byte, 0, n+4), e.Xattrs)
		}
		d.Value = append(d.Value, e.Value...)
	}
	return d
}
