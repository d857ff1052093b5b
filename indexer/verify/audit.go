package verify

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"tidemark/index"
	"tidemark/indexer/pace"
	"tidemark/indexer/storage"
	"tidemark/manager/api/v1"
	"tidemark/partition"
	"tidemark/wire"
)

const (
	// DefaultAuditRate is the default rate of the audit in rows and documents per second.
	DefaultAuditRate = 500
	// MinAuditRate is the lowest useful rate.
	MinAuditRate = v1.MinVerifyRate
	// DefaultAuditEvery is the pause between two rounds over all copies.
	DefaultAuditEvery = 10 * time.Minute
	// auditShare bounds the audit's share of one processor. The cost of comparing documents and copies does not
	// depend only on their number and size, which the rate bounds.
	auditShare = 0.05
	// auditHold is the approximate time for which a snapshot is held while its rows are read.
	auditHold = 5 * time.Second
	// auditFound bounds the documents that are remembered of one comparison, and auditRowBytes their rows. The next
	// round finds the rest.
	auditFound    = 1000
	auditRowBytes = 16 << 20
	// auditNames bounds the documents that the log names per copy and comparison.
	auditNames = 20
)

// auditSource is the prefix of the health sources of indexes that differ.
const auditSource = "index "

// auditor continuously compares the copies on this node with the data in KV, slowly, because the cause of a wrong
// copy may have gone unnoticed. It is a verification (verify.go) of one index after the other, of few vbuckets at a
// time and at a low rate. Differences are compared a second time, with fresh data from KV and the copy. What still
// differs is counted, logged and retaken: the vbucket of the copy is emptied and streamed again from 0, as after a
// purge.
type auditor struct{ *Verifier }

// Audit compares the copies here with KV, round after round, until ctx ends.
func (v *Verifier) Audit(ctx context.Context) error {
	if v.auditRate < 0 {
		return nil
	}
	for pace.Sleep(ctx, v.auditEvery) == nil {
		v.Round(ctx)
	}
	return nil
}

// Round compares the copies here once. It counts as a round over all copies only if a leader has sent the list of
// copies.
func (v *Verifier) Round(ctx context.Context) {
	a := &auditor{v}
	defs := v.role.Definitions()
	for i := range defs.Indexes {
		if d := &defs.Indexes[i]; d.State == index.Maintenance && ctx.Err() == nil {
			a.audit(ctx, d)
		}
	}
	v.metrics.audits.Inc()
}

// audit compares the copies of one index, as far as possible.
func (a *auditor) audit(ctx context.Context, d *index.Definition) {
	log := a.log.With("index", d.Bucket+"/"+d.Name)
	found, compared, err := a.twice(ctx, d)
	var here []index.CopyID
	if err == nil {
		here, err = a.here(d.ID)
	}
	if err != nil {
		log.Debug("index could not be compared with KV; it is compared again later", "error", err)
		return
	}
	source := auditSource + d.ID.String()
	if a.differing.note(d.ID, compared, here, found) {
		a.role.Report()
	}
	switch {
	case len(found) > 0:
		a.report(d, source, found)
		a.heal(ctx, d, found)
	case !a.differing.has(d.ID) && a.role.Unwell(source, ""):
		log.Info("copies on this indexer agree with KV again")
		a.role.Report()
	}
}

// twice compares the copies of an index that scans read here, and compares differences a second time. compared lists
// the copies for which the result is conclusive.
func (a *auditor) twice(ctx context.Context, d *index.Definition) (found []finding,
	compared []index.CopyID, err error) {
	copies, err := a.copies(d.ID)
	if err != nil {
		return nil, nil, err
	}
	first, err := a.compare(ctx, d, copies, nil)
	if err != nil || len(first.all) == 0 {
		return nil, decided(copies, nil, first), err
	}
	again, err := a.compare(ctx, d, copies, first.all)
	if err != nil {
		return nil, nil, err
	}
	found = confirmed(first.all, again.all)
	return found, decided(copies, found, first, again), nil
}

// finding is a document of which a copy does not hold what it should.
type finding struct {
	copy index.CopyID
	v1.Difference
	rows [][]byte // rows of it in the copy
}

// findings holds what one comparison has found, as far as it is remembered.
type findings struct {
	all   []finding
	bytes int                   // in rows
	cut   map[index.CopyID]bool // copies of which more was found than is remembered
}

// add adds a finding, and reports whether there was room to remember it.
func (f *findings) add(x finding) bool {
	if f.bytes += size(x.rows); len(f.all) < auditFound && f.bytes <= auditRowBytes {
		f.all = append(f.all, x)
		return true
	}
	if f.cut == nil {
		f.cut = map[index.CopyID]bool{}
	}
	f.cut[x.copy] = true
	return false
}

// forget drops the findings of a document.
func (f *findings) forget(d document) {
	f.all = slices.DeleteFunc(f.all, func(x finding) bool {
		its := x.copy == d.c.place.ID && x.VBucket == d.vb && x.ID == d.id
		if its {
			f.bytes -= size(x.rows)
		}
		return its
	})
}

// merge adds the findings of o.
func (f *findings) merge(o *findings) {
	for i := range o.all {
		f.add(o.all[i])
	}
	if f.cut == nil {
		f.cut = o.cut
	} else {
		maps.Copy(f.cut, o.cut)
	}
}

// decided returns the copies for which the comparisons are conclusive. A copy of which findings were cut is not among
// them unless one of its remembered findings was confirmed.
func decided(copies []index.CopyID, confirmed []finding, all ...findings) []index.CopyID {
	return slices.DeleteFunc(slices.Clone(copies), func(c index.CopyID) bool {
		return slices.ContainsFunc(all, func(f findings) bool { return f.cut[c] }) &&
			!slices.ContainsFunc(confirmed, func(f finding) bool { return f.copy == c })
	})
}

// compare verifies copies on this node; if where is not nil, only in the vbuckets of those findings.
func (a *auditor) compare(ctx context.Context, d *index.Definition, copies []index.CopyID,
	where []finding) (found findings, err error) {
	if len(copies) == 0 {
		return found, nil
	}
	q := &copiesRequest{Index: d.ID, Copies: copies, VerifyRequest: v1.VerifyRequest{Rate: a.auditRate,
		Limit: 1}}
	n, err := a.newVerification(q, func(*v1.VerifyLine) error { return nil })
	if err != nil {
		return found, err
	}
	n.pace = pace.New(a.auditRate, auditShare, a.now)
	n.audit, n.atOnce = true, int(min(verifyRows, max(paceStep, a.auditRate*int64(auditHold/time.Second))))
	if where != nil {
		n.only = map[uint16]bool{}
		for i := range where {
			n.only[where[i].VBucket] = true
		}
	}
	n.findings = &found
	err = n.run(ctx)
	return found, err
}

// copies returns the copies of an index that scans read here.
func (a *auditor) copies(id index.ID) ([]index.CopyID, error) {
	here, err := a.here(id)
	return slices.DeleteFunc(here, func(c index.CopyID) bool { return len(a.pins.Snapshots.Refs(c)) == 0 }), err
}

// here returns the copies of an index on this node. It returns an error if they cannot be determined now, as in a
// rollback.
func (a *auditor) here(id index.ID) (ids []index.CopyID, err error) {
	view, err := a.role.View(id)
	if err != nil {
		return nil, err
	}
	node := a.role.Endpoint().Node
	for _, c := range view.Topology.Copies {
		if c.Node == node && c.State == partition.Allocated {
			ids = append(ids, c.ID)
		}
	}
	return ids, nil
}

// confirmed returns the findings of second that first has, too.
func confirmed(first, second []finding) []finding {
	had := map[string]bool{}
	for i := range first {
		had[first[i].place()] = true
	}
	return slices.DeleteFunc(second, func(f finding) bool { return !had[f.place()] })
}

// place identifies what a finding is about: a document of a copy, or a vbucket for LostOnWay, which concerns no
// document.
func (f *finding) place() string { return fmt.Sprint(f.copy, "/", f.VBucket, "/", f.ID) }

// documents returns the number of documents, per copy, with findings.
func documents(found []finding) int {
	all := map[string]bool{}
	for i := range found {
		all[found[i].place()] = true
	}
	return len(all)
}

// mends reports whether retaking the vbucket from KV repairs the finding. It does not if the path from KV loses data.
func (f *finding) mends() bool { return f.Kind != wire.LostOnWay && f.Kind != wire.RefusedKey }

// report counts and logs the findings, and reports the index as unhealthy.
func (a *auditor) report(d *index.Definition, source string, found []finding) {
	slices.SortFunc(found, func(x, y finding) int {
		return cmp.Or(cmp.Compare(x.copy, y.copy),
			cmp.Compare(x.VBucket, y.VBucket))
	})
	for i := range found {
		f := &found[i]
		a.metrics.audited.WithLabelValues(string(f.Kind)).Inc()
		if i < auditNames {
			a.log.Error("copy differs from the KV data", "index", d.Bucket+"/"+d.Name, "slice", f.Slice, "replica",
				f.Replica, "copy", f.copy,
				"vbucket", f.VBucket, "document", f.ID, "kind", f.Kind, "detail", f.Detail, "taken_anew", f.mends(), "of",
				len(found))
		}
	}
	f, becomes := &found[0], "they are streamed again"
	if !slices.ContainsFunc(found, func(f finding) bool { return f.mends() }) {
		becomes = "streaming them again would not repair that: " + f.Detail
	}
	a.role.Unwell(source, fmt.Sprintf("index %s/%s differs from the KV data in %d documents (slice %d, replica %d, "+
		"vbucket %d, document %q: %s); %s",
		d.Bucket, d.Name, documents(found), f.Slice, f.Replica, f.VBucket, f.ID, f.Kind, becomes))
	a.role.Report()
}

// heal makes the buckets retake the vbuckets of the copies. If another indexer has the slice, scans use that one
// meanwhile.
func (a *auditor) heal(ctx context.Context, d *index.Definition, found []finding) {
	k, ok := a.role.Bucket(d.Bucket)
	if !ok {
		return
	}
	type place struct {
		copy index.CopyID
		vb   uint16
	}
	rows := map[place][]storage.Row{}
	for i := range found {
		f := &found[i]
		if !f.mends() {
			continue
		}
		at := place{f.copy, f.VBucket}
		if rows[at] == nil {
			rows[at] = []storage.Row{}
		}
		for _, key := range f.rows {
			rows[at] = append(rows[at], storage.Row{Key: key, DocID: []byte(f.ID)})
		}
	}
	for at, stray := range rows {
		if err := k.Retake(ctx, at.copy, int(at.vb), stray, a.elsewhere(d.ID, at.copy)); err != nil {
			return
		}
	}
}

// elsewhere reports whether another node has a copy of the same slice.
func (a *auditor) elsewhere(id index.ID, copy index.CopyID) bool {
	view, err := a.role.View(id)
	if err != nil {
		return false
	}
	all := view.Topology.Copies
	i := slices.IndexFunc(all, func(c partition.Copy) bool { return c.ID == copy })
	return i >= 0 && slices.ContainsFunc(all, func(c partition.Copy) bool {
		return c.Slice == all[i].Slice && c.Node != all[i].Node && c.State == partition.Allocated
	})
}
