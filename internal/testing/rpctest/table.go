package rpctest

import (
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tidemark/internal/rpc/route"
)

// With -write-ports the test of a port's table, TestTable of its role, writes docs/protocol.md. For all ports (one
// after the other, because all write one file):
//
//	go test -p 1 ./indexer ./internal/node ./kv ./projector ./projector/fleet -run TestTable -write-ports
var write = flag.Bool("write-ports", false, "write what ports answer into docs/protocol.md")

// page is the page with the tables of ports, relative to the root of the tree.
const page = "docs/protocol.md"

// Whole tests that a port's table documents each route completely, and that docs/protocol.md contains the table below
// a heading; with -write-ports it writes it there.
func Whole(t testing.TB, heading string, table *route.Table) {
	t.Helper()
	if !strings.Contains(table.Lacks, "%s") {
		t.Errorf("%q does not say which path there is not", table.Lacks)
	}
	_ = table.Handler() // panics if a path is malformed or duplicate
	for _, rt := range table.Routes {
		name := call(&rt)
		takes := rt.Method != http.MethodGet && rt.Method != http.MethodDelete
		switch {
		case rt.Role.Name == "":
			t.Errorf("%s does not say who may call it", name)
		case rt.Body < 0 || !takes && rt.Body != 0:
			t.Errorf("%s takes a body of %d bytes", name, rt.Body)
		case rt.Body > 0 && !rt.Stream && rt.Limit < route.BodyTime:
			t.Errorf("%s may take %s, and its body alone %s", name, rt.Limit, route.BodyTime)
		case (rt.Limit > 0) == rt.Stream:
			t.Errorf("%s may take %s, and streams: %t; want either", name, rt.Limit, rt.Stream)
		case rt.Handle == nil:
			t.Errorf("%s has no handler", name)
		}
	}
	documented(t, heading, table)
}

func call(rt *route.Route) string { return strings.TrimSpace(rt.Method + " " + rt.Path) }

func documented(t testing.TB, heading string, table *route.Table) {
	t.Helper()
	at := page
	for range 8 {
		if _, err := os.Stat(at); err == nil {
			break
		}
		at = filepath.Join("..", at)
	}
	b, err := os.ReadFile(at)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(b), "\n### "+heading+"\n")
	if !ok {
		t.Fatalf("%s has no heading %q", page, heading)
	}
	is, after := rest, ""
	if end := strings.Index(rest, "\n#"); end >= 0 {
		is, after = rest[:end], rest[end:]
	}
	want := "\n" + rows(table)
	switch {
	case is == want:
	case *write:
		if err := os.WriteFile(at, []byte(before+"\n### "+heading+"\n"+want+after), 0o600); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s, %s: it is\n%s\nand not what is written there; go test -run TestTable -write-ports writes it", page,
			heading, want)
	}
}

// rows formats a table for the page.
func rows(table *route.Table) string {
	var b strings.Builder
	b.WriteString("| call | who | body | time | at a time |\n|---|---|---|---|---|\n")
	for _, rt := range table.Routes {
		limit, places := "streams", ""
		if !rt.Stream {
			limit = lasting(rt.Limit)
		}
		if rt.Places != nil {
			places = fmt.Sprint(rt.Places.Most())
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", call(&rt), rt.Role.Name, bytes(rt.Body), limit, places)
	}
	return b.String()
}

func lasting(d time.Duration) string {
	switch {
	case d%time.Hour == 0:
		return fmt.Sprintf("%d h", d/time.Hour)
	case d%time.Minute == 0:
		return fmt.Sprintf("%d min", d/time.Minute)
	}
	return fmt.Sprintf("%g s", d.Seconds())
}

func bytes(n int64) string {
	switch {
	case n == 0:
		return ""
	case n%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%g KiB", float64(n)/1024)
}
