package api

import (
	"bytes"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"tidemark/internal/rpc"
	"tidemark/wire"
)

// TestNodesOfOtherClusters checks that nodes of several other clusters on a host, which call in turn, get a line in the
// log a minute, however often they are refused.
func TestNodesOfOtherClusters(t *testing.T) {
	var log bytes.Buffer
	now := time.Unix(1_800_000_000, 0)
	a := over(&ground{cfg: Config{Name: "m1", Logger: hclog.New(&hclog.LoggerOptions{Output: &log})},
		now: func() time.Time { return now }})
	for minute := range 2 {
		for i := range 100 {
			r := httptest.NewRequest("POST", "/v1/components/report", nil)
			r.Header.Set(rpc.HeaderCluster, fmt.Sprint("c", i%2))
			if err := a.checkCluster(r, "own"); !errors.Is(err, wire.ErrForeignCluster) {
				t.Fatalf("call %d: %v", i, err)
			}
		}
		if lines := strings.Count(log.String(), "of another cluster was refused"); lines != minute+1 {
			t.Errorf("%d lines after %d minutes:\n%s", lines, minute, &log)
		}
		now = now.Add(time.Minute)
	}
	if !strings.Contains(log.String(), "left_out=99") {
		t.Errorf("the second line does not count those left out:\n%s", &log)
	}
}
