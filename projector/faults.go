package projector

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"

	"tidemark/collate"
	"tidemark/expression"
	"tidemark/index"
	"tidemark/keyversion"
	"tidemark/projector/feed"
	"tidemark/wire"
)

// maxFaultText bounds the text of a sample's error, in bytes.
const maxFaultText = 300

// faults counts, per index, the documents that have no entry because of an error.
type faults struct {
	changes atomic.Uint64
	mu      sync.Mutex
	all     map[index.ID]*fault
}

// fault holds one index's counters. Workers and side streams update them concurrently.
type fault struct {
	id                  index.ID
	expression, tooLong atomic.Uint64
	sample              atomic.Pointer[wire.FaultSample]
}

// of returns the faults of these indexes, and creates missing ones.
func (f *faults) of(ids []index.ID) []*fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make([]*fault, len(ids))
	for i, id := range ids {
		if f.all[id] == nil {
			f.all[id] = &fault{id: id}
		}
		out[i] = f.all[id]
	}
	return out
}

// keep drops the faults of indexes that no longer exist.
func (f *faults) keep(d *wire.Definitions) {
	there := make(map[index.ID]bool, len(d.Indexes))
	for i := range d.Indexes {
		there[d.Indexes[i].ID] = true
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for id := range f.all {
		if !there[id] {
			delete(f.all, id)
			f.changes.Add(1)
		}
	}
}

// list returns the indexes with the most faults in descending order, and the number of indexes left out.
func (f *faults) list() (worst []wire.IndexFaults, omitted int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := []wire.IndexFaults{}
	for _, x := range f.all {
		if s := x.sample.Load(); s != nil {
			all = append(all, wire.IndexFaults{Index: x.id, Expression: x.expression.Load(), TooLong: x.tooLong.Load(),
				Sample: *s})
		}
	}
	return wire.WorstFaults(all)
}

// note counts a document's errors.
func (f *faults) note(m *part, result *expression.Result, e *feed.Event) {
	for i, x := range m.faults {
		err := result.Err(i)
		if err == nil {
			continue
		}
		counter := &x.expression
		if errors.Is(err, collate.ErrTooLong) {
			counter = &x.tooLong
		}
		x.count(counter, e, err)
	}
	f.changes.Add(1)
}

// count increments a counter. The sample is replaced when the count reaches a power of two: a bad index then costs no
// allocation per document, and the sample stays recent.
func (x *fault) count(counter *atomic.Uint64, e *feed.Event, err error) {
	if n := counter.Add(1); n&(n-1) == 0 || x.sample.Load() == nil {
		x.sample.Store(&wire.FaultSample{DocID: strings.ToValidUTF8(string(e.Key), "\ufffd"), VBucket: e.VBucket,
			Seqno: e.Seqno, Error: wire.Cut(err.Error(), maxFaultText)})
	}
}

// errUndecodable is the reason why a document has no keys if KV flags its value as compressed, or as containing
// attributes, but the value does not decode that way.
var errUndecodable = errors.New("the value cannot be decoded with the encoding that KV reports; the document counts " +
	"as no JSON")

// undecodable counts a document whose value does not decode, for each index in which it has no keys, and returns
// their number.
func (f *faults) undecodable(m *part, keys [][][]byte, e *feed.Event) (n int) {
	for i, x := range m.faults {
		if len(keys[i]) == 0 {
			x.count(&x.expression, e, errUndecodable)
			n++
		}
	}
	f.changes.Add(1)
	return n
}

// refused counts a document whose keys in an index are too large for the router.
func (f *faults) refused(id index.ID, ev *keyversion.Event) {
	x := f.of([]index.ID{id})[0]
	x.tooLong.Add(1)
	x.sample.Store(&wire.FaultSample{DocID: strings.ToValidUTF8(string(ev.DocID), "\ufffd"), VBucket: ev.VBucket,
		Seqno: ev.Seqno,
		Error: "all its keys together exceed the limit of a message"})
	f.changes.Add(1)
}
