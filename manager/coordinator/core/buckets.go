package core

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"tidemark/index"
	"tidemark/partition"
	"tidemark/stability"
	"tidemark/statecontext"
	"tidemark/streams"
	"tidemark/wire"
)

// ledgers run the streams of each bucket.
type ledgers struct {
	*scene
	promotion *promotion
	audits    *audits
	rollbacks rollbacks
	checkMS   int64 // when buckets were last checked for existence
	checks    int   // how many checks have been sent
	lost      map[index.ID]lost
}

// lost counts consecutive answers that an index's collection is gone, and holds the manifest uid of the last one.
type lost struct {
	answers  int
	manifest uint64
}

// reconcile brings the Leader's buckets in line with the replicated state.
func (l *ledgers) reconcile() {
	for name, b := range l.buckets.byName {
		if s := l.stateOf(b); s == nil || s.Gone || s.UUID != b.uuid {
			l.promotion.fail(b, ErrBucketGone)
			delete(l.buckets.byName, name)
		}
	}
	l.addBuckets()
	l.buckets.ordered = slices.SortedFunc(maps.Values(l.buckets.byName), func(a, b *bucket) int {
		return strings.Compare(a.name, b.name)
	})
	maps.DeleteFunc(l.lost, func(id index.ID, _ lost) bool { return l.now.state.Index(id) == nil })
	l.reconcileHosts()
	if l.active {
		for _, b := range l.buckets.ordered {
			l.adopt(b)
		}
	}
}

// addBuckets adds the buckets of the state that the Leader does not have yet.
func (l *ledgers) addBuckets() {
	for s := range l.now.state.Buckets() {
		if s.Gone || l.buckets.byName[s.Name] != nil {
			continue
		}
		b, err := l.newBucket(s)
		if err != nil {
			l.log.Error("bucket cannot be coordinated", "bucket", s.Name, "error", err)
			continue
		}
		l.buckets.byName[s.Name] = b
	}
}

func (l *ledgers) newBucket(s *statecontext.Bucket) (*bucket, error) {
	b := &bucket{name: s.Name, uuid: s.UUID, generation: s.Generation}
	b.doubted = map[index.ProjectorID]bool{}
	b.stable, b.dropping = published(s), map[index.ProjectorID][]index.NodeID{}
	b.first, b.stableMS = b.stable, s.Stability.StateMS
	var err error
	if b.stab, err = stability.New(l.settings.Stability, b.stable.Stability); err != nil {
		return nil, err
	}
	if b.ledger, err = streams.New(l.settings.Streams, s.VBuckets, l.epoch, l.self.Term); err != nil {
		return nil, err
	}
	b.stab.SetSource(l.sourceOf(s.Name))
	b.ledger.SetCommitted(streams.Committed{Vector: s.Stability.Vector, Logs: s.Stability.Logs,
		Revisions: s.Stability.Revisions})
	b.ledger.SetProjectors(l.nowMS, l.components.alive)
	return b, nil
}

// sourceOf returns what drives a bucket's stability timestamp: the bucket's own setting, else the configuration.
func (l *ledgers) sourceOf(bucket string) stability.Source {
	source, err := stability.ParseSource(l.now.state.BucketSettings(bucket).StabilitySource)
	if err != nil { // no setting
		return l.settings.Stability.Source
	}
	return source
}

// published returns a bucket's committed stability timestamp in the form sent to indexers.
func published(s *statecontext.Bucket) wire.BucketStability {
	return wire.BucketStability{Bucket: s.Name, Stability: s.Timestamp()}
}

// hosting collects the indexers that take part in a bucket, by node, and whether its streams are wanted.
type hosting struct {
	hosts, fed [256]bool
	wanted     bool
}

// add adds the hosts of an index.
func (s *hosting) add(x *statecontext.Index) {
	evaluated := x.Definition.State.Active()
	s.wanted = s.wanted || evaluated
	for _, c := range x.Topology.Copies {
		if c.State != partition.Leaving {
			s.hosts[c.Node] = true
		}
		if evaluated && c.State == partition.Allocated {
			s.fed[c.Node] = true
		}
	}
}

// reconcileHosts determines which buckets need streams, and the indexers that take part in each.
func (l *ledgers) reconcileHosts() {
	sets := map[string]*hosting{}
	for name := range l.buckets.byName {
		sets[name] = &hosting{}
	}
	for x := range l.now.state.Indexes() {
		d := &x.Definition
		if b := l.buckets.byName[d.Bucket]; b != nil && d.BucketUUID == b.uuid {
			sets[d.Bucket].add(x)
		}
	}
	for name, b := range l.buckets.byName {
		s := sets[name]
		for _, node := range b.fed {
			if !s.fed[node] { // an offline indexer will not report that it takes no part any more
				b.dropIndexer(node)
			}
		}
		b.hosts, b.fed = nodesOf(&s.hosts), nodesOf(&s.fed)
		if b.wanted != s.wanted {
			b.wanted, b.due = s.wanted, true
			b.ledger.SetWanted(l.nowMS, s.wanted)
			b.owners()
		}
		l.setParticipants(b)
	}
}

func nodesOf(set *[256]bool) (nodes []index.NodeID) {
	for n, in := range set {
		if in {
			nodes = append(nodes, index.NodeID(n))
		}
	}
	return nodes
}

// setParticipants passes to the ledger the indexers that take part: those of fed that are not offline.
func (l *ledgers) setParticipants(b *bucket) {
	var members []index.NodeID
	for _, node := range b.fed {
		if l.isReachable(l.components.indexers[node]) {
			members = append(members, node)
		}
	}
	if slices.Equal(members, b.members) {
		return
	}
	for _, node := range b.members {
		if !slices.Contains(members, node) && slices.Contains(b.fed, node) {
			l.log.Warn("indexer is offline; the bucket continues without it", "bucket", b.name, "node", node)
			l.heldDirty = true
		}
	}
	b.members = members
	b.ledger.SetIndexers(members)
}

// adopt takes over the bucket's running streams, once per term.
func (l *ledgers) adopt(b *bucket) {
	if b.ledger.Adopted() {
		return
	}
	running := map[index.ProjectorID]streams.Report{}
	for id, p := range l.components.projectors {
		if s, ok := p.running[b.name]; ok && b.isOf(&s) {
			running[id] = streamReport(&s)
		}
	}
	minimum := map[index.NodeID][]index.Incarnation{}
	for node, n := range l.components.indexers {
		if incs, ok := n.minimum[b.name]; ok {
			minimum[node] = incs
		}
	}
	if s := l.now.state.Bucket(b.name); s != nil {
		b.ledger.SetRollback(l.nowMS, s.Rollback != nil)
	}
	b.ledger.Adopt(l.nowMS, running, minimum, l.unreported())
	b.due = true
	for id, p := range l.components.projectors {
		if s, ok := p.running[b.name]; ok {
			b.takeCompletes(id, &s)
		}
	}
	if sum := b.ledger.Summary(l.nowMS); b.wanted {
		l.log.Info("streams adopted", "bucket", b.name, "begun", sum.Begun, "lost", sum.Lost, "unknown", sum.Unknown)
	}
}

// unreported returns the live projectors that have not yet reported their streams to this leader, ascending: their
// streams are unknown, not absent. A projector that is silent for Settings.OfflineAfter of this term is not alive,
// and none counts for longer than maxUnreported.
func (l *ledgers) unreported() (ids []index.ProjectorID) {
	if l.nowMS-l.startedMS >= maxUnreported {
		return nil
	}
	for _, id := range l.components.alive {
		if p := l.components.projectors[id]; p != nil && !p.hello && !p.replaced {
			ids = append(ids, id)
		}
	}
	return ids
}

// maxUnreported limits how long a leader waits for the streams of a projector that reports but does not answer its
// hello.
const maxUnreported = 30_000 // ms

// refresh takes over the bucket's replicated state.
func (l *ledgers) refresh(b *bucket, s *statecontext.Bucket) {
	if s == nil || s.Generation != b.generation {
		return // reconcile will replace the bucket
	}
	if l.active {
		b.ledger.SetRollback(l.nowMS, s.Rollback != nil)
	}
	b.stab.SetSource(l.sourceOf(b.name))
	if s.Stability.Number == b.stable.Number && s.Stability.RollbackID == b.stable.RollbackID {
		return
	}
	b.stable, b.stableMS = published(s), s.Stability.StateMS
	if err := b.stab.Committed(b.stable.Stability); err != nil {
		l.log.Error("committed stability timestamp does not match the bucket", "bucket", b.name, "error", err)
	}
	b.ledger.SetCommitted(streams.Committed{Vector: s.Stability.Vector, Logs: s.Stability.Logs,
		Revisions: s.Stability.Revisions})
	b.owners()
	for _, node := range b.hosts {
		if n := l.components.indexers[node]; n != nil {
			l.promotion.publish(b, n)
		}
	}
	l.promotion.serve(b)
}

// stepBucket runs the ledger's decisions, and begins or continues a rollback.
func (l *ledgers) stepBucket(b *bucket) {
	for _, a := range b.ledger.Step(l.nowMS) {
		l.execute(b, a)
	}
	b.owners()
	if d, bad := b.ledger.Diverged(); bad {
		l.rollbacks.begin(b, d)
	}
	l.rollbacks.step(b)
}

// execute sends the commands of a ledger's action. A component that does not answer is ignored: the ledger times out.
func (l *ledgers) execute(b *bucket, a streams.Action) {
	l.log.Debug("streams", "bucket", b.name, "action", a.Kind, "incarnation", a.Incarnation, "vbuckets",
		len(a.VBuckets)+len(a.Starts))
	for _, node := range a.Nodes {
		if n := l.components.indexers[node]; n != nil {
			l.send(&n.component, Commands, "poll/"+b.name, Poll{Node: node, Bucket: b.ref(), VBuckets: a.VBuckets,
				Incarnation: a.Incarnation})
		}
	}
	for _, id := range a.Projectors {
		p := l.components.projectors[id]
		if p == nil {
			continue
		}
		switch a.Kind {
		case streams.FetchLogs:
			l.send(&p.component, Queries, "logs/"+b.name, FetchLogs{Projector: id, Bucket: b.ref(), VBuckets: a.VBuckets,
				For: Purpose{Kind: ForStreams, Incarnation: a.Incarnation}})
		case streams.StartStreams:
			l.send(&p.component, Commands, "", StartStreams{Projector: id, Bucket: b.ref(), UUID: b.uuid,
				Incarnation: a.Incarnation, Starts: a.Starts})
		case streams.StopStreams:
			l.send(&p.component, Commands, "", StopStreams{Bucket: b.ref(), VBuckets: a.VBuckets,
				Incarnation: a.Incarnation})
		}
	}
}

func (l *ledgers) polled(a *Polled) {
	if b := l.find(a.Bucket); b != nil {
		b.ledger.Positions(a.Node, a.Incarnation, a.Positions)
		b.due = true
	}
}

func (l *ledgers) logsFetched(a *LogsFetched) {
	b := l.find(a.Bucket)
	if b == nil {
		return
	}
	switch a.For.Kind {
	case ForStreams: // a projector that does not answer hosts nothing that can be started now
		b.ledger.Logs(a.Projector, a.For.Incarnation, a.Logs)
		b.due = true
	case ForRollback:
		b.rollbackLogs(a)
	case ForAudit:
		b.audited(a)
	}
}

func (l *ledgers) started(a *StreamsStarted) {
	if b := l.find(a.Bucket); b != nil {
		b.ledger.Started(l.nowMS, a.Projector, a.Incarnation, a.Results)
		b.due = true
	}
}

// goneAfter is the number of consecutive answers that a bucket is gone, or another one, after which its indexes go to
// error.
const goneAfter = 3

// lostChecks multiplies the rate of checks while a collection was not found: until the index is in error, scans still
// show the rows of the lost collection.
const lostChecks = 10

// checkBuckets queries one projector per bucket, in turn, whether the bucket is unchanged. For a bucket that is not
// streamed it queries only projectors whose answer counts (liveOwners).
func (l *ledgers) checkBuckets() {
	every := l.settings.BucketCheck.Milliseconds()
	if len(l.lost) > 0 {
		every /= lostChecks
	}
	if !l.active || l.nowMS-l.checkMS < every || len(l.components.alive) == 0 {
		return
	}
	l.checkMS = l.nowMS
	l.checks++
	for _, b := range l.buckets.ordered {
		from := l.components.alive
		if l.streamed(b) == 0 {
			from = l.liveOwners(b)
		}
		if p := l.components.projectors[from[l.checks%len(from)]]; p != nil {
			l.send(&p.component, Checks, "bucket/"+b.name, CheckBucket{Projector: p.id, Bucket: b.name, UUID: b.uuid,
				Collections: l.onCollections(b.name)})
		}
	}
}

// streamed returns how many vbuckets of a bucket are streamed, or may be.
func (l *ledgers) streamed(b *bucket) int {
	sum := b.ledger.Summary(l.nowMS)
	return sum.Begun + sum.Unknown
}

// liveOwners returns the live projectors that stream a vbucket of the bucket or were the last to do so; if there are
// none, all live projectors.
func (l *ledgers) liveOwners(b *bucket) []index.ProjectorID {
	owned := b.streamsOf()
	own := slices.DeleteFunc(slices.Clone(l.components.alive), func(id index.ProjectorID) bool {
		_, is := owned[id]
		return !is
	})
	if len(own) == 0 {
		return l.components.alive
	}
	return own
}

// bucketChecked takes a projector's answer. An answer that the bucket is gone does not count while the bucket is
// streamed: the projector's KV node may have left the KV cluster, its user may have lost the right, or it may have
// been pointed at another cluster. A deleted bucket loses all its streams, and the projectors do not begin them again
// on another bucket of its name. While all KV nodes are away there are no streams either; so the answer of a
// projector that never streamed the bucket does not count then, and an answer that the KV node cannot be queried resets
// the count.
func (l *ledgers) bucketChecked(a *BucketChecked) {
	b := l.buckets.byName[a.Bucket]
	if b == nil || b.uuid != a.UUID {
		return
	}
	another := a.Err == nil && a.Found.UUID != b.uuid
	against := another || a.Unknown
	streams := l.streamed(b)
	switch {
	case a.Err == nil && !another:
		b.missing = 0
		delete(b.doubted, a.Projector)
		l.checkCollections(b.name, a.Found.Collections)
		return
	case streams > 0:
		b.missing = 0
		if against && !b.doubted[a.Projector] {
			b.doubted[a.Projector] = true
			l.log.Warn("projector reports a bucket that is being streamed as deleted or replaced; report ignored; "+
				"check its KV node, user and address",
				"bucket", b.name, "projector", a.Projector, "streams", streams, "error", a.Err)
		}
		return
	case !slices.Contains(l.liveOwners(b), a.Projector):
		return
	case !against:
		b.missing = 0
		return
	}
	if b.missing++; b.missing < goneAfter {
		return
	}
	if another {
		l.log.Warn("bucket was re-created", "bucket", b.name, "uuid", a.Found.UUID, "was", b.uuid)
		l.propose("bucket/"+b.name, &statecontext.SetBucket{Name: b.name, UUID: a.Found.UUID, VBuckets: a.Found.VBuckets,
			Seen: &statecontext.SeenBucket{Generation: b.generation}}, nil)
		return
	}
	l.log.Warn("bucket is gone", "bucket", b.name, "uuid", b.uuid)
	l.propose("bucket/"+b.name, &statecontext.BucketGone{Name: b.name, UUID: b.uuid}, nil)
}

// onCollections reports whether an index of the bucket, other than those in error, is on a collection.
func (l *ledgers) onCollections(bucket string) bool {
	for x := range l.now.state.IndexesOf(bucket) {
		if d := &x.Definition; !d.Member.IsZero() && d.State != index.Error {
			return true
		}
	}
	return false
}

// checkCollections puts indexes into error whose collection no longer exists, or was emptied and keeps its id. KV
// never reuses ids: a collection missing from a manifest older than the index's may have been created since, one
// missing from a newer manifest is gone. Answers of a KV node with an older manifest are therefore ignored.
func (l *ledgers) checkCollections(bucket string, found *wire.Collections) {
	if found == nil {
		return
	}
	flushed := make(map[uint32]uint64, len(found.All)) // of the collections that exist
	for _, c := range found.All {
		flushed[c.ID] = c.Flushed
	}
	for x := range l.now.state.IndexesOf(bucket) {
		d := &x.Definition
		was := l.lost[d.ID]
		emptied, there := flushed[d.Member.ID]
		switch {
		case d.Member.IsZero() || d.State == index.Error:
			delete(l.lost, d.ID)
			continue
		case found.UID < max(d.Member.Manifest, was.manifest):
			continue
		case there && emptied <= d.Member.Manifest:
			delete(l.lost, d.ID)
			continue
		}
		if was.answers+1 < goneAfter {
			l.lost[d.ID] = lost{was.answers + 1, found.UID}
			continue
		}
		delete(l.lost, d.ID)
		l.log.Warn("collection is gone", "keyspace", d.Keyspace(), "id", d.Member.ID, "manifest", found.UID, "index", d.Name,
			"emptied_by", emptied)
		l.collectionGone(d, there)
	}
}

// collectionGone puts an index into error. If emptied is set, the collection exists, but the documents from which the
// index was built went without a deletion of any of them.
func (l *ledgers) collectionGone(d *index.Definition, emptied bool) {
	what := "was dropped; drop the index"
	if emptied {
		what = "was emptied; drop the index and create it again"
	}
	l.propose(indexKey(d.ID), &statecontext.SetIndexState{ID: d.ID, From: d.State, To: index.Error,
		Reason: fmt.Sprintf("%scollection %s (id %x) %s", index.ReasonCollectionGone, d.Keyspace(), d.Member.ID, what)},
		l.logged("index has lost its collection", d))
}
