package storage

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	"tidemark/index"
	"tidemark/ingest"
	"tidemark/timestamp"
)

// When batches have no rows for a copy, the copy's position in memory runs ahead of what it has stored; its next
// write stores it. So that such a copy does not fall back to the stored position after a crash, one file records the
// positions of all such copies together (KeepCommon). An entry is valid for one durable batch of a copy: if the copy
// holds any other batch, folder or generation when it is opened, the entry is ignored. So the file may be outdated or
// lost at any time; a copy is never considered further than its rows are.

// commonName is the name of that file in the store's folder.
const commonName = "COMMON"

// commonFile is the content of the file: groups of copies with a common position.
type commonFile struct {
	Groups []commonGroup `json:"groups"`
}

type commonGroup struct {
	VBuckets  int      `json:"vbuckets"`
	Positions []byte   `json:"positions"` // by vbucket, encoded with ingest.AppendPosition
	Logs      []byte   `json:"logs"`      // by vbucket, encoded with timestamp.AppendLog
	Stable    []byte   `json:"stable"`    // as a delta against zero
	Exact     bool     `json:"exact"`
	Copies    []rowsOf `json:"copies"`
}

// rowsOf identifies what a copy holds after one of its batches.
type rowsOf struct {
	Copy       index.CopyID `json:"copy"`
	Birth      uint64       `json:"birth"` // of its folder, because ids are reused
	Generation uint64       `json:"generation"`
	Batch      uint64       `json:"batch"`
}

// ahead is a position that is valid for a copy with the rows of one batch.
type ahead struct {
	rows rowsOf
	at   *state
}

// commons is the content of the file in memory.
type commons struct {
	keep sync.Mutex // serializes KeepCommon

	mu  sync.Mutex
	all map[index.CopyID]ahead
}

// of returns the recorded position of a copy with these rows, or nil.
func (c *commons) of(rows rowsOf) *state {
	c.mu.Lock()
	defer c.mu.Unlock()
	if a, ok := c.all[rows.Copy]; ok && a.rows == rows {
		return a.at
	}
	return nil
}

func (c *commons) get(id index.CopyID) ahead {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.all[id]
}

func (c *commons) set(all map[index.CopyID]ahead) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = all
}

// standing returns s with the position of at, if that is not nil.
func (s *state) standing(at *state) state {
	n := *s
	if at != nil {
		n.positions, n.logs, n.stable, n.exact = at.positions, at.logs, at.stable, at.exact
	}
	return n
}

// KeepCommon makes durable the positions of copies that are ahead of what they have stored and whose rows are
// durable. It writes one file, whatever the number of copies, and nothing if no position has changed.
func (s *Store) KeepCommon() error {
	s.common.keep.Lock()
	defer s.common.keep.Unlock()
	next, moved := map[index.CopyID]ahead{}, false
	for _, c := range s.Slices() {
		was := s.common.get(c.meta.Copy)
		a, ok := c.ahead(was)
		if moved = moved || ok != (was.at != nil) || ok && (a.rows != was.rows || !samePlace(a.at, was.at)); ok {
			next[c.meta.Copy] = a
		}
	}
	if !moved {
		return nil
	}
	f, err := encodeCommon(next)
	if err == nil {
		err = writeSmall(s.fs, s.opts.Dir, commonName, f)
	}
	if err != nil {
		return fmt.Errorf("%w: %s: %w", ErrIO, s.fs.PathJoin(s.opts.Dir, commonName), err)
	}
	s.common.set(next)
	return nil
}

// samePlace reports whether two states share their position slices, which are never modified.
func samePlace(a, b *state) bool {
	return &a.positions[0] == &b.positions[0] && a.stable.Len() > 0 && &a.stable.Seqnos[0] == &b.stable.Seqnos[0] &&
		a.exact == b.exact
}

// ahead returns the copy's position for its durable rows, if that is ahead of what it has stored.
func (s *Slice) ahead(was ahead) (ahead, bool) {
	g, cur, err := s.hold()
	if err != nil {
		return was, was.at != nil // it is being reopened
	}
	if was.at != nil && was.rows == s.rows(g.number, cur.number) { // these rows were durable before, and still are
		return ahead{was.rows, cur}, s.release(g) == nil
	}
	d, err := g.eng.durable()
	rows := s.rows(g.number, d.number)
	if err = errors.Join(err, s.release(g)); err != nil {
		return was, was.at != nil
	}
	switch {
	case d.number == cur.number && !slices.Equal(d.positions, cur.positions):
		return ahead{rows, cur}, true
	case was.at != nil && was.rows == rows:
		return was, true // newer batches are not durable yet
	}
	return ahead{}, false
}

func (s *Slice) rows(generation, batch uint64) rowsOf {
	return rowsOf{Copy: s.meta.Copy, Birth: s.birth, Generation: generation, Batch: batch}
}

func encodeCommon(all map[index.CopyID]ahead) (commonFile, error) {
	var f commonFile
	var at []*state
	ids := make([]index.CopyID, 0, len(all))
	for id := range all {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		a := all[id]
		i := slices.IndexFunc(at, func(s *state) bool { return samePlace(s, a.at) })
		if i < 0 {
			g, err := encodeGroup(a.at)
			if err != nil {
				return f, err
			}
			i, at, f.Groups = len(at), append(at, a.at), append(f.Groups, g)
		}
		f.Groups[i].Copies = append(f.Groups[i].Copies, a.rows)
	}
	return f, nil
}

func encodeGroup(s *state) (g commonGroup, err error) {
	g.VBuckets, g.Exact = len(s.positions), s.exact
	for vb := range s.positions {
		g.Positions = ingest.AppendPosition(g.Positions, s.positions[vb])
		g.Logs = timestamp.AppendLog(g.Logs, s.logs[vb])
	}
	g.Stable, err = s.stable.AppendDelta(nil, timestamp.New(g.VBuckets))
	return g, err
}

func (g *commonGroup) decode() (*state, error) {
	if g.VBuckets < 1 || g.VBuckets > timestamp.MaxVBuckets {
		return nil, fmt.Errorf("%w: %d vbuckets", errRecord, g.VBuckets)
	}
	s := newState(g.VBuckets)
	s.exact = g.Exact
	positions, logs := g.Positions, g.Logs
	var err error
	for vb := range s.positions {
		if s.positions[vb], positions, err = ingest.DecodePosition(positions); err != nil {
			return nil, err
		}
		if s.logs[vb], logs, err = timestamp.DecodeLog(logs); err != nil {
			return nil, err
		}
	}
	if s.stable, _, err = timestamp.ApplyDelta(g.Stable, timestamp.New(g.VBuckets)); err != nil {
		return nil, err
	}
	return &s, s.stable.Check(g.VBuckets)
}

// loadCommon reads the file before the copies are opened. Without it, copies start at the positions that they have
// stored.
func (s *Store) loadCommon() {
	var f commonFile
	err := readSmall(s.fs, s.opts.Dir, commonName, &f)
	if errors.Is(err, os.ErrNotExist) {
		return
	}
	all := map[index.CopyID]ahead{}
	for i := range f.Groups {
		at, derr := f.Groups[i].decode()
		if err = errors.Join(err, derr); derr != nil {
			continue
		}
		for _, rows := range f.Groups[i].Copies {
			all[rows.Copy] = ahead{rows, at}
		}
	}
	if err != nil {
		s.log.Error("shared file of positions cannot be read: each copy continues from its own positions", "error", err)
	}
	s.common.set(all)
}
