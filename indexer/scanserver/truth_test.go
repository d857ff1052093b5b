package scanserver

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"tidemark/errcode"
	"tidemark/indexer/scan"
	"tidemark/internal/rpc"
	"tidemark/managerclient"
	"tidemark/timestamp"
)

// TestStabilizeRefusals: why a scan that waits for a stability timestamp gets none is told by name where the reason is
// the scan's own; any other one is worth another try.
func TestStabilizeRefusals(t *testing.T) {
	for code, want := range map[errcode.Code]errcode.Code{
		errcode.Timeout: errcode.Timeout, errcode.TokenLost: errcode.TokenLost,
		errcode.IndexInRollback: errcode.IndexInRollback,
		errcode.NoLeader:        errcode.Unavailable, errcode.Busy: errcode.Unavailable,
		errcode.IndexNotReady: errcode.Unavailable,
	} {
		manager := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			rpc.WriteProblem(w, rpc.Refuse(code, "because of %s", code))
		}))
		leader := managerclient.New([]string{manager.URL}, nil)
		truth := Truth{Leader: leader}
		_, err := truth.Stabilize(t.Context(), "b", timestamp.New(1), time.Second)
		if got := scan.CodeOf(err); got != want {
			t.Errorf("%s: %v, want %s", code, err, want)
		}
		leader.Close()
		manager.Close()
	}
}
