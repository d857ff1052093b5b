package indexer

import (
	"context"
	"fmt"
	"strings"

	"tidemark/indexer/transport"
	"tidemark/indexer/verify"
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

// topic returns the prefix of the topics that a port accepts.
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
				err = fmt.Errorf("%w: the certificate of %s does not allow a stream of projector "+
					"%q", tlsconf.ErrRole, peer, h.Projector)
			}
		}
		if err != nil {
			x.metrics.refused.Inc()
			return nil, err
		}
		return s, nil
	})
}

// acceptConnection accepts or refuses a connection by its hello.
func (x *Indexer) acceptConnection(p port, h keyversion.Hello) (transport.Sink, error) {
	id := x.identity.get()
	k := x.bucketNamed(h.Bucket)
	switch {
	case id.ClusterID == "":
		return nil, fmt.Errorf("this indexer is not registered yet: try again")
	case h.ClusterID != id.ClusterID:
		return nil, fmt.Errorf("the router is of cluster %q, this indexer belongs to %q", h.ClusterID, id.ClusterID)
	case h.Node != id.Node:
		return nil, fmt.Errorf("the connection is for node %d, this is node %d", h.Node, id.Node)
	case !strings.HasPrefix(h.Topic, p.topic()) && !(p == portCatchup && verify.IsTopic(h.Topic)):
		return nil, fmt.Errorf("topic %q: this port accepts %s", h.Topic, p.topic())
	case k == nil || k.UUID() != h.BucketUUID:
		return nil, fmt.Errorf("this indexer does not have bucket %q (%s) yet: try again", h.Bucket, h.BucketUUID)
	case h.Connections == 0 || h.Connection >= h.Connections:
		return nil, fmt.Errorf("connection %d of %d", h.Connection, h.Connections)
	}
	if verify.IsTopic(h.Topic) {
		return x.verify.SinkFor(h.Topic)
	}
	return k.Sink(h, x.ports.conns.Add(1), p != portMaintenance, p == portCatchup), nil
}
