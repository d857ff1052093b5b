package feed_test

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/couchbase/gocbcore/v10"
	"github.com/couchbase/gocbcore/v10/memd"
	"github.com/couchbase/gomemcached"
	memcached "github.com/couchbase/gomemcached/client"
	"github.com/couchbase/goutils/logging"

	"tidemark/kv"
	"tidemark/kv/kvclient"
	"tidemark/kv/mcbp"
	"tidemark/projector/feed"
)

// preloadEnv makes the test binary an embedded KV node with documents in a process of its own, so that its CPU time
// does not count as the consumer's.
const preloadEnv = "TIDEMARK_FEED_PRELOAD"

const rivalWindow = feed.DefaultBufferBytes // the same flow-control window for all

var documents = flag.Int("documents", 100_000, "how many documents the rivals consume")

// preloadIfAsked runs the node until its standard input ends.
func preloadIfAsked() bool {
	var size, vbuckets, count int
	var dir string
	if _, err := fmt.Sscan(os.Getenv(preloadEnv), &size, &vbuckets, &count, &dir); err != nil {
		return false
	}
	if err := preload(size, vbuckets, count, dir); err != nil {
		fmt.Println("error", err)
	}
	return true
}

func preload(size, vbuckets, count int, dir string) error {
	n, err := kv.Open(kv.Config{NodeID: "kv1", Dir: dir, Listen: "127.0.0.1:0", Admin: "127.0.0.1:0", User: kvUser,
		Password: kvPassword,
		Nodes:    []kv.Peer{{ID: "kv1", Memcached: "127.0.0.1:0", Admin: "127.0.0.1:0"}},
		Buckets:  []kv.BucketConfig{{Name: kvBucket, UUID: "0123456789abcdef0123456789abcdef", VBuckets: vbuckets}}})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- n.Run(ctx) }()
	c, err := kvclient.Connect(ctx, []string{n.MemcachedAddr()}, kvclient.Options{User: kvUser, Password: kvPassword,
		Bucket: kvBucket})
	if err != nil {
		return err
	}
	value := []byte(`{"v":"` + strings.Repeat("x", size-8) + `"}`)
	i := 0
	_, err = c.Load(ctx, func() (string, []byte, bool, error) {
		i++
		return fmt.Sprintf("document-%06d", i), value, i <= count, nil
	}, nil)
	if err == nil {
		err = c.Close()
	}
	if err != nil {
		return err
	}
	fmt.Println(n.MemcachedAddr())
	_, _ = io.Copy(io.Discard, os.Stdin)
	cancel()
	return <-ended
}

// startPreloaded starts the node's process and returns its address.
func startPreloaded(b *testing.B, size, vbuckets, count int) string {
	b.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d %d %d %s", preloadEnv, size, vbuckets, count, b.TempDir()))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = in.Close(); _ = cmd.Wait() })
	addr, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || strings.HasPrefix(addr, "error") {
		b.Fatal(addr, err)
	}
	return strings.TrimSpace(addr)
}

// span is a vbucket's stream from 0 to its end.
type span struct {
	vb  uint16
	end uint64
}

// consumer reads spans over one connection and every key and value in them.
type consumer struct {
	name    string
	connect func(b *testing.B, addr string, spans []span) (take func() (seen, bytes int), done func())
}

// BenchmarkAgainstRivals measures the CPU time of three consumers in turn: the same documents, the same flow-control
// window, without the node's process and connection setup. The kernel's part, mostly the copy out of the socket, is
// the same for all that read large pieces; so the user part is reported besides the total.
func BenchmarkAgainstRivals(b *testing.B) {
	for _, size := range []int{128, 1024} {
		for _, vbuckets := range []int{64, 1024} {
			for _, connections := range []int{1, 8} {
				b.Run(fmt.Sprintf("%dB/%dvb/%dconn", size, vbuckets, connections),
					func(b *testing.B) { againstRivals(b, size, vbuckets, connections) })
			}
		}
	}
}

func againstRivals(b *testing.B, size, vbuckets, connections int) {
	compare(b, startPreloaded(b, size, vbuckets, *documents), connections, *documents, func(who string, seen, bytes int) {
		if seen != *documents || bytes < *documents*size {
			b.Fatalf("%s: %d of %d documents, %d bytes", who, seen, *documents, bytes)
		}
	})
}

// BenchmarkStreams measures the CPU time of a stream without data: the request, the failover log, BEGIN and END.
func BenchmarkStreams(b *testing.B) {
	for _, connections := range []int{1, 8} {
		b.Run(fmt.Sprintf("%dconn", connections), func(b *testing.B) {
			compare(b, startPreloaded(b, 128, 1024, 0), connections, 1024, func(who string, seen, _ int) {
				if seen != 0 {
					b.Fatalf("%s: %d documents of an empty bucket", who, seen)
				}
			})
		})
	}
}

// compare lets each consumer read all of the node twice and measures the second time; figures are per unit, of which
// a pass has so many.
func compare(b *testing.B, addr string, connections, units int, check func(who string, seen, bytes int)) {
	c := dial(b, feed.Config{Addr: addr, Bucket: kvBucket, User: kvUser, Password: kvPassword, Name: "ends"})
	all, err := c.HighSeqnos(within(b, time.Minute))
	if err != nil {
		b.Fatal(err)
	}
	_ = c.Close()
	shares := make([][]span, connections)
	for i, h := range all {
		shares[i%connections] = append(shares[i%connections], span{h.VBucket, h.Seqno})
	}
	consumers := []consumer{{"native", native}, {"gocbcore", bareGocbcore}, {"gomemcached", gomem}}
	type cost struct {
		user, all time.Duration
		allocs    uint64
	}
	used := make([]cost, len(consumers))
	passes := 0
	for b.Loop() {
		passes++
		for i, who := range consumers {
			take, done := whole(b, who, addr, shares)
			take()       // to the steady state
			runtime.GC() // no consumer pays for another's garbage
			user, all, made := userCPU(), cpu(), mallocs()
			seen, bytes := take()
			used[i].user += userCPU() - user
			used[i].all += cpu() - all
			used[i].allocs += mallocs() - made
			done()
			check(who.name, seen, bytes)
		}
	}
	per := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / float64(passes*units) }
	for i, who := range consumers {
		b.ReportMetric(per(used[i].all), who.name+"-cpu-ns")
		b.ReportMetric(per(used[i].user), who.name+"-user-ns")
		b.ReportMetric(float64(used[i].allocs)/float64(passes*units), who.name+"-allocs")
		if i > 0 {
			b.ReportMetric(per(used[i].all)/per(used[0].all), who.name+"/native")
			b.ReportMetric(per(used[i].user)/per(used[0].user), who.name+"/native-user")
		}
	}
	b.ReportMetric(0, "ns/op")
}

// whole is a consumer with a connection for each share, all concurrent.
func whole(b *testing.B, who consumer, addr string, shares [][]span) (take func() (seen, bytes int), done func()) {
	var takes []func() (int, int)
	var ends []func()
	for _, spans := range shares {
		take, end := who.connect(b, addr, spans)
		takes, ends = append(takes, take), append(ends, end)
	}
	return func() (int, int) {
			var seen, bytes atomic.Int64
			var all sync.WaitGroup
			for _, take := range takes {
				all.Go(func() {
					s, n := take()
					seen.Add(int64(s))
					bytes.Add(int64(n))
				})
			}
			all.Wait()
			return int(seen.Load()), int(bytes.Load())
		}, func() {
			for _, end := range ends {
				end()
			}
		}
}

func mallocs() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.Mallocs
}

// Sizes of BenchmarkQueued.
const (
	queuedDocuments = 100_000
	queuedSize      = 1024
	queuedVBuckets  = 64
	// queuedWindow is larger than all documents together, so that flow control does not limit them.
	queuedWindow = 256 << 20
	// gocbQueue is the number of events that the feed on gocbcore queues before it blocks gocbcore, whatever the window.
	gocbQueue = 16 << 10
)

// BenchmarkQueued measures the memory of 100,000 queued mutations of 1 KiB, by the growth of the process, for each
// feed. The native feed then holds all of them; the other one holds the 16,384 events that it may queue, and gocbcore
// as much as fits into its part of the window (2 MiB). The number of queued documents is counted afterwards.
func BenchmarkQueued(b *testing.B) {
	addr := startPreloaded(b, queuedSize, queuedVBuckets, queuedDocuments)
	for _, i := range implementations {
		b.Run(i.name, func(b *testing.B) {
			for b.Loop() {
				debug.FreeOSMemory()
				before := resident(b)
				c := dialWith(b, i.dial, feed.Config{Addr: addr, Bucket: kvBucket, User: kvUser, Password: kvPassword,
					Name: fmt.Sprint("queued", time.Now().UnixNano()), BufferBytes: queuedWindow})
				streams := openAll(b, c)
				queued(b, c, i.name == "native", streams)
				b.ReportMetric(float64(resident(b)-before)/(1<<20), "MiB")
				b.ReportMetric(float64(c.Held())/(1<<20), "MiB-held")
				b.ReportMetric(float64(waiting(b, c, i.name == "native", streams)), "documents")
				_ = c.Close()
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// openAll requests everything of each vbucket, and returns the number of streams.
func openAll(b *testing.B, c feed.Feed) int {
	b.Helper()
	all, err := c.HighSeqnos(within(b, time.Minute))
	if err != nil {
		b.Fatal(err)
	}
	reqs := make([]feed.StreamRequest, len(all))
	for i, h := range all {
		reqs[i] = feed.StreamRequest{VBucket: h.VBucket, End: h.Seqno}
	}
	for _, a := range c.OpenStreams(within(b, time.Minute), reqs) {
		if a.Err != nil {
			b.Fatal(a.Err)
		}
	}
	return len(all)
}

// queued waits until everything that may wait does: with the native feed every byte that the node sends, with the
// other one as many events as may wait, of which at most four for each stream are not documents.
func queued(b *testing.B, c feed.Feed, native bool, streams int) {
	b.Helper()
	const document = mcbp.HeaderSize + 31 + len("?document-000001") + queuedSize // as counted by the node
	const marker, end = mcbp.HeaderSize + 20, mcbp.HeaderSize + 4
	least, most := (gocbQueue-4*streams)*document, gocbQueue*document
	if native {
		least = queuedDocuments*document + streams*(marker+end)
		most = least
	}
	eventually(b, "all that may wait waits", func() bool { return c.Held() >= int64(least) })
	if held := c.Held(); held > int64(most) {
		b.Fatalf("%d bytes wait, %d at most may", held, most)
	}
}

// waiting counts the queued documents.
func waiting(b *testing.B, c feed.Feed, native bool, streams int) (documents int) {
	b.Helper()
	for ends := 0; ends < streams; {
		block, err := c.Next(within(b, time.Minute))
		if err != nil {
			b.Fatal(err)
		}
		for i := range block.Events {
			switch block.Events[i].Kind {
			case feed.Mutation:
				documents++
			case feed.StreamEnd:
				ends++
			}
		}
		if !native { // the next block only contains later events
			return documents
		}
	}
	if documents != queuedDocuments {
		b.Fatalf("%d documents waited, want %d", documents, queuedDocuments)
	}
	return documents
}

// resident returns the process's resident memory.
func resident(b *testing.B) int64 {
	b.Helper()
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		b.Skip("no /proc here")
	}
	var size, pages int64
	if _, err := fmt.Sscan(string(text), &size, &pages); err != nil {
		b.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}

// userCPU returns the process's user time.
func userCPU() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano())
}

func native(b *testing.B, addr string, spans []span) (take func() (seen, bytes int), done func()) {
	c, err := feed.Dial(within(b, time.Minute), feed.Config{Addr: addr, Bucket: kvBucket, User: kvUser,
		Password: kvPassword, Name: fmt.Sprint("native", time.Now().UnixNano()), BufferBytes: rivalWindow})
	if err != nil {
		b.Fatal(err)
	}
	return func() (seen, bytes int) {
		track := make([]feed.Tracker, len(spans)+1)
		first := c.NewStreamID() // ids rise by one
		ctx := within(b, 10*time.Minute)
		for i := range spans {
			track[i+1] = feed.NewTracker(feed.Position{})
		}
		opened := make(chan error, 1)
		go func() { // concurrently, as the projector does; blocks are taken meanwhile, as with the others
			reqs := make([]feed.StreamRequest, len(spans))
			for i, sp := range spans {
				reqs[i] = feed.StreamRequest{VBucket: sp.vb, ID: c.NewStreamID(), End: sp.end}
			}
			var all error
			for _, a := range c.OpenStreams(ctx, reqs) {
				all = errors.Join(all, a.Err)
			}
			opened <- all
		}()
		for open := len(spans); open > 0; {
			block, err := c.Next(ctx)
			if err != nil {
				b.Fatal(err)
			}
			for i := range block.Events {
				e := &block.Events[i]
				if _, err := track[e.Stream-first].Observe(e); err != nil {
					b.Fatal(err)
				}
				switch e.Kind {
				case feed.Mutation:
					seen++
					bytes += len(e.Key) + len(e.Value)
				case feed.StreamEnd:
					open--
				}
			}
			block.Release()
		}
		if err := <-opened; err != nil {
			b.Fatal(err)
		}
		return seen, bytes
	}, func() { _ = c.Close() }
}

// gocbObserver counts events.
type gocbObserver struct {
	seen, bytes atomic.Int64
	ended       chan error
}

func (o *gocbObserver) SnapshotMarker(gocbcore.DcpSnapshotMarker) {}
func (o *gocbObserver) Mutation(m gocbcore.DcpMutation) {
	o.seen.Add(1)
	o.bytes.Add(int64(len(m.Key) + len(m.Value)))
}
func (o *gocbObserver) Deletion(gocbcore.DcpDeletion)                       {}
func (o *gocbObserver) Expiration(gocbcore.DcpExpiration)                   {}
func (o *gocbObserver) End(_ gocbcore.DcpStreamEnd, err error)              { o.ended <- err }
func (o *gocbObserver) CreateCollection(gocbcore.DcpCollectionCreation)     {}
func (o *gocbObserver) DeleteCollection(gocbcore.DcpCollectionDeletion)     {}
func (o *gocbObserver) FlushCollection(gocbcore.DcpCollectionFlush)         {}
func (o *gocbObserver) CreateScope(gocbcore.DcpScopeCreation)               {}
func (o *gocbObserver) DeleteScope(gocbcore.DcpScopeDeletion)               {}
func (o *gocbObserver) ModifyCollection(gocbcore.DcpCollectionModification) {}
func (o *gocbObserver) OSOSnapshot(gocbcore.DcpOSOSnapshot)                 {}
func (o *gocbObserver) SeqNoAdvanced(gocbcore.DcpSeqNoAdvanced)             {}

func bareGocbcore(b *testing.B, addr string, spans []span) (take func() (seen, bytes int), done func()) {
	agent, err := gocbcore.CreateDcpAgent(&gocbcore.DCPAgentConfig{
		BucketName: kvBucket,
		SeedConfig: gocbcore.SeedConfig{MemdAddrs: []string{addr}},
		SecurityConfig: gocbcore.SecurityConfig{
			Auth:           gocbcore.PasswordAuthProvider{Username: kvUser, Password: kvPassword},
			AuthMechanisms: []gocbcore.AuthMechanism{gocbcore.ScramSha512AuthMechanism},
		},
		IoConfig:         gocbcore.IoConfig{UseCollections: true},
		DCPConfig:        gocbcore.DCPConfig{BufferSize: rivalWindow},
		EnableCCCPPoller: true,
	}, fmt.Sprint("gocbcore", time.Now().UnixNano()), memd.DcpOpenFlagProducer)
	if err != nil {
		b.Fatal(err)
	}
	ready := make(chan error, 1)
	if _, err = agent.WaitUntilReady(time.Now().Add(10*time.Second),
		gocbcore.WaitUntilReadyOptions{ServiceTypes: []gocbcore.ServiceType{gocbcore.MemdService}},
		func(_ *gocbcore.WaitUntilReadyResult, err error) { ready <- err }); err == nil {
		err = <-ready
	}
	if err != nil {
		b.Fatal(err)
	}
	return func() (seen, bytes int) {
		o := &gocbObserver{ended: make(chan error, len(spans))}
		opened := make(chan error, len(spans))
		for _, sp := range spans {
			vb, end := sp.vb, sp.end
			_, err := agent.OpenStream(vb, memd.DcpStreamAddFlagActiveOnly, 0, 0, gocbcore.SeqNo(end), 0, 0, o,
				gocbcore.OpenStreamOptions{},
				func(_ []gocbcore.FailoverEntry, err error) { opened <- err })
			if err != nil {
				b.Fatal(err)
			}
		}
		for range spans {
			if err := errors.Join(<-opened, <-o.ended); err != nil {
				b.Fatal(err)
			}
		}
		return int(o.seen.Load()), int(o.bytes.Load())
	}, func() { _ = agent.Close() }
}

func gomem(b *testing.B, addr string, spans []span) (take func() (seen, bytes int), done func()) {
	logging.SetLogger(nil) // it logs every stream
	c, err := memcached.Connect("tcp", addr)
	if err == nil {
		_, err = c.AuthScramSha(kvUser, kvPassword)
	}
	if err == nil {
		_, err = c.SelectBucket(kvBucket)
	}
	if err == nil {
		_, err = c.EnableFeatures(memcached.Features{memcached.FeatureXattr, memcached.FeatureCollections,
			memcached.FeatureXerror, memcached.FeatureDataType})
	}
	if err != nil {
		b.Fatal(err)
	}
	upr, err := c.NewUprFeed()
	if err == nil {
		err, _ = upr.UprOpenWithFeatures(fmt.Sprint("gomemcached", time.Now().UnixNano()), 0, rivalWindow,
			memcached.UprFeatures{})
	}
	if err == nil {
		err = upr.StartFeedWithConfig(1024) // larger than its default of 10: fewer switches between goroutines
	}
	if err != nil {
		b.Fatal(err)
	}
	return func() (seen, bytes int) {
		for _, sp := range spans {
			vb, end := sp.vb, sp.end
			if err := upr.UprRequestStream(vb, vb, 0, 0, 0, end, 0, 0); err != nil {
				b.Fatal(err)
			}
		}
		for open := len(spans); open > 0; {
			e, ok := <-upr.C
			if !ok {
				b.Fatal(upr.GetError())
			}
			switch e.Opcode {
			case gomemcached.UPR_MUTATION:
				seen++
				bytes += len(e.Key) + len(e.Value)
			case gomemcached.UPR_STREAMEND:
				open--
			}
		}
		return seen, bytes
	}, func() { upr.Close(); _ = c.Close() }
}
