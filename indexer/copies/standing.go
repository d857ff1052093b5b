package copies

import (
	"context"

	"tidemark/indexer/storage"
)

// Standing is the state of a copy that decides whether its files can be used elsewhere.
type Standing struct {
	Generation, RollbackID uint64 // of its bucket
	Fit                    bool   // it is in the bucket, and nothing of it is being restored or in doubt
	Wrong                  bool   // it has rows known to be wrong, in a vbucket that is being retaken
	Emptied                uint64 // changes with each such vbucket
	Empty                  int    // vbuckets of which it holds nothing
}

// Standing returns the state of a copy.
func (k *Bucket) Standing(ctx context.Context, s *storage.Slice) (c Standing, err error) {
	err = k.do(ctx, func() {
		id := s.Meta().Copy
		c = Standing{Generation: k.st.Generation(), RollbackID: k.st.RollbackID()}
		c.Wrong, c.Emptied = k.wrongUntil(id)
		c.Fit = k.slices[id] == s && k.st.RestoringOf(id) == 0 && !k.node.Snapshots.InDoubt(id)
		for vb := 0; c.Fit && vb < k.vbuckets; vb++ {
			// a vbucket to be retaken counts as empty, even before its rows have been deleted
			if p, _ := k.st.Position(id, vb); p.Side == 0 && !p.Whole() {
				c.Empty++
			}
		}
	})
	return c, err
}
