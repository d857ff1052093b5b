package verify

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/indexer/pace"
	"tidemark/indexer/scan"
	"tidemark/internal/rpc"
	"tidemark/internal/rpc/route"
	"tidemark/internal/tlsconf"
	"tidemark/manager/api/v1"
	"tidemark/partition"
)

const (
	// Path is the path of requests to check copies of a node.
	Path = "/v1/copies:verify"
	// maxVerifies bounds the verifications that this node coordinates concurrently. Of the copies on this node, only
	// one request is checked at a time: a second one would only slow both down.
	maxVerifies = 4
	// AtOnce is the number of connections to each indexer that verifications need: one for each that this node
	// coordinates.
	AtOnce = maxVerifies
)

// Routes returns the routes for users, who come through a manager, and for other indexers. The latter are served one
// at a time, once their request has been read.
func (v *Verifier) Routes() []route.Route {
	asked := route.Only(tlsconf.Manager, tlsconf.Admin)
	asked.For = scan.PrincipalOf
	return []route.Route{
		{Method: http.MethodPost, Path: "/v1/indexes/{id:[0-9]+}:verify", Role: asked, Body: rpc.MaxUserBody, Stream: true,
			Lasts: true, Places: v.coordinated, Handle: v.coordinate},
		{Method: http.MethodPost, Path: Path, Role: route.Only(tlsconf.Indexer), Body: rpc.MaxControlBody, Stream: true,
			Lasts: true, Handle: v.check},
	}
}

// coordinate serves a request to verify an index: every node checks its copies, and coordinate forwards their lines.
func (v *Verifier) coordinate(w http.ResponseWriter, r *http.Request) error {
	out := &lines{a: scan.NewAnswer(w)}
	end, err := v.verifyAll(r, out)
	v.verified(err)
	switch {
	case err == nil:
		err = out.line(&v1.VerifyLine{End: end})
	case !out.a.Begun():
		return scan.ProblemOf(err)
	default:
		err = out.line(failure(err))
	}
	if err != nil {
		v.log.Debug("client of a verification has disconnected", "error", err)
	}
	return nil
}

func failure(err error) *v1.VerifyLine {
	e := scan.AsError(err)
	return &v1.VerifyLine{Error: &v1.VerifyFailure{Code: e.Code, Detail: e.Detail}}
}

func (v *Verifier) verified(err error) {
	code := "OK"
	if err != nil {
		code = string(scan.CodeOf(err))
	}
	v.metrics.verifies.WithLabelValues(code).Inc()
}

// checkVerify checks a request's numbers and sets defaults.
func checkVerify(q *v1.VerifyRequest) error {
	switch {
	case q.Rate != 0 && (q.Rate < v1.MinVerifyRate || q.Rate > v1.MaxVerifyRate):
		return scan.Errorf(errcode.BadRequest, "rate %d: want %d to %d documents a second, or 0 for %d", q.Rate,
			v1.MinVerifyRate, v1.MaxVerifyRate, v1.DefaultVerifyRate)
	case q.Limit < 0 || q.Limit > v1.MaxVerifyShown:
		return scan.Errorf(errcode.BadRequest, "limit %d: want 1 to %d differences, or 0 for %d", q.Limit,
			v1.MaxVerifyShown, v1.DefaultVerifyShown)
	}
	if q.Rate == 0 {
		q.Rate = v1.DefaultVerifyRate
	}
	if q.Limit == 0 {
		q.Limit = v1.DefaultVerifyShown
	}
	return nil
}

func (v *Verifier) verifyAll(r *http.Request, out *lines) (*v1.VerifyEnd, error) {
	id, err := index.ParseID(r.PathValue("id"))
	if err != nil {
		return nil, scan.Errorf(errcode.BadRequest, "%w", err)
	}
	q, err := readVerify(r.Body)
	if err != nil {
		return nil, err
	}
	view, err := v.role.View(id)
	if err == nil {
		err = scan.Ready(&view)
	}
	if err != nil {
		return nil, err
	}
	nodes := map[index.NodeID][]index.CopyID{}
	for _, c := range view.Topology.Copies {
		if c.State != partition.Leaving {
			nodes[c.Node] = append(nodes[c.Node], c.ID)
		}
	}
	sum := &v1.VerifyEnd{Copies: []v1.VerifiedCopy{}}
	g, ctx := errgroup.WithContext(r.Context())
	for node, copies := range nodes {
		g.Go(func() error {
			end, err := v.verifyAt(ctx, node, copiesRequest{Index: id, Copies: copies, VerifyRequest: q}, out)
			if err != nil {
				return err
			}
			out.mu.Lock()
			defer out.mu.Unlock()
			sum.Add(end)
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	sum.Listed = out.listed
	slices.SortFunc(sum.Copies, func(a, b v1.VerifiedCopy) int {
		return cmp.Or(cmp.Compare(a.Slice, b.Slice), cmp.Compare(a.Replica, b.Replica))
	})
	return sum, nil
}

// readVerify reads a request's body, which may be empty.
func readVerify(from io.Reader) (q v1.VerifyRequest, err error) {
	body, err := io.ReadAll(from)
	if err == nil && len(bytes.TrimSpace(body)) > 0 {
		err = rpc.ReadJSON(body, &q)
	}
	if err != nil {
		return q, err
	}
	return q, checkVerify(&q)
}

// verifyAt makes one node check its copies. It forwards the node's lines except the last one, which it returns.
func (v *Verifier) verifyAt(ctx context.Context, node index.NodeID, q copiesRequest, out *lines) (*v1.VerifyEnd,
	error) {
	body, err := v.nodes.Watched(ctx, node, Path, q, nil)
	if err != nil {
		var p *rpc.Problem
		if errors.As(err, &p) {
			return nil, scan.Errorf(p.Code, "indexer %d: %s", node, p.Detail)
		}
		return nil, scan.Errorf(errcode.Unavailable, "copies %v on indexer %d cannot be checked: %w", q.Copies, node, err)
	}
	defer body.Close()
	for dec := json.NewDecoder(body); ; {
		var l v1.VerifyLine
		if err := dec.Decode(&l); err != nil {
			return nil, scan.Errorf(errcode.Unavailable, "indexer %d ended before copies %v were checked: %w", node,
				q.Copies, err)
		}
		switch {
		case l.End != nil:
			return l.End, nil
		case l.Error != nil:
			return nil, scan.Errorf(l.Error.Code, "indexer %d: %s", node, l.Error.Detail)
		case l.Difference != nil && !out.lists(q.Limit):
		default:
			if err := out.line(&l); err != nil {
				return nil, err
			}
		}
	}
}

// check checks copies of this node for another one.
func (v *Verifier) check(w http.ResponseWriter, r *http.Request) error {
	var q copiesRequest
	if err := rpc.Read(r, &q); err != nil {
		return err
	}
	out := &lines{a: scan.NewAnswer(w)}
	one, err := v.newVerification(&q, out.line)
	if err != nil {
		return scan.ProblemOf(err)
	}
	if err := v.checking.Enter(rpc.Anonymous); err != nil {
		return err
	}
	err = one.run(r.Context())
	v.checking.Leave(rpc.Anonymous) // before the last line, because its reader may send the next request
	if err != nil {
		err = out.line(failure(err))
	} else {
		err = out.line(&v1.VerifyLine{End: &one.sum})
	}
	if err != nil {
		v.log.Debug("client of a verification does not read its result", "index", q.Index, "error", err)
	}
	return nil
}

// newVerification returns the verification that a request is for.
func (v *Verifier) newVerification(q *copiesRequest, emit func(*v1.VerifyLine) error) (*verification, error) {
	if err := checkVerify(&q.VerifyRequest); err != nil {
		return nil, err
	}
	if len(q.Copies) == 0 || len(q.Copies) > scan.MaxCopies {
		return nil, scan.Errorf(errcode.BadRequest, "%d copies, want 1 to %d", len(q.Copies), scan.MaxCopies)
	}
	view, err := v.role.View(q.Index)
	if err != nil {
		return nil, err
	}
	k, ok := v.role.Bucket(view.Bucket.Name)
	if !ok {
		return nil, scan.Errorf(errcode.IndexNotHosted, "this node does not hold bucket %q", view.Bucket.Name)
	}
	n := &verification{Verifier: v, k: k, def: view.Definition, pace: pace.New(q.Rate, 0, v.now), most: q.Limit,
		emit: emit, emitted: v.now(),
		atOnce: verifyRows}
	for _, id := range q.Copies {
		i := slices.IndexFunc(view.Topology.Copies, func(c partition.Copy) bool { return c.ID == id })
		if _, here := v.pins.Store.Slice(id); i < 0 || !here {
			return nil, scan.Errorf(errcode.IndexNotHosted, "copy %s of index %s is not on this node", id, q.Index)
		}
		c := view.Topology.Copies[i]
		n.copies = append(n.copies, &verifiedCopy{place: c, extra: map[string][][]byte{},
			sum: v1.VerifiedCopy{Copy: c.ID, Slice: c.Slice, Replica: uint8(c.Replica), Indexer: v.name}})
	}
	return n, nil
}

// lines writes an answer of lines. It may be used concurrently.
type lines struct {
	mu     sync.Mutex
	a      *scan.Answer
	listed uint64 // number of differences
}

// lists counts a difference, and reports whether it is within the limit, which covers all indexers together.
func (l *lines) lists(limit int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.listed >= uint64(limit) {
		return false
	}
	l.listed++
	return true
}

func (l *lines) line(v *v1.VerifyLine) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encoding a line: %w", err)
	}
	if _, err := l.a.Write(append(b, '\n')); err != nil {
		return err
	}
	l.a.Flush()
	return nil
}

// Verifying reports whether copies on this node are being checked.
func (v *Verifier) Verifying() bool { return v.checking.Taken() > 0 }

// copiesRequest asks an indexer to check copies that it holds. The coordinating indexer sends it as POST
// /v1/copies:verify to the scan port; the answer has one v1.VerifyLine per line.
type copiesRequest struct {
	Index  index.ID       `json:"index"`
	Copies []index.CopyID `json:"copies"`
	v1.VerifyRequest
}
