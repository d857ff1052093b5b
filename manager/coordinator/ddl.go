package coordinator

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"tidemark/errcode"
	"tidemark/expression"
	"tidemark/index"
	"tidemark/internal/rpc"
	"tidemark/liveness"
	"tidemark/manager/coordinator/core"
	"tidemark/partition"
	"tidemark/statecontext"
	"tidemark/wire"
)

var (
	// ErrVBuckets is wrapped when a bucket has more vbuckets than timestamp.MaxVBuckets.
	ErrVBuckets = errors.New("too many vbuckets")
	// ErrNoProjector is wrapped when no projector could determine whether a bucket exists.
	ErrNoProjector = errors.New("no projector could check whether KV has the bucket")
	// ErrUnknownCollection is wrapped when KV has no such collection.
	ErrUnknownCollection = errors.New("no such collection")
)

// Outcome is the outcome of a DDL request.
type Outcome struct {
	ID         index.ID
	Definition index.Definition // as it is now; of a dropped index, as it was
	CAS        uint64           // of the update; the present one if nothing changed
	Existed    bool             // nothing changed: it existed (IF NOT EXISTS), or another request had dropped it
	Replayed   bool             // the same request was answered before
}

// CreateRequest requests a new index (IM-12). Definition holds the contents of CREATE INDEX; ids, state and time are
// assigned.
type CreateRequest struct {
	Definition  index.Definition
	IfNotExists bool
	Request     *statecontext.Request // nil: not remembered
}

// CreateIndex validates a definition, finds the bucket and places for its copies, and replicates it in state pending.
// Errors wrap expression.ErrSyntax or ErrDefinition, ErrUnknownBucket, ErrVBuckets, ErrNoProjector,
// rebalance.ErrTooFewNodes or ErrUnknownNode, codes of package errcode, ErrNotLeading, or come from the proposal
// (package consensus).
func (c *Coordinator) CreateIndex(ctx context.Context, req CreateRequest) (Outcome, error) {
	l, err := c.leading()
	if err != nil {
		return Outcome{}, err
	}
	return replanned(ctx, func() (Outcome, error) { return c.createOnce(ctx, l, &req) })
}

// createOnce places the copies of an index and proposes it.
func (c *Coordinator) createOnce(ctx context.Context, l *term, req *CreateRequest) (Outcome, error) {
	d := req.Definition
	if err := expression.Normalize(&d); err != nil {
		return Outcome{}, err
	}
	if d.Partitions == 0 {
		d.Partitions = c.cfg.Settings.DefaultPartitions
	}
	d.Using, d.ExprType = index.UsingOrdered, index.ExprN1QL
	layout, err := partition.LayoutOf(&d)
	if err != nil {
		return Outcome{}, fmt.Errorf("%w: %w", expression.ErrDefinition, err)
	}
	if res, known := recalled(c.cfg.Consensus.State(), req.Request); known {
		return c.created(&d, res)
	}
	if refusal := c.cfg.Consensus.State().WithinLimits(&d); refusal != nil {
		return Outcome{}, refusal
	}
	bucket, err := c.findBucket(ctx, l, d.Bucket)
	if err != nil {
		return Outcome{}, err
	}
	if err := c.findCollection(ctx, bucket, &d); err != nil {
		return Outcome{}, err
	}
	d.BucketUUID, d.Rules, d.CreatedMS = bucket.UUID, c.newRules(), c.cfg.Now().UnixMilli()
	placement, settle, err := c.place(ctx, l, &d)
	if err != nil {
		return Outcome{}, err
	}
	build := c.trace(ctx, l, d.Bucket)
	res, err := c.proposeRequest(ctx, req.Request, &statecontext.CreateIndex{Definition: d, IfNotExists: req.IfNotExists,
		Layout: layout, Placement: placement})
	settle(res, err)
	l.traced(ctx, build, c.cfg.Consensus.State(), err, res.Index)
	if err != nil {
		return Outcome{}, err
	}
	return c.created(&d, res)
}

// created returns the outcome of a CreateIndex of this definition.
func (c *Coordinator) created(d *index.Definition, res statecontext.Result) (Outcome, error) {
	if err := res.Err(); err != nil {
		return Outcome{}, err
	}
	o := Outcome{ID: res.Index, Definition: *d, CAS: res.CAS, Replayed: res.Replayed, Existed: !res.Changed}
	o.Definition.ID, o.Definition.State = res.Index, index.Pending
	if now := c.cfg.Consensus.State().Definition(res.Index); now != nil {
		o.Definition = *now
	}
	return o, nil
}

// place returns places for a new index's copies, and a function to call with the outcome of its proposal. Errors wrap
// ErrNoIndexer, those of package rebalance, ErrBusy or ErrNotLeading.
func (c *Coordinator) place(ctx context.Context, t *term, d *index.Definition) ([]statecontext.Placement,
	func(statecontext.Result, error), error) {
	p := &core.Placing{Definition: d, Reply: make(chan core.Placed, 1)}
	if c.rehearses {
		p.State = c.cfg.Consensus.State()
	}
	if err := t.post(ctx, p); err != nil {
		return nil, nil, err
	}
	a, err := await(ctx, t, "choosing indexers for the copies", p.Reply)
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", core.ErrBusy, err)
	}
	if err == nil {
		err = a.Err
	}
	if err != nil {
		return nil, nil, err
	}
	return a.Placement, func(res statecontext.Result, err error) {
		if a.Reservation == nil { // in a rehearsal
			return
		}
		_ = t.post(ctx, &core.Settled{Reservation: a.Reservation, CAS: res.CAS, Err: err}) // else the reservation expires
	}, nil
}

// trace begins the trace of a build; it returns 0 if nothing records it.
func (c *Coordinator) trace(ctx context.Context, t *term, bucket string) uint64 {
	if c.rehearses {
		return 0
	}
	return t.gate.traces.begin(ctx, bucket)
}

// recalled returns the outcome of a request that was executed before. It must be called before the request is
// checked: meanwhile its index may have been dropped, or have the requested form.
func recalled(s *statecontext.State, r *statecontext.Request) (res statecontext.Result, known bool) {
	if r == nil {
		return res, false
	}
	return s.Outcome(r)
}

// proposeRequest proposes a user's request.
func (c *Coordinator) proposeRequest(ctx context.Context, r *statecontext.Request,
	body statecontext.Body) (statecontext.Result, error) {
	res, err := c.cfg.Consensus.Propose(ctx, statecontext.Command{Request: r, Body: body})
	if err == nil {
		err = res.Err()
	}
	return res, err
}

// DropRequest requests that an index be dropped.
type DropRequest struct {
	ID      index.ID
	Name    statecontext.IndexName // unless zero, instead of ID
	IfMatch uint64                 // the modified_cas that it must have; 0: any
	Request *statecontext.Request
}

// DropIndex starts dropping an index; its name is free at once. Errors wrap codes of package errcode or
// ErrNotLeading, or come from the proposal.
func (c *Coordinator) DropIndex(ctx context.Context, req DropRequest) (Outcome, error) {
	if _, err := c.leading(); err != nil {
		return Outcome{}, err
	}
	var was index.Definition
	if x := target(c.cfg.Consensus.State(), req.ID, &req.Name); x != nil {
		was = x.Definition
	}
	body := &statecontext.DropIndex{ID: req.ID, IfMatch: req.IfMatch}
	res, err := c.proposeRequest(ctx, req.Request, byName(body, req.Name))
	if err != nil {
		return Outcome{}, err
	}
	if res.Index != was.ID { // another index was dropped: a replay, or the name had passed to it
		was = index.Definition{}
	}
	o := Outcome{ID: res.Index, Definition: was, CAS: res.CAS, Replayed: res.Replayed, Existed: !res.Changed}
	if d := c.cfg.Consensus.State().Definition(res.Index); d != nil {
		o.Definition = *d
	}
	o.Definition.ID, o.Definition.State = res.Index, index.Dropping
	return o, nil
}

// BuildRequest requests builds of deferred or failed indexes.
type BuildRequest struct {
	IDs     []index.ID
	Names   []statecontext.IndexName // if any, instead of IDs
	IfMatch uint64                   // the ModifiedCAS that each must have (there is one then); 0: any
	Request *statecontext.Request    // nil: not remembered
}

// targets returns the requested indexes that exist in the requested version.
func (req *BuildRequest) targets(s *statecontext.State) (all []*statecontext.Index) {
	for _, id := range req.IDs {
		all = append(all, s.Index(id))
	}
	for i := range req.Names {
		all = append(all, s.Named(&req.Names[i]))
	}
	return slices.DeleteFunc(all, func(x *statecontext.Index) bool {
		return x == nil || req.IfMatch != 0 && x.Definition.ModifiedCAS != req.IfMatch
	})
}

// BuildIndexes starts builds together: all or none. Errors are those of DropIndex, or wrap ErrNoProjector or
// ErrVBuckets if a bucket cannot be found.
func (c *Coordinator) BuildIndexes(ctx context.Context, req BuildRequest) ([]Outcome, error) {
	l, err := c.leading()
	if err != nil {
		return nil, err
	}
	if err := c.findAgain(ctx, l, &req); err != nil {
		return nil, err
	}
	build := c.trace(ctx, l, "")
	body := &statecontext.BuildIndexes{IDs: req.IDs, IfMatch: req.IfMatch, Rules: c.newRules()}
	res, err := c.proposeRequest(ctx, req.Request, byName(body, req.Names...))
	s := c.cfg.Consensus.State()
	ids := body.IDs
	if len(req.Names) > 0 {
		ids = res.Indexes
	}
	l.traced(ctx, build, s, err, ids...)
	if err != nil {
		return nil, err
	}
	os := make([]Outcome, 0, len(ids))
	for _, id := range ids {
		o := Outcome{ID: id, CAS: res.CAS, Replayed: res.Replayed, Existed: !res.Changed}
		if d := s.Definition(id); d != nil {
			o.Definition = *d
		}
		os = append(os, o)
	}
	return os, nil
}

// findAgain queries the projectors about the deleted buckets of the indexes to build, once each: a re-created bucket is
// not announced, and checkBuckets skips buckets that are gone. If a bucket still does not exist, or an index does not
// have the requested version, Apply refuses the request. Registering a bucket changes the reasons of its indexes: an
// IfMatch of the version before is then updated to the new one. If the build is not proposed after that, a retry with
// the old version is refused as changed (CASMismatch).
func (c *Coordinator) findAgain(ctx context.Context, l *term, req *BuildRequest) error {
	s := c.cfg.Consensus.State()
	if _, known := recalled(s, req.Request); known {
		return nil
	}
	checked := make(map[string]bool)
	for _, x := range req.targets(s) {
		if checked[x.Definition.Bucket] || !core.BucketGone(s, &x.Definition) {
			continue
		}
		checked[x.Definition.Bucket] = true
		b, err := c.findBucket(ctx, l, x.Definition.Bucket)
		err = definite(err)
		if errors.Is(err, core.ErrUnknownBucket) {
			continue
		}
		if err != nil {
			return err
		}
		d := c.cfg.Consensus.State().Definition(x.Definition.ID)
		if req.IfMatch != 0 && d != nil && d.ModifiedCAS == b.ModifiedCAS {
			req.IfMatch = d.ModifiedCAS // the registration alone has changed it
		}
	}
	return nil
}

// findBucket returns a bucket from the state, or queries the projectors and registers it.
func (c *Coordinator) findBucket(ctx context.Context, l *term, name string) (*statecontext.Bucket, error) {
	s := c.cfg.Consensus.State()
	if b := s.Bucket(name); b != nil && !b.Gone {
		return b, nil // its existence is checked at intervals
	}
	found, err := c.queryBucketSoon(ctx, &wire.BucketRequest{Bucket: name})
	if err != nil {
		return nil, err
	}
	seen := s.Seen(name)
	if _, err := c.proposeFor(ctx, &statecontext.SetBucket{Name: name, UUID: found.UUID, VBuckets: found.VBuckets,
		Seen: &seen}); err != nil && !errors.Is(err, errcode.GenerationMismatch) { // registered meanwhile
		return nil, fmt.Errorf("registering bucket %q: %w", name, err)
	}
	b := c.cfg.Consensus.State().Bucket(name)
	if b == nil || b.Gone {
		return nil, fmt.Errorf("%w: %q", core.ErrBucketGone, name)
	}
	_ = l.post(ctx, core.Committed{}) // faster than the notification of the change
	return b, nil
}

// queryBucketSoon is like queryBucket, and waits up to ProjectorWait for a first projector, or for one to be reachable.
// If a projector reports a reason why it cannot answer, it does not wait, except for a projector that was started anew
// and has not registered yet.
func (c *Coordinator) queryBucketSoon(ctx context.Context, req *wire.BucketRequest) (*wire.BucketReply, error) {
	waiting, cancel := context.WithTimeout(ctx, c.cfg.Settings.ProjectorWait)
	defer cancel()
	tick := time.NewTicker(projectorPause)
	defer tick.Stop()
	for {
		found, err := c.queryBucket(ctx, req)
		var problem *rpc.Problem
		if !errors.Is(err, ErrNoProjector) || errors.As(err, &problem) && problem.Code != errcode.AnotherProcess {
			return found, err
		}
		select {
		case <-tick.C:
		case <-waiting.Done():
			return found, err
		}
	}
}

// projectorPause is the pause between two attempts to find a projector.
const projectorPause = 100 * time.Millisecond

// findCollection sets the id that the collection's names have now. The index is bound to that id: a collection that
// is created under the same names later is a different one.
func (c *Coordinator) findCollection(ctx context.Context, bucket *statecontext.Bucket, d *index.Definition) error {
	d.Member = d.Keyspace().Member()
	if d.Member.IsZero() || c.cfg.Consensus.State().IndexIn(d.Keyspace(), d.Name) != nil { // taken: Apply decides
		return nil
	}
	found, err := c.queryBucketSoon(ctx, &wire.BucketRequest{Bucket: d.Bucket, Collections: true})
	switch {
	case err != nil:
		return err
	case found.UUID != bucket.UUID:
		return fmt.Errorf("%w: %q", core.ErrBucketGone, d.Bucket)
	case found.Collections == nil:
		return fmt.Errorf("%w: %s: the KV nodes of bucket %q have no collections", ErrUnknownCollection, d.Keyspace(),
			d.Bucket)
	}
	for _, x := range found.Collections.All {
		if x.Scope == d.Member.Scope && x.Name == d.Member.Collection {
			d.Member.ID, d.Member.Manifest = x.ID, found.Collections.UID
			return nil
		}
	}
	return fmt.Errorf("%w: %s: bucket %q has no collection %q in a scope %q", ErrUnknownCollection, d.Keyspace(), d.Bucket,
		d.Member.Collection, d.Member.Scope)
}

// unknownBucket is the error of queryBucket if no reachable KV node has the bucket.
type unknownBucket struct {
	bucket    string
	queried   int
	unreached []string // why each other projector, or its KV node, could not be queried
}

// Error includes the projectors that could not be queried.
func (e *unknownBucket) Error() string {
	text := fmt.Sprintf("%v: no KV node has a bucket %q", core.ErrUnknownBucket, e.bucket)
	if len(e.unreached) > 0 {
		text += fmt.Sprintf("; %d of %d projectors did not answer: %s", len(e.unreached), e.queried, shorten(e.unreached))
	}
	return text
}

// Unwrap returns core.ErrUnknownBucket.
func (e *unknownBucket) Unwrap() error { return core.ErrUnknownBucket }

// definite replaces core.ErrUnknownBucket by ErrNoProjector if not every projector could be queried, so that the former
// means that KV has no such bucket. It returns other errors, and nil, unchanged.
func definite(err error) error {
	var unknown *unknownBucket
	if !errors.As(err, &unknown) || len(unknown.unreached) == 0 {
		return err
	}
	return fmt.Errorf("%w %q: %d of %d projectors did not answer, and the others' KV nodes have no such bucket: %s; "+
		"start them, or remove those that are lost "+
		"permanently", ErrNoProjector, unknown.bucket, len(unknown.unreached), unknown.queried,
		shorten(unknown.unreached))
}

// bucketAnswer is a projector's answer about a bucket.
type bucketAnswer struct {
	from  index.ProjectorID
	found *wire.BucketReply
	err   error
}

// agreeWait is how long, after the first projector has found a bucket, others may take to contradict it.
const agreeWait = time.Second

// queryBucket queries the projectors whose answers count. Once one has found the bucket, the others have agreeWait to
// contradict it, unless it is the bucket in the state, which needs no confirmation.
func (c *Coordinator) queryBucket(ctx context.Context, req *wire.BucketRequest) (*wire.BucketReply, error) {
	all := c.trustedProjectors()
	ctx, cancel := context.WithCancel(ctx)
	var queries sync.WaitGroup
	defer queries.Wait()
	defer cancel()
	came := make(chan bucketAnswer, len(all))
	for _, p := range all {
		queries.Go(func() {
			own := *req
			own.Boot = p.BootID // whoever else listens there may belong to another KV cluster
			found, err := c.cfg.Projectors.Bucket(ctx, p.Admin, &own)
			came <- bucketAnswer{p.ID, found, err}
		})
	}
	var answers []bucketAnswer
	var late <-chan time.Time
	for len(answers) < len(all) {
		select {
		case a := <-came:
			answers = append(answers, a)
			if a.err == nil && c.hasBucket(req.Bucket, a.found.UUID) {
				return a.found, nil
			}
			if a.err == nil && late == nil {
				late = time.After(agreeWait)
			}
			continue
		case <-late:
		}
		break
	}
	return judgeBucket(req.Bucket, answers)
}

// hasBucket reports whether the state has that bucket, and it is not gone.
func (c *Coordinator) hasBucket(name, uuid string) bool {
	b := c.cfg.Consensus.State().Bucket(name)
	return b != nil && !b.Gone && b.UUID == uuid
}

// trustedProjectors returns the projectors whose answers about buckets count: those that stream some, and live ones
// whose KV node has vbuckets of a known bucket, because they belong to the indexed KV cluster. If there are none, the
// live ones that were the last to stream a vbucket; if there are none of these either, all.
func (c *Coordinator) trustedProjectors() []*statecontext.Projector {
	status, _ := c.Status()
	of := make(map[index.ProjectorID]*core.ProjectorStatus, len(status.Projectors))
	for i := range status.Projectors {
		of[status.Projectors[i].ID] = &status.Projectors[i]
	}
	var here, did, all []*statecontext.Projector
	for p := range c.cfg.Consensus.State().Projectors() {
		all = append(all, p)
		switch s := of[p.ID]; {
		case s == nil:
		case s.Streams > 0, s.Here && s.Life != liveness.Offline:
			here = append(here, p)
		case s.Streamed && s.Life != liveness.Offline:
			did = append(did, p)
		}
	}
	switch {
	case len(here) > 0:
		return here
	case len(did) > 0:
		return did
	}
	return all
}

// judgeBucket combines the answers of several projectors.
func judgeBucket(name string, answers []bucketAnswer) (*wire.BucketReply, error) {
	if found, err := agreed(name, answers); found != nil || err != nil {
		return found, err
	}
	var last error
	var unreached []string
	var vbuckets *rpc.Problem
	unknown := 0
	for _, a := range answers {
		var problem *rpc.Problem
		switch {
		case errors.As(a.err, &problem) && problem.Status == http.StatusNotFound && problem.Code == errcode.BucketNotInKV:
			unknown++
		case problem != nil && problem.Code == errcode.TooManyVBuckets:
			vbuckets = problem
		default:
			last = a.err
			unreached = append(unreached, fmt.Sprintf("%s: %v", a.from, a.err))
		}
	}
	switch {
	case len(answers) == 0:
		return nil, fmt.Errorf("%w %q: no projector is registered; start one", ErrNoProjector, name)
	case vbuckets != nil:
		return nil, fmt.Errorf("%w: %s", ErrVBuckets, vbuckets.Detail)
	case unknown > 0:
		slices.Sort(unreached)
		return nil, &unknownBucket{bucket: name, queried: len(answers), unreached: unreached}
	}
	return nil, fmt.Errorf("%w %q: none of %d projectors answered: %w", ErrNoProjector, name, len(answers), last)
}

// agreed returns the bucket that projectors have found, nil for none; it returns an error if they found different
// ones.
func agreed(name string, answers []bucketAnswer) (found *wire.BucketReply, err error) {
	var by index.ProjectorID
	for _, a := range answers {
		switch {
		case a.err != nil:
		case found == nil:
			found, by = a.found, a.from
		case a.found.UUID != found.UUID:
			return nil, fmt.Errorf("%w %q: projector %s reports its uuid as %s, %s as %s: the bucket was just created again, "+
				"or one of the two is connected to another KV cluster; stop and remove that "+
				"projector", ErrNoProjector, name, by, found.UUID, a.from,
				a.found.UUID)
		}
	}
	return found, nil
}

// newRules returns the expression rules of an index that is built now: the lowest of those that projectors evaluate
// by.
func (c *Coordinator) newRules() uint32 {
	s, _ := c.Status()
	if low := s.ExprRules.Lowest; low != 0 {
		return min(low, expression.Rules)
	}
	return expression.Rules
}
