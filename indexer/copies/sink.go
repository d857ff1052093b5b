package copies

import (
	"context"
	"fmt"

	"tidemark/indexer/transport"
	"tidemark/ingest"
	"tidemark/keyversion"
)

// Sink returns the sink of one connection. side: it carries side streams; catchup: its events count toward the rate
// limit.
func (k *Bucket) Sink(h keyversion.Hello, connection uint64, side, catchup bool) transport.Sink {
	return &sink{k: k, hello: h, side: side, catchup: catchup,
		src: ingest.Source{Projector: h.Projector, Connection: connection}}
}

// sink puts the batches of one connection into its bucket's inbox. What is in the inbox is acknowledged, and is
// processed before anything that a later connection of the same router brings.
type sink struct {
	k     *Bucket
	hello keyversion.Hello
	side  bool
	src   ingest.Source

	catchup bool // its events count toward the rate limit
}

// Receive implements transport.Sink. It blocks while the bucket is full.
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
	case <-s.k.calls.over: // after that a batch would be acknowledged although nothing takes it
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

// Closed implements transport.Sink. The end of the connection is queued behind its last batch.
func (s *sink) Closed(error) {
	select {
	case s.k.in.box(s.side).batches <- inbound{src: s.src, side: s.side, lost: true}:
	case <-s.k.calls.over:
	}
}
