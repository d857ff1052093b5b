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
	// errNoFlush means that a bucket is one that cannot be flushed.
	errNoFlush = fmt.Errorf("%w: flush is disabled", ErrRefused)
	// errWarming means that a node is to have its documents first, which comes by itself.
	errWarming = fmt.Errorf("%w: it reads its documents: ask again when it is ready", ErrRefused)
)

// flushAtOnce is how many vbuckets are made anew at a time, so that they share the log's writes.
const flushAtOnce = 64

// FlushRequest empties a bucket. Sent to pathFlush it is for one node: each vbucket that is active there is made anew.
// KV replicas follow.
type FlushRequest struct {
	Bucket string `json:"bucket"`
	// RevEpoch and Rev, unless 0, are the map under which that is meant; under another one the node refuses.
	RevEpoch int64 `json:"rev_epoch,omitempty"`
	Rev      int64 `json:"rev,omitempty"`
	// Check only asks whether the node would do it.
	Check bool `json:"check,omitempty"`
}

// flush makes the active vbuckets of a bucket anew, or says that it would. Of those that are not begun when ctx ends
// none is: whoever asked counts it as failed by then, and documents may have been written since.
func (c *cluster) flush(ctx context.Context, r FlushRequest) error {
	c.changing.Lock()
	defer c.changing.Unlock()
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: nobody waits for it any more: %w", ErrRefused, err)
	}
	if m := c.current(); r.RevEpoch != 0 && (m.RevEpoch != r.RevEpoch || m.Rev != r.Rev) {
		return fmt.Errorf("%w: the node has map %d.%d, not %d.%d: vbuckets have changed hands", ErrRefused, m.RevEpoch,
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
		// Its collections stay, also in those that were made anew before one failed.
		return errors.Join(g.Wait(), b.store.SetManifest(c.manifest(r.Bucket)))
	}
	if !c.n.serving.Load() {
		return errWarming
	}
	return fmt.Errorf("%w: no bucket %q is served here", ErrRefused, r.Bucket)
}

// flushAll empties a bucket on all members: all of them or, unless one breaks in the middle, none. Nobody changes the
// map meanwhile, and no vbucket changes hands. Once begun it is not cut short by a caller that goes. A repeat does all
// of it again.
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
		return m, fmt.Errorf("%w: nothing was emptied: vbuckets change hands in a rebalance: wait for it, or stop it",
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
		return m, fmt.Errorf("bucket %q was emptied on %s alone; ask again, which empties it on all nodes: %w", bucket,
			cmp.Or(strings.Join(emptied, ", "), "no node"), errors.Join(failed...))
	}
	return m, nil
}

// flushAt sends a request to all members side by side, in the order of the map.
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
			failed = append(failed, fmt.Errorf("%s, of which a part may be emptied: %w", a.id, a.err))
		}
	}
	return done, failed
}

// flushHere is flush for as long as ctx: a disk that hangs keeps what it has begun, and not the right to change the
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

// postFlushAll empties a bucket on all members; the one that leads takes it.
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

// doFlush is postFlushAll as SDKs ask for it, of any member.
func (n *Node) doFlush(w http.ResponseWriter, r *http.Request) error {
	switch _, err := n.cluster.flushAll(r.Context(), r.PathValue("bucket")); {
	case err == nil, n.passOn(w, r, err):
		return nil
	case errors.Is(err, clustermap.ErrNoBucket):
		return notFound(w)
	case errors.Is(err, errNoFlush): // as there, without a frame around it
		write(w, http.StatusBadRequest, rpc.MediaJSON, []byte(`{"_":"Flush is disabled for the bucket"}`))
		return nil
	default:
		return formError(w, http.StatusServiceUnavailable, "_", err.Error())
	}
}
