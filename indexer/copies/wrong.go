package copies

import (
	"maps"

	"tidemark/index"
	"tidemark/indexer/storage"
	"tidemark/ingest"
)

// vbOfCopy is a vbucket of a copy.
type vbOfCopy struct {
	copy index.CopyID
	vb   int
}

// wrong tracks what is known to be wrong in copies: vbuckets that are to be retaken, and whose stray rows have not
// been deleted durably.
type wrong struct {
	strays  map[vbOfCopy]*stray
	emptied map[index.CopyID]uint64 // changes with each range of a copy that has to be deleted
}

// stray holds the stray rows of a vbucket of a copy.
type stray struct {
	vbOfCopy
	rows  []storage.Row // deleted together with the range of the vbucket
	doubt bool          // scans must not use the copy until they are deleted
	again bool          // the copy was reopened meanwhile: the vbucket has to be retaken again
	// without is what the copy held right after the deletion, which is final once that is durable; zero: not deleted
	// yet.
	without RowsAt
}

// there reports whether the rows have not been deleted.
func (s *stray) there() bool { return s.without == RowsAt{} }

func newWrong() wrong {
	return wrong{strays: map[vbOfCopy]*stray{}, emptied: map[index.CopyID]uint64{}}
}

// found records a vbucket that is to be retaken, and the rows that should not be there.
func (w *wrong) found(id index.CopyID, vb int, rows []storage.Row, doubt bool) {
	at := vbOfCopy{id, vb}
	w.strays[at] = &stray{vbOfCopy: at, rows: rows, doubt: doubt}
	w.emptied[id]++
}

// deleted returns the strays that a batch deletes with its ranges.
func (w *wrong) deleted(t *ingest.Batch) (all []*stray) {
	if t.Kind != ingest.DeleteRange {
		return nil
	}
	for i := range t.Copies {
		w.emptied[t.Copies[i].ID]++
		for n := range t.Copies[i].Parts {
			if s := w.strays[vbOfCopy{t.Copies[i].ID, t.Copies[i].Parts[n].VBucket}]; s != nil && s.there() {
				all = append(all, s)
			}
		}
	}
	return all
}

// gone records that a stray's rows have been deleted from the copy in its present state, unless the copy was reopened
// since. right reports that nothing else in the copy is known to be wrong.
func (w *wrong) gone(s *stray, now RowsAt) (right bool) {
	if s.again || w.strays[s.vbOfCopy] != s {
		return false
	}
	s.without = now
	return !w.has(s.copy)
}

// durable forgets strays whose deletion is durable; of returns what of a copy survives a crash.
func (w *wrong) durable(of func(index.CopyID) RowsAt) {
	maps.DeleteFunc(w.strays, func(at vbOfCopy, s *stray) bool { return !s.there() && of(at.copy).has(s.without) })
}

// wentBack records that a copy may hold stray rows again, except those whose deletion is part of what it holds now.
// doubt reports that scans must not use the copy.
func (w *wrong) wentBack(id index.CopyID, now RowsAt) (doubt bool) {
	w.durable(func(of index.CopyID) RowsAt {
		if of == id {
			return now
		}
		return RowsAt{}
	})
	for at, s := range w.strays {
		if at.copy == id {
			s.again, s.without, doubt = true, RowsAt{}, doubt || s.doubt
		}
	}
	return doubt
}

// forget drops the strays of a removed copy.
func (w *wrong) forget(id index.CopyID) {
	delete(w.emptied, id)
	maps.DeleteFunc(w.strays, func(at vbOfCopy, _ *stray) bool { return at.copy == id })
}

// has reports whether a vbucket of a copy has stray rows that have not been deleted.
func (w *wrong) has(id index.CopyID) bool {
	for at, s := range w.strays {
		if at.copy == id && s.there() {
			return true
		}
	}
	return false
}

// wrongUntil reports whether a copy's files still have rows known to be wrong, or a range that is being deleted.
// count changes with each such vbucket. It runs in the loop.
func (k *Bucket) wrongUntil(id index.CopyID) (wrong bool, count uint64) {
	return k.wrong.has(id) || k.work.Deleting(id), k.wrong.emptied[id]
}
