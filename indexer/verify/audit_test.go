package verify

import (
	"slices"
	"testing"

	"tidemark/index"
	"tidemark/manager/api/v1"
	"tidemark/wire"
)

// TestConfirmed checks that what is found only once, or in different copies, is no finding.
func TestConfirmed(t *testing.T) {
	f := func(copy index.CopyID, id string) finding {
		return finding{copy: copy, Difference: v1.Difference{ID: id}}
	}
	got := confirmed([]finding{f(1, "a"), f(1, "b"), f(2, "c")}, []finding{f(1, "b"), f(2, "a"), f(2, "c"), f(3, "c")})
	if len(got) != 2 || got[0].ID != "b" || got[1].copy != 2 || got[1].ID != "c" {
		t.Errorf("%+v", got)
	}
}

// TestAuditCut checks that a copy does not count as compared if none of its findings could be remembered because
// others have filled the room. A copy counts if all of its findings were remembered, or one was confirmed.
func TestAuditCut(t *testing.T) {
	var first findings
	for i := range auditFound + 1 {
		first.add(finding{copy: 10, Difference: v1.Difference{ID: string(rune('a' + i))}})
	}
	first.add(finding{copy: 11})
	copies := []index.CopyID{10, 11, 12}
	if got := decided(copies, first.all, first); len(first.all) != auditFound || !slices.Equal(got,
		[]index.CopyID{10, 12}) {
		t.Errorf("%d findings name copies %v", len(first.all), got)
	}
	if got := decided(copies, nil, findings{}, first); !slices.Equal(got, []index.CopyID{12}) {
		t.Errorf("nothing that is confirmed names copies %v", got)
	}
	var d differing
	d.note(1, copies, copies, []finding{{copy: 11}, {copy: 12}})
	d.note(1, decided(copies, first.all, first), copies, first.all)
	all, _, compared := d.list(&wire.Definitions{Indexes: []index.Definition{{ID: 1}}})
	if len(compared) != 3 {
		t.Errorf("compared are %v", compared)
	}
	d.note(1, nil, copies[1:], nil)
	defs := &wire.Definitions{Indexes: []index.Definition{{ID: 1}}}
	if _, _, rest := d.list(defs); len(rest) != 2 || len(compared) != 3 {
		t.Errorf("one has gone: compared are %v, were %v", rest, compared)
	}
	if len(all) != 2 || all[0].Copy != 10 || all[0].Documents != auditFound || all[1].Copy != 11 {
		t.Errorf("%+v", all)
	}
}

// TestUnlistedDifferencesAreCounted checks that copies beyond those in the list for the leader are counted.
func TestUnlistedDifferencesAreCounted(t *testing.T) {
	var d differing
	var copies []index.CopyID
	var found []finding
	for id := index.CopyID(1); id <= wire.MaxDifferingCopies+3; id++ {
		copies, found = append(copies, id), append(found, finding{copy: id})
	}
	defs := &wire.Definitions{Indexes: []index.Definition{{ID: 1}}}
	d.note(1, copies, copies, found)
	if listed, omitted, _ := d.list(defs); len(listed) != wire.MaxDifferingCopies || omitted != 3 {
		t.Errorf("%d are listed and %d are left out", len(listed), omitted)
	}
	d.note(1, copies, copies, found[3:])
	if listed, omitted, _ := d.list(defs); len(listed) != wire.MaxDifferingCopies || omitted != 0 || listed[0].Copy != 4 {
		t.Errorf("three are right again: %d are listed, from %d on, and %d are left out", len(listed),
			listed[0].Copy, omitted)
	}
}

// TestDocumentWithTwoKindsOfDifferences checks that the report of a copy counts documents that differ, whatever the
// kinds of their differences.
func TestDocumentWithTwoKindsOfDifferences(t *testing.T) {
	f := func(copy index.CopyID, id string, kind wire.DifferenceKind) finding {
		return finding{copy: copy, Difference: v1.Difference{ID: id, Kind: kind}}
	}
	all := []finding{f(10, "a", wire.RefusedKey), f(10, "a", wire.MissingRow), f(10, "b", wire.MissingRow),
		f(11, "a", wire.MissingRow)}
	var d differing
	d.note(1, []index.CopyID{10, 11}, []index.CopyID{10, 11}, all)
	listed, _, _ := d.list(&wire.Definitions{Indexes: []index.Definition{{ID: 1}}})
	if len(listed) != 2 || listed[0].Documents != 2 || listed[1].Documents != 1 || !listed[0].TakenAnew {
		t.Errorf("%+v", listed)
	}
	if n := documents(all); n != 3 {
		t.Errorf("%d documents, in each copy", n)
	}
}

// TestAuditCutByBytes checks that a finding whose rows exceed the limit is not remembered, but its copy is not taken
// for equal either.
func TestAuditCutByBytes(t *testing.T) {
	var f findings
	row := make([]byte, auditRowBytes)
	f.add(finding{copy: 10, rows: [][]byte{row}})
	f.add(finding{copy: 11, rows: [][]byte{row}})
	if got := decided([]index.CopyID{10, 11}, f.all, f); !slices.Equal(got, []index.CopyID{10}) {
		t.Errorf("they name copies %v", got)
	}
}
