package indexer

import (
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/hashicorp/go-hclog"

	"tidemark/index"
	"tidemark/indexer/core"
	"tidemark/wire"
)

// stuck is a disk on which every operation below one folder of copies hangs, from hang to free.
type stuck struct {
	at    atomic.Pointer[hanging]
	begun chan struct{} // closed at the first operation that hangs
}

type hanging struct {
	below string
	goOn  chan struct{}
}

func newStuck(w *world) *stuck {
	d := &stuck{begun: make(chan struct{})}
	begin := sync.OnceFunc(func() { close(d.begun) })
	w.tweak = func(c *Config) {
		c.listWait = 100 * time.Millisecond // each list waits that long for what hangs
		c.disk = errorfs.Wrap(vfs.Default, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if h := d.at.Load(); h != nil && strings.HasPrefix(op.Path+"/", h.below) {
				begin()
				<-h.goOn
			}
			return nil
		}))
	}
	w.t.Cleanup(d.free) // before the indexer is stopped
	return d
}

func (d *stuck) hang(w *world, below string) {
	d.free()
	d.at.Store(&hanging{filepath.Join(w.dir, copiesDir, below) + "/", make(chan struct{})})
}

func (d *stuck) free() {
	if h := d.at.Swap(nil); h != nil {
		close(h.goOn)
	}
}

// lists makes the indexer take a list with these copies. Like a leader it sends the list again if there is no answer
// in time.
func (w *world) lists(ids ...index.CopyID) {
	w.t.Helper()
	for until := time.Now().Add(testTimeout); ; {
		err := w.define(ids...)
		if err == nil {
			return
		}
		if time.Now().After(until) {
			w.t.Fatalf("the list of %v is not taken over: %v", ids, err)
		}
	}
}

// listsAs is like lists, but change may edit the list before it is sent. It holds w.mu while it calls change.
func (w *world) listsAs(change func(d *wire.Definitions)) *wire.Definitions {
	w.t.Helper()
	for until := time.Now().Add(testTimeout); ; {
		w.mu.Lock()
		w.revision++
		d := w.definitionsLocked()
		change(d)
		w.sent = d
		w.mu.Unlock()
		_, err := w.admin.Definitions(w.t.Context(), w.endpoint.Admin, d)
		if err == nil {
			return d
		}
		if time.Now().After(until) {
			w.t.Fatalf("the list is not taken over: %v", err)
		}
	}
}

// listsNoBucket is like lists, for a list without the bucket.
func (w *world) listsNoBucket() {
	w.t.Helper()
	w.mu.Lock()
	w.copies = nil
	w.mu.Unlock()
	w.listsAs(func(d *wire.Definitions) { d.Buckets = nil })
}

// serves waits until the copies are filled, and checks scans of their indexes.
func (w *world) serves(ids ...index.CopyID) {
	w.t.Helper()
	w.begin(nil)
	w.promote(w.t.Context())
	w.held(ids...)
	for _, id := range ids {
		w.check(index.ID(id) / 10)
	}
}

// settles waits until all work on copies is done. Then exactly these copies must be in buckets, and exactly they and
// the orphans in the store and in its folder.
func (w *world) settles(ids []index.CopyID, orphans ...index.CopyID) {
	w.t.Helper()
	here := w.settled(ids)
	if want := slices.Sorted(slices.Values(append(slices.Clone(ids), orphans...))); !slices.Equal(here, want) {
		w.t.Errorf("copies %v are in the store, want %v", here, want)
	}
	w.reported(orphans...)
}

// settled waits until all work on copies is done. Then exactly these copies must be in buckets, and only copies of
// the store may have folders. It returns the copies of the store.
func (w *world) settled(ids []index.CopyID) (here []index.CopyID) {
	w.t.Helper()
	w.until("nothing is to be done any more", func() bool { return len(w.x.places.busy()) == 0 })
	p := &w.x.places
	p.mu.Lock()
	in := len(p.in)
	p.mu.Unlock()
	if in != len(ids) {
		w.t.Errorf("%d copies are in buckets, want %v", in, ids)
	}
	for _, s := range w.x.store.Slices() {
		here = append(here, s.Meta().Copy)
	}
	w.until("no folder is there but of these", func() bool {
		n := 0
		all, err := os.ReadDir(filepath.Join(w.dir, copiesDir))
		for _, e := range all {
			if e.IsDir() {
				n++
			}
		}
		return err == nil && n == len(here)
	})
	if wrong := w.x.health.All(); len(wrong) != 0 {
		w.t.Errorf("wrong: %q", wrong)
	}
	return here
}

// writing makes a copy hang while it is being written to, with another write waiting behind that.
func (d *stuck) writing(w *world, id index.CopyID) {
	w.t.Helper()
	d.hang(w, id.String()+"/checkpoints")
	w.write(docs(0, 100, 2)...)
	w.promote(w.t.Context())
	<-d.begun // a checkpoint, during which nothing is written to the copy
	w.write(docs(0, 100, 3)...)
	w.promote(w.t.Context())
	k := w.x.bucketNamed(testBucket)
	w.until("the newest timestamp is being written", func() (is bool) {
		if err := k.Do(w.t.Context(), func(st *core.Bucket) { is = st.Queued() == 0 && st.QueueBytes() > 0 }); err != nil {
			w.t.Error(err)
		}
		return is
	})
}

// TestHungCopyDoesNotBlockLists sends a list that drops a copy whose disk hangs, or that makes it an orphan since
// the epoch is another one. The rest of the list takes effect: new copies are made, filled and served. The same holds
// for the next lists, also for one that wants the copy again. When the disk works again, first the operation that
// hung is finished, and then the newest list applied.
func TestHungCopyDoesNotBlockLists(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		orphans bool
		written bool // it hangs while it is being written to; otherwise when it is dropped
	}{{"dropped", false, false}, {"dropped while it is written", false, true}, {"an orphan", true, true}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			disk := newStuck(w)
			build(t, w)
			if c.written {
				disk.writing(w, 10)
			} else {
				disk.hang(w, "10/DROPPED")
			}
			if c.orphans {
				w.epoch++
			}
			w.lists(20, 30)
			<-disk.begun
			if c.orphans {
				w.reported(10)
			} else {
				w.reported()
			}
			w.serves(20, 30)
			if _, err := w.scan(1, `{}`); code(err) != "INDEX_NOT_HOSTED" {
				t.Errorf("a scan of it: %v", err)
			}
			for _, ids := range [][]index.CopyID{{20, 30, 40}, {10, 20, 30, 40}, {20, 30, 40}} {
				w.lists(ids...)
			}
			if gone, err := w.dropOrphans(wire.OrphanRef{Copy: 10, Index: 1}); err != nil || len(gone) != 0 {
				t.Errorf("dropped while it is: %v, %v", gone, err)
			}
			w.serves(20, 30, 40)
			if !w.there(10) {
				t.Error("its folder is gone, and it hangs")
			}
			disk.free()
			w.settles([]index.CopyID{20, 30, 40})
			w.lists(10, 20, 30, 40)
			w.serves(10, 20, 30, 40)
			w.settles([]index.CopyID{10, 20, 30, 40})
		})
	}
}

// TestHungCopyIsWantedAgain checks that a copy that hangs while it is being removed, and that a list
// wants again, is made when the disk works again, in a folder to which nothing else writes.
func TestHungCopyIsWantedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	disk := newStuck(w)
	build(t, w)
	disk.writing(w, 10)
	w.lists(20)
	w.lists(10, 20)
	w.write(docs(50, 120, 7)...)
	w.serves(20)
	disk.free()
	w.serves(10, 20)
	w.settles([]index.CopyID{10, 20})
}

// TestRemovalOfReceivedFilesHangs checks a copy that is added while the removal of its received files hangs: no list
// waits for it, and the copy is not reported to the leader.
func TestRemovalOfReceivedFilesHangs(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		id   index.CopyID
	}{{"an orphan that is wanted again", 10}, {"a new copy", 30}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			disk := newStuck(w)
			var since atomic.Int32 // reports
			var seen atomic.Bool
			w.forgets = func(r *wire.IndexerReport) bool {
				since.Add(1)
				if slices.ContainsFunc(r.Copies, func(r wire.CopyReport) bool { return r.Copy == c.id }) {
					seen.Store(true)
				}
				return false
			}
			build(t, w)
			if c.id == 10 {
				w.epoch++
				w.lists(20)
				w.reported(10)
			}
			seen.Store(false)
			disk.hang(w, c.id.String()+"/incoming")
			w.lists(20, c.id)
			<-disk.begun
			w.lists(20, c.id, 40)
			w.reported()
			n := since.Load()
			w.until("the leader gets another report", func() bool { return since.Load() > n+3 })
			if seen.Load() {
				t.Error("the copy is reported to the leader")
			}
			w.serves(20, 40)
			disk.free()
			w.serves(c.id, 20, 40)
			w.settles([]index.CopyID{c.id, 20, 40})
		})
	}
}

// TestCopyCreatedLate checks that a copy whose creation hangs, and that is no longer in the list when it is
// created, is dropped, or becomes an orphan if another epoch has begun.
func TestCopyCreatedLate(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		epoch   int            // which of the two lists without it is of another epoch; 0: neither
		orphans []index.CopyID // the oldest first
	}{{"of one epoch", 0, nil}, {"first of another one", 1, []index.CopyID{30}}, {"then of another one", 2,
		[]index.CopyID{40, 30}}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			disk := newStuck(w)
			build(t, w)
			disk.hang(w, "30")
			w.lists(10, 20, 30)
			<-disk.begun
			w.lists(10, 20, 30, 40)
			w.serves(10, 20, 40)
			// the second one does not show why a copy is not wanted
			for i, ids := range [][]index.CopyID{{10, 20, 40}, {10, 20}} {
				if i+1 == c.epoch {
					w.epoch++
				}
				w.lists(ids...)
			}
			disk.free()
			w.settles([]index.CopyID{10, 20}, c.orphans...)
		})
	}
}

// TestBucketRemovedWhileACopyHangs removes a bucket while one of its copies hangs: the list takes effect, the
// leader still gets reports, the other copies are removed, and a new bucket of that name is filled and served.
func TestBucketRemovedWhileACopyHangs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	disk := newStuck(w)
	var reports atomic.Int32
	w.forgets = func(*wire.IndexerReport) bool { reports.Add(1); return false }
	w.write(docs(0, 20, 1)...)
	w.start()
	var ids []index.CopyID
	for i := range 24 {
		ids = append(ids, index.CopyID(10*(i+1)))
	}
	w.lists(ids...)
	w.begin(nil)
	w.promote(t.Context())
	w.held(ids...)
	disk.writing(w, 10)
	w.listsNoBucket()
	n := reports.Load()
	w.until("the leader gets another report", func() bool { return reports.Load() > n+3 })
	w.until("the other copies have gone", func() bool {
		return !slices.ContainsFunc(ids[1:], w.there)
	})
	if !w.there(10) {
		t.Error("the one that hangs is gone, too")
	}
	w.lists(500)
	w.serves(500)
	disk.free()
	w.settles([]index.CopyID{500})
}

// TestBucketRecreatedWhileACopyHangs checks that the other copies of the new bucket start empty at once, and
// the one that hangs when it can.
func TestBucketRecreatedWhileACopyHangs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	disk := newStuck(w)
	build(t, w)
	disk.writing(w, 10)
	w.listsAs(func(d *wire.Definitions) { d.Buckets[0].UUID = "another" })
	of := func(id index.CopyID) string {
		if s, here := w.x.store.Slice(id); here {
			return s.Meta().BucketUUID
		}
		return ""
	}
	w.until("the copy that is well is made anew", func() bool { return of(20) == "another" })
	if of(10) != testUUID {
		t.Errorf("the one that hangs is of bucket %q", of(10))
	}
	disk.free()
	w.until("the other one is made anew", func() bool { return of(10) == "another" })
	w.settles([]index.CopyID{10, 20})
}

// TestHungOrphanDoesNotBlockLists checks that an orphan whose grace period is over, and whose disk hangs when it is
// dropped, does not delay lists.
func TestHungOrphanDoesNotBlockLists(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	disk := newStuck(w)
	tweak := w.tweak
	w.tweak = func(c *Config) { tweak(c); c.OrphanGrace = time.Millisecond }
	if err := os.MkdirAll(filepath.Join(w.dir, copiesDir, "70"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(w.dir, copiesDir, "70", "junk"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	build(t, w)
	w.until("the grace is over", func() bool { return len(w.orphans) == 1 && w.orphans[0].LeftMS == 0 })
	disk.hang(w, "70")
	for range 2 {
		if gone, err := w.dropOrphans(wire.OrphanRef{Copy: 70}); err != nil || len(gone) != 0 {
			t.Errorf("dropped while its disk hangs: %v, %v", gone, err)
		}
	}
	<-disk.begun
	w.lists(10, 20, 30)
	w.serves(10, 20, 30)
	w.reported(70)
	disk.free()
	w.settles([]index.CopyID{10, 20, 30})
}

// TestListsBesideHangs checks random sequences of lists while the disk hangs at various places: in the end exactly
// the copies of the newest list exist, and are complete. If the epoch has changed, orphans exist as well and are
// reported.
func TestListsBesideHangs(t *testing.T) {
	t.Parallel()
	for seed := range int64(4) {
		t.Run(strconv.FormatInt(seed, 10), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			disk := newStuck(w)
			build(t, w)
			dice, want := rand.New(rand.NewSource(seed)), []index.CopyID(nil)
			for step := range 40 {
				id := index.CopyID(10 * (1 + dice.Intn(5)))
				switch dice.Intn(6) {
				case 0:
					disk.hang(w, id.String()+[]string{"", "/DROPPED", "/checkpoints", "/incoming"}[dice.Intn(4)])
				case 1:
					disk.free()
				case 2:
					w.write(docs(10*step, 10*step+20, step)...)
					w.promote(t.Context())
				default:
					if seed%2 == 1 && dice.Intn(4) == 0 {
						w.epoch++
					}
					want = nil
					for id := index.CopyID(10); id <= 50; id += 10 {
						if dice.Intn(2) == 0 {
							want = append(want, id)
						}
					}
					w.lists(want...)
				}
			}
			disk.free()
			w.lists(append(want, 60)...)
			here := w.settled(append(want, 60))
			orphans := slices.DeleteFunc(here, func(id index.CopyID) bool { return id == 60 || slices.Contains(want, id) })
			if seed%2 == 0 && len(orphans) > 0 {
				t.Errorf("orphans of one epoch: %v", orphans)
			}
			w.until("orphans are reported", func() bool {
				var seen []index.CopyID
				for _, o := range w.orphans {
					seen = append(seen, o.Copy)
				}
				slices.Sort(seen)
				return slices.Equal(seen, orphans)
			})
			w.serves(append(want, 60)...)
		})
	}
}

// TestIDIsReusedWhileItsCopyHangs sends a list, as after a restore, in which another index has the id of one
// that is here, and the old one hangs when it is removed. Scans do not get the old one's rows, not even those that
// are still written to it, and the copy is not reported to the leader. When the old one is gone the new one is
// created.
func TestIDIsReusedWhileItsCopyHangs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	disk := newStuck(w)
	var revision atomic.Uint64
	seen := make(chan bool, 1)
	w.forgets = func(r *wire.IndexerReport) bool {
		if v := revision.Load(); v > 0 && r.Revision >= v {
			select {
			case seen <- r.Whole() && !slices.ContainsFunc(r.Copies, func(c wire.CopyReport) bool { return c.Copy == 10 }):
			default:
			}
		}
		return false
	}
	build(t, w)
	disk.writing(w, 10)
	w.mu.Lock()
	w.epoch++
	w.mu.Unlock()
	w.listsAs(func(d *wire.Definitions) {
		revision.Store(d.Revision)
		another(d)
	})
	if rows, err := w.scan(1, `{}`); err == nil {
		t.Errorf("a scan of the other index is given %d rows of the one that was here", len(rows))
	}
	select {
	case is := <-seen:
		if !is {
			t.Error("the copy is still reported to the leader")
		}
	case <-time.After(testTimeout):
		t.Fatal("the leader gets no report")
	}
	disk.free()
	w.servesAnother()
}

// TestDropOvertakenByANewerList checks that a copy that one list drops, and that a list of a later epoch wants before
// it is gone, is kept.
func TestDropOvertakenByANewerList(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	disk := newStuck(w)
	build(t, w)
	was, _ := w.x.store.Slice(10)
	disk.writing(w, 10)
	w.lists(20)
	w.epoch++
	w.lists(10, 20)
	disk.free()
	w.settles([]index.CopyID{10, 20})
	if is, _ := w.x.store.Slice(10); is != was {
		t.Error("the newest list wants the copy as it was, and it was dropped and made anew")
	}
	w.serves(10, 20)
}

// TestRejectedListIsNotStored checks that nothing is stored of a list that cannot be applied.
func TestRejectedListIsNotStored(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	w.lists(10)
	w.mu.Lock()
	w.revision++
	d := w.definitionsLocked()
	d.Buckets = append(d.Buckets, wire.Bucket{Name: "good", UUID: "x", VBuckets: 4, Generation: 1},
		wire.Bucket{Name: "bad", UUID: "x", Generation: 1})
	w.mu.Unlock()
	if _, err := w.admin.Definitions(t.Context(), w.endpoint.Admin, d); err == nil {
		t.Error("a bucket without vbuckets is taken over")
	}
	w.lists(10) // shows what is in force
	stored, _, err := newKeptList(w.x.cfg.Dir).load()
	if err != nil || len(stored.Buckets) != 1 || len(w.x.allBuckets()) != 1 {
		t.Errorf("stored: %d buckets, %v; here: %d", len(stored.Buckets), err, len(w.x.allBuckets()))
	}
}

// heldLog is a log that blocks a caller with a certain message, and keeps all errors.
type heldLog struct {
	hclog.Logger
	said   string // the beginning of that message
	begun  chan struct{}
	goOn   chan struct{}
	mu     *sync.Mutex
	errors *[]string
}

func newHeldLog(said string) *heldLog {
	return &heldLog{Logger: hclog.NewNullLogger(), said: said, begun: make(chan struct{}, 1), goOn: make(chan struct{}),
		mu: &sync.Mutex{}, errors: &[]string{}}
}

func (l *heldLog) Warn(msg string, _ ...any) {
	if l.said != "" && strings.HasPrefix(msg, l.said) {
		wake(l.begun)
		<-l.goOn
	}
}

func (l *heldLog) Error(msg string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	*l.errors = append(*l.errors, msg+" "+fmt.Sprint(args...))
}

func (l *heldLog) With(...any) hclog.Logger  { return l }
func (l *heldLog) Named(string) hclog.Logger { return l }

// TestNewCopyIsVisibleOnceTheOldIsRemoved gives a copy's id to another index, and while the old copy is being
// removed sends another list that wants the same. Scans then see the new copy.
func TestNewCopyIsVisibleOnceTheOldIsRemoved(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := newHeldLog("copy belongs to another index")
	w.tweak = func(c *Config) { c.Logger = l }
	build(t, w)
	done := make(chan struct{})
	go func() { defer close(done); w.listsAs(another) }()
	<-l.begun
	w.listsAs(func(d *wire.Definitions) { another(d); d.Managers = append(d.Managers, d.Managers...) })
	close(l.goOn)
	<-done
	w.servesAnother()
}

// TestUnwantedCopyCausesNoError sends a list without a bucket while that bucket adds a copy. It is no error
// that this is no longer possible.
func TestUnwantedCopyCausesNoError(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	disk, l := newStuck(w), newHeldLog("")
	tweak := w.tweak
	w.tweak = func(c *Config) { tweak(c); c.Logger = l }
	build(t, w)
	disk.hang(w, "30/incoming")
	w.lists(10, 20, 30)
	<-disk.begun
	w.listsNoBucket()
	disk.free()
	w.until("settled", func() bool { return len(w.x.places.busy()) == 0 })
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range *l.errors {
		if strings.HasPrefix(e, "copy cannot be made") {
			t.Error(e)
		}
	}
}

// TestNewListEndsPauses checks that a list that wants what could not be made ends the pause before the next
// try, but does not disturb work in progress.
func TestNewListEndsPauses(t *testing.T) {
	p := newPlaces(time.Hour)
	aim := func() { p.aimLocked(1, &target{want: &core.Wanted{Index: &index.Definition{ID: 1}}}) }
	aim()
	one := p.active[1]
	aim()
	select {
	case <-one.news:
	default:
		t.Error("it rests on")
	}
	p.next(one)
	aim()
	select {
	case <-one.news:
		t.Error("what is being done is begun again")
	default:
	}
}

// another replaces the first index of a list with another one under the same id, and so with the same ids of copies.
func another(d *wire.Definitions) {
	for i := range d.Indexes {
		if d.Indexes[i].ID == 1 {
			d.Indexes[i].CreatedMS, d.Indexes[i].Name = 77, "another"
		}
	}
}

// servesAnother waits until the copies are those of the index that another makes, and checks scans of them.
func (w *world) servesAnother() {
	w.t.Helper()
	w.until("the one that is wanted is here", func() bool {
		s, here := w.x.store.Slice(10)
		return here && s.Meta().CreatedMS == 77
	})
	w.settles([]index.CopyID{10, 20})
	w.write(docs(50, 120, 7)...)
	w.serves(10, 20)
}
