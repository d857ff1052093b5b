package consensus

import (
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// stuckPipeline accepts nothing until it is closed.
type stuckPipeline struct {
	raft.AppendPipeline
	closed chan struct{}
}

func (s stuckPipeline) AppendEntries(*raft.AppendEntriesRequest, *raft.AppendEntriesResponse) (raft.AppendFuture,
	error) {
	<-s.closed
	return nil, raft.ErrPipelineShutdown
}

func (s stuckPipeline) Close() error {
	close(s.closed)
	return nil
}

// TestStuckPipelineIsClosed: a pipeline whose answers are no longer read does not block replication for ever.
func TestStuckPipelineIsClosed(t *testing.T) {
	ended := make(chan error, 1)
	go func() {
		p := &pipeline{AppendPipeline: stuckPipeline{closed: make(chan struct{})}, disk: &disk{cfg: &Config{}},
			patience: 20 * time.Millisecond}
		_, err := p.AppendEntries(&raft.AppendEntriesRequest{Term: 1}, nil)
		ended <- err
	}()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("entries were taken by a stuck pipeline")
		}
	case <-time.After(time.Minute):
		t.Error("still waiting")
	}
}
