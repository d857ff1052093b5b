package tlsconf

import "testing"

// TestPeerIs checks that a projector process, and no other, may act for the projectors of its KV nodes.
func TestPeerIs(t *testing.T) {
	for _, tt := range []struct {
		peer Peer
		role Role
		id   string
		may  bool
	}{
		{Peer{Projector, "p1"}, Projector, "p1", true},
		{Peer{Projector, "p1"}, Projector, "p1@10.0.0.5:11210", true},
		{Peer{Projector, "p1"}, Projector, "p1@[::1]:11210@x", true},
		{Peer{Projector, "p1"}, Projector, "p12@10.0.0.5:11210", false},
		{Peer{Projector, "p1"}, Projector, "p2@p1", false},
		{Peer{Projector, "p1@10.0.0.5:11210"}, Projector, "p1", false},
		{Peer{Projector, "p1@10.0.0.5:11210"}, Projector, "p1@10.0.0.6:11210", false},
		{Peer{Projector, AnyID}, Projector, "p1@10.0.0.5:11210", true},
		{Peer{Indexer, "i1"}, Indexer, "i1@10.0.0.5:11210", false},
		{Peer{Indexer, "p1"}, Projector, "p1@10.0.0.5:11210", false},
	} {
		if tt.peer.Is(tt.role, tt.id) != tt.may {
			t.Errorf("%s for %s %s: want %t", tt.peer, tt.role, tt.id, tt.may)
		}
	}
}
