package verify

import (
	"fmt"
	"slices"

	"tidemark/manager/api/v1"
	"tidemark/wire"
)

// differenceEntry is the approximate memory of a listed difference without its keys, foundEntry that of every
// difference.
const differenceEntry, foundEntry = 512, 128

// tally accumulates the result of comparing some vbuckets. It counts only when the comparison is complete: if it
// starts over, because KV left the branch or the memory was exceeded, everything in it will be found again.
type tally struct {
	documents, differences map[*verifiedCopy]uint64
	kinds                  map[wire.DifferenceKind]int
	listed                 []v1.Difference
	findings               findings // of an auditor, instead of listed
	extra                  []takenExtra
	// found holds the differences of each document, so that a document that is compared again at a later timestamp is
	// counted once.
	found map[document][]difference
	bytes int64 // memory of found and listed
}

// document identifies a document in a copy, or a vbucket for wire.LostOnWay, which concerns no document.
type document struct {
	c  *verifiedCopy
	vb uint16
	id string
}

// difference is a counted difference.
type difference struct {
	kind wire.DifferenceKind
	at   int  // index in listed; -1: there was no room
	over bool // the document was compared again later, without this difference
}

// takenExtra holds rows without an entry whose document has been compared.
type takenExtra struct {
	c    *verifiedCopy
	id   string
	keys [][]byte
}

func newTally() *tally {
	return &tally{documents: map[*verifiedCopy]uint64{}, differences: map[*verifiedCopy]uint64{},
		kinds: map[wire.DifferenceKind]int{}, found: map[document][]difference{}}
}

// looks starts the comparison of a document at a stability timestamp. Its earlier differences are considered over
// unless they are found again.
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
			*detail += fmt.Sprintf("no longer so at stability timestamp %d", stability)
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

// undo restores the copies' extra rows, so that they are found again.
func (t *tally) undo() {
	for _, x := range t.extra {
		x.c.extra[x.id] = x.keys
	}
}

// take counts a difference, and adds it to the list while there is room. If it was counted before, its list entry is
// updated. If the memory is exceeded, take returns errVerifyLarge: fewer documents must be compared together.
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

// keysBytes returns the size of a difference's keys in the list.
func keysBytes(d *v1.Difference) (n int64) {
	for _, text := range slices.Concat(d.Expected, d.Found) {
		n += int64(len(text))
	}
	return n
}

// through adds the result of a complete comparison to the totals, and emits the listed differences.
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
