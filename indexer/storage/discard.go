package storage

import (
	"context"
	"errors"
	"fmt"
)

// Row is a row of the forward index.
type Row struct{ Key, DocID []byte }

// DiscardRows removes rows from the forward index, in one batch, without changing the back index. It is for rows that
// no back entry lists, which nothing else would find. It ignores rows that do not exist. It blocks and fails like
// Flush.
func (s *Slice) DiscardRows(ctx context.Context, rows []Row) error {
	for i := range rows {
		if r := &rows[i]; len(r.Key) == 0 || len(r.Key) > MaxKey || len(r.DocID) == 0 || len(r.DocID) > MaxDocID {
			return fmt.Errorf("%w: a row with a key of %d bytes for a document id of %d", ErrInvalid, len(r.Key), len(r.DocID))
		}
	}
	s.write.Lock()
	defer s.write.Unlock()
	g, cur, err := s.hold()
	if err != nil {
		return err
	}
	next, err := g.eng.discard(ctx, rows, cur)
	return s.finish(g, next, err)
}

// discard implements engine.
func (e *pebbleEngine) discard(ctx context.Context, rows []Row, cur *state) (next *state, err error) {
	e.begin()
	defer e.end()
	here := e.view()
	next = cur.next(nil)
	for i := range rows {
		there, err := here.has(rows[i].Key, rows[i].DocID)
		if err != nil {
			return cur, classify(e.id, e.dir, errors.Join(err, here.close()))
		}
		if there {
			e.scratch.removeFwd(rows[i].Key, rows[i].DocID)
			next.items--
		}
	}
	if err := here.close(); err != nil {
		return cur, classify(e.id, e.dir, err)
	}
	return next, e.commit(ctx, next, false)
}
