package copies

import (
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
	strays  map[vbOfCopy][]storage.Row // to be removed with the range of a vbucket that is taken anew
	emptied map[index.CopyID]uint64    // how many ranges of a copy were to be deleted
}

func newWrong() wrong {
	return wrong{strays: map[vbOfCopy][]storage.Row{}, emptied: map[index.CopyID]uint64{}}
}

// found notes a vbucket that is to be taken anew, without rows that should not be there.
func (w *wrong) found(id index.CopyID, vb int, stray []storage.Row) {
	w.strays[vbOfCopy{id, vb}] = stray
	w.emptied[id]++
}

// deleted takes the rows that have to go with the range that a batch deletes. mends: it is deleted because the copy
// was found to be wrong.
func (w *wrong) deleted(t *ingest.Batch) (rows []storage.Row, mends bool) {
	if t.Kind != ingest.DeleteRange {
		return nil, false
	}
	for i := range t.Copies {
		w.emptied[t.Copies[i].ID]++
		for n := range t.Copies[i].Parts {
			at := vbOfCopy{t.Copies[i].ID, t.Copies[i].Parts[n].VBucket}
			stray, found := w.strays[at]
			rows, mends = append(rows, stray...), mends || found
			delete(w.strays, at)
		}
	}
	return rows, mends
}

// has reports whether a vbucket of a copy is to be taken anew, and has not begun to be.
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
