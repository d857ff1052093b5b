package coordinator

import (
	"bytes"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"tidemark/index"
	"tidemark/manager/coordinator/core"
	"tidemark/streams"
)

// lines is a log that a test reads.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// with returns the first line that contains text.
func (l *lines) with(text string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.b.String()) {
		if strings.Contains(line, text) {
			return line
		}
	}
	return ""
}

// TestSilentProjectorIsNamed checks that, when a projector does not answer, its vbuckets are reported as without a
// stream, each with the reason and since when, in the status, in the views and in the log; and that the log reports
// when they have streams again.
func TestSilentProjectorIsNamed(t *testing.T) {
	inWorld(t, func(w *world) {
		said := &lines{}
		w.says = hclog.New(&hclog.LoggerOptions{Output: said, Level: hclog.Info, DisableTime: true})
		w.depose()
		w.lead()
		w.components(2)
		o := w.create("a", "", 2, 0)
		w.until("READY", 10*time.Second, func() bool { return w.state(o.ID) == index.Maintenance })
		p2 := w.projectors["http://p2"]
		p2.mu.Lock()
		p2.down = true
		p2.mu.Unlock()
		p2.kill()
		began := time.Now()
		status := func() core.BucketStatus {
			s, _ := w.leader().Status()
			if len(s.Buckets) == 0 {
				return core.BucketStatus{}
			}
			return s.Buckets[0]
		}
		w.until("stuck", time.Minute, func() bool { return status().Streams.StuckCount == vbuckets/2 })
		if waited := time.Since(began); waited < 10*time.Second {
			t.Errorf("shown after %s: a vbucket that changes hands is not stuck", waited)
		}
		for i, x := range status().Streams.Stuck {
			if int(x.VBucket) != 2*i+1 || x.Reason == "" || x.ForMS < 10_000 || x.State == streams.Begun {
				t.Errorf("%+v", x)
			}
		}
		v, err := w.leader().View(w.ctx, "world")
		if err != nil || len(v.Entries) != vbuckets || len(v.Summary.Stuck) != vbuckets/2 {
			t.Fatalf("%+v, %v", v, err)
		}
		for vb := range v.Entries {
			e := &v.Entries[vb]
			if stands := vb%2 == 1; (e.State != streams.Begun) != stands || stands &&
				(e.Reason == "" || e.SinceMS < began.Add(-time.Second).UnixMilli()) {
				t.Errorf("vbucket %d: %+v", vb, e)
			}
		}
		line := said.with("vbuckets have had no stream for long")
		for _, want := range []string{"bucket=world", "how_many=", "vbucket=1", "reason=", "for_ms="} {
			if !strings.Contains(line, want) {
				t.Errorf("%q is not in the log line %q", want, line)
			}
		}
		t.Log(strings.TrimSpace(line))

		w.projector("p2") // it is restarted
		w.until("streams again", time.Minute, func() bool {
			return status().Streams.Begun == vbuckets &&
				len(status().Streams.Stuck) == 0
		})
		w.until("the log says so", time.Second, func() bool {
			return said.with("all vbuckets have streams again") != ""
		})
	})
}

// TestStreamRefusalsAreReported checks that a projector that refuses to start streams is sent the request again after
// at most some seconds, however long it has refused, and that the status shows its reason, also after another projector
// has answered that it does not host the vbuckets.
func TestStreamRefusalsAreReported(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(2)
		p2 := w.projectors["http://p2"]
		refuse := func(on bool) {
			p2.mu.Lock()
			defer p2.mu.Unlock()
			p2.refuses = on
		}
		refuse(true)
		o := w.create("a", "", 2, 0)
		status := func() core.BucketStatus {
			s, _ := w.leader().Status()
			if len(s.Buckets) == 0 {
				return core.BucketStatus{}
			}
			return s.Buckets[0]
		}
		w.until("stuck", time.Minute, func() bool { return status().Streams.StuckCount == vbuckets/2 })
		for range 50 { // at any moment
			time.Sleep(100 * time.Millisecond)
			for _, x := range status().Streams.Stuck {
				if x.State == streams.Lost && !strings.Contains(x.Reason, "p2 has no room for another bucket") {
					t.Fatalf("vbucket %d: %s", x.VBucket, x.Reason)
				}
			}
		}
		time.Sleep(34 * time.Second) // if the pause doubled with each attempt, the next one would be half a minute away
		refuse(false)
		w.until("streams", 5*time.Second, func() bool { return status().Streams.Begun == vbuckets })
		w.until("READY", 10*time.Second, func() bool { return w.state(o.ID) == index.Maintenance })
	})
}
