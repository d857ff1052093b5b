package projector

import (
	"testing"

	"tidemark/kv/mcbp"
)

// TestNodesWithoutNames: the coordinator tells KV nodes apart by what projectors call them: those that do not know
// their names, of one port, by where they were dialled.
func TestNodesWithoutNames(t *testing.T) {
	port := map[string]int{"kv": 11210, "kvSSL": 11207}
	for name, tc := range map[string]struct {
		config  mcbp.ClusterConfig
		dialled string
		want    string
	}{
		"no name": {mcbp.ClusterConfig{NodesExt: []mcbp.ConfigNodeExt{{ThisNode: true, Services: port}}}, "10.0.0.1:11210",
			"10.0.0.1:11210"},
		"no name, over TLS": {mcbp.ClusterConfig{NodesExt: []mcbp.ConfigNodeExt{{ThisNode: true, Services: port}}},
			"[::1]:11207", "[::1]:11210"},
		"a name": {mcbp.ClusterConfig{NodesExt: []mcbp.ConfigNodeExt{{ThisNode: true, Hostname: "kv1", Services: port}}},
			"10.0.0.1:11210", "kv1:11210"},
		"no place": {mcbp.ClusterConfig{NodesExt: []mcbp.ConfigNodeExt{{Hostname: "kv1", Services: port}}}, "10.0.0.1:11210",
			"10.0.0.1:11210"},
	} {
		if got := nodeOf(&tc.config, tc.dialled); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}
