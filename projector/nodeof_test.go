package projector

import (
	"testing"

	"tidemark/kv/mcbp"
)

// TestNodeOf: two projectors at one KV node use the same name for it, whatever address they dialled.
func TestNodeOf(t *testing.T) {
	port := map[string]int{"kv": 11210, "kvSSL": 11207}
	for name, tc := range map[string]struct {
		config  mcbp.ClusterConfig
		dialled string
		want    string
	}{
		"no name": {mcbp.ClusterConfig{NodesExt: []mcbp.ConfigNodeExt{{ThisNode: true, Services: port}}}, "10.0.0.1:11210",
			":11210"},
		"no name, dialled otherwise, over TLS": {mcbp.ClusterConfig{NodesExt: []mcbp.ConfigNodeExt{{ThisNode: true, Services: port}}},
			"[::1]:11207", ":11210"},
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
