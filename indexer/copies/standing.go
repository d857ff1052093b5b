package copies

import (
	"context"

	"tidemark/indexer/storage"
)

// Standing is how a copy stands for who would go on with its files.
type Standing struct {
	Generation, RollbackID uint64 // of its bucket
	Fit                    bool   // it is here, and nothing of it is put back or in doubt
	Wrong                  bool   // it has rows that are known to be wrong: a vbucket of it is being taken anew
	Emptied                uint64 // changes with each such vbucket
	Empty                  int    // vbuckets of which it has nothing
}

// Standing looks at a copy.
func (k *Bucket) Standing(ctx context.Context, s *storage.Slice) (c Standing, err error) {
	err = k.do(ctx, func() {
		id := s.Meta().Copy
		c = Standing{Generation: k.st.Generation(), RollbackID: k.st.RollbackID()}
		c.Wrong, c.Emptied = k.wrongUntil(id)
		c.Fit = k.slices[id] == s && k.st.RestoringOf(id) == 0 && !k.node.Snapshots.InDoubt(id)
		for vb := 0; c.Fit && vb < k.vbuckets; vb++ {
			// what is to be taken anew is nothing, also before its rows have gone
			if p, _ := k.st.Position(id, vb); p.Side == 0 && !p.Whole() {
				c.Empty++
			}
		}
	})
	return c, err
}
