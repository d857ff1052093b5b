package data

import (
	"bytes"
	"context"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"tidemark/internal/testing/e2e/harness"
	"tidemark/internal/testing/oracle"
	"tidemark/internal/testing/testcluster"
)

// largest returns the largest file that matches a pattern below dir.
func largest(t *testing.T, dir, pattern string) string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(all) == 0 {
		t.Fatalf("no file %s: %v", pattern, err)
	}
	size := func(path string) int64 {
		s, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return s.Size()
	}
	return slices.MaxFunc(all, func(a, b string) int { return int(size(a) - size(b)) })
}

// component returns the folder of the role that owns a file below dir: i1, kv2, m3.
func component(dir, path string) string {
	rel, _ := filepath.Rel(dir, path)
	return strings.Split(rel, string(filepath.Separator))[0]
}

var everyFlip = flag.Bool("flips", false, "TestFlippedBits damages every kind of file")

// TestFlippedBits flips one bit of a data file after an orderly stop. The next `up` names the file in the log of its
// role, or returns correct answers; it never panics and never returns a wrong row.
func TestFlippedBits(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	good := filepath.Join(t.TempDir(), "good")
	up := testcluster.Start(t, good, "--vbuckets", "32")
	c, bucket := up.Client(), up.Manifest().Bucket
	w := harness.NewWorkloadOf(ctx, t, up.KV(ctx), 8)
	harness.CreateSampleIndexes(ctx, t, c, bucket)
	harness.CheckFinal(ctx, t, c, w, bucket)
	up.Stop()

	at := func(share float64) func([]byte) {
		return func(b []byte) { b[int(float64(len(b)-1)*share)] ^= 0x10 }
	}
	for _, tc := range []struct {
		name, pattern string
		flip          func(b []byte)
		named         bool // the log must name the file: the damaged bytes are certainly read
		usual         bool // without -flips, too
	}{
		{"Raft log entry", "m2/raft/raft.db", func(b []byte) { // in each page that contains it
			for from := 0; ; {
				i := bytes.Index(b[from:], []byte("airports_by_country"))
				if i < 0 {
					return
				}
				b[from+i+3] ^= 0x10
				from += i + 1
			}
		}, true, true},
		{"KV log, middle", "kv1/buckets/*/log/*", at(0.5), true, true},
		{"KV log, last record", "kv2/buckets/*/log/*", func(b []byte) { b[len(b)-12] ^= 0x10 }, true, false},
		{"sstable, data", "i1/copies/*/db-*/*.sst", at(0.5), true, true},
		{"sstable, footer", "i2/copies/*/db-*/*.sst", func(b []byte) { b[len(b)-3] ^= 0x10 }, true, false},
		{"copy's META", "i1/copies/*/META", at(0.6), true, false},
		{"engine's manifest", "i3/copies/*/db-*/MANIFEST-*", at(0.7), false, false},
		{"engine's log", "i3/copies/*/db-*/*.log", at(0.5), false, false},
		{"indexer's identity", "i2/identity.json", at(0.5), false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if !tc.usual && !*everyFlip {
				t.Skip("a campaign: -flips")
			}
			dir := filepath.Join(t.TempDir(), "damaged")
			if out, err := exec.CommandContext(ctx, "cp", "-a", good, dir).CombinedOutput(); err != nil {
				t.Fatalf("cp: %v %s", err, out)
			}
			if err := os.RemoveAll(filepath.Join(dir, "logs")); err != nil {
				t.Fatal(err)
			}
			path := largest(t, dir, tc.pattern)
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			was := bytes.Clone(b)
			if len(b) > 0 {
				tc.flip(b)
			}
			if bytes.Equal(b, was) {
				t.Skipf("%s has nothing to flip (%d bytes)", path, len(b))
			}
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
			afterFlip(ctx, t, w, bucket, dir, path, tc.named)
		})
	}
}

func afterFlip(ctx context.Context, t *testing.T, w *harness.Workload, bucket, dir, path string, mustName bool) {
	t.Helper()
	who := component(dir, path)
	logged := func() string {
		b, _ := os.ReadFile(filepath.Join(dir, "logs", who+".log")) // does not exist yet
		return string(b)
	}
	line := func() string { // the first line that names the file
		for _, l := range strings.Split(logged(), "\n") {
			if (strings.Contains(l, "[ERROR]") || strings.Contains(l, "[WARN]") || strings.HasPrefix(l, "tidemark:")) &&
				strings.Contains(l, filepath.Base(path)) {
				return l
			}
		}
		return ""
	}
	up := testcluster.Launch(t, dir)
	defer up.Stop()
	ready := false
	for deadline := time.Now().Add(harness.Hang); !ready &&
		time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		ready = strings.Contains(up.Output(), "\nready;")
		if !ready && strings.HasPrefix(who, "kv") && line() != "" && strings.Contains(up.Output(), who+": ") {
			break // the role refuses to start, with a reason; the others do not serve without it
		}
	}
	answers := 0
	if ready {
		c := up.Client()
		docs := w.History.At(w.History.High())
		limit := 20 * time.Second
		if strings.Contains(up.Output(), "the others serve without "+who) {
			limit = time.Second // the role refuses to start: what only it has cannot be scanned
		} else if line() == "" {
			limit = harness.Hang // no log names the file, so scans must work
		}
		for _, name := range harness.SampleIndexes() {
			s, err := harness.ScanSoon(ctx, c, bucket, name, limit)
			if err != nil {
				t.Logf("%s: no scan in %s, the last error is %v", name, limit, err)
				continue
			}
			answers++
			want, err := oracle.Rows(name, docs)
			if err != nil {
				t.Fatal(err)
			}
			if d := oracle.Diff(want, s.Keys, s.IDs); d != "" {
				t.Errorf("%s gives a wrong answer: %s", name, d)
			}
		}
	}
	l := line()
	if (mustName || !ready || answers < len(harness.SampleIndexes())) && l == "" {
		t.Errorf("ready: %v, %d of %d indexes answer; no warning or error in the log of %s names %s", ready, answers,
			len(harness.SampleIndexes()), who, path)
	}
	if text := logged(); strings.Contains(text, "panic:") || strings.Contains(text, "goroutine 1 [") {
		t.Errorf("%s panicked: see its log", who)
	}
	t.Logf("ready: %v, %d of %d indexes answer right; %s says: %.400s", ready, answers, len(harness.SampleIndexes()), who,
		l)
}
