package indexer

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"tidemark/index"
	"tidemark/indexer/storage/storagetest"
	"tidemark/wire"
)

// counted returns the sum of a counter.
func (m *metrics) counted(t testing.TB, name string) (n float64) {
	t.Helper()
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			for _, v := range f.GetMetric() {
				n += v.GetCounter().GetValue()
			}
		}
	}
	return n
}

// TestAuditHeals: a copy that has lost a row, and has one that it should not have, finds that by itself, is named in
// the node's health, takes those vbuckets anew and no other, and is right again. The other copies are not touched.
func TestAuditHeals(t *testing.T) {
	w := built(t)
	w.stopIndexer()
	lost, stray := "doc-0020", "doc-0031"
	err := storagetest.Edit(filepath.Join(w.dir, copiesDir), 10, func(r *storagetest.Rows) error {
		return errors.Join(r.Remove(testKey(21), lost), r.Add(testKey(9000), stray))
	})
	if err != nil {
		t.Fatal(err)
	}
	w.tweak = func(c *Config) { c.AuditRate, c.AuditEvery = wire.MaxVerifyRate, 10*time.Millisecond }
	before := len(w.calls())
	w.again(t)
	said := ""
	var told []wire.CopyDifference
	w.until("the audit names and mends what is wrong", func() bool {
		if strings.Contains(w.health, "differs from the KV data") {
			said = w.health
		}
		if len(w.differing) > 0 {
			told = w.differing
		}
		return said != "" && w.x.metrics.counted(t, "tidemark_indexer_retaken_vbuckets_total") >= 2
	})
	w.until("the index is right again", func() bool {
		w.mu.Unlock()
		defer w.mu.Lock()
		w.promote(t.Context())
		found, end, err := w.verify(t.Context(), 1, ``)
		return err == nil && len(found) == 0 && end.Rows == 199
	})
	w.until("and said to be", func() bool { return w.health == "" && len(w.differing) == 0 && w.report[10].Compared })
	if len(told) != 1 || told[0].Index != 1 || told[0].Copy != 10 || told[0].Documents == 0 ||
		told[0].Documents > 2 || !told[0].TakenAnew {
		t.Errorf("the leader was told %+v", told)
	}
	if !strings.Contains(said, lost) && !strings.Contains(said, stray) {
		t.Errorf("health says %q", said)
	}
	touched := map[uint16]bool{}
	for _, q := range w.calls()[before:] {
		if isVerify(q.Topic) || q.Buckets[0].Restart.At(0).Seqno > 0 || len(q.Side.Copies) != 1 || q.Side.Copies[0] != 10 {
			continue
		}
		for i := range q.Buckets[0].Restart.Len() {
			touched[q.Buckets[0].Restart.At(i).VBucket] = true
		}
	}
	if len(touched) != 2 || !touched[vbOf(lost)] || !touched[vbOf(stray)] {
		t.Errorf("vbuckets %v of copy 10 were taken anew, want those of %s and %s", touched, lost, stray)
	}
	for _, q := range w.calls()[before:] {
		if !isVerify(q.Topic) && q.Buckets[0].Restart.Len() < testVBs && slices.Contains(q.Side.Copies, 20) {
			t.Errorf("copy 20 was taken anew: %+v", q)
		}
	}
	if r := w.copyReport(index.CopyID(10)); r.Error != "" {
		t.Errorf("%+v", r)
	}
}

// TestConfirmed: what is found once only, or of another copy, is no finding.
func TestConfirmed(t *testing.T) {
	f := func(copy index.CopyID, id string) finding {
		return finding{copy: copy, Difference: wire.Difference{ID: id}}
	}
	got := confirmed([]finding{f(1, "a"), f(1, "b"), f(2, "c")}, []finding{f(1, "b"), f(2, "a"), f(2, "c"), f(3, "c")})
	if len(got) != 2 || got[0].ID != "b" || got[1].copy != 2 || got[1].ID != "c" {
		t.Errorf("%+v", got)
	}
}

// auditing returns a world that compares when the test says so, and the auditor of it.
func auditing(t *testing.T) (*world, *auditor) {
	w := newWorld(t)
	w.tweak = func(c *Config) { c.AuditRate, c.AuditEvery = wire.MaxVerifyRate, time.Hour }
	w.write(docs(0, 20, 1)...)
	w.serve(10)
	return w, &auditor{w.x}
}

// TestAuditInRollback: while nothing can be compared, a copy that differs is not found to agree, and there is no round.
func TestAuditInRollback(t *testing.T) {
	w, a := auditing(t)
	w.x.differing.note(1, nil, []index.CopyID{10}, []finding{{copy: 10}})
	rollback := func(is bool) {
		w.mu.Lock()
		w.revision++
		d := w.definitionsLocked()
		w.mu.Unlock()
		d.Buckets[0].InRollback = is
		w.push(d)
	}
	rollback(true)
	a.round(t.Context())
	if defs := w.x.present(); !w.x.differing.has(1) {
		t.Error("the copy is said to agree")
	} else if _, compared := w.x.differing.list(&defs); len(compared) != 0 {
		t.Errorf("compared are %v", compared)
	}
	rollback(false)
	w.until("the copy is compared", func() bool {
		w.mu.Unlock()
		defer w.mu.Lock()
		w.promote(t.Context())
		a.round(t.Context())
		return !w.x.differing.has(1)
	})
}

// TestAuditWithoutDefinitions: before a leader has told what is here, there is nothing to have gone round.
func TestAuditWithoutDefinitions(t *testing.T) {
	w := newWorld(t)
	w.start()
	(&auditor{w.x}).round(t.Context())
	if _, compared := w.x.differing.list(&wire.Definitions{}); len(compared) != 0 {
		t.Errorf("compared are %v", compared)
	}
}

// TestAuditCut: a copy of which nothing is remembered, as others have more than that, does not count as compared; one
// of which all is remembered does, and so does one of which something was confirmed.
func TestAuditCut(t *testing.T) {
	var first findings
	for i := range auditFound + 1 {
		first.add(finding{copy: 10, Difference: wire.Difference{ID: string(rune('a' + i))}})
	}
	first.add(finding{copy: 11})
	copies := []index.CopyID{10, 11, 12}
	if got := decided(copies, first.all, first); len(first.all) != auditFound || !slices.Equal(got,
		[]index.CopyID{10, 12}) {
		t.Errorf("%d findings tell of copies %v", len(first.all), got)
	}
	if got := decided(copies, nil, findings{}, first); !slices.Equal(got, []index.CopyID{12}) {
		t.Errorf("nothing that is confirmed tells of copies %v", got)
	}
	var d differing
	d.note(1, copies, copies, []finding{{copy: 11}, {copy: 12}})
	d.note(1, decided(copies, first.all, first), copies, first.all)
	all, compared := d.list(&wire.Definitions{Indexes: []index.Definition{{ID: 1}}})
	if len(compared) != 3 {
		t.Errorf("compared are %v", compared)
	}
	d.note(1, nil, copies[1:], nil)
	if _, rest := d.list(&wire.Definitions{Indexes: []index.Definition{{ID: 1}}}); len(rest) != 2 || len(compared) != 3 {
		t.Errorf("one has gone: compared are %v, were %v", rest, compared)
	}
	if len(all) != 2 || all[0].Copy != 10 || all[0].Documents != auditFound || all[1].Copy != 11 {
		t.Errorf("%+v", all)
	}
}

// TestAuditCutByBytes: rows beyond the bound are not remembered, nor forgotten.
func TestAuditCutByBytes(t *testing.T) {
	var f findings
	row := make([]byte, auditRowBytes)
	f.add(finding{copy: 10, rows: [][]byte{row}})
	f.add(finding{copy: 11, rows: [][]byte{row}})
	if got := decided([]index.CopyID{10, 11}, f.all, f); !slices.Equal(got, []index.CopyID{10}) {
		t.Errorf("they tell of copies %v", got)
	}
}
