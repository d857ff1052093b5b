package cli

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"tidemark/errcode"
)

// TestHistoryOfOneBucket checks that, for one bucket, figures of all buckets are marked, and that omissions are
// reported.
func TestHistoryOfOneBucket(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, `{"from_ms":0,"to_ms":60000,"step_ms":60000,"indexes_omitted":2,
			"scans":[{"consistency":"any","count":7,"points":[{"at_ms":0,"count":7}]}],"ddl":{"count":1,"points":[]},
			"buckets":[{"name":"world","points":[{"at_ms":0,"lag":5}]}]}`)
	}))
	defer s.Close()
	for _, tc := range []struct {
		bucket     string
		has, lacks []string
	}{
		{"world", []string{"scans of all buckets, any", "DDL of all buckets", "SCANS (ALL)", "WORST P99 (ALL)", "DDL (ALL)",
			"2 indexes more: see --limit"}, nil},
		{"", []string{"scans, any", "SCANS", "2 indexes more: see --limit"}, []string{"of all buckets", "(ALL)"}},
	} {
		code, out, stderr := run(t, "", "cluster", "history", "--server", s.URL, "--bucket", tc.bucket)
		if code != errcode.ExitOK {
			t.Fatal(stderr)
		}
		for _, want := range tc.has {
			if !strings.Contains(out+stderr, want) {
				t.Errorf("bucket %q: %q is not in %s%s", tc.bucket, want, out, stderr)
			}
		}
		for _, not := range tc.lacks {
			if strings.Contains(out, not) {
				t.Errorf("bucket %q: %q is in %s", tc.bucket, not, out)
			}
		}
	}
}
