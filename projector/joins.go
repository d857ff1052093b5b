package projector

import (
	"sync"

	"tidemark/index"
	"tidemark/projector/core"
	"tidemark/wire"
)

// joins guards the activation timestamps of a bucket: workers record them, requests read them.
type joins struct {
	mu  sync.Mutex // leaf
	are *core.Joins
}

func (j *joins) plan(revision uint64, indexes []index.ID) (number uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.are.Plan(revision, indexes)
}

// activate records that a vbucket's stream evaluates everything above seqno by plan pl.
func (j *joins) activate(pl *plan, vb uint16, seqno uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.are.Activate(pl.joined, vb, seqno)
}

func (j *joins) activations() []wire.Activation {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.are.Activations()
}
