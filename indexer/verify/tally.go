package verify

import (
	"tidemark/manager/api/v1"
	"tidemark/wire"
)

// differenceEntry is about what a difference costs beside its keys.
const differenceEntry = 512

// tally is what the comparison of some vbuckets has come to. It counts when they are through: where they are begun
// anew, since KV left the branch or they were too many, all that is in it is found again.
type tally struct {
	documents, differences map[*verifiedCopy]uint64
	kinds                  map[wire.DifferenceKind]int
	listed                 []v1.Difference
	bytes                  int64    // that these take
	findings               findings // of an auditor, instead
	extra                  []takenExtra
}

// takenExtra are rows without an entry whose document has been looked at.
type takenExtra struct {
	c    *verifiedCopy
	id   string
	keys [][]byte
}

func newTally() *tally {
	return &tally{documents: map[*verifiedCopy]uint64{}, differences: map[*verifiedCopy]uint64{},
		kinds: map[wire.DifferenceKind]int{}}
}

// takeExtra returns a document's rows without an entry, once.
func (t *tally) takeExtra(c *verifiedCopy, id string) [][]byte {
	keys, ok := c.extra[id]
	if ok {
		delete(c.extra, id)
		t.extra = append(t.extra, takenExtra{c, id, keys})
	}
	return keys
}

// undo lets everything be found again.
func (t *tally) undo() {
	for _, x := range t.extra {
		x.c.extra[x.id] = x.keys
	}
}

// take counts a difference, and holds it to be listed while there is room in the list. Where memory has none
// (errVerifyLarge), fewer documents have to be compared together.
func (v *verification) take(t *tally, c *verifiedCopy, d *v1.Difference, want, rows [][]byte) error {
	if v.findings != nil {
		t.findings.add(finding{c.place.ID, *d, rows})
		return nil
	}
	t.differences[c]++
	t.kinds[d.Kind]++
	if v.sum.Listed+uint64(len(t.listed)) >= uint64(v.most) {
		return nil
	}
	d.Expected, d.Found = v.shown(want), v.shown(rows)
	t.bytes += differenceEntry + int64(len(d.ID))
	for _, text := range d.Expected {
		t.bytes += int64(len(text))
	}
	for _, text := range d.Found {
		t.bytes += int64(len(text))
	}
	if t.bytes > v.room && len(t.listed) > 0 {
		return errVerifyLarge
	}
	t.listed = append(t.listed, *d)
	return nil
}

// through counts what a comparison has come to, and lists its differences.
func (v *verification) through(t *tally) error {
	for c, n := range t.documents {
		c.sum.Documents += n
		v.sum.Documents += n
	}
	for c, n := range t.differences {
		c.sum.Differences += n
		v.sum.Differences += n
	}
	for kind, n := range t.kinds {
		v.metrics.different.WithLabelValues(string(kind)).Add(float64(n))
	}
	if v.findings != nil {
		v.findings.merge(&t.findings)
	}
	for i := range t.listed {
		v.sum.Listed++
		if err := v.emit(&v1.VerifyLine{Difference: &t.listed[i]}); err != nil {
			return err
		}
	}
	return nil
}
