package api

import (
	"context"
	"fmt"
	"net/http"

	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/manager/api/v1"
	"tidemark/manager/statistics"
	"tidemark/statecontext"
	"tidemark/wire"
)

// Numbers of entries to sample; the wait for one indexer is limited to samplePatience.
const (
	sampleWanted = 1 << 15
	maxSample    = 1 << 18
)

func (g *scans) statisticsRoute() route {
	return route{method: "POST", path: "/v1/indexes/{ref:.+}:statistics", handle: g.statistics, role: RoleRead,
		places: g.places, limit: v1.StatisticsTimeout, doc: operation{
			id: "indexStatistics", tag: tagScans, summary: "Estimate the distribution of the values of an index's components, " +
				"by a sample of its entries: distinct values, common values, histograms",
			body: v1.StatisticsRequest{}, optional: true,
			answers: []answer{{status: 200, means: "the statistics", body: v1.IndexStatistics{}}},
			codes: []errcode.Code{errcode.UnknownIndex, errcode.IndexNotReady, errcode.Busy, errcode.IndexNotHosted,
				errcode.Timeout, errcode.Unavailable}}}
}

// statistics asks an indexer of each slice for a sample of its entries.
func (g *scans) statistics(w http.ResponseWriter, r *http.Request) error {
	var req v1.StatisticsRequest
	if _, err := scanBody(r, &req); err != nil {
		return err
	}
	if req.Bins < 0 || req.Bins > statistics.MaxBins || req.Sample < 0 || req.Sample > maxSample {
		return rpc.Refuse(errcode.BadRequest, "%d bins of a sample of %d entries: want at most %d and %d; 0, or omitted, "+
			"means %d and %d", req.Bins, req.Sample, statistics.MaxBins, maxSample, statistics.DefaultBins, sampleWanted)
	}
	if req.Bins == 0 {
		req.Bins = statistics.DefaultBins
	}
	if req.Sample == 0 {
		req.Sample = sampleWanted
	}
	x, err := g.ready(r.Context(), r.PathValue("ref"))
	if err != nil {
		return err
	}
	s, err := g.statisticsOf(r.Context(), x, &req)
	if err != nil {
		return err
	}
	rpc.Write(w, r, http.StatusOK, s)
	return nil
}

func (g *scans) statisticsOf(ctx context.Context, x *statecontext.Index,
	req *v1.StatisticsRequest) (*v1.IndexStatistics, error) {
	ctx, cancel := context.WithTimeout(ctx, v1.StatisticsPatience)
	defer cancel()
	s := g.sampling(x, v1.StatisticsPatience)
	parts := max(int(x.Topology.Layout.Partitions), 1)
	s.ask.Whole, s.ask.Wanted = true, min((req.Sample+parts-1)/parts, wire.MaxSampleKeys)
	s.ask.Keys = s.ask.Wanted
	of, err := s.all(ctx, x)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, rpc.Refuse(errcode.Timeout, "the indexers of index %s on %s did not send entries of every slice within "+
			"%v: %v",
			x.Definition.Name, x.Definition.Keyspace(), v1.StatisticsPatience, err)
	case err != nil:
		return nil, err
	}
	d := &x.Definition
	expressions := []string{"META().id"} // the key of a primary index
	if !d.IsPrimary {
		expressions = expressions[:0]
		for i := range d.Keys {
			expressions = append(expressions, d.Keys[i].Expr)
		}
	}
	all, err := statistics.Of(expressions, of, req.Bins)
	if err != nil {
		return nil, fmt.Errorf("index %s on %s: %w", d.Name, d.Keyspace(), err)
	}
	all.Index = d.ID
	return all, nil
}
