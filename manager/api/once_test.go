package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"tidemark/internal/rpc"
)

// TestOnce: a request that comes again, also while it is under way, is answered by what became of it; one that was
// refused is made again, and another one is another. What is kept is bounded.
func TestOnce(t *testing.T) {
	var o once
	made := 0
	ask := func(path, id string, work func() error) (string, error) {
		r := httptest.NewRequest(http.MethodDelete, path, nil)
		_, body, err := o.do(r.WithContext(rpc.WithRequestID(r.Context(), id)), func(context.Context) (int, any, error) {
			made++
			n := made
			return http.StatusOK, fmt.Sprint("done by ", n), work()
		})
		return fmt.Sprint(body), err
	}
	done := func() error { return nil }
	begun, go1 := make(chan struct{}), make(chan struct{})
	var both sync.WaitGroup
	both.Go(func() {
		got, err := ask("/i3", "one", func() error { close(begun); <-go1; return nil })
		if got != "done by 1" || err != nil {
			t.Error(got, err)
		}
	})
	<-begun
	both.Go(func() {
		if got, err := ask("/i3", "one", done); got != "done by 1" || err != nil {
			t.Error("again:", got, err)
		}
	})
	close(go1)
	both.Wait()
	refused := errors.New("it lives")
	for range 2 {
		if _, err := ask("/i4", "two", func() error { return refused }); !errors.Is(err, refused) {
			t.Error(err)
		}
	}
	if got, _ := ask("/i4", "two", done); got != "done by 4" {
		t.Error("after refusals:", got)
	}
	if got, _ := ask("/i3?force=true", "one", done); got != "done by 5" {
		t.Error("another one:", got)
	}
	for i := range 3 * onceKept {
		if _, err := ask("/i5", fmt.Sprint(i), done); err != nil {
			t.Fatal(err)
		}
	}
	if len(o.known) != onceKept || len(o.order) != onceKept {
		t.Errorf("%d and %d are kept", len(o.known), len(o.order))
	}
}
