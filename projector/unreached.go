package projector

import (
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"

	"tidemark/index"
	"tidemark/projector/router"
	"tidemark/wire"
)

// portsOf returns those of the unreached endpoints that are data ports of indexers. Endpoints of external subscribers
// are not among them, and an indexer that has left is not either. The caller holds the lock.
func (p *Projector) portsOf(all []router.Unreached) []router.Unreached {
	if len(all) == 0 || p.defs.newest == nil {
		return nil
	}
	indexers := p.defs.newest.Indexers
	return slices.DeleteFunc(all, func(u router.Unreached) bool {
		return !slices.ContainsFunc(indexers, func(e wire.Endpoint) bool {
			return e.Node == u.Node && (e.Maintenance == u.Address || e.Backfill == u.Address || e.Catchup == u.Address)
		})
	})
}

// reportedPorts returns the form of a report, which is bounded.
func reportedPorts(all []router.Unreached) (ports []wire.Unreached) {
	for i, u := range all[:min(len(all), wire.MaxUnreached)] {
		port := wire.Unreached{Node: u.Node, Address: u.Address, Refused: u.Refused, SinceMS: u.Since.UnixMilli()}
		if i < wire.MaxUnreachedErrors {
			port.Error = u.Error
		}
		ports = append(ports, port)
	}
	return ports
}

// unreached holds the data ports that were unreached when log was last called.
type unreached map[dataPort]bool

type dataPort struct {
	node index.NodeID
	addr string
}

// log logs the ports of all that were not in it the last time, and those that are no longer.
func (x *unreached) log(log hclog.Logger, all []router.Unreached) {
	if len(all) == 0 && len(*x) == 0 {
		return
	}
	now := make(unreached, len(all))
	for _, u := range all {
		port := dataPort{u.Node, u.Address}
		if now[port] = true; (*x)[port] {
			continue
		}
		text := "an indexer's data port cannot be reached; it is tried again"
		if u.Refused {
			text = "an indexer refuses connections to a data port; it is tried again"
		}
		log.Warn(text, "node", u.Node, "address", u.Address, "since",
			u.Since.UTC().Format(time.RFC3339), "error", u.Error)
	}
	for port := range *x {
		if !now[port] {
			log.Info("an indexer's data port is reached again, or is not needed any more", "node", port.node, "address",
				port.addr)
		}
	}
	*x = now
}
