package store

import (
	"container/heap"
	"fmt"
	"slices"

	"tidemark/kv/seglog"
)

// replay applies one stored record. Records of a document may come in any order (compaction moves them): the highest
// seqno wins.
func (b *Bucket) replay(r seglog.Record) error {
	kind, vb, rest, err := recordPlace(r.Payload)
	if err != nil {
		return err
	}
	v := b.VBucket(vb)
	if v == nil {
		return fmt.Errorf("%w: vbucket %d of %d", errRecord, vb, len(b.vbs))
	}
	switch kind {
	case recordDoc:
		d, err := decodeDoc(rest)
		if err != nil {
			return err
		}
		if old := v.docs[d.id()]; old == nil || old.Seqno < d.Seqno {
			v.docs[d.id()] = d
		}
		v.high = max(v.high, d.Seqno)
		v.maxCas = max(v.maxCas, d.Cas)
	case recordState:
		s, err := decodeState(rest)
		if err != nil {
			return err
		}
		v.state, v.failover = s.State, s.Failover
		v.high, v.purge, v.maxCas = max(v.high, s.High), max(v.purge, s.Purge), max(v.maxCas, s.MaxCas)
	case recordWindow:
		w, err := decodeWindow(rest)
		if err != nil {
			return err
		}
		v.window = w
	case recordReset:
		v.docs, v.failover, v.window = map[docID]*Doc{}, nil, SnapshotRange{}
		v.high, v.purge, v.maxCas = 0, 0, 0
	default:
		return fmt.Errorf("%w: kind %d: use the program version that wrote it", errRecord, kind)
	}
	return nil
}

// begin prepares the replayed vbuckets for use: lists, sums, states, and a new branch where the history may differ
// from what other nodes or consumers have seen.
func (b *Bucket) begin(report seglog.Report) error {
	for _, v := range b.vbs {
		want := Active
		if b.opts.State != nil {
			want = b.opts.State(v.id)
		}
		v.mu.Lock()
		stale := want == Active && v.state == Dead && v.high > 0
		if stale {
			v.docs, v.failover, v.window = map[docID]*Doc{}, nil, SnapshotRange{}
			v.high, v.purge = 0, 0
		}
		v.buildListLocked()
		changed := v.state != want
		switch {
		case changed:
			v.changeLocked(want)
		case len(v.failover) == 0, want == Active && !report.Fresh && !report.Clean:
			v.branchLocked(b.newUUID(), v.high)
			changed = true
		}
		b.liveBytes.Add(v.recordLocked().recordBytes())
		var err error
		if stale {
			_, err = b.commit.appendCopy(func(dst []byte) []byte { return appendReset(dst, v.id) })
		}
		if changed && err == nil {
			_, err = v.saveLocked()
		}
		v.mu.Unlock()
		if err != nil {
			return err
		}
	}
	return b.commit.current().Wait()
}

// buildListLocked builds the seqno list and the sums from the documents.
func (v *VBucket) buildListLocked() {
	v.loadEventsLocked()
	v.list = make([]*Doc, 0, len(v.docs))
	for _, d := range v.docs {
		v.list = append(v.list, d)
		v.countLocked(d, 1)
		v.lastLocked(d)
		if d.Expiry != 0 && !d.Deleted {
			v.expiries = append(v.expiries, expiryEntry{at: d.Expiry, id: d.id(), seqno: d.Seqno})
		}
	}
	slices.SortFunc(v.list, func(a, b *Doc) int {
		if a.Seqno < b.Seqno {
			return -1
		}
		return 1
	})
	heap.Init(&v.expiries)
	v.written = v.high
}
