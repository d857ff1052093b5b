package projector

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"tidemark/index"
	"tidemark/keyversion"
	"tidemark/kv/mcbp"
	"tidemark/partition"
	"tidemark/projector/feed"
	"tidemark/wire"
)

// pair is a world with a second indexer: the index is being built on both, each of which has all of it.
type pair struct {
	*world
	e     *engine
	other *endpoint // node 2's
}

func newPair(t *testing.T) *pair {
	t.Helper()
	e := newEngine(t)
	p := &pair{world: newWorldAt(t, e.Addr()), e: e, other: newEndpoint(t)}
	d := p.definitions(1, 1)
	d.Indexers = append(d.Indexers, wire.Endpoint{Node: 2, Maintenance: p.data.addr, Catchup: p.other.addr,
		Backfill: p.other.addr})
	d.Topologies[0].Copies = append(d.Topologies[0].Copies, partition.Copy{ID: 11, Node: 2, Replica: 1,
		State: partition.Allocated})
	if _, err := p.client.Definitions(context.Background(), p.url, d); err != nil {
		t.Fatal(err)
	}
	return p
}

const (
	topicOfOne = "/backfill/1/7"
	topicOfTwo = "/backfill/2/7"
)

// one and two return the requests of the nodes.
func (p *pair) one(starts ...wire.StreamStart) *wire.StreamRequest {
	return p.sideRequest(1, "boot", 1, []index.CopyID{10}, starts...)
}

func (p *pair) two(starts ...wire.StreamStart) *wire.StreamRequest {
	req := p.sideRequest(2, "boot2", 1, []index.CopyID{11}, starts...)
	req.Topic, req.Side.Node, req.Side.Endpoint = topicOfTwo, 2, p.other.addr
	return req
}

// both sends both requests concurrently.
func (p *pair) both(one, two *wire.StreamRequest) {
	p.t.Helper()
	for _, asked := range []<-chan error{p.beside(one), p.beside(two)} {
		if err := <-asked; err != nil {
			p.t.Fatal(err)
		}
	}
}

func (p *pair) stories(vb uint16, one, two string) {
	p.t.Helper()
	p.eventually(fmt.Sprintf("vbucket %d: %s, and %s", vb, one, two), func() bool {
		return fmt.Sprint(p.side.story(vb)) == one && fmt.Sprint(p.other.story(vb)) == two
	})
}

// readers returns how many readers share the read of a topic's side stream.
func (p *pair) readers(topic string) int {
	r := p.p.sides.get(topic, testBucket).from.reading
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.readers)
}

func (p *pair) drop(topic string, vb uint16) {
	p.t.Helper()
	if err := p.client.Stop(context.Background(), p.url, &wire.StreamStop{Fence: wire.Fence{ClusterID: "c1"}, Topic: topic,
		Bucket: testBucket, VBuckets: []uint16{vb}}); err != nil {
		p.t.Fatal(err)
	}
}

// KV is read once for both, over one connection, and each gets its data up to its own end. A vbucket is closed at KV
// when no reader wants it any more, and the connection with the last reader.
func TestBuildReadsKVOnce(t *testing.T) {
	p := newPair(t)
	p.both(p.one(wire.StreamStart{VBucket: 3, End: 10}, wire.StreamStart{VBucket: 4, End: 10}),
		p.two(wire.StreamStart{VBucket: 3, End: 2}, wire.StreamStart{VBucket: 4, End: 10}, wire.StreamStart{VBucket: 5,
			End: 10}))
	peer := p.e.stream(3).peer
	if n := p.e.requests(); n != 3 || p.e.stream(4).peer != peer || p.e.stream(5).peer != peer {
		t.Errorf("%d streams were requested from KV, or over more than one connection", n)
	}
	p.e.stream(3).write(0, 4)
	p.e.stream(3).end(mcbp.EndOK)
	p.stories(3, "[1:STREAM_BEGIN@0 1:INSERT@1 1:INSERT@2 1:INSERT@3 1:INSERT@4 1:STREAM_END@10]",
		"[2:STREAM_BEGIN@0 2:INSERT@1 2:INSERT@2 2:STREAM_END@2]")
	p.eventually("four documents were received", func() bool {
		return bytes.Contains([]byte(p.metrics()), []byte(`received_versions_total{class="backfill"} 4`+"\n"))
	})
	p.drop(topicOfTwo, 4)
	p.drop(topicOfTwo, 5)
	p.eventually("the unwanted vbucket is closed at KV", func() bool { return p.e.stream(5).peer == nil })
	p.e.stream(4).write(0, 1)
	p.stories(4, "[1:STREAM_BEGIN@0 1:INSERT@1]", "[2:STREAM_BEGIN@0]")
	p.eventually("the second one is over", func() bool { return fmt.Sprint(p.sides()) == "[/backfill/1/7 1]" })
	p.e.stream(4).write(1, 2)
	p.stories(4, "[1:STREAM_BEGIN@0 1:INSERT@1 1:INSERT@2]", "[2:STREAM_BEGIN@0]")
	p.drop(topicOfOne, 4)
	p.eventually("both are over", func() bool { return len(p.sides()) == 0 })
	p.eventually("the connection is closed", func() bool { return !p.e.Connected(peer) }) // the bucket's watch has another
}

// Each document is evaluated only for the indexer that hosts its slice, and arrives there: a key that is too long is
// counted once.
func TestSidesEvaluateTheirOwnDocuments(t *testing.T) {
	p := newPair(t)
	d := p.definitions(2, 1)
	d.Indexers = append(d.Indexers, wire.Endpoint{Node: 2, Maintenance: p.data.addr, Catchup: p.other.addr,
		Backfill: p.other.addr})
	d.Topologies[0].Layout.Partitions = 2
	d.Topologies[0].Copies = append(d.Topologies[0].Copies, partition.Copy{ID: 11, Slice: 1, Node: 2,
		State: partition.Allocated})
	if _, err := p.client.Definitions(context.Background(), p.url, d); err != nil {
		t.Fatal(err)
	}
	starts := []wire.StreamStart{{VBucket: 3, End: 40}, {VBucket: 4, End: 1}}
	one, two := p.one(starts...), p.two(starts...)
	one.Side.Revision, two.Side.Revision = 2, 2
	p.both(one, two)
	p.e.value = fmt.Appendf(nil, `{"f1":"%s"}`, bytes.Repeat([]byte("x"), 1<<16))
	p.e.stream(3).write(0, 40)
	p.e.stream(3).end(mcbp.EndOK)
	p.e.stream(4).end(mcbp.EndOK)
	p.eventually("both are over", func() bool { return len(p.sides()) == 0 })
	provider, err := d.Topologies[0].Layout.Provider()
	if err != nil {
		t.Fatal(err)
	}
	var want [2][]string
	for n := 1; n <= 40; n++ {
		id := fmt.Sprint("k", n)
		slice := provider.Slice(partition.KeyVersion{DocID: []byte(id)})
		want[slice] = append(want[slice], id)
	}
	for i, at := range []*endpoint{p.side, p.other} {
		var got []string
		for _, ev := range at.kinds(keyversion.Insert) {
			got = append(got, string(ev.DocID))
		}
		if len(got) == 0 || !slices.Equal(got, want[i]) {
			t.Errorf("slice %d: %v arrived, want %v", i, got, want[i])
		}
	}
	if n := p.p.counters.errors.n.Load(); n != 40 {
		t.Errorf("%d keys of 40 documents were too long", n)
	}
}

// A side stream that begins elsewhere, or comes after the others have begun, uses a connection of its own.
func TestSideStreamsThatReadAlone(t *testing.T) {
	t.Parallel()
	three, four := wire.StreamStart{VBucket: 3, End: 10}, wire.StreamStart{VBucket: 4, End: 10}
	later := wire.StreamStart{VBucket: 3, VBUUID: 77, Seqno: 5, End: 10}
	t.Run("elsewhere", func(t *testing.T) {
		p := newPair(t)
		p.both(p.one(three, four), p.two(later, four))
		if n := p.e.requests(); n != 4 {
			t.Errorf("%d streams were requested from KV", n)
		}
	})
	t.Run("late", func(t *testing.T) {
		p := newPair(t)
		if err := <-p.beside(p.one(three, four)); err != nil { // no other reader comes
			t.Fatal(err)
		}
		if err := <-p.beside(p.two(three, four)); err != nil {
			t.Fatal(err)
		}
		if n := p.e.requests(); n != 4 {
			t.Errorf("%d streams were requested from KV", n)
		}
	})
}

// A reader whose request ends while KV is queried does not affect the other.
func TestReaderLeavesDuringAQuery(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	wait := make(chan any)
	p.e.set(func() { p.e.answer[3] = wait })
	starts := []wire.StreamStart{{VBucket: 3, End: 10}, {VBucket: 4, End: 10}}
	one, two := p.beside(p.one(starts...)), p.beside(p.two(append(starts, wire.StreamStart{VBucket: 5, End: 10})...))
	p.eventually("KV is queried", func() bool { return p.e.stream(5).peer != nil })
	if err := p.client.Stop(context.Background(), p.url, &wire.StreamStop{Fence: wire.Fence{ClusterID: "c1"},
		Topic: topicOfTwo}); err != nil {
		t.Fatal(err)
	}
	if err := <-two; err == nil {
		t.Error("the one that was stopped reports that it has begun")
	}
	close(wait)
	if err := <-one; err != nil {
		t.Error(err)
	}
	p.eventually("what it alone has wanted is closed", func() bool { return p.e.stream(5).peer == nil })
	p.e.stream(3).write(0, 1)
	p.stories(3, "[1:STREAM_BEGIN@0 1:INSERT@1]", "[]")
}

// A reader that ends while its streams wait for purge seqnos releases what it holds of the shared window.
func TestEndedReaderReleasesTheWindow(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.e.purged(0, 3, 4)
	starts := []wire.StreamStart{{VBucket: 3, End: 10}, {VBucket: 4, End: 10}}
	p.both(p.one(starts...), p.two(starts...))
	if n := p.readers(topicOfOne); n != 2 {
		t.Fatalf("%d read together", n)
	}
	r := p.p.sides.get(topicOfOne, testBucket).from.reading
	answer := make(chan any)
	p.e.set(func() { p.e.stat, p.e.asks = answer, nil })
	p.e.stream(3).write(0, 4)
	p.eventually("KV is queried", func() bool {
		p.e.mu.Lock()
		defer p.e.mu.Unlock()
		return len(p.e.asks) > 0
	})
	p.eventually("both have taken what came", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.readers[0].bytes == 0 && r.readers[1].bytes == 0
	})
	if err := p.client.Stop(context.Background(), p.url, &wire.StreamStop{Fence: wire.Fence{ClusterID: "c1"},
		Topic: topicOfTwo}); err != nil {
		t.Fatal(err)
	}
	p.eventually("one is left", func() bool { return fmt.Sprint(p.sides()) == "[/backfill/1/7 1]" })
	p.e.set(func() { p.e.stat = nil })
	close(answer)
	p.eventually("the other one has all", func() bool { return len(p.side.kinds(keyversion.Insert)) == 4 })
	p.eventually("the window is free", func() bool { return r.conn.Held() == 0 })
}

// The block being processed counts when a reader is checked for holding others up: one large document may fill the
// window.
func TestBlockInProgressCounts(t *testing.T) {
	r := &reading{}
	slow, fast := &reader{reading: r, ready: make(chan struct{}, 1)}, &reader{reading: r, ready: make(chan struct{}, 1)}
	r.readers = []*reader{slow, fast}
	block := feed.NewBlock(func(int) {})
	block.Add(feed.Event{}, sideBufferBytes)
	r.hand(block)
	take := func(m *reader) *feed.Block {
		t.Helper()
		b, err := m.next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	atIt := take(slow)
	fast.finish(take(fast))
	fast.waits = true // as it is in next
	r.evict(time.Second)
	if len(r.readers) != 1 || r.readers[0] != fast {
		t.Errorf("%d read on", len(r.readers))
	}
	if slow.finish(atIt); slow.bytes != 0 {
		t.Errorf("%d bytes count for one that has left", slow.bytes)
	}
}

// A reader that takes nothing does not hold up the other: it leaves, everything it received is delivered, and its
// endpoint is notified that nothing more comes.
func TestBlockingReaderLeaves(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	const documents = 3000
	p.e.set(func() { p.e.value = fmt.Appendf(nil, `{"f1":"%s"}`, bytes.Repeat([]byte("x"), 3000)) })
	hold := make(chan any)
	p.other.hold = hold
	start := wire.StreamStart{VBucket: 3, End: documents}
	four := wire.StreamStart{VBucket: 4, End: 10}
	p.both(p.one(start, four), p.two(start, four))
	p.e.stream(3).write(0, documents)
	p.e.stream(3).end(mcbp.EndOK)
	p.eventually("the other has all", func() bool { return len(p.side.kinds(keyversion.StreamEnd)) == 1 })
	if n := len(p.side.kinds(keyversion.Insert)); n != documents {
		t.Errorf("%d documents", n)
	}
	p.eventually("the slow one has left", func() bool { return p.readers(topicOfOne) == 1 })
	close(hold)
	p.eventually("its vbuckets are broken off", func() bool { return len(p.other.kinds(keyversion.DropData)) == 2 })
	inserts := p.other.kinds(keyversion.Insert)
	for i, ev := range inserts {
		if ev.Seqno != uint64(i)+1 {
			t.Fatalf("document %d has seqno %d", i, ev.Seqno)
		}
	}
	for _, ev := range p.other.kinds(keyversion.DropData) {
		want := uint64(1)
		if ev.VBucket == 3 {
			want += uint64(len(inserts))
		}
		if len(inserts) == documents || ev.Seqno != want {
			t.Errorf("after %d documents: %+v", len(inserts), ev)
		}
	}
	p.e.stream(4).write(0, 1)
	p.stories(4, "[1:STREAM_BEGIN@0 1:INSERT@1]", "[2:STREAM_BEGIN@0 2:DropData@1]")
	p.eventually("it is over", func() bool { return fmt.Sprint(p.sides()) == "[/backfill/1/7 1]" })
}
