package cli

import (
	"bytes"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"tidemark/client"
)

// TestStatusSaysWhyItWaits: each thing that keeps a cluster from being ready is named with who, since when, and why.
func TestStatusSaysWhyItWaits(t *testing.T) {
	st := client.Status{
		Projectors: []client.ProjectorStatus{{ID: "p1", Admin: "http://p1", State: "active"},
			{ID: "p2", Admin: "http://p2", State: "offline"}},
		Indexers: []client.IndexerStatus{{ID: "i1", State: "active", Health: "copy 7: no space left on device"},
			{ID: "i2", Admin: "http://i2", State: "suspect"}},
		Buckets: []client.BucketStatus{
			{Name: "world", Wanted: true, VBuckets: 128, StreamsMissing: 64,
				Stuck: []client.StuckVBucket{{VBucket: 65, State: "lost", Reason: "no projector hosts it", ForMS: 12_400}}},
			{Name: "orders", Wanted: true, VBuckets: 128, Rollback: "prepare: waiting for indexers: i2", RollbackForMS: 2_340},
			{Name: "unused", VBuckets: 128, StreamsMissing: 128},
		},
	}
	st.Leader.ID = "m1"
	j := judge(st)
	all := strings.Join(j.Reasons, "\n")
	for _, want := range []string{
		"projector p2 at http://p2 is offline",
		"indexer i1: copy 7: no space left on device",
		"indexer i2 at http://i2 is suspect",
		"bucket world: 64 of 128 vbuckets are not streamed; vbucket 65 for 12s: no projector hosts it",
		"bucket orders is being rolled back: prepare: waiting for indexers: i2, for 2.3s",
	} {
		if !strings.Contains(all, want) {
			t.Errorf("%q is not among\n%s", want, all)
		}
	}
	if j.Verdict != verdictNotReady || strings.Contains(all, "unused") {
		t.Errorf("%s:\n%s", j.Verdict, all)
	}
}

func table(print func(w *tabwriter.Writer)) string {
	var b bytes.Buffer
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	print(w)
	_ = w.Flush()
	return b.String()
}

// TestTimestampsSayWhoHoldsThemBack: who is waited for, who is not and why, which vbuckets stand still, and that the
// bucket has to be rolled back.
func TestTimestampsSayWhoHoldsThemBack(t *testing.T) {
	since := time.Date(2026, 11, 21, 10, 20, 30, 0, time.Local).UnixMilli()
	out := table(func(w *tabwriter.Writer) {
		tableTimestamps(w, &client.Timestamps{Bucket: "world", AgeMS: new(int64(4200)), Source: "sync", Waiting: 3,
			HoldingCount: 40,
			Diverged:     "vbucket 7: holds 15, KV's branch has 12",
			Indexers: []client.Participant{{Name: "i1", Acked: 5, Behind: 4, SinceMS: since, Holds: true},
				{Name: "i2", Acked: 1, Behind: 8, SinceMS: since, Ignored: "silent"},
				{Name: "i3", Acked: 9}},
			Holding: []client.StreamInfo{{VBucket: 9, State: "requested", SinceMS: since, Reason: "waiting for BEGIN"}},
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
		tableTimestamps(w, &client.Timestamps{Bucket: "world", Number: 7},
			false)
	}); !strings.Contains(out, "stability #7 of an unknown time ago") {
		t.Errorf("an age that nobody knows:\n%s", out)
	}
	out = table(func(w *tabwriter.Writer) {
		tableStreams(w, []client.StreamInfo{{Bucket: "world", VBucket: 1, State: "begun"},
			{Bucket: "world", VBucket: 2, State: "lost", Owner: "p2", SinceMS: since,
				Reason: "its projector is silent"}}, false)
	})
	if !strings.Contains(out, "10:20:30  its projector is silent") || strings.Contains(out, "begun") {
		t.Errorf("streams:\n%s", out)
	}
}
