package manager

import (
	"strings"
	"testing"

	gometrics "github.com/armon/go-metrics"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// TestLibraryMetrics: the measurements of the Raft library are exported by Prometheus' conventions.
func TestLibraryMetrics(t *testing.T) {
	r := prometheus.NewRegistry()
	s := newLibrarySink(r)
	peer := func(id string) []gometrics.Label { return []gometrics.Label{{Name: "peer_id", Value: id}} }
	s.IncrCounter([]string{"raft", "apply"}, 2)
	s.IncrCounter([]string{"raft", "apply"}, 3)
	s.SetGauge([]string{"raft", "fsm", "lastRestoreDuration"}, 1500)
	s.SetGauge([]string{"raft", "commitNumLogs"}, 4)
	s.AddSample([]string{"raft", "commitTime"}, 1.5)
	s.AddSample([]string{"raft", "boltdb", "logBatchSize"}, 300)
	s.AddSample([]string{"raft", "thread", "main", "saturation"}, 0.25)
	s.AddSampleWithLabels([]string{"raft", "replication", "appendEntries", "rpc"}, 2, peer("m2"))
	s.AddSampleWithLabels([]string{"raft", "replication", "appendEntries", "rpc"}, 3, peer("m3"))
	s.AddSample([]string{"raft", "replication", "appendEntries", "rpc"}, 3) // without the label: not exported
	problems, err := testutil.GatherAndLint(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	want := `
# HELP raft_apply_total Measured by hashicorp/raft as raft.apply.
# TYPE raft_apply_total counter
raft_apply_total 5
# HELP raft_commit_num_logs Measured by hashicorp/raft as raft.commitNumLogs.
# TYPE raft_commit_num_logs gauge
raft_commit_num_logs 4
# HELP raft_fsm_last_restore_duration_seconds Measured by hashicorp/raft as raft.fsm.lastRestoreDuration.
# TYPE raft_fsm_last_restore_duration_seconds gauge
raft_fsm_last_restore_duration_seconds 1.5
`
	if err := testutil.GatherAndCompare(r, strings.NewReader(want), "raft_apply_total", "raft_commit_num_logs",
		"raft_fsm_last_restore_duration_seconds"); err != nil {
		t.Error(err)
	}
	all, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sums := map[string]float64{}
	for _, f := range all {
		for _, m := range f.Metric {
			if m.Histogram != nil {
				sums[f.GetName()] += m.Histogram.GetSampleSum()
			}
		}
	}
	for name, sum := range map[string]float64{"raft_commit_time_seconds": 0.0015, "raft_boltdb_log_batch_size_bytes": 300,
		"raft_thread_main_saturation": 0.25, "raft_replication_append_entries_rpc_seconds": 0.005} {
		if d := sums[name] - sum; d > 1e-6 || d < -1e-6 {
			t.Errorf("%s adds up to %g, want %g", name, sums[name], sum)
		}
	}
}

func TestSnake(t *testing.T) {
	for name, want := range map[string]string{"raft.net.getRPCType": "raft_net_get_rpc_type",
		"raft.boltdb.txstats.pageCount": "raft_boltdb_txstats_page_count", "raft.verify_leader": "raft_verify_leader",
		"raft.candidate.electSelf": "raft_candidate_elect_self"} {
		if got := snake(name); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
}
