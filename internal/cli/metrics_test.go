package cli

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"regexp"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"tidemark/internal/testing/testcluster"
)

// checkMetrics checks that the metrics of each role pass Prometheus' own check, that docs/metrics.md lists all of
// tidemark's own, and that each role has those of its process.
func checkMetrics(t *testing.T, cluster *testcluster.Cluster) {
	docs, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	m := cluster.Manifest()
	roles := map[string]string{"kv": m.KV[0].Admin, "projector": m.Projectors[0].Admin, "indexer": m.Indexers[0].Admin}
	for _, e := range m.Managers {
		roles["manager "+e.ID] = e.REST
	}
	leading := 0
	for role, at := range roles {
		text := fetch(t.Context(), t, at+"/metrics")
		problems, err := promlint.New(bytes.NewReader(text)).Lint()
		if err != nil {
			t.Fatalf("%s: %v", role, err)
		}
		for _, p := range problems {
			t.Errorf("%s: %s: %s", role, p.Metric, p.Text)
		}
		for _, name := range metricType.FindAllSubmatch(text, -1) {
			if !bytes.Contains(docs, append([]byte("`"), name[1]...)) {
				t.Errorf("%s: docs/metrics.md does not list %s", role, name[1])
			}
		}
		for _, name := range []string{"tidemark_build_info{", "go_goroutines ", "process_resident_memory_bytes "} {
			if !bytes.Contains(text, []byte("\n"+name)) {
				t.Errorf("%s has no %s", role, name)
			}
		}
		if camel := regexp.MustCompile(`(?m)^# TYPE (\S*[A-Z]\S*)`).FindSubmatch(text); camel != nil {
			t.Errorf("%s: %s is camel case", role, camel[1])
		}
		if bytes.Contains(text, []byte("\ntidemark_cluster_ready_indexes{")) {
			leading++
		}
	}
	if leading != 1 {
		t.Errorf("%d managers have metrics of the cluster, want only the leader", leading)
	}
}

// metricType matches tidemark's metrics: those of hashicorp/raft and of the Go runtime are listed only in part.
var metricType = regexp.MustCompile(`(?m)^# TYPE (tidemark_\S+)`)

func fetch(ctx context.Context, t *testing.T, url string) []byte {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v", url, resp.Status, err)
	}
	return text
}
