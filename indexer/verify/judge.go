package verify

import (
	"bytes"
	"fmt"
	"slices"

	"tidemark/indexer/packed"
	"tidemark/indexer/storage"
	"tidemark/manager/api/v1"
	"tidemark/wire"
)

// judge compares the documents of one vbucket with one copy at one timestamp.
type judge struct {
	v         *verification
	c         *verifiedCopy
	snap      *storage.Snapshot
	vb        uint16
	at        uint64 // seqno of the timestamp in the vbucket
	stability uint64 // number of the timestamp
	read      *vbRead
	open      map[string]bool
	unpack    packed.Unpacker
}

// entry is a document's entry in a copy's back index.
type entry struct {
	seqno uint64
	keys  [][]byte
	found bool
}

// look reads the entry and compares it.
func (j *judge) look(id string) error {
	seqno, keys, found, err := j.snap.Entry(j.vb, []byte(id))
	if err != nil {
		return err
	}
	return j.document(id, entry{seqno, keys, found && len(keys) > 0})
}

// expected returns the keys in this slice according to KV's newest version at or below the timestamp; ok is false if
// there is no such version, or it does not concern this slice.
func (j *judge) expected(id string) (keys [][]byte, seqno uint64, ok bool) {
	d := j.read.docs[id]
	if d == nil || d.seqno > j.at {
		return nil, 0, false
	}
	j.unpack.Keys = nil
	for _, e := range d.events {
		if u, some := j.unpack.Update(e.data, e.rest, packed.Unknown, int(j.vb), d.seqno); some {
			ok = true
			keys = append(keys, u.Keys...)
		}
	}
	return sortedKeys(keys), d.seqno, ok
}

func sortedKeys(keys [][]byte) [][]byte {
	slices.SortFunc(keys, bytes.Compare)
	return slices.CompactFunc(keys, bytes.Equal)
}

// document compares one document.
func (j *judge) document(id string, e entry) error {
	want, seqno, ok := j.expected(id)
	if ok {
		j.looks(id)
		j.v.tally.documents[j.c]++
		if err := j.refused(id); err != nil {
			return err
		}
		return j.settle(id, e, want, seqno)
	}
	switch {
	case e.found && (e.seqno > j.at || e.seqno <= j.read.from || j.read.reach <= j.at):
		// The copy has an entry that no version it may reflect accounts for: it is from beyond the copy's timestamp;
		// or KV did not have it in the previous round, which read up to from; or KV does not have it at all.
		j.looks(id)
		return j.settle(id, e, nil, 0)
	case e.found:
		j.open[id] = true
	case j.read.reach <= j.at:
		j.looks(id)
	}
	return nil
}

// looks records that the expected state of the document is known, so that it is no longer open.
func (j *judge) looks(id string) {
	delete(j.open, id)
	j.v.tally.looks(document{j.c, j.vb, id}, j.stability)
}

// refused reports keys that KV's version requires but that are not comparable, because the store would refuse them.
func (j *judge) refused(id string) error {
	n := 0
	for _, slice := range j.read.docs[id].refused {
		if slice == j.c.place.Slice {
			n++
		}
	}
	if n == 0 {
		return nil
	}
	return j.v.differ(j.c, v1.Difference{Kind: wire.RefusedKey, ID: id, VBucket: j.vb, KVSeqno: j.read.docs[id].seqno,
		Stability: j.stability,
		Detail:    fmt.Sprintf("%d keys that are empty or longer than %d bytes", n, storage.MaxKey)}, nil, nil)
}

// way checks that everything the projector evaluated of the vbucket for the copy's slice has arrived.
func (j *judge) way() error {
	detail := j.read.lost(j.v.def.ID, j.c.place.Slice)
	if detail == "" {
		return nil
	}
	return j.v.differ(j.c, v1.Difference{Kind: wire.LostOnWay, VBucket: j.vb, Stability: j.stability, Detail: detail},
		nil, nil)
}

// settle compares a document's rows with the expected ones.
func (j *judge) settle(id string, e entry, want [][]byte, seqno uint64) error {
	var rows [][]byte
	for _, k := range slices.Concat(e.keys, j.v.tally.takeExtra(j.c, id)) {
		has, err := j.snap.HasRow(k, []byte(id))
		if err != nil {
			return err
		}
		if has {
			rows = append(rows, bytes.Clone(k))
		}
	}
	rows = sortedKeys(rows)
	missing, surplus := lacking(want, rows), lacking(rows, want)
	d := v1.Difference{ID: id, VBucket: j.vb, KVSeqno: seqno, IndexSeqno: e.seqno, Stability: j.stability}
	switch {
	case missing && surplus:
		d.Kind = wire.WrongKey
	case missing:
		d.Kind = wire.MissingRow
	case surplus:
		d.Kind = wire.ExtraRow
	case !slices.EqualFunc(sortedKeys(slices.Clone(e.keys)), want, bytes.Equal):
		d.Kind = wire.BackEntry
	default:
		return nil
	}
	return j.v.differ(j.c, d, want, rows)
}

// lacking reports whether b lacks an element of a.
func lacking(a, b [][]byte) bool {
	return slices.ContainsFunc(a, func(k []byte) bool {
		_, found := slices.BinarySearchFunc(b, k, bytes.Compare)
		return !found
	})
}
