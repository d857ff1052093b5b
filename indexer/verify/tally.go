package verify

import (
	"fmt"
	"slices"

	"tidemark/manager/api/v1"
	"tidemark/wire"
)

// differenceEntry is about what a difference that is listed costs beside its keys, foundEntry what each costs.
const differenceEntry, foundEntry = 512, 128

// tally is what the comparison of some vbuckets has come to. It counts when they are through: where they are begun
// anew, since KV left the branch or they were too many, all that is in it is found again.
type tally struct {
	documents, differences map[*verifiedCopy]uint64
	kinds                  map[wire.DifferenceKind]int
	listed                 []v1.Difference
	findings               findings // of an auditor, instead
	extra                  []takenExtra
	// found are the differences of each document: one that is looked at again, at a later timestamp, is counted once.
	found map[document][]difference
	bytes int64 // that these take, and what is listed
}

// document is one in a copy; with wire.LostOnWay, of no document, a vbucket.
type document struct {
	c  *verifiedCopy
	vb uint16
	id string
}

// difference is one that is counted.
type difference struct {
	kind wire.DifferenceKind
	at   int  // in the list; -1: there was no room
	over bool // the document was looked at since, and was not found so
}

// takenExtra are rows without an entry whose document has been looked at.
type takenExtra struct {
	c    *verifiedCopy
	id   string
	keys [][]byte
}

func newTally() *tally {
	return &tally{documents: map[*verifiedCopy]uint64{}, differences: map[*verifiedCopy]uint64{},
		kinds: map[wire.DifferenceKind]int{}, found: map[document][]difference{}}
}

// looks begins to judge a document at a stability timestamp: what was found of it before is over, unless it is found
// again.
func (t *tally) looks(of document, stability uint64) {
	all := t.found[of]
	if len(all) == 0 {
		return
	}
	t.findings.forget(of)
	for i := range all {
		d := &all[i]
		if d.at >= 0 && !d.over {
			detail := &t.listed[d.at].Detail
			if *detail != "" {
				*detail += "; "
			}
			*detail += fmt.Sprintf("not so any more at stability timestamp %d", stability)
		}
		d.over = true
	}
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

// take counts a difference, and holds it to be listed while there is room in the list. One that was counted already is
// listed as it is now. Where memory has no room (errVerifyLarge), fewer documents have to be compared together.
func (v *verification) take(t *tally, c *verifiedCopy, d *v1.Difference, want, rows [][]byte) error {
	of := document{c, d.VBucket, d.ID}
	i := slices.IndexFunc(t.found[of], func(x difference) bool { return x.kind == d.Kind })
	again := i >= 0
	if v.findings != nil {
		if known := again && !t.found[of][i].over; known || !t.findings.add(finding{c.place.ID, *d, rows}) {
			return nil
		}
	}
	if !again {
		i = len(t.found[of])
		t.found[of] = append(t.found[of], difference{kind: d.Kind, at: -1})
		t.bytes += foundEntry + int64(len(d.ID))
	}
	x := &t.found[of][i]
	x.over = false
	if v.findings != nil {
		return nil
	}
	if !again {
		t.differences[c]++
		t.kinds[d.Kind]++
		if v.sum.Listed+uint64(len(t.listed)) < uint64(v.most) {
			x.at, t.listed = len(t.listed), append(t.listed, v1.Difference{})
			t.bytes += differenceEntry
		}
	}
	if x.at >= 0 {
		d.Expected, d.Found = v.shown(want), v.shown(rows)
		t.bytes += keysBytes(d) - keysBytes(&t.listed[x.at])
		t.listed[x.at] = *d
	}
	if t.bytes > v.room && len(t.found) > 1 {
		return errVerifyLarge
	}
	return nil
}

// keysBytes is what the keys of a difference take in the list.
func keysBytes(d *v1.Difference) (n int64) {
	for _, text := range slices.Concat(d.Expected, d.Found) {
		n += int64(len(text))
	}
	return n
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
