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
	// madeMark is, in the name of a folder, between name and uuid of a bucket that was made while the cluster ran. No name
	// and no uuid has it.
	madeMark = "~"
)

// bucketID names a bucket for good: one that is made again under its name has another uuid.
type bucketID struct{ name, uuid string }

// bucket is a bucket on this node. store, report and held are there once it is open.
type bucket struct {
	name, uuid string
	vbuckets   int
	dir        string
	served     *server.Bucket
	store      *store.Bucket // nil until it is loaded
	report     seglog.Report
	held       *heldFiles  // in the mood Unpersisted
	open       atomic.Bool // the documents are there
	trouble    atomic.Value

	stop context.CancelFunc // ends its housekeeping; nil before that has begun
	kept sync.WaitGroup     // its housekeeping

	use  sync.RWMutex // held for reading by whoever replicates into it
	gone bool         // guarded by use: it was dropped
}

func (b *bucket) id() bucketID { return bucketID{b.name, b.uuid} }

func (b *bucket) logDir() string { return filepath.Join(b.dir, "log") }

// enter keeps the bucket from being closed until leave; false when it was dropped.
func (b *bucket) enter() bool {
	b.use.RLock()
	if b.gone {
		b.use.RUnlock()
		return false
	}
	return true
}

func (b *bucket) leave() { b.use.RUnlock() }

// whatTrouble says why the bucket is not open; empty when nothing is known.
func (b *bucket) whatTrouble() string {
	why, _ := b.trouble.Load().(string)
	return why
}

// shelf is the buckets of a node. The list is replaced, never changed, under the cluster's changing.
type shelf struct {
	list atomic.Pointer[[]*bucket]
	work workers

	mu      sync.Mutex
	closing map[string]bucketID // of buckets that were dropped, whose files are being removed: by folder
	dirty   bool                // there may be files that nobody has
}

// workers are goroutines that begin while a node runs, and end with it.
type workers struct {
	mu    sync.Mutex
	ctx   context.Context // nil before the node works
	ended bool
	all   sync.WaitGroup
}

// begin makes Go work, until ctx ends.
func (w *workers) begin(ctx context.Context) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ctx = ctx
}

// Go begins a goroutine, unless the node has come to its end, or not begun.
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

// end waits for all; no other begins.
func (w *workers) end() {
	w.mu.Lock()
	w.ended = true
	w.mu.Unlock()
	w.all.Wait()
}

// buckets are those of the map, whether or not their documents are there; those of the configuration come first.
func (n *Node) buckets() []*bucket {
	if list := n.shelf.list.Load(); list != nil {
		return *list
	}
	return nil
}

// loadedBuckets are the buckets whose documents are there, once the node serves.
func (n *Node) loadedBuckets() []*bucket {
	if !n.serving.Load() {
		return nil
	}
	return n.openBuckets()
}

// openBuckets are the buckets whose documents are there, also before the node serves.
func (n *Node) openBuckets() []*bucket {
	return slices.DeleteFunc(slices.Clone(n.buckets()), func(b *bucket) bool { return !b.open.Load() })
}

// bucketOf finds a bucket whose documents are there.
func (n *Node) bucketOf(id bucketID) *bucket {
	for _, b := range n.loadedBuckets() {
		if b.id() == id {
			return b
		}
	}
	return nil
}

// newBucket is a bucket of the map on this node, whose documents are not there yet.
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

// folderOf is the name of a bucket's folder.
func folderOf(part *clustermap.Bucket) string {
	if part.Made {
		return part.Name + madeMark + part.UUID
	}
	return part.Name
}

// listBuckets makes the list of buckets that of a map, before their documents are read. The caller holds changing, or
// nobody else has the node.
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

// followBuckets drops and makes buckets as a map says, once those of the beginning are loaded. What cannot be made yet
// is tried again with the next call. The caller holds changing.
func (n *Node) followBuckets(m clustermap.Map) {
	for _, b := range n.listBuckets(m) {
		n.drop(b, m.HasDropped(b.name, b.uuid))
	}
	for _, b := range n.buckets() {
		if b.open.Load() {
			continue
		}
		if err := n.begin(b, m); err != nil {
			if b.whatTrouble() != err.Error() {
				n.config.Logger.Error("a bucket cannot be opened; it is tried again", "bucket", b.name, "error", err)
			}
			b.trouble.Store(err.Error())
		}
	}
	if n.shelf.isDirty() {
		n.sweep(m)
	}
}

// begin opens a bucket that was made while the node runs.
func (n *Node) begin(b *bucket, m clustermap.Map) error {
	if n.shelf.isClosing(b.dir) { // it is there again after all
		return fmt.Errorf("%s is being removed, since it was dropped before", b.dir)
	}
	if err := n.load(b, m); err != nil {
		return err
	}
	if !n.keep(b) {
		b.open.Store(false)
		return errors.Join(errors.New("the node stops"), b.store.Abandon())
	}
	return nil
}

// keep begins the bucket's housekeeping; false at the node's end.
func (n *Node) keep(b *bucket) bool {
	house, stop := context.WithCancel(context.Background())
	b.stop = stop
	b.kept.Add(1)
	begun := n.shelf.work.Go(func(ctx context.Context) {
		defer b.kept.Done()
		defer context.AfterFunc(ctx, stop)()
		_ = b.store.Run(house) // which has no errors: what goes wrong is tried again
	})
	if !begun {
		stop()
		b.kept.Done()
	}
	return begun
}

// drop lets a bucket go that the map does not have: its connections end. Its files are removed where the map says that
// it was dropped; where another map has won that never had it, they stay, for whoever wants what is in them.
func (n *Node) drop(b *bucket, remove bool) {
	if remove {
		n.config.Logger.Info("bucket dropped", "bucket", b.name, "uuid", b.uuid)
	} else {
		n.config.Logger.Warn("a bucket is in the map no more, and was not dropped: its files stay", "bucket", b.name, "uuid",
			b.uuid, "folder", b.dir)
	}
	n.replicator.resume(b.name)
	bury := func(context.Context) { n.bury(b, remove) }
	if !n.shelf.close(b) { // it was back for a moment, and never opened: whoever removes its files goes on
		bury = func(context.Context) {
			n.server.Evict(b.served)
			if remove { // whoever goes on may have to leave them
				n.shelf.left(true)
			}
		}
	}
	if !n.shelf.work.Go(bury) {
		bury(context.Background())
	}
}

// bury closes a bucket that nobody finds any more, and may remove its files.
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
		_ = b.store.Abandon() // its files go
	case open:
		err = b.store.Close()
	}
	if remove {
		err = os.RemoveAll(b.dir)
	}
	switch {
	case err != nil && remove:
		n.config.Logger.Error("files of a dropped bucket are not removed yet; it is tried again", "folder", b.dir, "error",
			err)
	case err != nil:
		n.config.Logger.Error("a bucket was not closed in order", "folder", b.dir, "error", err)
	}
	n.shelf.closed(b.dir, remove && err != nil)
}

// close notes that a bucket is being closed; false when its folder is that of one that is being closed already.
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

// left notes whether there may be files that nobody has; true when that is news.
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

// leaving is how many buckets are dropped, and their files not removed yet.
func (s *shelf) leaving() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.closing)
}

// leavingOf says whether that is one of them.
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

// sweep removes the files of buckets that the map has dropped, as a node that was down meanwhile, or killed over it,
// still has them. Folders of which nothing is known stay. The caller holds changing, or nobody else has the node.
func (n *Node) sweep(m clustermap.Map) {
	if m.RevEpoch == 0 { // it is in no cluster yet
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
		if n.shelf.isClosing(path) { // whoever closes it removes it, or leaves it for the next time
			waits = true
			continue
		}
		err := os.RemoveAll(path)
		if err == nil {
			n.config.Logger.Info("files of a dropped bucket are removed", "folder", path)
		}
		all = append(all, err)
	}
	err = errors.Join(all...)
	if n.shelf.left(err != nil || waits) && err != nil {
		n.config.Logger.Error("files of dropped buckets are not removed yet; it is tried again", "error", err)
	}
}

// swept says whether a folder is that of a bucket that the map has dropped.
func swept(m clustermap.Map, folder string) bool {
	name, uuid, made := strings.Cut(folder, madeMark)
	if part := m.Bucket(name); part != nil && folderOf(part) == folder {
		return false
	}
	return slices.ContainsFunc(m.Dropped, func(d clustermap.Dropped) bool {
		return d.Name == name && d.Made == made && (!made || d.UUID == uuid)
	})
}

// stored says whether every bucket has a log on disk.
func (n *Node) stored() bool {
	return !slices.ContainsFunc(n.buckets(), func(b *bucket) bool { return !seglog.Exists(b.logDir()) })
}

// load reads the documents of a bucket, or makes its files; m says what this node is to its vbuckets.
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
		Quota: n.quota, PurgeAfter: n.config.PurgeAfter, SegmentBytes: n.config.SegmentBytes, Housekeep: n.config.Housekeep,
		Now: n.config.Now, Random: randomUint64, Logger: n.config.Logger.Named("store"), WrapFile: wrap,
		Gaps: n.config.Nasty.Has(server.Gaps),
	})
	switch {
	case errors.Is(err, syscall.ENOSPC): // after a crash each vbucket begins a new branch, which must be written first
		return fmt.Errorf("%w; make room on the disk of %s and start the node again: nothing is lost", err, b.dir)
	case errors.Is(err, seglog.ErrCorrupt) && len(m.Nodes) > 1:
		return fmt.Errorf("%w. Where other nodes have replicas, the way without loss is: tidemark kv failover %s, move %s "+
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
