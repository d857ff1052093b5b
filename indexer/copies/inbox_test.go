package copies

import (
	"context"
	"errors"
	"testing"

	"tidemark/keyversion"
)

// TestInboxIsBoundedByBytes: batches beyond the bytes of an inbox wait, in order, until there is room, their
// connection ends, or the bucket stops; a batch larger than the bound is admitted alone.
func TestInboxIsBoundedByBytes(t *testing.T) {
	var enc keyversion.Encoder
	ev := keyversion.Event{Kind: keyversion.Insert, Seqno: 1, DocID: []byte("d"),
		Statements: []keyversion.Statement{{Index: 1, Keys: [][]byte{make([]byte, inboxBytes/2)}}}}
	if err := enc.Append(&ev); err != nil {
		t.Fatal(err)
	}
	batch := &keyversion.Batch{}
	if err := keyversion.Decode(enc.Finish(1), batch); err != nil {
		t.Fatal(err)
	}
	k := &Bucket{node: &Node{}, name: "b", vbuckets: 4, in: newIntake(func() int64 { return 1 << 30 }), calls: newCalls()}
	s := &sink{k: k, hello: keyversion.Hello{Connections: 1}}
	if err := s.Receive(t.Context(), batch, nil); err != nil {
		t.Fatal(err)
	}
	gone, cancel := context.WithCancelCause(t.Context())
	cut := errors.New("the connection is cut")
	cancel(cut)
	if err := s.Receive(gone, batch, nil); !errors.Is(err, cut) || len(k.in.boxes[0].batches) != 1 {
		t.Errorf("a second one: %v, %d are there", err, len(k.in.boxes[0].batches))
	}
	second := make(chan error, 1)
	go func() { second <- s.Receive(t.Context(), batch, nil) }()
	in := <-k.in.boxes[0].batches
	k.in.boxes[0].room.leave(in.size)
	if err := <-second; err != nil || len(k.in.boxes[0].batches) != 1 {
		t.Errorf("%v, %d are there", err, len(k.in.boxes[0].batches))
	}
	close(k.calls.over)
	if err := s.Receive(t.Context(), batch, nil); !errors.Is(err, ErrBucketGone) {
		t.Errorf("a bucket that goes: %v", err)
	}
	k.in.boxes[0].room.leave((<-k.in.boxes[0].batches).size)
	if err := k.in.boxes[0].room.enter(t.Context(), 10*inboxBytes, k.calls.over); err != nil {
		t.Errorf("a large one into an empty inbox: %v", err)
	}
	if k.in.boxes[0].room.held != 10*inboxBytes || len(k.in.boxes[0].room.waiting) > 0 {
		t.Errorf("%+v", &k.in.boxes[0].room)
	}
}

// TestInboxesOfManyBuckets: all inboxes of a node together hold a part of what its queue may, however many buckets
// there are, and each has room for one batch of any size.
func TestInboxesOfManyBuckets(t *testing.T) {
	const queue = 256 << 20
	full, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct{ buckets, batch, most int64 }{
		{1, 64 << 10, 2 * inboxBytes}, {4, 64 << 10, 8 * inboxBytes}, {100, 64 << 10, queue / 2},
		{1000, 32 << 10, queue / 2}, {2, 48 << 20, 4 * 48 << 20},
	} {
		share, held := queue/c.buckets, int64(0)
		for range c.buckets {
			in := newIntake(func() int64 { return share })
			for i := range in.boxes {
				r := &in.boxes[i].room
				for r.enter(full, c.batch, nil) == nil && r.held <= inboxBytes {
				}
				if r.held == 0 || len(r.waiting) > 0 {
					t.Errorf("%+v: an inbox holds %d, %d wait", c, r.held, len(r.waiting))
				}
				held += r.held
			}
		}
		if held > c.most {
			t.Errorf("%+v: %d bytes wait in all, want at most %d", c, held, c.most)
		}
	}
}
