package consensus

import (
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// apart keeps snapshots apart in time. The library names them by term, index and millisecond, so that one which is sent
// twice within a millisecond has the name of the first: it cannot be put into place, the first is taken away with it,
// and the node is left without the log between them.
type apart struct {
	raft.SnapshotStore

	mu     sync.Mutex
	lastMS int64
}

// Create begins a snapshot, in a millisecond of its own.
func (a *apart) Create(version raft.SnapshotVersion, index, term uint64, conf raft.Configuration, confIndex uint64,
	trans raft.Transport) (raft.SnapshotSink, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for time.Now().UnixMilli() <= a.lastMS && a.lastMS-time.Now().UnixMilli() < int64(time.Second/time.Millisecond) {
		time.Sleep(time.Millisecond) // a clock that was set back by more is not waited for
	}
	sink, err := a.SnapshotStore.Create(version, index, term, conf, confIndex, trans)
	a.lastMS = time.Now().UnixMilli()
	return sink, err
}
