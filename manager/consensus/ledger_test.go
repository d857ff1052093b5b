package consensus_test

import (
	"encoding/binary"
	"hash/crc64"
	"io"
	"sync"
	"testing"

	"github.com/hashicorp/raft"

	"tidemark/manager/consensus"
	"tidemark/statecontext"
)

// ledger compares what the servers of a cluster apply, at every entry, including servers that restart: the same
// entries at the same positions, cas one higher for each update, and never lower. chain[i] is the hash of all entries
// with commands up to index i.
type ledger struct {
	t     testing.TB
	mu    sync.Mutex
	chain map[uint64]uint64
	cas   map[uint64]uint64 // after the entry
}

func newLedger(t testing.TB) *ledger {
	return &ledger{t: t, chain: map[uint64]uint64{}, cas: map[uint64]uint64{}}
}

// tapped is a server's state machine with the ledger attached. Its fields belong to Raft's goroutine.
type tapped struct {
	consensus.StateMachine
	server   *server
	log      *ledger
	at, hash uint64
}

func (l *ledger) tap(s *server) *tapped { return &tapped{StateMachine: s.fsm, server: s, log: l} }

var ecma = crc64.MakeTable(crc64.ECMA)

func (a *tapped) Apply(entry *raft.Log) any {
	if f := a.server.applying.Load(); f != nil {
		(*f)()
	}
	before := a.State().CAS()
	answer := a.StateMachine.Apply(entry)
	updates := uint64(0)
	results, ok := answer.([]statecontext.Result)
	if !ok {
		a.log.t.Errorf("%s: entry %d: %v", a.server.name, entry.Index, answer)
	}
	for _, r := range results {
		if r.Changed && r.CAS > before { // the result of a retry has the cas of the first time
			if updates++; r.CAS != before+updates {
				a.log.t.Errorf("%s: entry %d: update %d of it has cas %d, before it was %d", a.server.name, entry.Index, updates,
					r.CAS, before)
			}
		}
	}
	cas := a.State().CAS()
	if cas != before+updates {
		a.log.t.Errorf("%s: entry %d has %d updates, and cas went from %d to %d", a.server.name, entry.Index, updates, before,
			cas)
	}
	if entry.Index <= a.at {
		a.log.t.Errorf("%s: entry %d is applied after entry %d", a.server.name, entry.Index, a.at)
	}
	head := binary.LittleEndian.AppendUint64(nil, a.hash)
	head = binary.LittleEndian.AppendUint64(head, entry.Index)
	head = binary.LittleEndian.AppendUint64(head, entry.Term)
	a.at, a.hash = entry.Index, crc64.Update(crc64.Checksum(head, ecma), ecma, entry.Data)
	a.log.mu.Lock()
	defer a.log.mu.Unlock()
	if known, ok := a.log.chain[a.at]; ok && (known != a.hash || a.log.cas[a.at] != cas) {
		a.log.t.Errorf("%s: up to entry %d it has applied something else than another server, or its cas %d is not %d",
			a.server.name, a.at, cas, a.log.cas[a.at])
	}
	a.log.chain[a.at], a.log.cas[a.at] = a.hash, cas
	return answer
}

func (a *tapped) Restore(r io.ReadCloser) error {
	err := a.StateMachine.Restore(r)
	if err == nil {
		a.server.restores.Add(1)
		a.log.mu.Lock()
		defer a.log.mu.Unlock()
		a.at = a.State().AppliedIndex()
		hash, ok := a.log.chain[a.at]
		if !ok || a.log.cas[a.at] != a.State().CAS() {
			a.log.t.Errorf("%s: the snapshot at entry %d with cas %d is of no state that a server had", a.server.name, a.at,
				a.State().CAS())
		}
		a.hash = hash
	}
	return err
}
