package kv

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"tidemark/internal/rpc"
	"tidemark/kv/clustermap"
	"tidemark/kv/store"
)

var (
	// errNoFlush means that flushing is disabled for the bucket.
	errNoFlush = fmt.Errorf("%w: flush is disabled", ErrRefused)
	// errWarming means that a node is still loading its documents.
	errWarming = fmt.Errorf("%w: it is still reading its documents: try again when it is ready", ErrRefused)
)

// flushAtOnce is how many vbuckets are recreated concurrently, so that they share writes to the log.
const flushAtOnce = 64

// FlushRequest empties a bucket. Sent to pathFlush, it recreates each vbucket that is active on the receiving node.
// KV replicas follow.
type FlushRequest struct {
	Bucket string `json:"bucket"`
	// RevEpoch and Rev, unless 0, identify the map for which the request was made; with another map the node refuses it.
	RevEpoch int64 `json:"rev_epoch,omitempty"`
	Rev      int64 `json:"rev,omitempty"`
	// Check only asks whether the node would carry out the request.
	Check bool `json:"check,omitempty"`
}

// flush recreates the active vbuckets of a bucket, or only checks whether it could. Vbuckets not begun when ctx ends
// are left alone: by then the caller counts the flush as failed, and documents may have been written since.
func (c *cluster) flush(ctx context.Context, r FlushRequest) error {
	c.changing.Lock()
	defer c.changing.Unlock()
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: the caller no longer waits: %w", ErrRefused, err)
	}
	if m := c.current(); r.RevEpoch != 0 && (m.RevEpoch != r.RevEpoch || m.Rev != r.Rev) {
		return fmt.Errorf("%w: the node has map %d.%d, not %d.%d: vbuckets have moved", ErrRefused, m.RevEpoch,
			m.Rev, r.RevEpoch, r.Rev)
	}
	for _, b := range c.n.loadedBuckets() {
		if b.name != r.Bucket {
			continue
		}
		if b.store.Failing() {
			return fmt.Errorf("%w: the log of the bucket cannot be written at the moment", ErrRefused)
		}
		if r.Check {
			return nil
		}
		var g errgroup.Group
		g.SetLimit(flushAtOnce)
		for i := range b.store.VBuckets() {
			v := b.store.VBucket(uint16(i))
			if state, _ := v.Status(); state == store.Active {
				g.Go(func() error {
					if err := ctx.Err(); err != nil {
						return err
					}
					return v.Flush()
				})
			}
		}
		// The collections stay, also in vbuckets that were recreated before another one failed.
		return errors.Join(g.Wait(), b.store.SetManifest(c.manifest(r.Bucket)))
	}
	if !c.n.serving.Load() {
		return errWarming
	}
	return fmt.Errorf("%w: no bucket %q is served here", ErrRefused, r.Bucket)
}

// flushAll empties a bucket on all members: on all of them or, unless one fails halfway, on none. The map cannot
// change meanwhile, so no vbucket moves. Once begun, it continues even if the caller is gone. Repeating it flushes
// everything again.
func (c *cluster) flushAll(ctx context.Context, bucket string) (clustermap.Map, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), operationTimeout)
	defer cancel()
	end, err := c.alone(ctx)
	if err != nil {
		return clustermap.Map{}, err
	}
	defer end()
	m, err := c.ask(ctx, nil)
	switch {
	case err != nil:
		return m, err
	case m.Bucket(bucket) == nil:
		return m, fmt.Errorf("%w: %q", clustermap.ErrNoBucket, bucket)
	case m.Bucket(bucket).NoFlush:
		return m, fmt.Errorf("%w for bucket %q: tidemark kv bucket edit %s --flush on enables it", errNoFlush, bucket, bucket)
	case m.Operation != nil:
		return m, fmt.Errorf("%w: nothing was emptied: a rebalance is moving vbuckets: wait for it, or stop it",
			ErrRefused)
	}
	r := FlushRequest{Bucket: bucket, RevEpoch: m.RevEpoch, Rev: m.Rev, Check: true}
	if _, failed := c.flushAt(ctx, m, r); len(failed) > 0 {
		kind := errWarming
		if slices.ContainsFunc(failed, func(err error) bool { return !errors.Is(err, errWarming) }) {
			kind = ErrRefused
		}
		return m, &refusedError{kind: kind, detail: "nothing was emptied: " + errors.Join(failed...).Error()}
	}
	r.Check = false
	if emptied, failed := c.flushAt(ctx, m, r); len(failed) > 0 {
		return m, fmt.Errorf("bucket %q was emptied only on %s; try again to empty it on all nodes: %w", bucket,
			cmp.Or(strings.Join(emptied, ", "), "no node"), errors.Join(failed...))
	}
	return m, nil
}

// flushAt sends a request to all members concurrently; the results are in the order of the map.
func (c *cluster) flushAt(ctx context.Context, m clustermap.Map, r FlushRequest) (done []string, failed []error) {
	remote := c.peers.orders
	if r.Check {
		remote = c.peers.Remote
	}
	nodes := append([]clustermap.Node{{ID: c.n.config.NodeID}}, c.others(m)...)
	answers := c.peers.each(ctx, nodes, func(ctx context.Context, x clustermap.Node) (none clustermap.Map, err error) {
		if x.ID == c.n.config.NodeID {
			return none, c.flushHere(ctx, r)
		}
		return none, remote.Call(ctx, x.Admin, http.MethodPost, pathFlush, r, nil)
	})
	for _, a := range answers {
		switch {
		case a.err == nil:
			done = append(done, a.id)
		case r.Check:
			failed = append(failed, fmt.Errorf("%s cannot: %w", a.id, a.err))
		default:
			failed = append(failed, fmt.Errorf("%s, where part of it may be emptied: %w", a.id, a.err))
		}
	}
	return done, failed
}

// flushHere is flush bounded by ctx: a disk that hangs delays the flush, but does not keep the right to change the
// map.
func (c *cluster) flushHere(ctx context.Context, r FlushRequest) error {
	done := make(chan error, 1)
	go func() { done <- c.flush(ctx, r) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("its disk does not answer: %w", context.Cause(ctx))
	}
}

// postFlush empties a bucket on this node.
func (n *Node) postFlush(ctx context.Context, body []byte) (any, error) {
	r, err := decode[FlushRequest](body)
	if err != nil {
		return nil, err
	}
	if err := n.cluster.flush(ctx, r); err != nil {
		return nil, err
	}
	return doneWith(n.cluster.current()), nil
}

// postFlushAll empties a bucket on all members; only the leader accepts it.
func (n *Node) postFlushAll(ctx context.Context, body []byte) (any, error) {
	r, err := decode[FlushRequest](body)
	if err != nil {
		return nil, err
	}
	m, err := n.cluster.flushAll(ctx, r.Bucket)
	if err != nil {
		return nil, err
	}
	return doneWith(m), nil
}

// doFlush is postFlushAll as SDKs request it; any member accepts it.
func (n *Node) doFlush(w http.ResponseWriter, r *http.Request) error {
	switch _, err := n.cluster.flushAll(r.Context(), r.PathValue("bucket")); {
	case err == nil, n.passOn(w, r, err):
		return nil
	case errors.Is(err, clustermap.ErrNoBucket):
		return notFound(w)
	case errors.Is(err, errNoFlush): // as Couchbase answers, without an enclosing object
		write(w, http.StatusBadRequest, rpc.MediaJSON, []byte(`{"_":"Flush is disabled for the bucket"}`))
		return nil
	default:
		return formError(w, http.StatusServiceUnavailable, "_", err.Error())
	}
}
