package verify

import (
	"fmt"
	"strings"
	"testing"

	"tidemark/index"
	"tidemark/indexer/packed"
	"tidemark/indexer/storage"
	"tidemark/keyversion"
	"tidemark/manager/api/v1"
)

// TestDocumentAtTwoTimestamps checks documents that are compared again because they have changed in KV. Such a
// document counts as one difference of each kind, and the list shows what was found last. If a kind no longer
// applies, its difference says so. An auditor reports and repairs only what was found last.
func TestDocumentAtTwoTimestamps(t *testing.T) {
	for _, tc := range []struct {
		name string
		// what KV states and the copy does not contain: a key, a refused key, both, nothing; "?": unknown
		looks   []string
		user    string
		auditor string
	}{
		{"once", []string{"key"}, "1: missing_row@1 ", "missing_row@1 "},
		{"again", []string{"key", "key", "key"}, "1: missing_row@3 ", "missing_row@3 "},
		{"healed", []string{"key", "nothing"}, "1: missing_row@1 no longer so at stability timestamp 2 ", ""},
		{"healed, then open", []string{"key", "nothing", "?"},
			"1: missing_row@1 no longer so at stability timestamp 2 ", ""},
		{"open", []string{"key", "?"}, "1: missing_row@1 ", "missing_row@1 "},
		{"back", []string{"key", "nothing", "key"}, "1: missing_row@3 ", "missing_row@3 "},
		{"deleted in both", []string{"key", "gone"}, "1: missing_row@1 no longer so at stability timestamp 2 ", ""},
		{"both kinds", []string{"both", "both"}, "2: refused_key@2 lost missing_row@2 ", "refused_key@2 lost missing_row@2 "},
		{"one kind, then the other", []string{"refused", "key"},
			"2: refused_key@1 lost; no longer so at stability timestamp 2 missing_row@2 ", "missing_row@2 "},
	} {
		for _, audit := range []bool{false, true} {
			v, c, _ := tallied(10, 1<<20)
			v.tally = newTally()
			var listed string
			v.emit = func(l *v1.VerifyLine) error {
				listed += found(l.Difference)
				return nil
			}
			if audit {
				v.findings = &findings{}
			}
			for i, look := range tc.looks {
				j := &judge{v: v, c: c, at: uint64(10 * (i + 1)), stability: uint64(i + 1), open: map[string]bool{},
					unpack: packed.Unpacker{Index: 1}, read: &vbRead{reach: uint64(10*(i+1) + 5), docs: map[string]*kvVersion{}}}
				if d := version(look, j.at); d != nil {
					j.read.docs["d"] = d
				} else if look == "gone" {
					j.read.reach = j.at
				}
				if err := j.document("d", entry{}); err != nil {
					t.Fatal(err)
				}
			}
			if err := v.through(v.tally); err != nil {
				t.Fatal(err)
			}
			want := tc.user
			if audit {
				want, listed = tc.auditor, ""
				for i := range v.findings.all {
					listed += found(&v.findings.all[i].Difference)
				}
			} else {
				listed = fmt.Sprintf("%d: ", v.sum.Differences) + listed
			}
			if listed != want {
				t.Errorf("%s, audit %v: %q, want %q", tc.name, audit, listed, want)
			}
		}
	}
}

// found returns a difference in short form.
func found(d *v1.Difference) string {
	s := fmt.Sprintf("%s@%d ", d.Kind, d.Stability)
	if d.Detail != "" {
		s += strings.Replace(d.Detail, fmt.Sprintf("1 keys that are empty or longer than %d bytes", storage.MaxKey), "lost",
			1) + " "
	}
	return s
}

// version returns what KV states for a document.
func version(look string, seqno uint64) *kvVersion {
	var refused []index.SliceID
	ev := &keyversion.Event{Kind: keyversion.Insert, DocID: []byte("d"), Seqno: seqno,
		Statements: []keyversion.Statement{{Index: 1}}}
	switch look {
	case "key", "both":
		ev.Statements[0].Keys = [][]byte{[]byte("k")}
	case "gone", "?":
		return nil
	}
	if look == "refused" || look == "both" {
		refused = []index.SliceID{0}
	}
	return &kvVersion{seqno: seqno, refused: refused, events: []packedEvent{{data: new(packed.Arena).Pack(ev)}}}
}
