package indexer

import (
	"context"
	"fmt"
	"strings"

	"tidemark/indexer/transport"
	"tidemark/indexer/verify"
	"tidemark/ingest"
	"tidemark/internal/tlsconf"
	"tidemark/keyversion"
)

// port is one of the data ports (RT-3: one per stream type).
type port uint8

const (
	portMaintenance port = iota
	portBackfill
	portCatchup
)

// topic is what the topics of a port begin with.
func (p port) topic() string {
	return [...]string{"/maintenance", "/backfill/", "/catchup/"}[p]
}

func (x *Indexer) dataServer(p port) *transport.Server {
	log := x.log.Named(strings.Trim(p.topic(), "/"))
	conf := transport.ServerConfig{Logger: log, TLS: x.cfg.TLS.Server(tlsconf.GRPC, tlsconf.Projector)}
	return transport.NewServer(conf, func(ctx context.Context, h keyversion.Hello) (transport.Sink, error) {
		s, err := x.acceptConnection(p, h)
		if cert := transport.PeerCertificate(ctx); err == nil && cert != nil {
			var peer tlsconf.Peer
			if peer, err = tlsconf.PeerOf(cert); err == nil && !peer.Is(tlsconf.Projector, string(h.Projector)) {
				err = fmt.Errorf("%w: %s speaks for projector %q", tlsconf.ErrRole, peer, h.Projector)
			}
		}
		if err != nil {
			x.metrics.refused.Inc()
			return nil, err
		}
		return s, nil
	})
}

// acceptConnection decides on a connection by its hello.
func (x *Indexer) acceptConnection(p port, h keyversion.Hello) (transport.Sink, error) {
	id := x.identity.get()
	k := x.bucketNamed(h.Bucket)
	switch {
	case id.ClusterID == "":
		return nil, fmt.Errorf("this indexer is not registered yet: try again")
	case h.ClusterID != id.ClusterID:
		return nil, fmt.Errorf("cluster %q: this indexer belongs to %q", h.ClusterID, id.ClusterID)
	case h.Node != id.Node:
		return nil, fmt.Errorf("node %d is meant: this is node %d", h.Node, id.Node)
	case !strings.HasPrefix(h.Topic, p.topic()) && !(p == portCatchup && verify.IsTopic(h.Topic)):
		return nil, fmt.Errorf("topic %q: this port is for %s", h.Topic, p.topic())
	case k == nil || k.uuid != h.BucketUUID:
		return nil, fmt.Errorf("bucket %q (%s) is not known here yet: try again", h.Bucket, h.BucketUUID)
	case h.Connections == 0 || h.Connection >= h.Connections:
		return nil, fmt.Errorf("connection %d of %d", h.Connection, h.Connections)
	}
	if verify.IsTopic(h.Topic) {
		return x.verify.SinkFor(h.Topic)
	}
	return &sink{
		k: k, hello: h, side: p != portMaintenance, catchup: p == portCatchup,
		src: ingest.Source{Projector: h.Projector, Connection: x.ports.conns.Add(1)},
	}, nil
}

// sink puts the batches of one connection into its bucket's inbox. What it has put there is acknowledged, and is
// processed before anything that comes over a later connection of the same router.
type sink struct {
	k     *bucket
	hello keyversion.Hello
	side  bool
	src   ingest.Source

	catchup bool // its events have a rate
}

func (s *sink) inbox() chan<- inbound {
	if s.side {
		return s.k.side
	}
	return s.k.data
}

// Receive implements transport.Sink. It waits while the bucket holds as much as it may.
func (s *sink) Receive(ctx context.Context, b *keyversion.Batch, release func()) error {
	for i := range b.Events {
		if vb := b.Events[i].VBucket; int(vb) >= s.k.vbuckets || vb%s.hello.Connections != s.hello.Connection {
			return fmt.Errorf("vbucket %d on connection %d of %d: bucket %q has %d vbuckets", vb, s.hello.Connection,
				s.hello.Connections, s.k.name, s.k.vbuckets)
		}
	}
	if pace := s.k.x.ports.rate; s.catchup && pace != nil {
		began := s.k.x.now()
		err := pace.Wait(ctx, len(b.Events))
		s.k.x.metrics.catchup.Add(s.k.x.now().Sub(began).Seconds())
		if err != nil {
			return err
		}
	}
	in := inbound{src: s.src, side: s.side, batch: b, size: int64(b.Size()), release: release}
	room := &s.k.inboxes[in.box()]
	if err := room.enter(ctx, in.size, s.k.done); err != nil {
		return err
	}
	select {
	case s.inbox() <- in:
		return nil
	case <-s.k.done:
		room.leave(in.size)
		return errBucketGone
	case <-ctx.Done():
		room.leave(in.size)
		return context.Cause(ctx)
	}
}

// Closed implements transport.Sink: the end of the connection stands behind its last batch.
func (s *sink) Closed(error) {
	select {
	case s.inbox() <- inbound{src: s.src, side: s.side, lost: true}:
	case <-s.k.done:
	}
}
