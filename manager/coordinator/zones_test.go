package coordinator

import (
	"errors"
	"strings"
	"testing"
	"time"

	"tidemark/index"
	"tidemark/manager/coordinator/core"
	"tidemark/partition"
	"tidemark/wire"
)

// TestZonesAndCapacities checks that the zones and capacities that indexers report determine where copies are placed,
// and are shown.
func TestZonesAndCapacities(t *testing.T) {
	inWorld(t, func(w *world) {
		w.components(0)
		w.indexerIn("i1", "a", 1)
		w.indexerIn("i2", "a", 3)
		w.indexerIn("i3", "b", 0)
		w.until("three indexers", 20*time.Second, func() bool {
			s, _ := w.leader().Status()
			return len(s.Indexers) == 3
		})
		d := w.create("apart", "", 8, 1)
		held := map[index.NodeID]int{}
		for _, c := range w.log.State().Topology(d.ID).Copies {
			if c.State != partition.Leaving {
				held[c.Node]++
			}
		}
		s, _ := w.leader().Status()
		byName := map[string]core.IndexerStatus{}
		for _, i := range s.Indexers {
			byName[i.Name] = i
		}
		if n := held[byName["i3"].Node]; n != 8 {
			t.Errorf("zone b has %d copies of 8 slices", n)
		}
		if one, three := held[byName["i1"].Node], held[byName["i2"].Node]; one != 2 || three != 6 {
			t.Errorf("capacities 1 and 3 have %d and %d copies", one, three)
		}
		if i := byName["i2"]; i.Zone != "a" || i.Weight != 3 || byName["i3"].Weight != 1 {
			t.Errorf("shown: %+v", byName)
		}
		_, err := w.leader().RegisterIndexer(w.ctx, &wire.RegisterIndexer{Endpoint: wire.Endpoint{UUID: "u", BootID: "b",
			Admin: "http://u", Maintenance: "u:2",
			Zone: strings.Repeat("z", wire.MaxZone+1)}})
		if !errors.Is(err, ErrRegistration) {
			t.Errorf("a long zone: %v", err)
		}
	})
}
