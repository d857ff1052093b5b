package cli

import (
	"testing"

	"tidemark/kv"
)

// TestRebalanceIsOver checks that a command waits for the operation that it has begun, and not for one that another
// user has begun. Only the leader's answer counts.
func TestRebalanceIsOver(t *testing.T) {
	t.Parallel()
	lead := kv.ClusterStatus{Leader: "kv1", Nodes: []kv.NodeStatus{{ID: "kv1", State: "ready"}}}
	moving := lead
	moving.Progress = &kv.Progress{Operation: "b", Left: 1, Total: 2}
	for _, x := range []struct {
		what      string
		status    kv.ClusterStatus
		operation string
		over      bool
	}{
		{"nothing is running", lead, "", true},
		{"ours has ended", lead, "a", true},
		{"the leader does not answer", kv.ClusterStatus{Leader: "kv1"}, "a", false},
		{"any", moving, "", false},
		{"ours", moving, "b", false},
		{"another one follows", moving, "a", true},
	} {
		if over := isOver(x.status, x.operation); over != x.over {
			t.Errorf("%s: %v", x.what, over)
		}
	}
}
