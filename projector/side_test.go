package projector

import (
	"context"
	"fmt"
	"testing"

	"tidemark/index"
	"tidemark/internal/rpc"
	"tidemark/keyversion"
	"tidemark/mcbp"
	"tidemark/statecontext"
	"tidemark/wire"
)

// backfill is a request for vbuckets 3 and 4 up to seqno 10.
func (w *world) backfill(id uint64, boot string) *wire.SideRequest {
	return &wire.SideRequest{ClusterID: "c1", Node: 1, BootID: boot, Topic: "/backfill/1/7", Endpoint: w.side.addr, Bucket: testBucket,
		BucketUUID: testUUID, ID: id, Revision: 1, Copies: []index.CopyID{10}, Streams: []wire.SideStream{{VBucket: 3, To: 10}, {VBucket: 4, To: 10}}}
}

// ask opens a side stream beside the test.
func (w *world) ask(req *wire.SideRequest) <-chan error {
	done := make(chan error, 1)
	go func() {
		reply, err := w.client.Side(context.Background(), w.url, req)
		if err == nil && (reply.Results[0].Outcome != wire.StartBegun || reply.Results[1].Outcome != wire.StartBegun) {
			err = fmt.Errorf("%+v", reply)
		}
		done <- err
	}()
	return done
}

func (w *world) sides() []string {
	w.p.mu.Lock()
	defer w.p.mu.Unlock()
	all := []string{}
	for topic, s := range w.p.sides {
		all = append(all, fmt.Sprint(topic, " ", s.req.ID))
	}
	return all
}

// A request takes the place of one of its topic, in whatever state that is.
func TestSideStreamsAreReplaced(t *testing.T) {
	e := newEngine(t)
	w := newWorldAt(t, e.Addr())
	w.define(1, 1)
	wait := make(chan any)
	e.set(func() { e.answer[3] = wait })
	first := w.ask(w.backfill(1, "boot"))
	w.eventually("KV is asked", func() bool { return e.stream(3).peer != nil && e.stream(4).peer != nil })
	e.set(func() { clear(e.streams) }) // the next request comes over another connection
	second := w.ask(w.backfill(2, "boot"))
	if err := <-first; err == nil {
		t.Error("the one that was replaced says that it has begun")
	}
	close(wait)
	if err := <-second; err != nil {
		t.Error(err)
	}
	w.eventually("BEGIN", func() bool { return len(w.side.kinds(keyversion.StreamBegin)) == 2 })
	for _, b := range w.side.kinds(keyversion.StreamBegin) {
		if b.Incarnation.Counter != 2 {
			t.Errorf("BEGIN of request %d", b.Incarnation.Counter)
		}
	}
	// The indexer's next process asks under another topic: what the last one had goes.
	req := w.backfill(3, "boot2")
	req.Topic = "/backfill/1/8"
	e.set(func() { clear(e.streams); clear(e.answer) })
	if err := <-w.ask(req); err != nil {
		t.Error(err)
	}
	if got := fmt.Sprint(w.sides()); got != "[/backfill/1/8 3]" {
		t.Errorf("open: %s", got)
	}
}

// A stop reaches a side stream that is being opened.
func TestSideStreamStoppedWhileItOpens(t *testing.T) {
	e := newEngine(t)
	w := newWorldAt(t, e.Addr())
	w.define(1, 1)
	e.set(func() { e.answer[3] = make(chan any) }) // KV never answers
	first := w.ask(w.backfill(1, "boot"))
	w.eventually("KV is asked", func() bool { return e.stream(3).peer != nil })
	if err := w.client.SideStop(context.Background(), w.url, &wire.SideStop{ClusterID: "c1", Topic: "/backfill/1/7"}); err != nil {
		t.Error(err)
	}
	if err := <-first; err == nil {
		t.Error("the one that was stopped says that it has begun")
	}
	if got := w.sides(); len(got) != 0 {
		t.Errorf("open: %v", got)
	}
	e.set(func() { close(e.answer[3]) })
}

// END says the end that was asked for and how far what was read may reach. Where that cannot be known it is not said.
func TestSideStreamsEnd(t *testing.T) {
	e := newEngine(t)
	w := newWorldAt(t, e.Addr())
	w.define(1, 1)
	if err := <-w.ask(w.backfill(1, "boot")); err != nil {
		t.Fatal(err)
	}
	e.stream(3).write(0, 2)
	e.stream(3).end(mcbp.EndOK)
	w.eventually("END", func() bool { return len(w.side.kinds(keyversion.StreamEnd)) == 1 })
	if end := w.side.kinds(keyversion.StreamEnd)[0]; end.VBucket != 3 || end.Seqno != 10 || end.Window.End != 100 {
		t.Errorf("%+v", end)
	}
	e.set(func() { delete(e.active, 4) })
	e.stream(4).end(mcbp.EndOK)
	w.eventually("the side stream is given up", func() bool { return len(w.sides()) == 0 })
	if n := len(w.side.kinds(keyversion.StreamEnd)); n != 1 {
		t.Errorf("%d ENDs", n)
	}
}

func TestSideRequestsThatCannotBe(t *testing.T) {
	e := newEngine(t)
	w := newWorldAt(t, e.Addr())
	w.define(1, 1)
	for name, c := range map[string]struct {
		change func(*wire.SideRequest)
		code   string
	}{
		"another cluster":  {func(r *wire.SideRequest) { r.ClusterID = "c2" }, rpc.AsProblem(wire.ErrForeignCluster).Code},
		"no class":         {func(r *wire.SideRequest) { r.Topic = "/maintenance" }, rpc.CodeBadRequest},
		"no copies":        {func(r *wire.SideRequest) { r.Copies = nil }, rpc.CodeBadRequest},
		"no vbuckets":      {func(r *wire.SideRequest) { r.Streams = nil }, rpc.CodeBadRequest},
		"later revision":   {func(r *wire.SideRequest) { r.Revision = 2 }, rpc.CodeUnavailable},
		"unknown copies":   {func(r *wire.SideRequest) { r.Copies = []index.CopyID{99} }, rpc.CodeUnavailable},
		"recreated bucket": {func(r *wire.SideRequest) { r.BucketUUID = "fedcba9876543210fedcba9876543210" }, string(statecontext.BucketIsGone)},
	} {
		req := w.backfill(1, "boot")
		c.change(req)
		_, err := w.client.Side(context.Background(), w.url, req)
		if p := rpc.AsProblem(err); err == nil || p.Code != c.code {
			t.Errorf("%s gives %v, want %s", name, err, c.code)
		}
	}
	if got := w.sides(); len(got) != 0 {
		t.Errorf("open: %v", got)
	}
}
