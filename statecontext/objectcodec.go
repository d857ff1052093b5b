package statecontext

import (
	"bytes"
	"encoding/json"
	"math"

	"tidemark/index"
	"tidemark/partition"
	"tidemark/timestamp"
)

// Encodings of the objects that commands and snapshots share. They are format 1 and never change once a version has
// been released; a new field then needs a new format.

func appendLimits(dst []byte, l Limits) []byte {
	for _, u := range [...]uint32{l.Buckets, l.Indexes, l.IndexesPerBucket, l.KeyExpressions, l.NameLength,
		l.StatementLength, l.LedgerEntries} {
		dst = appendUint(dst, uint64(u))
	}
	return appendInt(appendInt(appendInt(dst, l.LedgerMaxAgeMS), l.LedgerMinAgeMS), l.TransferRate)
}

func (d *decoder) uint32() uint32 { return uint32(d.max(math.MaxUint32, "number")) }

func (d *decoder) limits() Limits {
	return Limits{
		Buckets: d.uint32(), Indexes: d.uint32(), IndexesPerBucket: d.uint32(), KeyExpressions: d.uint32(),
		NameLength: d.uint32(), StatementLength: d.uint32(), LedgerEntries: d.uint32(), LedgerMaxAgeMS: d.int(),
		LedgerMinAgeMS: d.int(), TransferRate: d.int(),
	}
}

func appendManager(dst []byte, m *Manager) []byte {
	for _, s := range [...]string{m.ID, m.Name, m.REST, m.Raft} {
		dst = appendString(dst, s)
	}
	return appendUint(appendUint(dst, m.FormatLevel), m.ModifiedCAS)
}

func (d *decoder) manager() Manager {
	return Manager{ID: d.string(), Name: d.string(), REST: d.string(), Raft: d.string(), FormatLevel: d.uint(),
		ModifiedCAS: d.uint()}
}

func appendProjector(dst []byte, p *Projector) []byte {
	for _, s := range [...]string{string(p.ID), p.Admin, p.BootID} {
		dst = appendString(dst, s)
	}
	return appendUint(dst, p.ModifiedCAS)
}

func (d *decoder) projector() Projector {
	return Projector{ID: index.ProjectorID(d.string()), Admin: d.string(), BootID: d.string(), ModifiedCAS: d.uint()}
}

func appendIndexer(dst []byte, i *Indexer) []byte {
	dst = append(dst, byte(i.Node))
	for _, s := range [...]string{i.UUID, i.BootID, i.Name, i.Zone, i.Admin, i.Scan, i.Data.Maintenance, i.Data.Backfill,
		i.Data.Catchup} {
		dst = appendString(dst, s)
	}
	return appendUint(appendUint(dst, uint64(i.Capacity)), i.ModifiedCAS)
}

func (d *decoder) indexer() Indexer {
	return Indexer{
		Node: index.NodeID(d.byte()), UUID: d.string(), BootID: d.string(), Name: d.string(), Zone: d.string(),
		Admin: d.string(), Scan: d.string(),
		Data:     DataAddrs{Maintenance: d.string(), Backfill: d.string(), Catchup: d.string()},
		Capacity: d.uint32(), ModifiedCAS: d.uint(),
	}
}

func appendDefinition(dst []byte, f *index.Definition) []byte {
	dst = appendUint(dst, uint64(f.ID))
	for _, s := range [...]string{f.Name, f.Bucket, f.BucketUUID, f.Reason, string(f.Using), string(f.ExprType), f.Where,
		f.Statement} {
		dst = appendString(dst, s)
	}
	dst = append(dst, byte(f.State))
	dst = appendBool(appendBool(dst, f.Deferred), f.IsPrimary)
	dst = appendUint(dst, uint64(len(f.Keys)))
	for _, k := range f.Keys {
		dst = appendBool(appendString(dst, k.Expr), k.Desc)
	}
	dst = append(appendUint(dst, uint64(f.Partitions)), f.Replicas)
	dst = appendUint(dst, uint64(len(f.Nodes)))
	for _, n := range f.Nodes {
		dst = appendString(dst, n)
	}
	dst = appendUint(appendInt(dst, f.CreatedMS), f.ModifiedCAS)
	dst = appendUint(appendPartitionBy(dst, &f.PartitionBy), uint64(f.Rules))
	dst = appendString(appendString(dst, f.Member.Scope), f.Member.Collection)
	dst = appendUint(appendUint(dst, uint64(f.Member.ID)), f.Member.Manifest)
	dst = appendUint(appendUint(dst, uint64(f.Replaces)), uint64(f.Origin))
	dst = appendString(appendString(dst, f.SplitFailed), f.SplitCause)
	return appendUint(appendBool(dst, f.AutoSplitOff), uint64(f.RequestedPartitions))
}

// member reads the collection of a definition, if it has one.
func (d *decoder) member() index.Member {
	m := index.Member{Scope: d.string(), Collection: d.string(), ID: d.uint32(), Manifest: d.uint()}
	if !m.IsZero() && (m.Scope == "" || m.Collection == "") {
		d.fail("a collection without a name")
	}
	return m
}

func appendPartitionBy(dst []byte, p *index.PartitionBy) []byte {
	dst = appendString(dst, string(p.Scheme))
	dst = appendUint(dst, uint64(len(p.Exprs)))
	for _, x := range p.Exprs {
		dst = appendString(dst, x)
	}
	dst = appendUint(dst, uint64(len(p.Values)))
	for _, v := range p.Values {
		dst = appendBytes(dst, v)
	}
	return dst
}

func (d *decoder) partitionBy() (p index.PartitionBy) {
	p.Scheme = index.PartitionScheme(d.string())
	for n := d.count(); n > 0 && d.err == nil; n-- {
		p.Exprs = append(p.Exprs, d.string())
	}
	for n := d.count(); n > 0 && d.err == nil; n-- {
		v := d.bytes()
		if !json.Valid(v) { // no message could carry it
			d.fail("a partition value that is no JSON")
		}
		p.Values = append(p.Values, bytes.Clone(v))
	}
	return p
}

func (d *decoder) definition() index.Definition {
	f := index.Definition{
		ID: index.ID(d.uint()), Name: d.string(), Bucket: d.string(), BucketUUID: d.string(), Reason: d.string(),
		Using: index.Using(d.string()), ExprType: index.ExprType(d.string()), Where: d.string(), Statement: d.string(),
		State: index.State(d.byte()), Deferred: d.bool(), IsPrimary: d.bool(),
	}
	for n := d.count(); n > 0 && d.err == nil; n-- {
		f.Keys = append(f.Keys, index.KeyExpr{Expr: d.string(), Desc: d.bool()})
	}
	f.Partitions, f.Replicas = uint16(d.max(math.MaxUint16, "partitions")), d.byte()
	for n := d.count(); n > 0 && d.err == nil; n-- {
		f.Nodes = append(f.Nodes, d.string())
	}
	f.CreatedMS, f.ModifiedCAS = d.int(), d.uint()
	f.PartitionBy, f.Rules, f.Member = d.partitionBy(), d.uint32(), d.member()
	f.Replaces, f.Origin, f.SplitFailed, f.SplitCause = index.ID(d.uint()), index.ID(d.uint()), d.string(), d.string()
	f.AutoSplitOff, f.RequestedPartitions = d.bool(), uint16(d.max(math.MaxUint16, "partitions that were asked for"))
	return f
}

func appendLayout(dst []byte, l *partition.Layout) []byte {
	dst = appendUint(append(dst, byte(l.Scheme)), uint64(l.Partitions))
	dst = appendUint(dst, uint64(len(l.Components)))
	for _, c := range l.Components {
		dst = appendUint(dst, uint64(c))
	}
	dst = appendUint(dst, uint64(len(l.Desc)))
	for _, down := range l.Desc {
		dst = appendBool(dst, down)
	}
	dst = appendUint(dst, uint64(len(l.Bounds)))
	for _, b := range l.Bounds {
		dst = appendBytes(dst, b)
	}
	return dst
}

func (d *decoder) layout() partition.Layout {
	l := partition.Layout{Scheme: partition.Scheme(d.byte()), Partitions: uint16(d.max(math.MaxUint16, "partitions"))}
	for n := d.count(); n > 0 && d.err == nil; n-- {
		l.Components = append(l.Components, uint16(d.max(math.MaxUint16, "component")))
	}
	for n := d.count(); n > 0 && d.err == nil; n-- {
		l.Desc = append(l.Desc, d.bool())
	}
	for n := d.count(); n > 0 && d.err == nil; n-- {
		l.Bounds = append(l.Bounds, bytes.Clone(d.bytes()))
	}
	return l
}

func (d *decoder) slice() index.SliceID { return index.SliceID(d.max(math.MaxUint16, "slice")) }

func appendPlacements(dst []byte, ps []Placement) []byte {
	dst = appendUint(dst, uint64(len(ps)))
	for _, p := range ps {
		dst = append(appendUint(dst, uint64(p.Slice)), byte(p.Replica), byte(p.Node))
	}
	return dst
}

func (d *decoder) placements() (ps []Placement) {
	for n := d.count(); n > 0 && d.err == nil; n-- {
		ps = append(ps, Placement{Slice: d.slice(), Replica: partition.Replica(d.byte()), Node: index.NodeID(d.byte())})
	}
	return ps
}

func appendTopology(dst []byte, t *partition.Topology) []byte {
	dst = appendUint(dst, uint64(t.Index))
	dst = appendLayout(dst, &t.Layout)
	dst = appendUint(dst, uint64(len(t.Copies)))
	for _, c := range t.Copies {
		dst = appendUint(appendUint(dst, uint64(c.ID)), uint64(c.Slice))
		dst = append(dst, byte(c.Replica), byte(c.Node), byte(c.State))
	}
	return dst
}

func (d *decoder) topology() partition.Topology {
	t := partition.Topology{Index: index.ID(d.uint()), Layout: d.layout()}
	for n := d.count(); n > 0 && d.err == nil; n-- {
		t.Copies = append(t.Copies, partition.Copy{
			ID: index.CopyID(d.uint()), Slice: d.slice(), Replica: partition.Replica(d.byte()),
			Node: index.NodeID(d.byte()), State: partition.CopyState(d.byte()),
		})
	}
	return t
}

func appendIDs[T index.ID | index.CopyID](dst []byte, all []T) []byte {
	dst = appendUint(dst, uint64(len(all)))
	for _, id := range all {
		dst = appendUint(dst, uint64(id))
	}
	return dst
}

func ids[T index.ID | index.CopyID](d *decoder) (all []T) {
	for n := d.count(); n > 0 && d.err == nil; n-- {
		all = append(all, T(d.uint()))
	}
	return all
}

func appendRevision(dst []byte, r timestamp.MapRevision) []byte {
	return appendUint(appendUint(dst, r.Epoch), r.Rev)
}

func (d *decoder) revision() timestamp.MapRevision {
	return timestamp.MapRevision{Epoch: d.uint(), Rev: d.uint()}
}

func appendVBucketLogs(dst []byte, ls []timestamp.VBucketLog) []byte {
	dst = appendUint(dst, uint64(len(ls)))
	for i := range ls {
		dst = appendVBucketLog(dst, &ls[i])
	}
	return dst
}

func appendVBucketLog(dst []byte, l *timestamp.VBucketLog) []byte {
	return appendRevision(timestamp.AppendLog(appendUint(dst, uint64(l.VBucket)), l.Log), l.Revision)
}

func (d *decoder) vbucketLogs() (ls []timestamp.VBucketLog) {
	for n := d.count(); n > 0 && d.err == nil; n-- {
		ls = append(ls, timestamp.VBucketLog{VBucket: uint16(d.max(timestamp.MaxVBuckets-1, "vbucket")), Log: d.log(),
			Revision: d.revision()})
	}
	return ls
}

func appendLogs(dst []byte, logs []timestamp.FailoverLog) []byte {
	dst = appendUint(dst, uint64(len(logs)))
	for _, l := range logs {
		dst = timestamp.AppendLog(dst, l)
	}
	return dst
}

func (d *decoder) logs() []timestamp.FailoverLog {
	n := d.vbuckets()
	logs := make([]timestamp.FailoverLog, 0, n)
	for ; n > 0 && d.err == nil; n-- {
		logs = append(logs, d.log())
	}
	return logs
}

// vbuckets reads the length of a list with one element per vbucket.
func (d *decoder) vbuckets() int {
	return int(d.max(min(timestamp.MaxVBuckets, uint64(len(d.b))), "vbuckets"))
}

func appendRevisions(dst []byte, rs []timestamp.MapRevision) []byte {
	dst = appendUint(dst, uint64(len(rs)))
	for _, r := range rs {
		dst = appendRevision(dst, r)
	}
	return dst
}

func (d *decoder) revisions() []timestamp.MapRevision {
	n := d.vbuckets()
	rs := make([]timestamp.MapRevision, 0, n)
	for ; n > 0 && d.err == nil; n-- {
		rs = append(rs, d.revision())
	}
	return rs
}

func appendBucket(dst []byte, b *Bucket) []byte {
	dst = appendString(appendString(dst, b.Name), b.UUID)
	dst = appendUint(appendUint(dst, uint64(b.VBuckets)), b.Generation)
	dst = appendBool(dst, b.Gone)
	dst = appendInt(appendUint(dst, b.Stability.Number), b.Stability.StateMS)
	dst = appendUint(dst, b.Stability.RollbackID)
	dst = appendVector(dst, b.Stability.Vector)
	dst = appendLogs(dst, b.Stability.Logs)
	dst = appendRevisions(dst, b.Stability.Revisions)
	dst = appendVector(appendVector(dst, b.MutationTimestamp), b.BackfillTimestamp)
	dst = appendBool(dst, b.Rollback != nil)
	if r := b.Rollback; r != nil {
		dst = append(appendUint(dst, r.ID), byte(r.Step))
		dst = appendVector(appendVector(dst, r.Failover), r.Restart)
		dst = appendRevisions(appendLogs(dst, r.Logs), r.Revisions)
	}
	return appendUint(dst, b.ModifiedCAS)
}

func (d *decoder) bucket() *Bucket {
	b := &Bucket{Name: d.string(), UUID: d.string(), VBuckets: int(d.max(timestamp.MaxVBuckets, "vbuckets")),
		Generation: d.uint(), Gone: d.bool()}
	b.Stability = Promoted{Number: d.uint(), StateMS: d.int(), RollbackID: d.uint(), Vector: d.vector(),
		Logs: d.logs(), Revisions: d.revisions()}
	b.MutationTimestamp, b.BackfillTimestamp = d.vector(), d.vector()
	if d.bool() {
		b.Rollback = &RollbackContext{
			ID: d.uint(), Step: RollbackStep(d.byte()), Failover: d.vector(), Restart: d.vector(), Logs: d.logs(),
			Revisions: d.revisions(),
		}
	}
	b.ModifiedCAS = d.uint()
	return b
}
