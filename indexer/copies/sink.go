package copies

import (
	"context"
	"fmt"

	"tidemark/indexer/transport"
	"tidemark/ingest"
	"tidemark/keyversion"
)

// Sink takes the batches of one connection. side: it is of a side stream; catchup: its events have a rate.
func (k *Bucket) Sink(h keyversion.Hello, connection uint64, side, catchup bool) transport.Sink {
	return &sink{k: k, hello: h, side: side, catchup: catchup,
		src: ingest.Source{Projector: h.Projector, Connection: connection}}
}

// sink puts the batches of one connection into its bucket's inbox. What it has put there is acknowledged, and is
// processed before anything that comes over a later connection of the same router.
type sink struct {
	k     *Bucket
	hello keyversion.Hello
	side  bool
	src   ingest.Source

	catchup bool // its events have a rate
}

// Receive implements transport.Sink. It waits while the bucket holds as much as it may.
func (s *sink) Receive(ctx context.Context, b *keyversion.Batch, release func()) error {
	for i := range b.Events {
		if vb := b.Events[i].VBucket; int(vb) >= s.k.vbuckets || vb%s.hello.Connections != s.hello.Connection {
			return fmt.Errorf("vbucket %d on connection %d of %d: bucket %q has %d vbuckets", vb, s.hello.Connection,
				s.hello.Connections, s.k.name, s.k.vbuckets)
		}
	}
	if pace := s.k.node.Catchup; s.catchup && pace != nil {
		began := s.k.node.Now()
		err := pace.Wait(ctx, len(b.Events))
		s.k.node.Metrics.catchup.Add(s.k.node.Now().Sub(began).Seconds())
		if err != nil {
			return err
		}
	}
	select {
	case <-s.k.calls.over: // what is put there now is acknowledged, and nobody takes it
		return ErrBucketGone
	default:
	}
	in := inbound{src: s.src, side: s.side, batch: b, size: int64(b.Size()), release: release}
	box := s.k.in.box(s.side)
	if err := box.room.enter(ctx, in.size, s.k.calls.over); err != nil {
		return err
	}
	select {
	case box.batches <- in:
		return nil
	case <-s.k.calls.over:
		box.room.leave(in.size)
		return ErrBucketGone
	case <-ctx.Done():
		box.room.leave(in.size)
		return context.Cause(ctx)
	}
}

// Closed implements transport.Sink: the end of the connection stands behind its last batch.
func (s *sink) Closed(error) {
	select {
	case s.k.in.box(s.side).batches <- inbound{src: s.src, side: s.side, lost: true}:
	case <-s.k.calls.over:
	}
}
