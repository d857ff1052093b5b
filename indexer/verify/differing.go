package verify

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	"tidemark/index"
	"tidemark/indexer/core"
	"tidemark/wire"
)

// differing holds the results of comparisons with KV: the copies that differed and have not been found equal since.
// Reports carry it to the leader, which makes events of changes.
type differing struct {
	mu  sync.Mutex
	all map[index.ID]map[index.CopyID]wire.CopyDifference
	// compared holds the copies that were compared at all. It is replaced, never modified.
	compared map[index.CopyID]index.ID
}

// note records the comparison of some of an index's copies; here lists its copies on this node. Copies that are no
// longer here are forgotten; copies that were not compared keep their state. It reports whether anything has changed.
func (d *differing) note(id index.ID, compared, here []index.CopyID, found []finding) (changed bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	was := d.all[id]
	now := map[index.CopyID]wire.CopyDifference{}
	for c, x := range was {
		if slices.Contains(here, c) && !slices.Contains(compared, c) {
			now[c] = x
		}
	}
	seen := map[string]bool{}
	for i := range found {
		f := &found[i]
		x, had := now[f.copy]
		if !had {
			x = wire.CopyDifference{Index: id, Copy: f.copy, Kind: f.Kind}
		}
		if at := f.place(); !seen[at] {
			seen[at] = true
			x.Documents++
		}
		x.TakenAnew = x.TakenAnew || f.mends()
		now[f.copy] = x
	}
	changed = d.noteCompared(id, compared, here) || len(was) != len(now)
	for c, x := range now {
		changed = changed || was[c] != x
	}
	if d.all == nil {
		d.all = map[index.ID]map[index.CopyID]wire.CopyDifference{}
	}
	if d.all[id] = now; len(now) == 0 {
		delete(d.all, id)
	}
	return changed
}

// has reports whether a copy of an index differs.
func (d *differing) has(id index.ID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.all[id]) > 0
}

// noteCompared records that copies of an index were compared, and reports whether that is new. The caller holds d.mu.
func (d *differing) noteCompared(id index.ID, compared, here []index.CopyID) (changed bool) {
	for _, c := range compared {
		_, was := d.compared[c]
		changed = changed || !was
	}
	for c, of := range d.compared {
		changed = changed || of == id && !slices.Contains(here, c)
	}
	if !changed {
		return false
	}
	now := maps.Clone(d.compared)
	maps.DeleteFunc(now, func(c index.CopyID, of index.ID) bool { return of == id && !slices.Contains(here, c) })
	for _, c := range compared {
		if now == nil {
			now = map[index.CopyID]index.ID{}
		}
		now[c] = id
	}
	d.compared = now
	return true
}

// list returns the differing copies with the lowest ids, how many it omits, and all copies that were compared. It
// forgets indexes that are no longer defined.
func (d *differing) list(defs *wire.Definitions) (first []wire.CopyDifference, omitted int,
	compared map[index.CopyID]index.ID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []wire.CopyDifference
	for id, copies := range d.all {
		if !core.Defines(defs, id) {
			delete(d.all, id)
			continue
		}
		for _, x := range copies {
			all = append(all, x)
		}
	}
	slices.SortFunc(all, func(a, b wire.CopyDifference) int { return cmp.Compare(a.Copy, b.Copy) })
	gone := func(id index.ID) bool { return !core.Defines(defs, id) }
	if slices.ContainsFunc(slices.Collect(maps.Values(d.compared)), gone) {
		d.compared = maps.Clone(d.compared)
		maps.DeleteFunc(d.compared, func(_ index.CopyID, id index.ID) bool { return gone(id) })
	}
	first = all[:min(len(all), wire.MaxDifferingCopies)]
	return first, len(all) - len(first), d.compared
}
