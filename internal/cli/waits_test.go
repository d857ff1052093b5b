package cli

import (
	"bytes"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"tidemark/manager/api/v1"
)

func table(print func(w *tabwriter.Writer)) string {
	var b bytes.Buffer
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	print(w)
	_ = w.Flush()
	return b.String()
}

// TestTimestampsShowDelays checks that the output shows the indexers that the next timestamp waits for, the others and
// why, the vbuckets that do not advance, and that the bucket must be rolled back.
func TestTimestampsShowDelays(t *testing.T) {
	since := time.Date(2026, 11, 21, 10, 20, 30, 0, time.Local).UnixMilli()
	out := table(func(w *tabwriter.Writer) {
		tableTimestamps(w, &v1.Timestamps{Bucket: "world", AgeMS: new(int64(4200)), Source: "sync", Waiting: 3,
			HoldingCount: 40,
			Diverged:     "vbucket 7: holds 15, KV's branch has 12",
			Indexers: []v1.Participant{{Name: "i1", Acked: 5, Behind: 4, SinceMS: since, Holds: true},
				{Name: "i2", Acked: 1, Behind: 8, SinceMS: since, Ignored: "silent"},
				{Name: "i3", Acked: 9}},
			Holding: []v1.StreamInfo{{VBucket: 9, State: "requested", SinceMS: since, Reason: "waiting for BEGIN"}},
		}, false)
	})
	for _, want := range []string{"i1       5      4       10:20:30  holds the next one back",
		"i2       1      8       10:20:30  not waited for: silent",
		"i3       9      0       -         counts", "40 vbuckets have no stream, 1 of them:",
		"since 10:20:30  waiting for BEGIN", "3 scans wait for the next one",
		"has to be rolled back: vbucket 7: holds 15, KV's branch has 12"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
	if out = table(func(w *tabwriter.Writer) {
		tableTimestamps(w, &v1.Timestamps{Bucket: "world", Number: 7},
			false)
	}); !strings.Contains(out, "stability #7 of an unknown time ago") {
		t.Errorf("an unknown age is shown:\n%s", out)
	}
	out = table(func(w *tabwriter.Writer) {
		tableStreams(w, []v1.StreamInfo{{Bucket: "world", VBucket: 1, State: "begun"},
			{Bucket: "world", VBucket: 2, State: "lost", Owner: "p2", SinceMS: since,
				Reason: "its projector is silent"}}, false)
	})
	if !strings.Contains(out, "10:20:30  its projector is silent") || strings.Contains(out, "begun") {
		t.Errorf("streams:\n%s", out)
	}
}
