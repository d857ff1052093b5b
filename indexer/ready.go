package indexer

import (
	"fmt"
	"strings"

	"tidemark/index"
	"tidemark/internal/rpc"
	"tidemark/partition"
)

// Codes of reasons of /readyz, in addition to those of package rpc.
const (
	reasonCopy    = "copy"     // a copy cannot be written or read
	reasonNotHeld = "not_held" // copies of ready indexes hold no stability timestamp, so scans cannot use them
)

// maxNamed bounds the copies that a reason names.
const maxNamed = 5

// reasons returns what keeps this indexer from being ready. To be ready, it must be registered and able to report to
// the leader, its disk and copies must be healthy, and its copies of each ready index must hold a stability
// timestamp, so that scans can use them.
func (x *Indexer) reasons() (all []rpc.Reason) {
	id := x.identity.get()
	for source, why := range x.health.All() {
		switch {
		case source == healthRegistration && id.ClusterID == "":
			all = append(all, rpc.Reason{Code: rpc.ReasonNoCluster, Detail: "no manager has registered this indexer yet: " +
				why})
		case source == healthRegistration || source == healthManagers:
			all = append(all, rpc.Reason{Code: rpc.ReasonNoLeader, Detail: "the leader cannot be reached: " + why})
		default:
			all = append(all, rpc.Reason{Code: reasonCopy, Detail: source + ": " + why})
		}
	}
	if id.ClusterID == "" && len(all) == 0 {
		all = append(all, rpc.Reason{Code: rpc.ReasonNoCluster, Detail: "no manager has registered this indexer yet"})
	}
	if waiting, of := x.waiting(id.Node); len(waiting) > 0 {
		more := ""
		if n := len(waiting); n > maxNamed {
			waiting, more = waiting[:maxNamed], fmt.Sprintf(" and %d more", n-maxNamed)
		}
		all = append(all, rpc.Reason{Code: reasonNotHeld, Detail: fmt.Sprintf("copies of ready indexes have no stability "+
			"timestamp yet (of %d on this indexer): %s%s", of, strings.Join(waiting, ", "), more)})
	}
	return all
}

// waiting names the copies of ready indexes on this node that scans cannot use yet; of is the number of copies of
// ready indexes here.
func (x *Indexer) waiting(node index.NodeID) (names []string, of int) {
	defs := x.present()
	maintained := map[index.ID]*index.Definition{}
	for i := range defs.Indexes {
		if d := &defs.Indexes[i]; d.State == index.Maintenance {
			maintained[d.ID] = d
		}
	}
	for _, top := range defs.Topologies {
		d := maintained[top.Index]
		for _, c := range top.Copies {
			if d == nil || c.Node != node || c.State != partition.Allocated {
				continue
			}
			if of++; len(x.snapshots.Refs(c.ID)) == 0 {
				names = append(names, fmt.Sprintf("copy %s (slice %d of %s/%s)", c.ID, c.Slice, d.Bucket, d.Name))
			}
		}
	}
	return names, of
}
