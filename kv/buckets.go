package kv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"tidemark/kv/clustermap"
	"tidemark/kv/mcbp"
	"tidemark/kv/seglog"
	"tidemark/kv/server"
	"tidemark/kv/store"
)

const (
	bucketsName = "buckets"
	// madeMark separates name and uuid in the folder name of a bucket that was created while the cluster ran. It occurs
	// in no name and no uuid.
	madeMark = "~"
)

// bucketID identifies a bucket: one that is created again under the same name has another uuid.
type bucketID struct{ name, uuid string }

// bucket is a bucket on this node. store, report and held are set once it is open.
type bucket struct {
	name, uuid string
	vbuckets   int
	dir        string
	served     *server.Bucket
	store      *store.Bucket // nil until it is loaded
	report     seglog.Report
	held       *heldFiles  // with the mood Unpersisted
	open       atomic.Bool // the documents are loaded
	trouble    atomic.Value

	stop context.CancelFunc // ends the housekeeping; nil before it has begun
	kept sync.WaitGroup     // the housekeeping goroutine

	use  sync.RWMutex // held for reading while replicating into the bucket
	gone bool         // the bucket was dropped; guarded by use
}

func (b *bucket) id() bucketID { return bucketID{b.name, b.uuid} }

func (b *bucket) logDir() string { return filepath.Join(b.dir, "log") }

// enter keeps the bucket from being closed until leave; it returns false if the bucket was dropped.
func (b *bucket) enter() bool {
	b.use.RLock()
	if b.gone {
		b.use.RUnlock()
		return false
	}
	return true
}

func (b *bucket) leave() { b.use.RUnlock() }

// openProblem returns why the bucket is not open; empty if no reason is known.
func (b *bucket) openProblem() string {
	why, _ := b.trouble.Load().(string)
	return why
}

// shelf holds the buckets of a node. The list is replaced under the cluster's changing, never modified.
type shelf struct {
	list atomic.Pointer[[]*bucket]
	work workers

	mu      sync.Mutex
	closing map[string]bucketID // dropped buckets whose files are being removed, by folder
	dirty   bool                // there may be files of dropped buckets
}

// workers tracks goroutines that are started while a node runs, and end with it.
type workers struct {
	mu    sync.Mutex
	ctx   context.Context // nil before the node works
	ended bool
	all   sync.WaitGroup
}

// begin enables Go until ctx ends.
func (w *workers) begin(ctx context.Context) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ctx = ctx
}

// Go starts a goroutine, unless the node has ended or not yet begun; it reports whether it did.
func (w *workers) Go(f func(ctx context.Context)) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended || w.ctx == nil {
		return false
	}
	ctx := w.ctx
	w.all.Go(func() { f(ctx) })
	return true
}

// end prevents new goroutines and waits for all running ones.
func (w *workers) end() {
	w.mu.Lock()
	w.ended = true
	w.mu.Unlock()
	w.all.Wait()
}

// buckets returns the buckets of the map, whether or not their documents are loaded. Configured buckets come first.
func (n *Node) buckets() []*bucket {
	if list := n.shelf.list.Load(); list != nil {
		return *list
	}
	return nil
}

// loadedBuckets returns the buckets whose documents are loaded; none before the node serves.
func (n *Node) loadedBuckets() []*bucket {
	if !n.serving.Load() {
		return nil
	}
	return n.openBuckets()
}

// openBuckets returns the buckets whose documents are loaded, even before the node serves.
func (n *Node) openBuckets() []*bucket {
	return slices.DeleteFunc(slices.Clone(n.buckets()), func(b *bucket) bool { return !b.open.Load() })
}

// bucketOf returns a bucket whose documents are loaded, or nil.
func (n *Node) bucketOf(id bucketID) *bucket {
	for _, b := range n.loadedBuckets() {
		if b.id() == id {
			return b
		}
	}
	return nil
}

// newBucket returns a bucket of the map for this node, without its documents.
func (n *Node) newBucket(part *clustermap.Bucket) *bucket {
	b := &bucket{name: part.Name, uuid: part.UUID, vbuckets: len(part.Chains),
		dir: filepath.Join(n.config.Dir, bucketsName, folderOf(part))}
	id := b.id()
	b.served = &server.Bucket{
		Ready:    func() bool { return n.serving.Load() && b.open.Load() },
		Config:   func() server.ClusterConfig { return n.cluster.configOf(id) },
		Manifest: func() *mcbp.Manifest { return n.cluster.manifest(id.name) },
	}
	return b
}

// folderOf returns the name of a bucket's folder.
func folderOf(part *clustermap.Bucket) string {
	if part.Made {
		return part.Name + madeMark + part.UUID
	}
	return part.Name
}

// listBuckets sets the list of buckets to that of a map, before their documents are loaded, and returns the buckets
// no longer in it. The caller holds changing, or is the only user of the node.
func (n *Node) listBuckets(m clustermap.Map) (dropped []*bucket) {
	var list, added []*bucket
	for _, b := range n.buckets() {
		if m.BucketOf(b.name, b.uuid) != nil {
			list = append(list, b)
			continue
		}
		dropped = append(dropped, b)
	}
	for i := range m.Buckets {
		part := &m.Buckets[i]
		if !slices.ContainsFunc(list, func(b *bucket) bool { return b.id() == bucketID{part.Name, part.UUID} }) {
			added = append(added, n.newBucket(part))
		}
	}
	list = append(list, added...)
	n.shelf.list.Store(&list)
	if n.server != nil {
		for _, b := range dropped {
			n.server.Remove(b.name, b.served)
		}
		for _, b := range added {
			n.server.Add(b.name, b.served)
		}
	}
	return dropped
}

// followBuckets drops and opens buckets according to a map, once the initial buckets are loaded. A bucket that cannot
// be opened yet is retried at the next call. The caller holds changing.
func (n *Node) followBuckets(m clustermap.Map) {
	for _, b := range n.listBuckets(m) {
		n.drop(b, m.HasDropped(b.name, b.uuid))
	}
	for _, b := range n.buckets() {
		if b.open.Load() {
			continue
		}
		if err := n.begin(b, m); err != nil {
			if b.openProblem() != err.Error() {
				n.config.Logger.Error("bucket cannot be opened; trying again", "bucket", b.name, "error", err)
			}
			b.trouble.Store(err.Error())
		}
	}
	if n.shelf.isDirty() {
		n.sweep(m)
	}
}

// begin opens a bucket that was created while the node runs.
func (n *Node) begin(b *bucket, m clustermap.Map) error {
	if n.shelf.isClosing(b.dir) { // created again while its folder is removed
		return fmt.Errorf("%s is still being removed after an earlier drop", b.dir)
	}
	if err := n.load(b, m); err != nil {
		return err
	}
	if !n.keep(b) {
		b.open.Store(false)
		return errors.Join(errors.New("the node is stopping"), b.store.Abandon())
	}
	return nil
}

// keep starts the bucket's housekeeping; it returns false if the node is stopping.
func (n *Node) keep(b *bucket) bool {
	house, stop := context.WithCancel(context.Background())
	b.stop = stop
	b.kept.Add(1)
	begun := n.shelf.work.Go(func(ctx context.Context) {
		defer b.kept.Done()
		defer context.AfterFunc(ctx, stop)()
		_ = b.store.Run(house) // Run returns no errors: it retries failures
	})
	if !begun {
		stop()
		b.kept.Done()
	}
	return begun
}

// drop closes a bucket that is not in the map, and ends its connections. It removes the bucket's files if the map
// lists the bucket as dropped. If the map is another one that never had the bucket, the files stay, so that their
// content can be recovered.
func (n *Node) drop(b *bucket, remove bool) {
	if remove {
		n.config.Logger.Info("bucket dropped", "bucket", b.name, "uuid", b.uuid)
	} else {
		n.config.Logger.Warn("bucket is no longer in the map but was not dropped: its files stay", "bucket", b.name, "uuid",
			b.uuid, "folder", b.dir)
	}
	n.replicator.resume(b.name)
	bury := func(context.Context) { n.bury(b, remove) }
	if !n.shelf.close(b) { // its folder is already being removed, and it was never opened
		bury = func(context.Context) {
			n.server.Evict(b.served)
			if remove { // the running removal may have to leave them
				n.shelf.left(true)
			}
		}
	}
	if !n.shelf.work.Go(bury) {
		bury(context.Background())
	}
}

// bury closes a bucket that is no longer in the list, and removes its files if requested.
func (n *Node) bury(b *bucket, remove bool) {
	n.server.Evict(b.served)
	if b.stop != nil {
		b.stop()
	}
	b.kept.Wait()
	b.use.Lock()
	b.gone = true
	b.use.Unlock()
	n.replicator.dropped(b.id())
	var err error
	switch open := b.open.Swap(false); {
	case open && remove:
		_ = b.store.Abandon() // its files are removed
	case open:
		err = b.store.Close()
	}
	if remove {
		err = os.RemoveAll(b.dir)
	}
	switch {
	case err != nil && remove:
		n.config.Logger.Error("files of a dropped bucket cannot be removed yet; trying again", "folder", b.dir, "error",
			err)
	case err != nil:
		n.config.Logger.Error("bucket was not closed cleanly", "folder", b.dir, "error", err)
	}
	n.shelf.closed(b.dir, remove && err != nil)
}

// close records that a bucket is being closed; it returns false if a bucket with the same folder is already being
// closed.
func (s *shelf) close(b *bucket) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing == nil {
		s.closing = map[string]bucketID{}
	}
	_, already := s.closing[b.dir]
	s.closing[b.dir] = b.id()
	return !already
}

func (s *shelf) closed(dir string, left bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.closing, dir)
	s.dirty = s.dirty || left
}

// left records whether there may be files of dropped buckets; it reports whether that has changed.
func (s *shelf) left(dirty bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.dirty
	s.dirty = dirty
	return before != dirty
}

func (s *shelf) isClosing(dir string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.closing[dir]
	return ok
}

// leaving returns the number of dropped buckets whose files are not removed yet.
func (s *shelf) leaving() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.closing)
}

// leavingOf reports whether the bucket is one of them.
func (s *shelf) leavingOf(id bucketID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.closing {
		if x == id {
			return true
		}
	}
	return false
}

func (s *shelf) isDirty() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dirty
}

// sweep removes the files of buckets that the map has dropped: a node that was down at that time, or killed during
// the removal, still has them. Unknown folders stay. The caller holds changing, or is the only user of the node.
func (n *Node) sweep(m clustermap.Map) {
	if m.RevEpoch == 0 { // the node is not in a cluster yet
		return
	}
	dir := filepath.Join(n.config.Dir, bucketsName)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return
	}
	all, waits := []error{err}, false
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if !swept(m, e.Name()) {
			continue
		}
		if n.shelf.isClosing(path) { // the running removal removes it, or leaves it for the next sweep
			waits = true
			continue
		}
		err := os.RemoveAll(path)
		if err == nil {
			n.config.Logger.Info("files of a dropped bucket removed", "folder", path)
		}
		all = append(all, err)
	}
	err = errors.Join(all...)
	if n.shelf.left(err != nil || waits) && err != nil {
		n.config.Logger.Error("files of dropped buckets cannot be removed yet; trying again", "error", err)
	}
}

// swept reports whether a folder belongs to a bucket that the map has dropped.
func swept(m clustermap.Map, folder string) bool {
	name, uuid, made := strings.Cut(folder, madeMark)
	if part := m.Bucket(name); part != nil && folderOf(part) == folder {
		return false
	}
	return slices.ContainsFunc(m.Dropped, func(d clustermap.Dropped) bool {
		return d.Name == name && d.Made == made && (!made || d.UUID == uuid)
	})
}

// stored reports whether every bucket has a log on disk.
func (n *Node) stored() bool {
	return !slices.ContainsFunc(n.buckets(), func(b *bucket) bool { return !seglog.Exists(b.logDir()) })
}

// load loads the documents of a bucket, or creates its files; m determines the states of its vbuckets on this node.
func (n *Node) load(b *bucket, m clustermap.Map) error {
	if err := os.MkdirAll(b.dir, 0o700); err != nil {
		return fmt.Errorf("make bucket folder: %w", err)
	}
	part := m.BucketOf(b.name, b.uuid)
	var held *heldFiles
	wrap := n.config.WrapFile
	if n.config.Nasty.Has(server.Unpersisted) {
		held = &heldFiles{}
		wrap = held.wrap(wrap)
	}
	s, report, err := store.Open(store.Options{
		Dir: b.logDir(), Name: b.name, UUID: b.uuid, VBuckets: b.vbuckets,
		State: func(vb uint16) store.State {
			if part == nil { // dropped meanwhile
				return store.Dead
			}
			return stateOf(part.Role(vb, n.config.NodeID))
		},
		Quota: n.quota, Disk: n.disk, PurgeAfter: n.config.PurgeAfter, SegmentBytes: n.config.SegmentBytes,
		Housekeep: n.config.Housekeep,
		Now:       n.config.Now, Random: randomUint64, Logger: n.config.Logger.Named("store"), WrapFile: wrap,
		Gaps: n.config.Nasty.Has(server.Gaps),
	})
	switch {
	case errors.Is(err, syscall.ENOSPC): // after a crash each vbucket begins a new branch, which must be written first
		return fmt.Errorf("%w; make room on the disk of %s and start the node again: nothing is lost", err, b.dir)
	case errors.Is(err, seglog.ErrCorrupt) && len(m.Nodes) > 1:
		return fmt.Errorf("%w. If other nodes have replicas, nothing is lost with: tidemark kv failover %s, move %s "+
			"away, start the node, tidemark kv rebalance --add", err, n.config.NodeID, b.dir)
	case err != nil:
		return err
	}
	b.store, b.report, b.served.Store, b.held = s, report, s, held
	b.open.Store(true)
	n.config.Logger.Info("bucket opened", "bucket", b.name, "new", report.Fresh, "orderly_stop", report.Clean, "records",
		report.Records,
		"bytes", report.Bytes, "torn_bytes", report.TornBytes)
	return nil
}
