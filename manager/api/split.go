package api

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/internal/rpc"
	"tidemark/partition"
	"tidemark/rebalance"
	"tidemark/statecontext"
	"tidemark/wire"
)

const (
	// sampledInAll is how many entries of an index are sampled in total, within leastSampled and wire.MaxSampled per
	// slice.
	sampledInAll = 1 << 20
	leastSampled = 1 << 12
	// keysInAll and keyBytesInAll limit the answers of all slices together; leastKeys is the minimum per answer.
	keysInAll     = 1 << 18
	leastKeys     = 1 << 8
	keyBytesInAll = 32 << 20
	// sampledAtOnce is how many slices of an index are sampled at a time.
	sampledAtOnce = 4
	// samplePatience limits the wait for one indexer and slice; see turn.
	samplePatience = 20 * time.Second
	// sampleAgain is the pause before copies are asked again if none of them serves.
	sampleAgain = 100 * time.Millisecond
)

// Quantiles asks the indexers of an index for the distribution of its leading keys, within the given time, and
// returns keys that cut it into n parts of about equal size; Cuts.Error is the accuracy. Errors are *rpc.Problem, or
// wrap partition.ErrDefinition.
func (a *API) Quantiles(ctx context.Context, x *statecontext.Index, n int,
	within time.Duration) (partition.Cuts, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	s := a.sampling(x, within)
	of, err := s.all(ctx, x)
	switch {
	case err != nil && ctx.Err() != nil:
		return partition.Cuts{}, rpc.Refuse(errcode.Timeout, "the indexers of index %s on %s did not report within %v "+
			`where to split it: give the split values with "at": %v`, x.Definition.Name, x.Definition.Keyspace(), within, err)
	case err != nil:
		return partition.Cuts{}, err
	}
	return partition.Quantiles(samplesOf(of), n)
}

// samplesOf converts answers to samples.
func samplesOf(of []*wire.SampleReply) []partition.Sample {
	all := make([]partition.Sample, len(of))
	for i, r := range of {
		all[i] = partition.Sample{Rows: r.Rows, Of: r.Of, Keys: r.Keys}
	}
	return all
}

// loadFor is how long the writes and reads of a hot slice are observed.
const loadFor = 5 * time.Second

// Loads asks the indexers of an index, each for some seconds, which leading keys of some slices are written and read,
// and returns values that cut each slice into parts of about equal load; Cuts.Of is the number of entries observed.
// The load of all copies of a slice counts; all must answer. Errors are those of Quantiles.
func (a *API) Loads(ctx context.Context, x *statecontext.Index, hot []rebalance.Hot,
	within time.Duration) ([]partition.Cuts, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	s := a.sampling(x, within)
	s.ask = askOf(len(hot) * (1 + int(x.Definition.Replicas)))
	s.ask.LoadMS = loadFor.Milliseconds()
	all, cuts := make([][]*wire.SampleReply, len(hot)), make([]partition.Cuts, len(hot))
	var mu sync.Mutex
	g, ctx := errgroup.WithContext(ctx) // the indexers only observe: all at once
	for _, c := range x.Topology.Copies {
		i := slices.IndexFunc(hot, func(h rebalance.Hot) bool { return h.Slice == c.Slice })
		if i < 0 || c.State != partition.Allocated {
			continue
		}
		g.Go(func() error {
			sample, err := s.one(ctx, []partition.Copy{c})
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			all[i] = append(all[i], sample)
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, fmt.Errorf("load of the slices of index %s: %w", x.Definition.Name, err)
	}
	for i := range hot {
		var err error
		if cuts[i], err = partition.Quantiles(samplesOf(all[i]), hot[i].Parts); err != nil {
			return nil, err
		}
	}
	return cuts, nil
}

// sampling returns a sampling of an index.
func (g *ground) sampling(x *statecontext.Index, within time.Duration) *sampling {
	s := &sampling{ground: g, until: time.Now().Add(within), addrs: map[index.NodeID]string{},
		silent: map[index.NodeID]bool{}, ask: askOf(max(int(x.Topology.Layout.Partitions), 1))}
	for i := range g.cfg.Raft.State().Indexers() {
		s.addrs[i.Node] = i.Admin
	}
	return s
}

// sampling samples the keys of an index.
type sampling struct {
	*ground
	until time.Time
	ask   wire.SampleRequest // per slice
	addrs map[index.NodeID]string

	mu     sync.Mutex
	silent map[index.NodeID]bool // indexers that did not answer: they are asked last
}

// askOf returns the request per slice, given the number of slices.
func askOf(parts int) wire.SampleRequest {
	return wire.SampleRequest{Wanted: min(max(sampledInAll/parts, leastSampled), wire.MaxSampled),
		Keys:  min(max(keysInAll/parts, leastKeys), wire.MaxSampleKeys),
		Bytes: min(keyBytesInAll/parts, wire.MaxSampleBytes)}
}

// all samples each slice.
func (s *sampling) all(ctx context.Context, x *statecontext.Index) ([]*wire.SampleReply, error) {
	copies := make([][]partition.Copy, x.Topology.Layout.Partitions)
	for _, c := range x.Topology.Copies {
		if c.State == partition.Allocated && int(c.Slice) < len(copies) {
			copies[c.Slice] = append(copies[c.Slice], c)
		}
	}
	of := make([]*wire.SampleReply, len(copies))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(sampledAtOnce)
	for slice := range copies {
		g.Go(func() (err error) {
			of[slice], err = s.one(ctx, copies[slice])
			if err != nil {
				err = fmt.Errorf("slice %d of index %s: %w", slice, x.Definition.Name, err)
			}
			return err
		})
	}
	return of, g.Wait()
}

// one samples one slice with the given copies, until one of them serves: while none does, they are being moved,
// rolled back or opened.
func (s *sampling) one(ctx context.Context, copies []partition.Copy) (*wire.SampleReply, error) {
	for {
		r, err := s.round(ctx, copies)
		var p *rpc.Problem
		if err == nil || !errors.As(err, &p) || p.Code != errcode.IndexNotHosted {
			return r, err
		}
		wait, over := context.WithTimeout(ctx, sampleAgain)
		<-wait.Done()
		over()
		if ctx.Err() != nil || time.Until(s.until) <= 0 {
			return nil, rpc.Refuse(errcode.Unavailable, "no copy of the slice serves at the moment: %s", p.Detail)
		}
	}
}

// round asks for one slice, one copy after the other.
func (s *sampling) round(ctx context.Context, copies []partition.Copy) (*wire.SampleReply, error) {
	rand.Shuffle(len(copies), func(i, j int) { copies[i], copies[j] = copies[j], copies[i] })
	slices.SortStableFunc(copies, func(a, b partition.Copy) int { return s.last(a.Node) - s.last(b.Node) })
	var last error = rpc.Refuse(errcode.Unavailable, "no indexer holds the slice")
	for i, c := range copies {
		if ctx.Err() != nil {
			break
		}
		req := s.ask
		req.Copy = c.ID
		r, err := s.indexers.Sample(ctx, s.addrs[c.Node], &req, turn(time.Until(s.until), len(copies)-i))
		if err == nil {
			return r, nil
		}
		var p *rpc.Problem
		if last = err; !errors.As(err, &p) {
			s.note(c.Node)
			last = rpc.Refuse(errcode.Unavailable, "the indexer of copy %s, on node %d, does not answer: %v",
				c.ID, c.Node, err)
		}
	}
	return nil, last
}

// turn returns how long to wait for the next of so many copies: an equal share of the remaining time, in case all of
// them hang.
func turn(left time.Duration, copies int) time.Duration {
	return max(min(left/time.Duration(copies), samplePatience), time.Millisecond)
}

// last returns 1 for an indexer that is to be asked after the others.
func (s *sampling) last(n index.NodeID) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.silent[n] {
		return 1
	}
	return 0
}

func (s *sampling) note(n index.NodeID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.silent[n] = true
}
