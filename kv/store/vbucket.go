package store

import (
	"container/heap"
	"fmt"
	"sort"
	"sync"
	"time"

	"tidemark/kv/mcbp"
	"tidemark/timestamp"
)

// State is the state of a vbucket on this node, with the numbers of the protocol.
type State byte

// States of a vbucket.
const (
	Active  State = 1
	Replica State = 2
	Pending State = 3
	Dead    State = 4
)

func (s State) String() string {
	switch s {
	case Active:
		return "active"
	case Replica:
		return "replica"
	case Pending:
		return "pending"
	case Dead:
		return "dead"
	}
	return fmt.Sprintf("state(%d)", byte(s))
}

// Listener is notified of changes of a vbucket: a durable version or another state. Notify is called with the vbucket
// locked: it must return at once and must not call back.
type Listener interface{ Notify() }

const (
	// maxFailoverEntries bounds a failover log; the oldest entries are dropped first.
	maxFailoverEntries = 25
	// gapEvery is the divisor of the seqnos that Options.Gaps leaves out.
	gapEvery = 3
	// pruneAt and pruneBytes are the number of superseded versions, and their memory, from which a list may be pruned.
	pruneAt    = 512
	pruneBytes = 64 << 10
)

// VBucket is one shard of a bucket: documents by collection and key, and by seqno with only the newest version of
// each. All fields share one lock because a change touches most of them: a version, its place in the list, and the
// sums.
type VBucket struct {
	id     uint16
	bucket *Bucket

	mu        sync.Mutex
	state     State
	docs      map[docID]*Doc
	list      []*Doc // ascending seqnos; superseded versions stay until pruned
	high      uint64 // last assigned seqno
	written   uint64 // last seqno that is in the log: what streams may show
	purge     uint64
	maxCas    uint64
	failover  timestamp.FailoverLog
	window    SnapshotRange // on a replica: the snapshot that contains high
	windowAt  uint64        // number of failed log writes when window was written
	joinedAt  uint64        // the same when Join wrote failover
	sealed    time.Time     // until then an active vbucket refuses writes
	resetting bool          // its records in the log are about to be voided: see steadyLocked
	life      uint64        // number of times it was emptied or given up
	listeners map[Listener]struct{}
	expiries  expiryHeap

	collections collections

	sums
	open  openSnapshots
	touch int // position in the current ticket; guarded by the committer
}

// sums holds a vbucket's totals. Superseded versions in its list count against the quota only beyond the list's
// allowance.
type sums struct {
	items, tombstones int
	bytes             int64 // memory of the newest versions
	stale             int   // number of superseded versions
	staleBytes        int64
}

// Kind is the kind of a change.
type Kind int

// Kinds of changes.
const (
	// Set stores a document whether or not the key exists (with a CAS: only if it exists with that CAS).
	Set Kind = iota
	// Add stores only a new key.
	Add
	// Replace stores only an existing key.
	Replace
	// Delete removes an existing key.
	Delete
	// Touch changes the expiry of an existing key.
	Touch
	// Edit sets the value that Change.Edit computes from the present one. An existing document keeps its flags and
	// expiry.
	Edit
	// Bury stores a tombstone with a value of its own and the numbers Rev and NewCas, even if there is no document.
	Bury
)

// Change describes one change of a document. Cas 0 matches any. Expiry is in absolute unix seconds, 0 for never. Key
// and Value are copied.
type Change struct {
	Kind          Kind
	Collection    uint32
	Key, Value    []byte
	Flags, Expiry uint32
	Datatype      byte
	Cas           uint64
	// Edit computes the new value and datatype for the kind Edit from the present version, nil if there is none; Apply
	// returns its error. It runs with the vbucket locked: it must return at once and must not call back. The store takes
	// ownership of the value.
	Edit func(prev *Doc) (value []byte, datatype byte, err error)
	// Rev and NewCas are the numbers of a buried version, Expiry its time (0: now; an old one is purged soon). It loses
	// against a version with a higher Rev, or with the same Rev and no lower CAS, unless Always is set.
	Rev, NewCas uint64
	Always      bool
}

// Result is the result of a change or a read. The answer, even an error, may be sent to a client only after
// Ticket.Wait.
type Result struct {
	Doc    *Doc
	VBUUID uint64
	Ticket *Ticket
}

// Apply applies a change. Errors: ErrNotMyVBucket, ErrNoCollection, ErrNotFound, ErrExists, ErrNoMemory,
// ErrTemporary, and those of Change.Edit.
func (v *VBucket) Apply(c Change) (Result, error) {
	now := v.bucket.now()
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.state != Active {
		return Result{}, fmt.Errorf("%w: vbucket %d is %s", ErrNotMyVBucket, v.id, v.state)
	}
	if v.sealedLocked(now) {
		return Result{}, ErrSealed
	}
	if err := v.livesLocked(c.Collection); err != nil {
		return Result{}, err
	}
	prev, ticket := v.liveLocked(c.Collection, c.Key, uint32(now.Unix()))
	if err := check(c, prev, v.docs[docID{c.Collection, string(c.Key)}]); err != nil {
		return Result{Ticket: ticket}, err
	}
	doc, err := c.doc(prev, uint32(now.Unix()))
	if err != nil {
		return Result{Ticket: ticket}, err
	}
	if c.Kind != Delete && c.Kind != Touch {
		if v.fullLocked(doc.memory()) {
			return Result{Ticket: ticket}, ErrNoMemory
		}
	}
	t, err := v.putLocked(doc)
	if err != nil {
		return Result{}, err
	}
	return Result{Doc: doc, VBUUID: v.failover[0].VBUUID, Ticket: t}, nil
}

// doc returns the new version of a document; prev is the present one, nil if there is none.
func (c *Change) doc(prev *Doc, now uint32) (*Doc, error) {
	doc := &Doc{Key: string(c.Key), Collection: c.Collection, Flags: c.Flags, Expiry: c.Expiry, Datatype: c.Datatype}
	switch c.Kind {
	case Delete:
		*doc = tombstone(prev, now)
	case Bury:
		*doc = Doc{Key: doc.Key, Collection: c.Collection, Value: append([]byte(nil), c.Value...), Flags: c.Flags,
			Datatype: c.Datatype, Deleted: true, DeleteTime: c.Expiry, Rev: c.Rev, Cas: c.NewCas}
		if doc.DeleteTime == 0 {
			doc.DeleteTime = now
		}
	case Touch:
		*doc = Doc{Key: prev.Key, Collection: c.Collection, Value: prev.Value, Flags: prev.Flags, Datatype: prev.Datatype,
			Expiry: c.Expiry}
	case Edit:
		var err error
		if doc.Value, doc.Datatype, err = c.Edit(prev); err != nil {
			return nil, err
		}
		if prev != nil {
			doc.Key, doc.Flags, doc.Expiry = prev.Key, prev.Flags, prev.Expiry
		}
	default:
		if len(c.Value) > 0 {
			doc.Value = append(make([]byte, 0, len(c.Value)), c.Value...)
		}
	}
	return doc, nil
}

// loses reports whether the version that a change buries is older than the newest existing one.
func (c *Change) loses(newest *Doc) bool {
	return newest != nil && !c.Always && (newest.Rev > c.Rev || newest.Rev == c.Rev && newest.Cas >= c.NewCas)
}

// tombstone returns the tombstone for a version: the system attributes outlive the document.
func tombstone(prev *Doc, now uint32) Doc {
	d := Doc{Key: prev.Key, Collection: prev.Collection, Deleted: true, DeleteTime: now}
	if prev.Datatype&DatatypeXattr == 0 {
		return d
	}
	if section, _, err := mcbp.SplitXattrs(prev.Value); err == nil {
		if section = mcbp.SystemXattrs(section); len(section) > 0 {
			d.Value, d.Datatype = mcbp.AppendXattrs(nil, section), DatatypeXattr
		}
	}
	return d
}

// check returns an error if a change may not be made; prev is the live version, newest may be a tombstone.
func check(c Change, prev, newest *Doc) error {
	switch {
	case c.Kind == Bury && c.loses(newest):
		return ErrExists
	case prev == nil && (c.Kind == Replace || c.Kind == Delete || c.Kind == Touch || c.Cas != 0):
		return ErrNotFound
	case prev != nil && c.Kind == Add:
		return ErrExists
	case prev != nil && c.Cas != 0 && c.Cas != prev.Cas:
		return ErrExists
	}
	return nil
}

// Get reads a document of the default collection; it returns ErrNotFound if there is none.
func (v *VBucket) Get(key []byte) (Result, error) { return v.Lookup(mcbp.DefaultCollection, key) }

// Lookup reads a document; it returns ErrNotFound, or ErrNoCollection if there is no such collection.
func (v *VBucket) Lookup(collection uint32, key []byte) (Result, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.state != Active {
		return Result{}, fmt.Errorf("%w: vbucket %d is %s", ErrNotMyVBucket, v.id, v.state)
	}
	if err := v.livesLocked(collection); err != nil {
		return Result{}, err
	}
	d, ticket := v.liveLocked(collection, key, uint32(v.bucket.now().Unix()))
	if d == nil {
		return Result{Ticket: ticket}, ErrNotFound
	}
	return Result{Doc: d, VBUUID: v.failover[0].VBUUID, Ticket: ticket}, nil
}

// livesLocked returns ErrNoCollection if the vbucket does not have the collection.
func (v *VBucket) livesLocked(collection uint32) error {
	if _, ok := v.collections.scopeOf(collection); !ok {
		return fmt.Errorf("%w: %x in vbucket %d", ErrNoCollection, collection, v.id)
	}
	return nil
}

// liveLocked returns the live version of a key. It first turns an expired one into a tombstone. The ticket is that of
// the newest version found, live or not: the answer depends on it.
func (v *VBucket) liveLocked(collection uint32, key []byte, now uint32) (*Doc, *Ticket) {
	d := v.docs[docID{collection, string(key)}]
	if d == nil {
		return nil, nil
	}
	if !d.Deleted && d.Expiry != 0 && d.Expiry <= now {
		t, err := v.expireLocked(d, now)
		if err != nil { // the disk is full: for clients the document is gone anyway
			t = nil
		}
		return nil, t
	}
	ticket := v.bucket.commit.pendingTicket(d.lsn)
	if d.Deleted {
		return nil, ticket
	}
	return d, ticket
}

func (v *VBucket) expireLocked(d *Doc, now uint32) (*Ticket, error) {
	gone := tombstone(d, now)
	gone.Expired = true
	return v.putLocked(&gone)
}

// putLocked assigns numbers to a version, appends it to the log's current ticket and installs it.
func (v *VBucket) putLocked(doc *Doc) (*Ticket, error) {
	if v.sealedLocked(v.bucket.now()) { // also for an expiry found by a reader
		return nil, ErrSealed
	}
	prev := v.docs[doc.id()]
	doc.Seqno = v.high + 1
	if v.bucket.opts.Gaps && doc.Seqno%gapEvery == 0 {
		doc.Seqno++
	}
	if doc.Rev == 0 { // unless it has numbers of its own
		doc.Rev = 1
		if prev != nil {
			doc.Rev = prev.Rev + 1
		}
		doc.Cas = max(v.maxCas+1, uint64(v.bucket.now().UnixNano())&^0xffff)
	}
	t, err := v.bucket.commit.appendDoc(v, doc, prev)
	if err != nil {
		return nil, err
	}
	v.high, v.maxCas = doc.Seqno, max(v.maxCas, doc.Cas)
	v.installLocked(doc, prev)
	return t, nil
}

func (v *VBucket) installLocked(doc, prev *Doc) {
	if prev != nil {
		v.supersedeLocked(prev, doc.Seqno)
	}
	v.docs[doc.id()] = doc
	v.list = append(v.list, doc)
	v.countLocked(doc, 1)
	if doc.Expiry != 0 {
		heap.Push(&v.expiries, expiryEntry{at: doc.Expiry, id: doc.id(), seqno: doc.Seqno})
		v.trimExpiriesLocked()
	}
	if doc.Collection == SystemCollection {
		v.eventLocked(doc)
	} else {
		v.collections.leaving = nil
	}
}

// countLocked adds (sign 1) a version to, or subtracts (-1) it from, the vbucket's sums.
func (v *VBucket) countLocked(d *Doc, sign int) {
	switch {
	case d.Deleted:
		v.tombstones += sign
	case d.Collection != SystemCollection:
		v.items += sign
	}
	v.collections.count(d, sign)
	v.bucket.liveBytes.Add(int64(sign) * d.recordBytes())
	v.bytes += int64(sign) * d.memory()
	v.bucket.quota.add(int64(sign) * d.memory())
}

// supersedeLocked marks a version as superseded by another one, so that it no longer counts against the quota (but
// see fullLocked). Snapshots for which too much was superseded are overtaken.
func (v *VBucket) supersedeLocked(d *Doc, by uint64) {
	d.next = by
	v.staleLocked(d, 1)
	v.countLocked(d, -1)
	v.open.supersede(d.memory(), v.bucket.pinLimit)
}

// restoreLocked makes a superseded version the newest again.
func (v *VBucket) restoreLocked(d *Doc) {
	d.next = 0
	v.staleLocked(d, -1)
	v.docs[d.id()] = d
	v.countLocked(d, 1)
}

// staleLocked adds (sign 1) a version to, or subtracts (-1) it from, the sums of superseded versions.
func (v *VBucket) staleLocked(d *Doc, sign int) {
	v.stale += sign
	v.staleBytes += int64(sign) * d.memory()
}

// fullLocked reports whether more additional bytes would exceed the quota. Superseded versions count as far as they
// exceed the list's allowance: they are not in the log yet, and cannot be pruned.
func (v *VBucket) fullLocked(more int64) bool {
	return v.bucket.quota.Full(more + max(0, v.staleBytes-v.staleMost()))
}

// staleMost returns how many bytes of superseded versions the list may keep.
func (v *VBucket) staleMost() int64 { return max(pruneBytes, v.bytes/4) }

// crowdedLocked reports whether the list should be pruned. The thresholds keep the cost of pruning proportional to
// what was written since the last pruning.
func (v *VBucket) crowdedLocked() bool {
	return v.stale >= pruneAt && v.stale*2 > len(v.list) || v.staleBytes > v.staleMost()
}

// undo takes back the newest version, which never reached the log.
func (v *VBucket) undo(doc, prev *Doc, high uint64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.list[len(v.list)-1] = nil
	v.list = v.list[:len(v.list)-1]
	v.high, v.collections.leaving = high, nil
	if doc.Collection == SystemCollection {
		v.takeEventBackLocked(doc)
	}
	v.countLocked(doc, -1)
	if prev == nil {
		delete(v.docs, doc.id())
		return
	}
	v.restoreLocked(prev)
	if prev.Expiry != 0 { // the expiry that is taken back may have consumed its entry
		heap.Push(&v.expiries, expiryEntry{at: prev.Expiry, id: prev.id(), seqno: prev.Seqno})
	}
}

// publish makes everything up to seqno high visible to streams.
func (v *VBucket) publish(high uint64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, d := range v.list[v.searchLocked(v.written+1):v.searchLocked(high+1)] {
		v.lastLocked(d)
	}
	v.written = high
	if v.collections.logged(high) > 0 || v.crowdedLocked() {
		v.pruneLocked()
	}
	v.notifyLocked()
}

// pruneLocked rebuilds the list without superseded versions; open snapshots keep the old list.
func (v *VBucket) pruneLocked() {
	keep := make([]*Doc, 0, len(v.list)-v.stale+pruneAt)
	for _, d := range v.list {
		if d.next == 0 || d.next > v.written {
			keep = append(keep, d)
		} else {
			v.staleLocked(d, -1)
		}
	}
	v.list = keep
}

func (v *VBucket) notifyLocked() {
	for l := range v.listeners {
		l.Notify()
	}
}

// searchLocked returns the index of the first version with a seqno of at least seqno.
func (v *VBucket) searchLocked(seqno uint64) int {
	return sort.Search(len(v.list), func(i int) bool { return v.list[i].Seqno >= seqno })
}

// Subscribe adds a listener.
func (v *VBucket) Subscribe(l Listener) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.listeners[l] = struct{}{}
}

// Listeners returns the number of listeners.
func (v *VBucket) Listeners() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return len(v.listeners)
}

// Unsubscribe removes a listener.
func (v *VBucket) Unsubscribe(l Listener) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.listeners, l)
}

// Info describes a vbucket at one moment.
type Info struct {
	ID    uint16
	State State
	// High is the last seqno that is durable and visible, Purge the highest seqno of a purged tombstone.
	High, Purge, MaxCas uint64
	Items, Tombstones   int
	Failover            timestamp.FailoverLog
	// Window is the snapshot that contains High; for an active vbucket it is High itself.
	Window SnapshotRange
}

// Info returns a description of the vbucket.
func (v *VBucket) Info() Info {
	v.mu.Lock()
	defer v.mu.Unlock()
	return Info{
		ID: v.id, State: v.state, High: v.written, Purge: v.purge, MaxCas: v.maxCas, Items: v.items, Tombstones: v.tombstones,
		Failover: v.failover.Clone(), Window: v.windowLocked(v.written),
	}
}

// Status returns the state and the high seqno. It is cheaper than Info, for frequent callers.
func (v *VBucket) Status() (State, uint64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.state, v.written
}

// Life identifies one life of the vbucket: it changes when the vbucket is emptied or becomes dead, whatever its state
// and seqno are afterwards. No stream outlives it.
func (v *VBucket) Life() uint64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.life
}

// Flush recreates an active vbucket: its content is gone, and it is active at seqno 0 on a branch that shares nothing
// with the previous one. The caller ensures that its state does not change meanwhile.
func (v *VBucket) Flush() error {
	if state, _ := v.Status(); state != Active {
		return fmt.Errorf("%w: vbucket %d is %s", ErrNotMyVBucket, v.id, state)
	}
	for _, s := range []State{Dead, Active} { // the content of a dead vbucket is dropped before it becomes active
		if err := v.SetState(s); err != nil {
			return err
		}
	}
	return nil
}

// History returns the state, and what decides about stream requests.
func (v *VBucket) History() (State, History) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.state, History{High: v.written, Purge: v.purge, Failover: v.failover.Clone(),
		Life: v.life}
}

// Purged returns the highest seqno of a purged tombstone.
func (v *VBucket) Purged() uint64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.purge
}

// SetState changes the vbucket's state. Becoming active begins a new branch where the last complete snapshot ended. A
// dead vbucket that still has old content is emptied before it becomes active. A vbucket that is being emptied keeps
// its state: ErrTemporary.
func (v *VBucket) SetState(s State) error {
	v.mu.Lock()
	stale := s == Active && v.state == Dead && v.high > 0
	v.mu.Unlock()
	if stale {
		if err := v.Reset(); err != nil {
			return err
		}
	}
	v.mu.Lock()
	if err := v.steadyLocked(); err != nil || v.state == s {
		v.mu.Unlock()
		return err
	}
	v.changeLocked(s)
	t, err := v.saveLocked()
	v.notifyLocked()
	v.mu.Unlock()
	if err != nil {
		return err
	}
	return t.Wait()
}

// changeLocked changes the state in memory.
func (v *VBucket) changeLocked(s State) {
	switch {
	case s == Active:
		at := v.high
		if w := v.windowLocked(v.high); v.state == Replica && w.End != v.high {
			at = w.Start
		}
		v.branchLocked(v.bucket.newUUID(), at)
		v.purge = min(v.purge, v.high) // of a snapshot received in part
	case len(v.failover) == 0:
		v.branchLocked(v.bucket.newUUID(), v.high)
	}
	if v.state != Replica {
		v.window = SnapshotRange{v.high, v.high}
	}
	if s == Dead {
		v.life++
	}
	v.state, v.sealed, v.collections.manifest = s, time.Time{}, 0
}

// branchLocked adds a new entry to the failover log, at seqno at.
func (v *VBucket) branchLocked(uuid, at uint64) {
	log := timestamp.FailoverLog{{VBUUID: uuid, Seqno: at}}
	for _, e := range v.failover {
		if e.Seqno <= at && len(log) < maxFailoverEntries {
			log = append(log, e)
		}
	}
	v.failover = log
}

func (v *VBucket) recordLocked() vbRecord {
	return vbRecord{State: v.state, High: v.written, Purge: v.purge, MaxCas: v.maxCas, Failover: v.failover}
}

// saveLocked appends the vbucket's state to the log. It returns ErrTemporary while the vbucket is being emptied,
// because the record would follow the reset.
func (v *VBucket) saveLocked() (*Ticket, error) {
	if err := v.steadyLocked(); err != nil {
		return nil, err
	}
	record, window := v.recordLocked(), v.window
	return v.bucket.commit.appendCopy(func(dst []byte) []byte {
		dst = appendState(dst, v.id, record)
		if record.State == Replica {
			dst = appendWindow(dst, v.id, window)
		}
		return dst
	})
}
