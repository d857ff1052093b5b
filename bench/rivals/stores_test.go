package rivals

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"
	"github.com/hashicorp/go-hclog"
	bolt "go.etcd.io/bbolt"

	"tidemark/indexer/storage"
	"tidemark/ingest"
)

var (
	storeDocs    = flag.Int("stores.documents", 200_000, "documents of BenchmarkStores")
	storeUpdates = flag.Int("stores.updates", 400_000, "random updates of them")
	storeBatch   = flag.Int("stores.batch", 10_000, "of so many documents at once")
	storeScans   = flag.Int("stores.scans", 2000, "scans of 100 rows each")
)

const vbuckets = 1024

// store is an index with its back index. Flush applies one batch of updates, at most one per document: it finds the
// old key, removes its row, and writes the new row and the back entry. Nothing is synced to disk: what a crash loses
// is streamed again.
type store interface {
	Flush([]storage.Update) error
	// Persist writes what is only in memory.
	Persist() error
	// Scan walks n rows from a key on, at one state of the store.
	Scan(from []byte, n int, row func(keyAndID []byte)) error
	Close() error
}

var stores = []struct {
	name string
	open func(dir string) (store, error)
}{
	{"tidemark", openTidemark},
	{"pebble", openPebble},
	{"badger", openBadger},
	{"bbolt", openBolt},
}

// tidemark is the product's store, with its positions.
type tidemark struct {
	store *storage.Store
	slice *storage.Slice
	at    [vbuckets]uint64
}

func openTidemark(dir string) (store, error) {
	s, err := storage.Open(storage.Options{Dir: dir, Logger: hclog.NewNullLogger()})
	if err != nil {
		return nil, err
	}
	slice, err := s.Create(storage.Meta{Copy: 1, Index: 1, Bucket: "b", BucketUUID: "u", VBuckets: vbuckets,
		Desc: []bool{false}})
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return &tidemark{store: s, slice: slice}, nil
}

func (s *tidemark) Flush(updates []storage.Update) error {
	b := storage.Batch{Updates: updates}
	for i := range updates {
		s.at[updates[i].VBucket] = updates[i].Seqno
	}
	for v, q := range s.at {
		b.Positions = append(b.Positions, storage.VBPosition{VBucket: uint16(v),
			Position: ingest.Position{VBUUID: 77, Main: q}})
	}
	return s.slice.Flush(context.Background(), b)
}

func (s *tidemark) Persist() error { return s.slice.Persist(context.Background()) }

func (s *tidemark) Scan(from []byte, n int, row func([]byte)) error {
	snap, err := s.slice.Snapshot()
	if err != nil {
		return err
	}
	rows, err := snap.Rows(context.Background(), storage.Range{Low: from}, false)
	if err != nil {
		return errors.Join(err, snap.Close())
	}
	var both []byte
	for ; n > 0 && rows.Next(); n-- {
		key, id := rows.Row()
		both = append(append(both[:0], key...), id...)
		row(both)
	}
	return errors.Join(rows.Close(), snap.Close())
}

func (s *tidemark) Close() error { return s.store.Close() }

// The others write the same records: 'f' key id, and 'b' vbucket id with seqno and key.

func forward(key, id []byte) []byte { return slices.Concat([]byte{'f'}, key, id) }

func back(vb uint16, id []byte) []byte {
	return append(binary.BigEndian.AppendUint16([]byte{'b'}, vb), id...)
}

func entry(u *storage.Update) []byte {
	return append(binary.AppendUvarint(nil, u.Seqno), u.Keys[0]...)
}

// old returns the row to be removed for an update of a document with this entry; false if the entry is newer.
func old(u *storage.Update, entry []byte) (row []byte, newer bool) {
	seqno, n := binary.Uvarint(entry)
	if n <= 0 || seqno >= u.Seqno {
		return nil, false
	}
	return forward(entry[n:], u.DocID), true
}

// change is one write of a batch; without a value it is a removal.
type change struct{ key, value []byte }

// changes are the writes of a batch in key order, which is cheaper in all three stores.
func changes(updates []storage.Update, get func(key []byte, fn func(value []byte)) error) ([]change, error) {
	all := make([]change, 0, 3*len(updates))
	for i := range updates {
		u := &updates[i]
		b := back(u.VBucket, u.DocID)
		skip := false
		err := get(b, func(value []byte) {
			row, newer := old(u, value)
			if skip = !newer; newer {
				all = append(all, change{key: row})
			}
		})
		if err != nil {
			return nil, err
		}
		if !skip {
			all = append(all, change{forward(u.Keys[0], u.DocID), []byte{byte(len(u.DocID))}}, change{b, entry(u)})
		}
	}
	slices.SortFunc(all, func(x, y change) int { return bytes.Compare(x.key, y.key) })
	return all, nil
}

// barePebble is Pebble with the settings that the product uses, without a log.
type barePebble struct{ db *pebble.DB }

func openPebble(dir string) (store, error) {
	o := &pebble.Options{DisableWAL: true, Cache: pebble.NewCache(512 << 20), MemTableSize: 64 << 20,
		MemTableStopWritesThreshold: 4, L0CompactionThreshold: 8,
		L0StopWritesThreshold: 1000, LBaseMaxBytes: 64 << 20, FlushSplitBytes: 16 << 20,
		FormatMajorVersion: pebble.FormatValueSeparation, Logger: quiet{}}
	defer o.Cache.Unref()
	o.Experimental.EnableColumnarBlocks = func() bool { return false }
	for i := range o.TargetFileSizes {
		o.TargetFileSizes[i] = 16 << 20
	}
	for i := range o.Levels {
		o.Levels[i].BlockSize, o.Levels[i].IndexBlockSize = 16<<10, 256<<10
	}
	o.ApplyCompressionSettings(func() pebble.DBCompressionSettings { return pebble.DBCompressionNone })
	db, err := pebble.Open(dir, o)
	return &barePebble{db}, err
}

type quiet struct{}

func (quiet) Infof(string, ...any)  {}
func (quiet) Errorf(string, ...any) {}
func (quiet) Fatalf(format string, args ...any) {
	panic(fmt.Sprintf(format, args...))
}

func (s *barePebble) Flush(updates []storage.Update) error {
	all, err := changes(updates, func(key []byte, fn func([]byte)) error {
		v, closer, err := s.db.Get(key)
		if errors.Is(err, pebble.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		fn(v)
		return closer.Close()
	})
	if err != nil {
		return err
	}
	b := s.db.NewBatchWithSize(len(all) * 100)
	defer b.Close()
	for _, c := range all {
		if c.value == nil {
			err = b.Delete(c.key, nil)
		} else {
			err = b.Set(c.key, c.value, nil)
		}
		if err != nil {
			return err
		}
	}
	return b.Commit(pebble.NoSync)
}

func (s *barePebble) Persist() error { return s.db.Flush() }

func (s *barePebble) Scan(from []byte, n int, row func([]byte)) error {
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: forward(from, nil), UpperBound: []byte{'g'}})
	if err != nil {
		return err
	}
	for ok := it.First(); ok && n > 0; ok = it.Next() {
		row(it.Key()[1:])
		n--
	}
	return it.Close()
}

func (s *barePebble) Close() error { return s.db.Close() }

// onBadger writes with a WriteBatch, which splits what is too large for one transaction (such a batch is not atomic).
type onBadger struct{ db *badger.DB }

func openBadger(dir string) (store, error) {
	o := badger.DefaultOptions(dir).WithSyncWrites(false).WithCompression(options.None).WithBlockCacheSize(256 << 20).
		WithIndexCacheSize(128 << 20).
		WithNumVersionsToKeep(1).WithDetectConflicts(false).WithMetricsEnabled(false).WithLogger(nil)
	db, err := badger.Open(o)
	return &onBadger{db}, err
}

func (s *onBadger) Flush(updates []storage.Update) error {
	txn := s.db.NewTransaction(false)
	all, err := changes(updates, func(key []byte, fn func([]byte)) error {
		item, err := txn.Get(key)
		if errors.Is(err, badger.ErrKeyNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		return item.Value(func(v []byte) error {
			fn(v)
			return nil
		})
	})
	txn.Discard()
	if err != nil {
		return err
	}
	b := s.db.NewWriteBatch()
	defer b.Cancel()
	for _, c := range all {
		if c.value == nil {
			err = b.Delete(c.key)
		} else {
			err = b.Set(c.key, c.value)
		}
		if err != nil {
			return err
		}
	}
	return b.Flush()
}

func (s *onBadger) Persist() error { return nil } // badger's log has everything

func (s *onBadger) Scan(from []byte, n int, row func([]byte)) error {
	return s.db.View(func(txn *badger.Txn) error {
		it := txn.NewIterator(badger.IteratorOptions{Prefix: []byte{'f'}})
		defer it.Close()
		for it.Seek(forward(from, nil)); it.Valid() && n > 0; it.Next() {
			row(it.Item().Key()[1:])
			n--
		}
		return nil
	})
}

func (s *onBadger) Close() error { return s.db.Close() }

// onBolt writes each batch in one transaction, not synced.
type onBolt struct{ db *bolt.DB }

var bucketName = []byte("index")

func openBolt(dir string) (store, error) {
	db, err := bolt.Open(filepath.Join(dir, "index.db"), 0o600, &bolt.Options{NoSync: true, NoFreelistSync: true,
		FreelistType: bolt.FreelistMapType})
	if err != nil {
		return nil, err
	}
	return &onBolt{db}, db.Update(func(tx *bolt.Tx) error {
		_, err := tx.CreateBucketIfNotExists(bucketName)
		return err
	})
}

func (s *onBolt) Flush(updates []storage.Update) error {
	return s.db.Update(func(tx *bolt.Tx) error {
		b := tx.Bucket(bucketName)
		all, err := changes(updates, func(key []byte, fn func([]byte)) error {
			if v := b.Get(key); v != nil {
				fn(v)
			}
			return nil
		})
		if err != nil {
			return err
		}
		for _, c := range all {
			if c.value == nil {
				err = b.Delete(c.key)
			} else {
				err = b.Put(c.key, c.value)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

func (s *onBolt) Persist() error { return s.db.Sync() }

func (s *onBolt) Scan(from []byte, n int, row func([]byte)) error {
	return s.db.View(func(tx *bolt.Tx) error {
		c := tx.Bucket(bucketName).Cursor()
		for k, _ := c.Seek(forward(from, nil)); n > 0 && k != nil && k[0] == 'f'; k, _ = c.Next() {
			row(k[1:])
			n--
		}
		return nil
	})
}

func (s *onBolt) Close() error { return s.db.Close() }

// update makes a version of a document, with one key of 50 bytes that is unrelated to the document.
func update(doc, version uint64) storage.Update {
	key := append(make([]byte, 0, 52), 5)
	for r := rand.New(rand.NewPCG(doc, version)); len(key) < 41; {
		x := r.Uint64()
		for range 8 {
			key = append(key, 'a'+byte(x%26))
			x /= 26
		}
	}
	return storage.Update{VBucket: uint16(doc % vbuckets), DocID: fmt.Appendf(nil, "user:%015d", doc), Seqno: version + 1,
		Keys: [][]byte{append(key, "@mail.com\x00"...)}}
}

// history returns batches: all documents in order, then random ones, each document once per batch.
type history struct {
	docs, batch int
	next        uint64
	random      *rand.Rand
}

func newHistory(docs, batch int) *history {
	return &history{docs: docs, batch: batch, random: rand.New(rand.NewPCG(1, 2))}
}

func (h *history) ordered() (all []storage.Update) {
	for ; len(all) < h.batch && h.next < uint64(h.docs); h.next++ {
		all = append(all, update(h.next, 0))
	}
	return all
}

func (h *history) updates() (all []storage.Update) {
	seen := make(map[uint64]bool, h.batch)
	for len(all) < h.batch {
		h.next++
		if doc := h.random.Uint64N(uint64(h.docs)); !seen[doc] {
			seen[doc] = true
			all = append(all, update(doc, h.next))
		}
	}
	return all
}

// diskBytes returns the disk space of the files in a folder.
func diskBytes(dir string) (sum int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) { // compacted away
			return nil
		}
		if err == nil {
			sum += blocks(info)
		}
		return err
	})
	return sum, err
}

// BenchmarkStores writes the same batches into each store, one index of one key with its back index: 200,000
// documents in order (build), then random updates that change the key. The CPU figures include everything that the
// process does until the store is closed, compactions included, but not the preparation of the batches. Scans are of
// 100 rows from a random key on.
func BenchmarkStores(b *testing.B) {
	for _, s := range stores {
		b.Run(s.name, func(b *testing.B) {
			for b.Loop() {
				runStore(b, s.open)
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

func runStore(b *testing.B, open func(string) (store, error)) {
	must := func(err error) {
		if err != nil {
			b.Helper()
			b.Fatal(err)
		}
	}
	dir := b.TempDir()
	s, err := open(dir)
	must(err)
	h := newHistory(*storeDocs, *storeBatch)
	phase := func(name string, docs int, batch func() []storage.Update) {
		runtime.GC()
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		before, making, took := selfCPU(), time.Duration(0), time.Duration(0)
		for done := 0; done < docs; {
			at := threadCPU()
			u := batch()
			making += threadCPU() - at
			began := time.Now()
			must(s.Flush(u))
			took += time.Since(began)
			done += len(u)
		}
		began := time.Now()
		must(s.Persist())
		took += time.Since(began)
		b.ReportMetric(float64((selfCPU()-before-making).Microseconds())/float64(docs), name+"-cpu-µs/doc")
		b.ReportMetric(float64(docs)/took.Seconds(), name+"-docs/s")
	}
	phase("build", *storeDocs, h.ordered)
	phase("update", *storeUpdates, h.updates)
	runtime.GC()
	r, rows := rand.New(rand.NewPCG(5, 6)), 0
	began, before := time.Now(), selfCPU()
	for range *storeScans {
		must(s.Scan(update(r.Uint64N(1<<40), 0).Keys[0][:9], 100, func([]byte) { rows++ }))
	}
	b.ReportMetric(float64(time.Since(began).Microseconds())/float64(*storeScans), "scan100-µs")
	b.ReportMetric(float64((selfCPU()-before).Microseconds())/float64(*storeScans), "scan100-cpu-µs")
	if rows < 90**storeScans {
		b.Fatalf("%d rows of %d scans", rows, *storeScans)
	}
	must(s.Close())
	size, err := diskBytes(dir)
	must(err)
	b.ReportMetric(float64(size)/(1<<20), "disk-MiB")
	must(os.RemoveAll(dir))
}

// TestStoresAgree checks that after the same history all stores hold the same rows.
func TestStoresAgree(t *testing.T) {
	var want []string
	for _, x := range stores {
		s, err := x.open(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		h := newHistory(3000, 500)
		for range 6 {
			err = errors.Join(err, s.Flush(h.ordered()))
		}
		for range 10 {
			err = errors.Join(err, s.Flush(h.updates()))
		}
		if err = errors.Join(err, s.Persist()); err != nil {
			t.Fatal(x.name, err)
		}
		var rows []string
		err = s.Scan([]byte{5}, 10_000, func(row []byte) { rows = append(rows, string(row)) })
		if err = errors.Join(err, s.Close()); err != nil {
			t.Fatal(x.name, err)
		}
		if want == nil {
			want = rows
		}
		if len(rows) != 3000 || !slices.Equal(rows, want) {
			t.Errorf("%s has %d rows, want the same 3000", x.name, len(rows))
		}
	}
}
