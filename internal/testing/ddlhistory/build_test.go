package ddlhistory

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"testing"
	"time"
)

// TestRetriesByName checks that BUILD and DROP by name, retried with their key at every manager, keep their outcome
// and change nothing after the name has gone or belongs to another index.
func TestRetriesByName(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	up, _, newWorker := start(t)
	w := newWorker(newRecorder(), 100)
	bucket := up.Manifest().Bucket
	ask := func(want int, server, text, key string) string {
		t.Helper()
		body, err := json.Marshal(map[string]string{"statement": text})
		if err != nil {
			t.Fatal(err)
		}
		status, answer, err := call(ctx, w.http, http.MethodPost, server+"/v1/statements", key, body, time.Minute)
		if err != nil || status != want {
			t.Errorf("%s (%s) at %s: %d %s, %v; want %d", text, key, server, status, answer, err, want)
		}
		return string(answer)
	}
	everywhere := func(want int, text, key string) {
		t.Helper()
		for _, s := range w.servers {
			ask(want, s, text, key)
		}
	}
	first := w.servers[0]
	createText, build, drop := `CREATE PRIMARY INDEX a ON `+bucket+` WITH {"defer_build":true}`, `BUILD INDEX ON `+bucket+`(a)`, `DROP INDEX a ON `+bucket
	everywhere(http.StatusNotFound, build, "early")
	everywhere(http.StatusNotFound, build, "") // without a key
	everywhere(http.StatusNotFound, drop, "")
	ask(http.StatusAccepted, first, createText, "create")
	everywhere(http.StatusAccepted, build, "build")
	everywhere(http.StatusNotFound, build, "early") // the outcome of the first attempt
	ask(http.StatusAccepted, first, drop, "drop")
	everywhere(http.StatusAccepted, build, "build")
	everywhere(http.StatusNotFound, build, "late")
	ask(http.StatusAccepted, first, createText, "again")
	everywhere(http.StatusAccepted, build, "build")
	everywhere(http.StatusAccepted, drop, "drop")
	everywhere(http.StatusAccepted, createText, "create")
	status, answer, err := call(ctx, w.http, http.MethodGet, first+"/v1/indexes?bucket="+bucket, "", nil, time.Minute)
	var l struct {
		Indexes []struct {
			Name, State string
			Deferred    bool
		}
	}
	if err != nil || status != http.StatusOK || json.Unmarshal(answer, &l) != nil {
		t.Fatalf("%d %s, %v", status, answer, err)
	}
	for i, x := range slices.Backward(l.Indexes) {
		if x.State == "dropping" { // being dropped
			l.Indexes = slices.Delete(l.Indexes, i, i+1)
		}
	}
	if len(l.Indexes) != 1 || l.Indexes[0].Name != "a" || !l.Indexes[0].Deferred {
		t.Errorf("want the second index, deferred still: %s", answer)
	}
}
