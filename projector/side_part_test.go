package projector

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/internal/rpc"
	"tidemark/kv/mcbp"
	"tidemark/projector/core"
	"tidemark/wire"
)

// dropStreams ends vbuckets of the topic that w.backfill opens.
func (w *world) dropStreams(vbuckets ...uint16) {
	w.t.Helper()
	if err := w.client.Stop(context.Background(), w.url, &wire.StreamStop{Fence: wire.Fence{ClusterID: "c1"},
		Topic: "/backfill/1/7", Bucket: testBucket, VBuckets: vbuckets}); err != nil {
		w.t.Fatal(err)
	}
}

// begun is what ofSide gives of a stream that has brought nothing yet.
const begun = "[1:STREAM_BEGIN@0]"

// ofSide lists what the side endpoint got of a vbucket.
func (w *world) ofSide(vb uint16) string { return fmt.Sprint(w.side.story(vb)) }

// Streams of a side topic end one by one, closed at KV and without an event downstream, even one that waits for purge
// seqnos; the others continue, and with the last one the topic ends.
func TestStreamsOfATopicAreDropped(t *testing.T) {
	e := newEngine(t)
	e.lines = []string{"vb_3:purge_seqno=0", "vb_4:purge_seqno=0"}
	w := newWorldAt(t, e.Addr())
	w.define(1, 1)
	if err := <-w.beside(w.backfill(1, "boot")); err != nil {
		t.Fatal(err)
	}
	w.eventually("BEGIN", func() bool { return w.ofSide(3) == begun && w.ofSide(4) == begun })
	release := make(chan any)
	e.set(func() { e.stat = release; e.asks = nil })
	e.stream(3).write(0, 2)
	w.eventually("KV is queried for its purge seqno", func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return slices.ContainsFunc(e.asks, func(key string) bool { return strings.Contains(key, "vbucket-seqno 3") })
	})
	w.dropStreams(3, 700)
	w.eventually("the stream is closed at KV", func() bool { return e.stream(3).peer == nil })
	e.set(func() { e.stat, e.lines = nil, []string{"vb_3:purge_seqno=9", "vb_4:purge_seqno=0"} })
	close(release)
	e.stream(4).write(0, 2)
	w.eventually("the other one goes on", func() bool {
		return w.ofSide(4) == "[1:STREAM_BEGIN@0 1:INSERT@1 1:INSERT@2]"
	})
	if got := w.ofSide(3); got != begun {
		t.Errorf("of the one that was dropped: %s", got)
	}
	if got := w.p.topics(); !slices.ContainsFunc(got, func(s wire.TopicState) bool {
		return s.Topic == "/backfill/1/7" && s.VBuckets == 1
	}) {
		t.Errorf("topics %+v", got)
	}
	w.dropStreams(3, 4)
	w.eventually("the topic's end", func() bool { return len(w.sides()) == 0 })
	if err := w.client.Stop(t.Context(), w.url, &wire.StreamStop{Fence: wire.Fence{ClusterID: "c1"},
		Topic: "/backfill/1/7", VBuckets: []uint16{3}}); rpc.AsProblem(err).Code != errcode.BadRequest {
		t.Errorf("vbuckets of no bucket: %v", err)
	}
}

// KV may send nothing on a stream whose vbucket another node has taken over. A subscriber would wait for it forever.
func TestSideStreamsOfVBucketsThatLeft(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	w := newWorldAt(t, e.Addr())
	w.define(1, 1)
	w.eventually("the KV node is looked at", func() bool { return w.p.bucket(testBucket) != nil })
	req := w.backfill(1, "boot")
	req.Buckets[0].Restart.Ends = []uint64{wire.NoEnd, wire.NoEnd}
	if err := <-w.beside(req); err != nil {
		t.Fatal(err)
	}
	w.eventually("BEGIN", func() bool { return w.ofSide(3) == begun && w.ofSide(4) == begun })
	e.set(func() { delete(e.active, 3) })
	w.eventually("the word that nothing more comes", func() bool {
		return w.ofSide(3) == "[1:STREAM_BEGIN@0 1:DropData@1]"
	})
	w.eventually("the stream is closed at KV", func() bool { return e.stream(3).peer == nil })
	e.stream(4).write(0, 1)
	w.eventually("the other one goes on", func() bool { return w.ofSide(4) == "[1:STREAM_BEGIN@0 1:INSERT@1]" })
	e.stream(4).end(mcbp.EndOK)
}

// Subscribers, however many, leave room for indexers.
func TestSubscribersLeaveRoom(t *testing.T) {
	t.Parallel()
	w := newWorldAt(t, newEngine(t).Addr())
	w.define(1, 1)
	subscribe := func(n int) error {
		_, err := w.client.Subscribe(t.Context(), w.url, &wire.Subscribe{ID: fmt.Sprint("s", n), Bucket: testBucket,
			Indexes: []string{index.ID(1).String()}, Endpoint: w.side.addr, Counter: 1,
			Restart: &wire.RestartTimestamp{VBuckets: []uint16{uint16(n % vbuckets)}, VBUUIDs: []uint64{0},
				Seqnos: []uint64{0}}})
		return err
	}
	for n := range core.MaxSubscriptions {
		if err := subscribe(n); err != nil {
			t.Fatal(err)
		}
	}
	if err := subscribe(core.MaxSubscriptions); rpc.AsProblem(err).Code != errcode.Unavailable ||
		!strings.Contains(err.Error(), fmt.Sprint(core.MaxSubscriptions, " topics of subscribers")) {
		t.Errorf("one more subscriber: %v", err)
	}
	if err := subscribe(0); err != nil {
		t.Errorf("one that takes its own place: %v", err)
	}
	if err := <-w.beside(w.backfill(1, "boot")); err != nil {
		t.Errorf("an indexer: %v", err)
	}
}
