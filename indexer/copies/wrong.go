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

// wrong is what is known to be wrong in copies: vbuckets that are to be taken anew, and whose rows have not gone, or
// not durably.
type wrong struct {
	strays  map[vbOfCopy]*stray
	emptied map[index.CopyID]uint64 // how many ranges of a copy were to be deleted
}

// stray is what is wrong in a vbucket of a copy.
type stray struct {
	vbOfCopy
	rows  []storage.Row // to be removed with the range of the vbucket
	doubt bool          // scans see nothing of the copy until they have gone
	again bool          // its copy went back meanwhile: that the vbucket is taken anew has to be asked for again
	// without: what the copy held when they had gone, which they have for good once that is durable; zero: they have not.
	without RowsAt
}

// there reports whether the rows have not gone.
func (s *stray) there() bool { return s.without == RowsAt{} }

func newWrong() wrong {
	return wrong{strays: map[vbOfCopy]*stray{}, emptied: map[index.CopyID]uint64{}}
}

// found notes a vbucket that is to be taken anew, without rows that should not be there.
func (w *wrong) found(id index.CopyID, vb int, rows []storage.Row, doubt bool) {
	at := vbOfCopy{id, vb}
	w.strays[at] = &stray{vbOfCopy: at, rows: rows, doubt: doubt}
	w.emptied[id]++
}

// deleted lists what goes with the range that a batch deletes.
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

// gone notes that a vbucket's rows have gone from what its copy holds now, unless it went back since that began. right:
// nothing else is known to be wrong in the copy.
func (w *wrong) gone(s *stray, now RowsAt) (right bool) {
	if s.again || w.strays[s.vbOfCopy] != s {
		return false
	}
	s.without = now
	return !w.has(s.copy)
}

// durable forgets what has gone durably; of is what of a copy survives a crash.
func (w *wrong) durable(of func(index.CopyID) RowsAt) {
	maps.DeleteFunc(w.strays, func(at vbOfCopy, s *stray) bool { return !s.there() && of(at.copy).has(s.without) })
}

// wentBack notes that a copy may hold again what was to go, or had gone, unless that has gone from what it holds now.
// doubt: scans are to see nothing of it again.
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

// forget drops what is known of a copy that goes.
func (w *wrong) forget(id index.CopyID) {
	delete(w.emptied, id)
	maps.DeleteFunc(w.strays, func(at vbOfCopy, _ *stray) bool { return at.copy == id })
}

// has reports whether a vbucket of a copy is to be taken anew, and its rows have not gone.
func (w *wrong) has(id index.CopyID) bool {
	for at, s := range w.strays {
		if at.copy == id && s.there() {
			return true
		}
	}
	return false
}

// wrongUntil reports whether a copy's files still have rows that are known to be wrong: a vbucket is to be taken anew,
// and its rows have not gone. count changes with each such vbucket. It runs in the loop.
func (k *Bucket) wrongUntil(id index.CopyID) (wrong bool, count uint64) {
	return k.wrong.has(id) || k.work.Deleting(id), k.wrong.emptied[id]
}
