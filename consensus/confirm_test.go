package consensus_test

import (
	"errors"
	"testing"
	"time"

	"tidemark/consensus"
)

// TestOldAnswersProveNothing: answers that followers gave before a read was asked for are not taken for the proof that
// the leader still leads. A leader that is stopped and goes on finds such answers, while another leads by then.
func TestOldAnswersProveNothing(t *testing.T) {
	virtual(t, 3, nil, func(t *testing.T, h *hub, all servers) {
		all.propose(projector("p", "x"))
		l := all.leader()
		if _, err := l.node.ReadIndex(deadline(t, time.Second)); err != nil {
			t.Fatal(err)
		}
		read, write := h.hold(l.name)
		time.Sleep(heartbeat / 4) // heartbeats were on their way, and have their answers
		answered := make(chan error, 1)
		go func() {
			_, err := l.node.ReadIndex(deadline(t, time.Minute))
			answered <- err
		}()
		time.Sleep(time.Millisecond) // the read waits
		read()
		if err := <-answered; !errors.Is(err, consensus.ErrNotLeader) {
			t.Errorf("no follower has heard anything since the read came in, and it was answered: %v", err)
		}
		write()
		all.propose(projector("p", "y"))
	})
}
