package kv

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"tidemark/kv/clustermap"
	"tidemark/wire"
)

// TestLoggingOfOneNode: a change of log levels applies to the named node alone, and is refused without the KV
// password.
func TestLoggingOfOneNode(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 2, 0)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	address := []string{g.nodes["kv1"].AdminAddr()}
	conf := g.confs["kv1"]
	a := NewAdmin(address, conf.User, conf.Password, nil)
	got, err := a.Logging(ctx, "kv2", &wire.LogChange{Component: "kv.memcached", Level: "debug"})
	if err != nil || got.Level != "warn" {
		t.Fatalf("%+v, %v", got, err)
	}
	for node, want := range map[string]string{"kv1": "warn", "kv2": "debug"} {
		got, err := a.Logging(ctx, node, nil)
		if err != nil {
			t.Fatal(err)
		}
		level := ""
		for _, c := range got.Components {
			if c.Name == "kv.memcached" {
				level = c.Level
			}
		}
		if level != want {
			t.Errorf("kv.memcached of %s logs %q, want %q: %+v", node, level, want, got)
		}
	}
	if _, err := a.Logging(ctx, "kv2", &wire.LogChange{Level: "loud"}); !errors.Is(err, ErrRefused) ||
		!strings.Contains(err.Error(), "want trace, debug") {
		t.Errorf("a level that is none: %v", err)
	}
	if _, err := a.Logging(ctx, "kv9", nil); !errors.Is(err, clustermap.ErrNoMember) ||
		!strings.Contains(err.Error(), "kv status") {
		t.Errorf("a node that is none: %v", err)
	}
	wrongPassword := NewAdmin(address, conf.User, "wrong", nil)
	if _, err := wrongPassword.Logging(ctx, "kv1", &wire.LogChange{Level: "off"}); !errors.Is(err, ErrRefused) {
		t.Errorf("with a wrong password: %v", err)
	}
}

// TestANodeThatRefusesIsNotSilent: a client with a wrong password gets ErrRefused, not ErrSilent.
func TestANodeThatRefusesIsNotSilent(t *testing.T) {
	t.Parallel()
	refuses := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		refuse(w, http.StatusUnauthorized, problem{Detail: "wrong password"})
	}))
	defer refuses.Close()
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	refusing, closed := strings.TrimPrefix(refuses.URL, "http://"), strings.TrimPrefix(gone.URL, "http://")
	for name, c := range map[string]struct {
		addresses []string
		refused   bool
	}{"refused": {[]string{refusing}, true}, "nobody": {[]string{closed}, false},
		"one of two": {[]string{closed, refusing}, true}} {
		_, err := NewAdmin(c.addresses, "u", "wrong", nil).Status(t.Context())
		if errors.Is(err, ErrRefused) != c.refused || errors.Is(err, ErrSilent) == c.refused {
			t.Errorf("%s: %v", name, err)
		}
	}
}
