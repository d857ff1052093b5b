package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"tidemark/errcode"
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

// TestRebalanceWaitEndsWithARefusal checks that a command ends with the node's error if the node refuses its
// credentials.
func TestRebalanceWaitEndsWithARefusal(t *testing.T) {
	t.Parallel()
	node := singleKV(t)
	limited, done := context.WithTimeout(t.Context(), time.Minute)
	defer done()
	for password, want := range map[string]error{"secret": nil, "wrong": kv.ErrRefused} {
		a := kv.NewAdmin([]string{node.AdminAddr()}, "u", password, nil)
		if err := waitRebalance(limited, Streams{Err: new(strings.Builder)}, a.Status, ""); !errors.Is(err, want) {
			t.Errorf("with the password %s: %v, want %v", password, err, want)
		}
	}
}

// TestRebalanceWaitReportsReasons checks that a command continues while nodes do not answer, and reports each reason
// once, even if the error's text changes.
func TestRebalanceWaitReportsReasons(t *testing.T) {
	t.Parallel()
	lead := kv.NodeStatus{ID: "kv1", State: "ready"}
	silent := func(poll int) (kv.ClusterStatus, error) {
		return kv.ClusterStatus{}, fmt.Errorf("%w: port %d", kv.ErrSilent, poll)
	}
	leaderless := func(int) (kv.ClusterStatus, error) {
		return kv.ClusterStatus{Leader: "kv1",
			Nodes: []kv.NodeStatus{{ID: "kv1", State: "unreachable", Detail: "refused"}, {ID: "kv2", State: "ready"}}}, nil
	}
	moving := func(poll int) (kv.ClusterStatus, error) {
		return kv.ClusterStatus{Leader: "kv1", Nodes: []kv.NodeStatus{lead},
			Progress: &kv.Progress{Operation: "a", Left: 40 - poll, Total: 40, Waiting: "kv3 to answer"}}, nil
	}
	over := func(int) (kv.ClusterStatus, error) {
		return kv.ClusterStatus{Leader: "kv1", Nodes: []kv.NodeStatus{lead}}, nil
	}
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		poll := 0
		read := func(context.Context) (kv.ClusterStatus, error) {
			poll++
			phases := []func(int) (kv.ClusterStatus, error){silent, leaderless, moving, over}
			return phases[min(poll/10, len(phases)-1)](poll)
		}
		if err := waitRebalance(t.Context(), Streams{Err: &out}, read, ""); err != nil {
			t.Fatal(err)
		}
		want := "waits for KV: no KV node answered: port 1\n" +
			"waits for KV: the node that leads the cluster does not answer: kv1: refused\n" +
			"rebalancing: 50 %\nwaits for kv3 to answer\n"
		if !strings.HasPrefix(out.String(), want) || strings.Count(out.String(), "waits for") != 3 ||
			!strings.HasSuffix(out.String(), "rebalancing: 100 %\n") {
			t.Errorf("%s\nwant\n%s…", out.String(), want)
		}
	})
}

// TestRebalanceWaitIsLimited checks that a command does not wait forever for nodes that are gone, and that the time
// counts from their last answer.
func TestRebalanceWaitIsLimited(t *testing.T) {
	t.Parallel()
	for want, gone := range map[error]func() (kv.ClusterStatus, error){
		kv.ErrSilent: func() (kv.ClusterStatus, error) { return kv.ClusterStatus{}, kv.ErrSilent },
		errLeaderSilent: func() (kv.ClusterStatus, error) {
			return kv.ClusterStatus{Leader: "kv1", Nodes: []kv.NodeStatus{{ID: "kv2", State: "ready"}}}, nil
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, done := context.WithTimeout(t.Context(), 3*leaderAbsence)
			defer done()
			began, answered := time.Now(), false
			read := func(context.Context) (kv.ClusterStatus, error) {
				if !answered && time.Since(began) > leaderAbsence/2 {
					answered = true
					return kv.ClusterStatus{Leader: "kv1", Progress: &kv.Progress{Operation: "a", Left: 1, Total: 2}}, nil
				}
				return gone()
			}
			err := waitRebalance(ctx, Streams{Err: new(strings.Builder)}, read, "")
			if !errors.Is(err, want) || exitCode(err) != errcode.ExitUnavailable {
				t.Errorf("%v, exit code %d, want %v", err, exitCode(err), want)
			}
			if took := time.Since(began); took < 3*leaderAbsence/2 || took > 2*leaderAbsence {
				t.Errorf("%v: it ended after %v", want, took)
			}
		})
	}
}
