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
	"tidemark/indexer/verify"
	"tidemark/manager/api/v1"
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

// TestAuditHeals checks that a copy that has lost a row, and has a surplus one, finds this itself, is reported in the
// node's health, takes only those vbuckets again, and is then right. The other copies are not touched.
func TestAuditHeals(t *testing.T) {
	t.Parallel()
	w := built(t)
	w.stopIndexer()
	lost, stray := "doc-0020", "doc-0031"
	err := storagetest.Edit(filepath.Join(w.dir, copiesDir), 10, func(r *storagetest.Rows) error {
		return errors.Join(r.Remove(testKey(21), lost), r.Add(testKey(9000), stray))
	})
	if err != nil {
		t.Fatal(err)
	}
	w.tweak = func(c *Config) { c.AuditRate, c.AuditEvery = v1.MaxVerifyRate, 10*time.Millisecond }
	before := len(w.calls())
	w.again(t)
	said := ""
	var reported []wire.CopyDifference
	w.until("the audit names and mends what is wrong", func() bool {
		if strings.Contains(w.health, "differs from the KV data") {
			said = w.health
		}
		if len(w.differing) > 0 {
			reported = w.differing
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
	if len(reported) != 1 || reported[0].Index != 1 || reported[0].Copy != 10 || reported[0].Documents == 0 ||
		reported[0].Documents > 2 || !reported[0].TakenAnew {
		t.Errorf("the leader got %+v", reported)
	}
	if !strings.Contains(said, lost) && !strings.Contains(said, stray) {
		t.Errorf("health says %q", said)
	}
	touched := map[uint16]bool{}
	for _, q := range w.calls()[before:] {
		if verify.IsTopic(q.Topic) || q.Buckets[0].Restart.At(0).Seqno > 0 || len(q.Side.Copies) != 1 ||
			q.Side.Copies[0] != 10 {
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
		if !verify.IsTopic(q.Topic) && q.Buckets[0].Restart.Len() < testVBs && slices.Contains(q.Side.Copies, 20) {
			t.Errorf("copy 20 was taken anew: %+v", q)
		}
	}
	if r := w.copyReport(index.CopyID(10)); r.Error != "" {
		t.Errorf("%+v", r)
	}
}

// TestAuditInRollback checks that while no comparison is possible, a copy that differs does not count as equal, and
// no round is counted.
func TestAuditInRollback(t *testing.T) {
	w := built(t)
	w.stopIndexer()
	err := storagetest.Edit(filepath.Join(w.dir, copiesDir), 10, func(r *storagetest.Rows) error {
		return r.Remove(testKey(21), "doc-0020")
	})
	if err != nil {
		t.Fatal(err)
	}
	w.tweak = func(c *Config) { c.AuditRate, c.AuditEvery = v1.MaxVerifyRate, time.Hour } // the test starts the audit
	w.again(t)
	differs := func() bool {
		defs := w.x.present()
		all, _, _ := w.x.verify.Differing(&defs)
		return len(all) > 0
	}
	w.until("the copy is found to differ", func() bool {
		w.mu.Unlock()
		defer w.mu.Lock()
		w.x.verify.Round(t.Context())
		return differs()
	})
	rollback := func(is bool) {
		w.mu.Lock()
		w.revision++
		d := w.definitionsLocked()
		w.mu.Unlock()
		d.Buckets[0].InRollback = is
		w.push(d)
	}
	rollback(true)
	w.x.verify.Round(t.Context())
	if !differs() {
		t.Error("the copy is said to agree")
	}
	rollback(false)
	w.until("the copy is compared", func() bool {
		w.mu.Unlock()
		defer w.mu.Lock()
		w.promote(t.Context())
		w.x.verify.Round(t.Context())
		return !differs()
	})
}

// TestAuditWithoutDefinitions checks that before a leader has sent definitions no round of the audit is counted.
func TestAuditWithoutDefinitions(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.x.verify.Round(t.Context())
	if _, _, compared := w.x.verify.Differing(&wire.Definitions{}); len(compared) != 0 {
		t.Errorf("compared are %v", compared)
	}
}
