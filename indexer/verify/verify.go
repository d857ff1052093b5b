package verify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"tidemark/collate"
	"tidemark/errcode"
	"tidemark/index"
	"tidemark/indexer/pace"
	"tidemark/indexer/packed"
	"tidemark/indexer/scan"
	"tidemark/indexer/snapshots"
	"tidemark/indexer/storage"
	"tidemark/kv/mcbp"
	"tidemark/manager/api/v1"
	"tidemark/partition"
	"tidemark/timestamp"
	"tidemark/wire"
)

const (
	// stableWait bounds the wait for a timestamp that covers what was read from KV.
	stableWait = 3 * scan.DefaultWait
	// verifyGroup is the number of vbuckets that are read from KV at a time.
	verifyGroup = 16
	// verifyRounds bounds how often documents that keep changing are compared again.
	verifyRounds = 8
	// verifyRestarts bounds how often the comparison of vbuckets that left the branch of their timestamp starts over.
	verifyRestarts = 5
	// verifyStream is the number of documents that the stream of one vbucket counts as for the rate.
	verifyStream = 10
	// verifyKeys bounds the keys that a difference shows.
	verifyKeys = 16
	// askAgain is the pause before requests to projectors or the leader are repeated, pauseFirst the first pause
	// before a comparison starts over.
	askAgain   = 50 * time.Millisecond
	pauseFirst = 100 * time.Millisecond
	// verifyProgress is the interval of progress lines.
	verifyProgress = time.Second
)

// verification compares the copies of one index on this node with the data in KV (docs/scans.md has the argument why
// it is exact while documents change). It is not used concurrently.
type verification struct {
	*Verifier
	k      Bucket
	def    index.Definition
	copies []*verifiedCopy
	pace   *pace.Pace
	most   int // limit of listed differences
	emit   func(*v1.VerifyLine) error

	sum     v1.VerifyEnd
	emitted time.Time
	percent float64
	owed    int // units of pace that are pending
	page    page
	tally   *tally    // of the vbuckets that are being compared; nil between groups
	resumed time.Time // when it resumed work after its last wait
	atOnce  int       // units to read with one snapshot, see verifyRows

	// Of an auditor: it waits while users verify, compares one vbucket at a time, only those in only unless that is
	// nil, and collects differences in findings.
	audit    bool
	only     map[uint16]bool
	findings *findings
}

// verifiedCopy is the state of one copy.
type verifiedCopy struct {
	place partition.Copy
	sum   v1.VerifiedCopy
	// extra holds rows that no entry of the back index lists, by document, until the document is compared.
	extra  map[string][][]byte
	extras int
}

// frozen is one stability timestamp with the snapshots of all copies.
type frozen struct {
	ref    wire.StabilityRef
	vector timestamp.Vector
	snaps  []*storage.Snapshot // in the order of the copies
}

func (f *frozen) release() error {
	var errs []error
	for _, s := range f.snaps {
		errs = append(errs, s.Close())
	}
	f.snaps = nil
	return errors.Join(errs...)
}

// run checks everything: the rows of each copy against its back index, then the vbuckets, group by group, against KV.
func (v *verification) run(ctx context.Context) error {
	for i := range v.copies {
		if err := v.rows(ctx, i); err != nil {
			return err
		}
	}
	for _, group := range v.groups() {
		if err := v.yield(ctx); err != nil {
			return err
		}
		if err := v.group(ctx, group); err != nil {
			return err
		}
		if err := v.progress(50 + 50*float64(group[len(group)-1]+1)/float64(v.k.VBuckets())); err != nil {
			return err
		}
	}
	for _, c := range v.copies {
		for id, keys := range c.extra { // of documents that neither KV nor the back index has
			d := v1.Difference{Kind: wire.ExtraRow, ID: id, VBucket: mcbp.VBucket([]byte(id), v.k.VBuckets()),
				Stability: v.sum.LastStability}
			if err := v.differ(c, d, nil, keys); err != nil {
				return err
			}
		}
		v.sum.Copies = append(v.sum.Copies, c.sum)
		v.sum.Rows += c.sum.Rows
	}
	return v.settle(ctx)
}

// groups returns the vbuckets to be compared, in groups that are read from KV together.
func (v *verification) groups() (all [][]uint16) {
	most := verifyGroup
	if v.audit {
		most = 1
	}
	for vb := range v.k.VBuckets() {
		if v.only != nil && !v.only[uint16(vb)] {
			continue
		}
		if n := len(all); n == 0 || len(all[n-1]) == most {
			all = append(all, nil)
		}
		all[len(all)-1] = append(all[len(all)-1], uint16(vb))
	}
	return all
}

// yield lets an auditor wait for verifications of users.
func (v *verification) yield(ctx context.Context) error {
	for v.audit && v.Verifying() {
		if err := pace.Sleep(ctx, verifyProgress); err != nil {
			return err
		}
	}
	return nil
}

// hold pins the copies' snapshots at a timestamp.
func (v *verification) hold(ctx context.Context, ref wire.StabilityRef) (*frozen, error) {
	f := &frozen{ref: ref}
	for _, c := range v.copies {
		h, err := v.pins.Hold(ctx, v.k, v.def.ID, c.place.ID, ref)
		if err != nil {
			return nil, errors.Join(err, f.release())
		}
		f.vector, f.snaps = h.Vector, append(f.snaps, h.Snap)
	}
	if v.sum.FirstStability == 0 {
		v.sum.FirstStability = ref.Number
	}
	v.sum.LastStability = max(v.sum.LastStability, ref.Number)
	v.resumed = v.now()
	return f, nil
}

// heldByAll returns the oldest of the newest timestamps of all copies; nil if some copy has none.
func (v *verification) heldByAll() (ref *wire.StabilityRef) {
	for _, c := range v.copies {
		refs := v.pins.Snapshots.Refs(c.place.ID)
		if len(refs) == 0 {
			return nil
		}
		if last := refs[len(refs)-1]; ref == nil || last.Compare(ref.Ref) < 0 {
			ref = &last
		}
	}
	return ref
}

// newest holds the newest timestamp that all copies have.
func (v *verification) newest(ctx context.Context) (*frozen, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, scan.DefaultWait,
		scan.Errorf(errcode.Timeout, "no stability timestamp is held by all copies of index %s on this node within %s",
			v.def.ID, scan.DefaultWait))
	defer cancel()
	for {
		changed := v.pins.Snapshots.Changes()
		if ref := v.heldByAll(); ref != nil {
			f, err := v.hold(ctx, *ref)
			if err == nil || !passing(err) {
				return f, err
			}
		}
		select {
		case <-changed:
		case <-v.k.Gone():
			return nil, scan.Errorf(errcode.IndexNotHosted, "this node no longer holds bucket %q", v.k.Name())
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// passing reports whether only this timestamp is unavailable, so that another one may work.
func passing(err error) bool {
	code := scan.CodeOf(err)
	return code == errcode.SnapshotSkipped || code == errcode.SnapshotTooOld
}

// atLeast holds a timestamp at or above need.
func (v *verification) atLeast(ctx context.Context, need timestamp.Vector) (*frozen, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, stableWait,
		scan.Errorf(errcode.Timeout, "no stability timestamp covers what was read from KV within %s", stableWait))
	defer cancel()
	for {
		s, err := v.role.Stabilize(ctx, v.k.Name(), need, stableWait)
		if err != nil {
			return nil, err
		}
		f, err := v.hold(ctx, s.Named())
		if err == nil || !passing(err) {
			return f, err
		}
		if err := pace.Sleep(ctx, askAgain); err != nil {
			return nil, err
		}
	}
}

// progress emits a progress line, at most once per verifyProgress.
func (v *verification) progress(percent float64) error {
	v.percent = max(v.percent, percent)
	now := v.now()
	if now.Sub(v.emitted) < verifyProgress {
		return nil
	}
	v.emitted = now
	return v.emit(&v1.VerifyLine{Progress: &v1.VerifyProgress{Indexer: v.name, Percent: v.percent,
		Documents: v.sum.Documents}})
}

// group compares some vbuckets. If they exceed the memory, it compares half of them at a time, and of a single
// vbucket half of the documents. The result counts when the comparison is complete, not if it starts over.
func (v *verification) group(ctx context.Context, vbs []uint16) error {
	for restarts := 0; ; restarts++ {
		t := newTally()
		v.tally = t
		err := v.compareGroup(ctx, vbs)
		v.tally = nil
		if !errors.Is(err, errVerifyLarge) && !errors.Is(err, errVerifyBranch) {
			return errors.Join(err, v.through(t))
		}
		t.undo()
		switch {
		case errors.Is(err, errVerifyLarge) && len(vbs) > 1:
			if err := v.group(ctx, vbs[:len(vbs)/2]); err != nil {
				return err
			}
			return v.group(ctx, vbs[len(vbs)/2:])
		case errors.Is(err, errVerifyLarge) && v.page.last():
			return scan.Errorf(errcode.Unavailable, "vbucket %d of bucket %q: %w even of one document in %d", vbs[0],
				v.k.Name(), err, v.page.of)
		case errors.Is(err, errVerifyLarge):
			return v.halves(ctx, vbs)
		case restarts < verifyRestarts:
			if err := pace.Sleep(ctx, time.Duration(restarts+1)*pauseFirst); err != nil {
				return err
			}
		default:
			return scan.Errorf(errcode.Unavailable, "bucket %q: %w", v.k.Name(), err)
		}
	}
}

// vbState is the state of a vbucket between two rounds.
type vbState struct {
	from, fromUUID uint64
	// open holds, by copy, the documents that the copy has and for which it is not known yet whether it should.
	open []map[string]bool
}

func (s *vbState) unsettled() (n int) {
	for _, o := range s.open {
		n += len(o)
	}
	return n
}

// compareGroup reads vbuckets up to a timestamp S and compares them with the copies at S. Documents that have changed
// since are compared again at a later timestamp, at or above everything that KV had when it was read.
func (v *verification) compareGroup(ctx context.Context, vbs []uint16) error {
	states := map[uint16]*vbState{}
	for _, vb := range vbs {
		s := &vbState{}
		for range v.copies {
			s.open = append(s.open, map[string]bool{})
		}
		states[vb] = s
	}
	f, err := v.newest(ctx)
	for round := 1; err == nil; round++ {
		var need timestamp.Vector
		need, err = v.round(ctx, f, states, round)
		if err = errors.Join(err, f.release()); err != nil || len(states) == 0 {
			return snapshots.Coded(err)
		}
		if round == verifyRounds {
			v.unsettled(states)
			return nil
		}
		f, err = v.atLeast(ctx, need)
	}
	return err
}

func (v *verification) unsettled(states map[uint16]*vbState) {
	for _, s := range states {
		for i, o := range s.open {
			v.copies[i].sum.Unsettled += uint64(len(o))
			v.sum.Unsettled += uint64(len(o))
		}
	}
}

// stretches returns what has to be read of vbuckets that have not reached the timestamp.
func (f *frozen) stretches(states map[uint16]*vbState) map[uint16]stretch {
	want := map[uint16]stretch{}
	for vb, s := range states {
		at := f.vector.At(int(vb))
		if at.Seqno > s.from {
			want[vb] = stretch{from: s.from, fromUUID: s.fromUUID, to: at.Seqno, toUUID: at.VBUUID}
		}
	}
	return want
}

// round compares the vbuckets at f, removes those that are complete from states, and returns what the next timestamp
// must cover.
func (v *verification) round(ctx context.Context, f *frozen, states map[uint16]*vbState,
	round int) (need timestamp.Vector, err error) {
	want := f.stretches(states)
	got, err := v.read(ctx, want)
	v.resumed = v.now()
	if err == nil {
		err = v.owe(ctx, len(states)+verifyStream*len(want))
	}
	if err != nil {
		return need, err
	}
	need = f.vector.Clone()
	for vb, s := range states {
		at := f.vector.At(int(vb))
		r := got[vb]
		if r == nil { // there was nothing to read
			r = &vbRead{stretch: stretch{from: s.from, to: at.Seqno}, reach: at.Seqno}
		}
		if err := v.compare(ctx, f, vb, s, r, round == 1); err != nil {
			return need, err
		}
		if err := v.progress(v.percent); err != nil {
			return need, err
		}
		if r.reach <= at.Seqno || round > 1 && s.unsettled() == 0 {
			delete(states, vb)
			continue
		}
		need.Set(int(vb), timestamp.Position{VBUUID: at.VBUUID, Seqno: r.reach})
		s.from, s.fromUUID = at.Seqno, at.VBUUID
	}
	return need, nil
}

// documents compares all documents that the copy has, and adds them to seen.
func (j *judge) documents(ctx context.Context, seen map[string]bool) error {
	return j.snap.Back(ctx, j.vb, func(docID []byte, seqno uint64, keys [][]byte) error {
		if len(keys) == 0 || !j.v.page.has(docID) {
			return nil
		}
		seen[string(docID)] = true
		if err := j.v.pay(ctx, len(docID)+size(keys)); err != nil {
			return err
		}
		return j.document(string(docID), entry{seqno, keys, true})
	})
}

// lookOpen compares the open documents that were not read from KV.
func (j *judge) lookOpen() error {
	for id := range j.open {
		if _, ok := j.read.docs[id]; ok {
			continue
		}
		if err := j.look(id); err != nil {
			return err
		}
	}
	return nil
}

// compare compares one vbucket of every copy: all its documents in the first round, later those that have changed and
// those that are open.
func (v *verification) compare(ctx context.Context, f *frozen, vb uint16, s *vbState, r *vbRead, all bool) error {
	for i, c := range v.copies {
		j := &judge{v: v, c: c, snap: f.snaps[i], vb: vb, at: f.vector.Seqnos[vb], stability: f.ref.Number, read: r,
			open:   s.open[i],
			unpack: packed.Unpacker{Index: v.def.ID, Slice: c.place.Slice}}
		seen := map[string]bool{}
		if v.page.n == 0 { // once for all pages
			if err := j.way(); err != nil {
				return err
			}
		}
		var err error
		if all {
			err = j.documents(ctx, seen)
		} else {
			err = j.lookOpen()
		}
		if err != nil {
			return err
		}
		for id := range r.docs {
			if seen[id] {
				continue
			}
			if err := j.look(id); err != nil {
				return err
			}
		}
	}
	return nil
}

// differ counts a difference and lists it while there is room; during the comparison of vbuckets, the difference
// counts when that is complete.
func (v *verification) differ(c *verifiedCopy, d v1.Difference, want, rows [][]byte) error {
	d.Slice, d.Replica, d.Copy, d.Indexer = c.place.Slice, uint8(c.place.Replica), c.place.ID, v.name
	if v.tally != nil {
		return v.take(v.tally, c, &d, want, rows)
	}
	t := newTally()
	return errors.Join(v.take(t, c, &d, want, rows), v.through(t))
}

// shown returns keys in readable form. A key that cannot be decoded is shown as a string of its bytes in hex.
func (v *verification) shown(keys [][]byte) []json.RawMessage {
	out := []json.RawMessage{}
	for _, k := range keys[:min(len(keys), verifyKeys)] {
		text, err := collate.DecodeComposite(nil, k, v.def.Desc())
		if err != nil {
			text, _ = json.Marshal(fmt.Sprintf("%x", k)) // a string always marshals
		}
		out = append(out, text)
	}
	return out
}
