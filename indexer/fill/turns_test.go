package fill

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"hash/crc32"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/fxamacker/cbor/v2"
	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/indexer/health"
	"tidemark/indexer/storage"
	"tidemark/indexer/storage/storagetest"
	"tidemark/indexer/transfer"
	"tidemark/internal/rpc"
)

const testTimeout = time.Minute

// until waits until a condition holds.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(testTimeout); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", testTimeout, what)
		}
	}
}

// offersOnce lets a filler send requests to node 4, which offers a file of a copy to the first request, and nothing
// else.
func offersOnce(t *testing.T, f *Filler, of *storage.Slice) {
	t.Helper()
	said, err := json.Marshal(about{Meta: of.Meta(), Format: storage.ExportFormat, Source: "s", Generation: 3,
		RollbackID: 5})
	if err != nil {
		t.Fatal(err)
	}
	offer, err := cbor.Marshal(&transfer.Offer{ID: "1", About: said,
		Files: []transfer.File{{Name: "CHECKPOINT", Size: 1}}})
	if err != nil {
		t.Fatal(err)
	}
	sum := crc32.Checksum(offer, crc32.MakeTable(crc32.Castagnoli))
	var offered atomic.Bool
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == transfer.Path && !offered.Swap(true) {
			_, _ = w.Write(append(binary.BigEndian.AppendUint32(nil, sum), offer...))
			return
		}
		rpc.WriteProblem(w, rpc.Refuse(errcode.NotFound, "no copy of the slice is here"))
	}))
	t.Cleanup(s.Close)
	asksOf(t, f, strings.TrimPrefix(s.URL, "http://"))
}

// TestFillOnAHungDisk checks that other copies are filled while the disk of one hangs, that the node's health
// reports it until the disk continues, and that this fill is completed, too.
func TestFillOnAHungDisk(t *testing.T) {
	goOn, begun := make(chan struct{}), make(chan struct{})
	free, begin := sync.OnceFunc(func() { close(goOn) }), sync.OnceFunc(func() { close(begun) })
	in := filepath.Join("20", "incoming")
	f, k, _ := runningOn(t, errorfs.Wrap(vfs.Default, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if strings.HasSuffix(op.Path, in) && op.Kind == errorfs.OpMkdirAll {
			begin()
			<-goOn
		}
		return nil
	})))
	var ahead atomic.Int64
	f.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	hangs, next := created(t, f.Store, 20), created(t, f.Store, 21)
	offersOnce(t, f, hangs)
	ctx, end := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer end()
	defer free()
	if err := f.Take(ctx, k, hangs, []index.NodeID{4}); err != nil {
		t.Fatal(err)
	}
	all.Go(func() { _ = f.Run(ctx) })
	all.Go(func() { _ = f.Watch(ctx) })
	<-begun
	if err := f.Take(ctx, k, next, []index.NodeID{4}); err != nil {
		t.Fatal(err)
	}
	ahead.Store(int64(health.Hangs + time.Second))
	until(t, "the other copy is left to KV, as no indexer has files of it", func() bool { return !f.filling(next) })
	if why := f.Health.First(); !strings.HasPrefix(why, "filling copy 20: creating the folder for received files") {
		t.Errorf("what is wrong: %q", why)
	}
	if !f.filling(hangs) {
		t.Error("what becomes of the copy whose disk hangs is decided")
	}
	free()
	until(t, "the copy is left to KV, as its file is not sent", func() bool { return !f.filling(hangs) })
	if why := f.Health.First(); why != "" {
		t.Errorf("what is wrong when nothing hangs: %q", why)
	}
}

// TestHungFillsAreBounded checks that each copy whose disk hangs lets one more be filled, up to a bound; a copy
// that has waited too long has no turn, and counts towards the bound.
func TestHungFillsAreBounded(t *testing.T) {
	st, _ := storagetest.Open(t)
	now := time.Unix(1000, 0)
	f := New(Options{Registry: prometheus.NewRegistry(), Health: &health.Health{}, Log: hclog.NewNullLogger(),
		Now: func() time.Time { return now }})
	var under []*fill
	takes := func(want bool) {
		t.Helper()
		below, o, _ := f.next(t.Context())
		if (o != nil) != want {
			t.Fatalf("with %d under way one more is taken: %v, want %v", len(under), o != nil, want)
		}
		if o == nil {
			return
		}
		t.Cleanup(o.cancel)
		f.begins(o, "writing")
		if under = append(under, o); below.Err() != nil {
			t.Error("it has ended before it begins")
		}
	}
	const most = mostHung + atOnce
	for id := range index.CopyID(most + 3) {
		f.add(nil, created(t, st, 20+id), nil)
	}
	for range most {
		takes(true)
		takes(false) // this copy has the turn
		now = now.Add(health.Hangs)
		f.hung(now)
		takes(false) // it may be slow
		now = now.Add(1)
		f.hung(now)
	}
	takes(false) // the bound is reached
	f.ended(under[0])
	takes(true)
	if f.ended(under[1]); f.turn != under[most] {
		t.Error("one that hung has taken the turn of another with it")
	}
	takes(false)
	f.begins(under[2], "")
	if n := len(f.Health.All()); n != most-1 {
		t.Errorf("%d are said to hang, want %d", n, most-1)
	}
	now = now.Add(fillPatience + 1)
	if late := f.expire(now, 0); late != 2 {
		t.Errorf("%d have waited too long, want 2", late)
	}
	takes(true)
	takes(false)
}

// TestWaitingInstallationIsNotAHungDisk checks that a fill that waits for its copy to leave the bucket is not
// reported as one whose disk hangs, and keeps its turn for fillPatience; then the next copy is filled.
func TestWaitingInstallationIsNotAHungDisk(t *testing.T) {
	f, k, source := running(t)
	storagetest.FlushAt(t, source, 7, 50)
	begun, goOn := make(chan struct{}), make(chan struct{})
	f.Orphan = func(id index.CopyID) bool { // the bucket's loop calls it before the files are installed
		if id == 20 {
			close(begun)
			<-goOn
		}
		return false
	}
	var all sync.WaitGroup
	f.sender.Spawn = func(run func(context.Context) error) { all.Go(func() { _ = run(t.Context()) }) }
	s := httptest.NewServer(rpc.HandlerFunc(f.sender.Serve))
	defer s.Close()
	asksOf(t, f, strings.TrimPrefix(s.URL, "http://"))
	if err := f.Take(t.Context(), k, source, nil); err != nil {
		t.Fatal(err)
	}
	if err := f.Take(t.Context(), k, created(t, f.Store, 20), []index.NodeID{4}); err != nil {
		t.Fatal(err)
	}
	below, o, _ := f.next(t.Context())
	var err error
	all.Go(func() { _, err = f.fill(below, o) })
	<-begun
	f.hung(f.Now().Add(health.Hangs + time.Minute))
	if why := f.Health.First(); why != "" || f.turn != o {
		t.Errorf("it has its turn: %v, and is reported: %q", f.turn == o, why)
	}
	f.add(k, created(t, f.Store, 21), nil)
	f.hung(f.Now().Add(fillPatience + time.Minute))
	if why := f.Health.First(); why != "" {
		t.Errorf("it is reported: %q", why)
	}
	if _, next, _ := f.next(t.Context()); next == nil || f.turn != next || next.id() != 21 {
		t.Errorf("after %v the next copy is not filled", fillPatience)
	} else {
		defer next.cancel()
	}
	close(goOn)
	all.Wait()
	if o.cancel(); err != nil {
		t.Error(err)
	}
}
