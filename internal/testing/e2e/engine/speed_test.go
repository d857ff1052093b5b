package engine

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"tidemark/client"
	"tidemark/internal/testing/e2e/harness"
	"tidemark/internal/testing/tracingtest"
	"tidemark/kv/kvclient"
	"tidemark/projector/feed"
)

var (
	speedDocuments = flag.Int("speed.documents", 200_000, "documents of the bucket in which BenchmarkBuild builds indexes")
	speedVBuckets  = flag.Int("speed.vbuckets", 1024, "its vbuckets")
	speedIndexers  = flag.Int("speed.indexers", 2, "indexers that its indexes are built on")
	speedTraced    = flag.Bool("speed.traced", false, "show the trace of each build")
)

// BenchmarkBuild builds the first index of a full bucket, from CREATE INDEX until it is ready: with an engine, with
// the embedded KV, and with the embedded KV with backfills like an engine's. Before and after each build a bare DCP
// client reads the same documents over one connection; "of-bare" is the build's rate as a fraction of the client's,
// "reads" is how many times KV has sent each document. Bars: 0.6; 1.1, with any number of indexers.
func BenchmarkBuild(b *testing.B) {
	for _, kv := range []struct {
		name  string
		start func(ctx context.Context, w *cluster) (addr string)
	}{
		{"engine", func(ctx context.Context, w *cluster) string {
			w.engine(ctx, *speedVBuckets)
			return w.addr()
		}},
		{"embedded", func(_ context.Context, w *cluster) string { return w.embedded("") }},
		{"embedded-slow", func(_ context.Context, w *cluster) string { return w.embedded("pauses") }},
	} {
		for _, feed := range []string{"native", "gocbcore"} {
			b.Run(kv.name+"/"+feed, func(b *testing.B) {
				ctx := b.Context()
				w := emptyCluster(b)
				if *speedTraced {
					w.spans = tracingtest.New(b)
					b.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", w.spans.URL)
					b.Setenv("OTEL_BSP_SCHEDULE_DELAY", "200") // ms
				}
				addr := kv.start(ctx, w)
				w.product(ctx, addr, feed)
				for n := 3; n <= *speedIndexers; n++ {
					w.indexer(n)
				}
				w.pad = `,"pad":"` + strings.Repeat("x", 1000) + `"`
				next := 0
				if _, err := w.kv.Load(ctx, func() (string, []byte, bool, error) {
					next++
					return key(next), fmt.Appendf(nil, `{"n":%d%s}`, next, w.pad), next <= *speedDocuments, nil
				}, nil); err != nil {
					b.Fatal(err)
				}
				w.stored(ctx, addr)
				w.builds(ctx, b, addr)
			})
		}
	}
}

// builds runs the measurements.
func (w *cluster) builds(ctx context.Context, b *testing.B, addr string) {
	var bare, built time.Duration
	cpu := map[string]time.Duration{}
	reads := 0.0
	before := w.bare(ctx, addr)
	for round := range b.N {
		name := fmt.Sprint("made", round)
		read, idle, began := w.read(ctx), w.processorTime(), time.Now()
		traced, trace := tracingtest.Begin(ctx)
		harness.Create(traced, b, w.client, fmt.Sprintf(statement, name))
		took := time.Since(began)
		for role, d := range w.processorTime() {
			cpu[role] += d - idle[role]
		}
		reads += w.read(ctx) - read
		if err := w.client.Drop(ctx, client.Ref(bucket, name), 0); err != nil {
			b.Fatal(err)
		}
		after := w.bare(ctx, addr)
		b.Logf("round %d: built in %v, read in %v and %v", round, took, before, after)
		if w.spans != nil {
			b.Log(tracingtest.Timeline(w.spans.Trace(trace))) // the build ended before the bare read: its spans are here
		}
		built, bare, before = built+took, bare+(before+after)/2, after
	}
	for role, d := range cpu {
		b.ReportMetric(d.Seconds()/float64(b.N), role+"-cpu-s")
	}
	b.ReportMetric(reads/float64(b.N**speedDocuments), "reads")
	rate := func(d time.Duration) float64 { return float64(b.N**speedDocuments) / d.Seconds() }
	b.ReportMetric(rate(built), "docs/s")
	b.ReportMetric(rate(bare), "bare-docs/s")
	b.ReportMetric(bare.Seconds()/built.Seconds(), "of-bare")
}

// read returns how many versions of documents the projector has received from KV.
func (w *cluster) read(ctx context.Context) (n float64) {
	w.t.Helper()
	status, page := harness.Get(ctx, w.t, "http://"+w.at(2)+"/metrics")
	if status != http.StatusOK {
		w.t.Fatalf("no metrics of the projector: %d", status)
	}
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, "tidemark_projector_received_versions_total{") {
			v, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' ')+1:]), 64)
			if err != nil {
				w.t.Fatal(err)
			}
			n += v
		}
	}
	return n
}

// stored waits until the KV node has stored on disk what it acknowledged, if it reports that: its writes would
// otherwise compete with the measurement.
func (w *cluster) stored(ctx context.Context, addr string) {
	w.t.Helper()
	c, err := kvclient.Dial(ctx, addr, kvclient.Options{User: user, Password: password, Bucket: bucket})
	if err != nil {
		w.t.Fatal(err)
	}
	defer c.Close()
	harness.Eventually(w.t, harness.Hang, "all is stored", func() (bool, string) {
		left := "0"
		err := c.Stat(ctx, "", func(key, value []byte) {
			if name := string(key); (name == "ep_queue_size" || name == "ep_flusher_todo") && string(value) != "0" {
				left = string(value)
			}
		})
		return err == nil && left == "0", fmt.Sprint(left, " documents are not, ", err)
	})
}

// embedded starts an embedded KV node with the moods and returns its address.
func (w *cluster) embedded(moods string) string {
	w.t.Helper()
	addr := w.at(40)
	w.spawn("kv1", "kv", "--id", "kv1", "--data", filepath.Join(w.dir, "kv1"), "--memcached", addr, "--admin", w.at(41),
		"--nodes", "kv1="+addr+"="+w.at(41), "--buckets", fmt.Sprintf("%s:%s:%d", bucket, uuid, *speedVBuckets),
		"--kv-user", user, "--kv-password-file", "password", "--nasty", moods)
	return addr
}

// bare reads every document over one DCP connection, and returns how long that takes, including the dialling.
func (w *cluster) bare(ctx context.Context, addr string) time.Duration {
	w.t.Helper()
	began := time.Now()
	c, err := feed.Dial(ctx, feed.Config{Addr: addr, Bucket: bucket, User: user, Password: password,
		Name: fmt.Sprint("bare", began.UnixNano())})
	if err != nil {
		w.t.Fatal(err)
	}
	defer c.Close()
	highs, err := c.HighSeqnos(ctx)
	if err != nil {
		w.t.Fatal(err)
	}
	var all []feed.StreamRequest
	for _, h := range highs {
		all = append(all, feed.StreamRequest{VBucket: h.VBucket, End: h.Seqno})
	}
	ctx, refused := context.WithCancelCause(ctx)
	go func() {
		for _, a := range c.OpenStreams(ctx, all) {
			if a.Err != nil {
				refused(a.Err)
			}
		}
	}()
	for left := len(all); left > 0; {
		block, err := c.Next(ctx)
		if err != nil {
			w.t.Fatal(err)
		}
		for i := range block.Events {
			if block.Events[i].Kind == feed.StreamEnd {
				left--
			}
		}
		block.Release()
	}
	return time.Since(began)
}

// processorTime returns the CPU time of the processes so far, by role.
func (w *cluster) processorTime() map[string]time.Duration {
	all := map[string]time.Duration{}
	for name, p := range w.procs {
		all[strings.TrimRight(name, "0123456789")] += cpuOf(p.PID())
	}
	if w.cmd != nil {
		all["kv"] += cpuOf(w.cmd.Process.Pid)
	}
	return all
}

// cpuOf returns the CPU time of a process, 0 if it cannot be read.
func cpuOf(pid int) time.Duration {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	f := strings.Fields(rest) // from the state on: utime and stime are the 12th and 13th
	var ticks int64
	for _, v := range f[11:13] {
		n, _ := strconv.ParseInt(v, 10, 64)
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}
