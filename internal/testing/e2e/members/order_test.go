package members

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"tidemark/manager/api/v1"
)

type status = v1.ManagerStatus

// atOnce is how many small clusters run in parallel.
const atOnce = 3

// permutations returns all orders of a list.
func permutations(all []string) (orders [][]string) {
	if len(all) == 0 {
		return [][]string{nil}
	}
	for i, first := range all {
		rest := append(append([]string{}, all[:i]...), all[i+1:]...)
		for _, o := range permutations(rest) {
			orders = append(orders, append([]string{first}, o...))
		}
	}
	return orders
}

// TestOrders starts managers, KV, projector and indexer one after the other, each when the one before answers, in
// every order. Each time the cluster becomes ready without manual steps, and builds an index.
func TestOrders(t *testing.T) {
	t.Parallel()
	turns := make(chan struct{}, atOnce)
	for _, order := range permutations([]string{"managers", "kv", "projector", "indexer"}) {
		t.Run(strings.Join(order, " "), func(t *testing.T) {
			t.Parallel()
			turns <- struct{}{}
			t.Cleanup(func() { <-turns })
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			defer cancel()
			w := newCluster(t)
			for _, role := range order {
				w.start(ctx, role)
			}
			began := time.Now()
			c := w.client(1)
			w.active(ctx, c, 1, 1)
			w.keys = nil
			w.load(ctx)
			w.create(ctx, c, "CREATE INDEX by_name ON world(name)")
			t.Logf("active, and an index of %d documents built, %s after the last start", len(w.keys),
				time.Since(began).Round(time.Millisecond))
		})
	}
}

// start starts a role and waits until it answers.
func (w *cluster) start(ctx context.Context, role string) {
	w.t.Helper()
	var at string
	switch role {
	case "managers":
		w.manager(1)
		at = w.addr(1)
	case "kv":
		w.startKV()
		at = w.addr(41)
	case "projector":
		w.projector(42)
		at = w.addr(42)
	case "indexer":
		w.indexer(1)
		at = w.addr(50)
	}
	w.until(ctx, role+" answers", func() (bool, string) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+at+"/healthz", nil)
		if err != nil {
			return false, err.Error()
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return false, err.Error()
		}
		_ = resp.Body.Close()
		return true, fmt.Sprint(resp.StatusCode)
	})
}
