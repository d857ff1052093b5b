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

// wrong is what is known to be wrong in copies: vbuckets that are to be taken anew, and whose rows have not gone.
type wrong struct {
	strays  map[vbOfCopy]*stray
	emptied map[index.CopyID]uint64 // how many ranges of a copy were to be deleted
}

// stray is what is wrong in a vbucket of a copy.
type stray struct {
	vbOfCopy
	rows  []storage.Row // to be removed with the range of the vbucket
	again bool          // its copy went back meanwhile: that the vbucket is taken anew has to be asked for again
}

func newWrong() wrong {
	return wrong{strays: map[vbOfCopy]*stray{}, emptied: map[index.CopyID]uint64{}}
}

// found notes a vbucket that is to be taken anew, without rows that should not be there.
func (w *wrong) found(id index.CopyID, vb int, rows []storage.Row) {
	at := vbOfCopy{id, vb}
	w.strays[at] = &stray{vbOfCopy: at, rows: rows}
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
			if s := w.strays[vbOfCopy{t.Copies[i].ID, t.Copies[i].Parts[n].VBucket}]; s != nil {
				all = append(all, s)
			}
		}
	}
	return all
}

// gone notes that a vbucket's rows have gone, unless its copy went back since that began. right: nothing else is known
// to be wrong in the copy.
func (w *wrong) gone(s *stray) (right bool) {
	if s.again || w.strays[s.vbOfCopy] != s {
		return false
	}
	delete(w.strays, s.vbOfCopy)
	return !w.has(s.copy)
}

// wentBack notes that a copy may hold again what was to go.
func (w *wrong) wentBack(id index.CopyID) {
	for at, s := range w.strays {
		s.again = s.again || at.copy == id
	}
}

// forget drops what is known of a copy that goes.
func (w *wrong) forget(id index.CopyID) {
	delete(w.emptied, id)
	maps.DeleteFunc(w.strays, func(at vbOfCopy, _ *stray) bool { return at.copy == id })
}

// has reports whether a vbucket of a copy is to be taken anew, and its rows have not gone.
func (w *wrong) has(id index.CopyID) bool {
	for at := range w.strays {
		if at.copy == id {
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
