package indexer

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strconv"
	"time"

	"tidemark/index"
	"tidemark/indexer/copies"
	"tidemark/indexer/scanserver"
	"tidemark/indexer/snapshots"
	"tidemark/indexer/transfer"
	"tidemark/internal/history"
	"tidemark/internal/rpc"
	"tidemark/internal/rpc/route"
	"tidemark/internal/tlsconf"
	"tidemark/wire"
)

// scanOptions returns what the scan server uses of this indexer.
func (x *Indexer) scanOptions() scanserver.Options {
	return scanserver.Options{Name: x.cfg.Name, Slow: x.cfg.SlowScan, Catalog: x.catalog, Truth: x.truth,
		Definitions: x.present, Pins: x.pins(), Nodes: x.peers.Ask(scanserver.PartConnections),
		Keeps:    x.peers.Ask(scanserver.KeepConnections),
		MaxParts: int(x.cfg.MemoryQuota / scanserver.PartMemory), Managers: x.managers, Registry: x.metrics.registry,
		Tracer: x.cfg.Tracer, Log: x.log, Now: x.now, Hurry: x.node.Background.Hurry}
}

// pins returns the access to this node's snapshots for scans and verifications.
func (x *Indexer) pins() *snapshots.Pins {
	return &snapshots.Pins{Snapshots: x.snapshots, Store: x.store, Bucket: func(name string) (snapshots.Bucket, bool) {
		k := x.bucketNamed(name)
		return k, k != nil
	}, Wrong: func(c index.CopyID) string {
		return cmp.Or(x.health.Why(copies.CopySource+c.String()), x.health.Why(makingSource+c.String()))
	}}
}

// newTruth returns the source of KV's current seqnos and of stability timestamps.
func (x *Indexer) newTruth() *scanserver.Truth {
	return scanserver.NewTruth(scanserver.Sources{Definitions: x.present, Projectors: x.projectors, Leader: x.managers,
		Stabilities: x.catalog})
}

// scanTable returns the routes of the scan port: scans, verifications, and files of copies.
func (x *Indexer) scanTable(scans *scanserver.Server) *route.Table {
	return &route.Table{Lacks: "the scan port of an indexer has no call " +
		"%s", Routes: slices.Concat(scans.Routes(), x.verify.Routes(),
		[]route.Route{{Method: http.MethodPost, Path: transfer.Path, Role: route.Only(tlsconf.Indexer),
			Body: rpc.MaxUserBody, Limit: transfer.AnswerTime, Handle: x.fills.Sender().Serve}, route.Alive()})}
}

// runningScans returns the scans that this node coordinates and the slow ones, at most as many as ?running= and
// ?slow= request.
func (x *Indexer) runningScans(w http.ResponseWriter, r *http.Request) error {
	most := func(name string) int {
		n, err := strconv.Atoi(r.URL.Query().Get(name))
		if err != nil {
			return 0
		}
		return max(n, 0)
	}
	s := x.scans.Running(most("running"), most("slow"))
	s.Node = x.identity.get().Node
	rpc.Write(w, r, http.StatusOK, s)
	return nil
}

// history returns the statistics of the scans of the last hour.
func (x *Indexer) history(w http.ResponseWriter, r *http.Request) error {
	q, err := history.ParseQuery(r)
	if err != nil {
		return err
	}
	h := x.scans.Past(q)
	h.Name = x.cfg.Name
	rpc.Write(w, r, http.StatusOK, h)
	return nil
}

func (x *Indexer) cancelScan(_ context.Context, req *wire.CancelScan) (*wire.OK, error) {
	x.log.Info("scan cancelled", "id", req.ID, "by", req.By)
	return &wire.OK{}, x.scans.Cancel(req)
}

func (x *Indexer) slowFrom(_ context.Context, req *wire.SlowFrom) (*wire.OK, error) {
	x.log.Info("duration from which scans count as slow changed", "from_ms", req.FromMS, "by", req.By)
	x.scans.SetSlow(time.Duration(req.FromMS) * time.Millisecond)
	return &wire.OK{}, nil
}
