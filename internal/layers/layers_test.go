// Package layers checks that a package imports only packages of a lower floor (docs/architecture.md).
package layers

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "tidemark/"

// floor is the table of the architecture's floors.
var floor = map[string]int{
	"index": 0, "timestamp": 0, "collate": 0, "errcode": 0, "internal/loglimit": 0,
	"kv/mcbp": 1, "kv/access": 2, "partition": 1, "keyversion": 1, "indexer/scanport": 1, "kv/connstr": 1,
	"stability": 2, "rollback": 2, "rebalance": 2, "streams": 2, "lifecycle": 2, "liveness": 2, "ingest": 2,
	"expression": 2, "wire": 2,
	"statecontext": 3, "internal/trust": 3,
	"manager/api/v1": 4,
	"internal/rpc":   4, "internal/rpc/route": 5, "internal/tracing": 5, "internal/logging": 5, "internal/config": 4, "internal/failpoint": 4, "internal/documents": 4, "internal/testing/pipenet": 4,
	"internal/testing/allocbound": 5, "internal/testing/planted": 4, "internal/version": 4, "internal/leash": 4, "internal/stop": 4, "internal/history": 5, "internal/supervise": 5, "internal/filelock": 4, "internal/node": 8, "internal/testing/need": 4,
	"internal/testing/ports": 4, "internal/testing/families": 4, "internal/testing/draws": 4, "internal/testing/atonce": 5, "internal/testing/raced": 4, "internal/testing/garbage": 4,
	"internal/detector": 4, "internal/diskspace": 4, "internal/tlsconf": 4, "indexer/transport": 4, "indexer/transfer": 5, "kv/kvclient": 4,
	"manager/auth": 5, "manager/statistics": 5, "fsm": 5, "manager/consensus": 5, "projectorclient": 5, "indexerclient": 6, "managerclient": 5,
	"client": 5, "projector/feed": 5, "projector/router": 5, "kv/doctor": 5,
	"indexer/storage": 5, "indexer/scan": 5, "indexer/pace": 4, "indexer/meters": 4, "indexer/health": 4, "indexer/jsonfile": 4, "indexer/packed": 6, "indexer/snapshots": 6, "indexer/peers": 6, "indexer/copies": 7, "indexer/verify": 7, "indexer/catalog": 7, "indexer/scanserver": 7, "indexer/core": 3, "projector/core": 3, "internal/testing/rpctest": 6, "internal/testing/tracingtest": 5,
	"indexer/sides": 8, "indexer/keeper": 8, "indexer/fill": 8,
	"projector": 6, "kv": 6, "indexer": 9, "manager/coordinator": 6, "manager/coordinator/core": 5, "manager/watch": 6, "client/topic": 6,
	"manager/api": 7, "manager/console": 7,
	"internal/sample": 7, "manager": 8, "internal/localcluster": 8, "internal/testing/oracle": 8,
	"internal/testing/simulation": 8, "internal/testing/contract": 8, "internal/cli": 10,
	"internal/testing/testcluster": 10,
	"cmd/tidemark":                 11, "internal/testing/e2e/harness": 11, "internal/testing/e2e": 12, "internal/testing/campaigns": 11,
	"internal/testing/ddlhistory": 11, "bench": 11, "deploy": 11, "internal/layers": 11, "internal/modulepath": 11,
}

// pure is the highest floor without I/O, clock, lock and randomness.
const pure = 3

// pureAbove lists packages of higher floors that have none of these either, except for a logger that they are given.
var pureAbove = []string{"manager/coordinator/core", "manager/api/v1", "manager/statistics"}

// impure lists the imports that pure floors must not have.
var impure = []string{"os", "net", "net/http", "sync", "sync/atomic", "context", "math/rand", "math/rand/v2",
	"crypto/rand", "log", "log/slog"}

// lookup returns the room and the floor of a package; a package below a listed folder (kv/store) belongs to the
// folder's room.
func lookup(name string) (room string, level int, ok bool) {
	for n := name; n != ""; {
		if f, ok := floor[n]; ok {
			return n, f, true
		}
		i := strings.LastIndexByte(n, '/')
		if i < 0 {
			return name, 0, false
		}
		n = n[:i]
	}
	return name, 0, false
}

// TestShipped checks that the shipped program contains nothing that is for tests only.
func TestShipped(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "tidemark/cmd/tidemark").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, dep := range strings.Fields(string(out)) {
		if strings.HasPrefix(dep, module+"internal/testing/") || dep == module+"internal/failpoint" {
			t.Errorf("cmd/tidemark is built with %s", dep)
		}
	}
}

// TestDrawsAreFixed checks that random tests draw the same in each run.
func TestDrawsAreFixed(t *testing.T) {
	const format = `{{.ImportPath}} {{.TestImports}} {{.XTestImports}}`
	out, err := exec.Command("go", "list", "-f", format, "../../...").Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "pgregory.net/rapid") && !strings.Contains(line, module+"internal/testing/draws") {
			name, _, _ := strings.Cut(line, " ")
			t.Errorf("the tests of %s import rapid, so one of their files imports %sinternal/testing/draws", name, module)
		}
	}
}

func TestImportsPointDown(t *testing.T) {
	out, err := exec.Command("go", "list", "-json=ImportPath,Imports", "../../...").Output()
	if err != nil {
		t.Fatal(err)
	}
	rooms := map[string]bool{}
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct {
			ImportPath string
			Imports    []string
		}
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimPrefix(p.ImportPath, module)
		room, mine, ok := lookup(name)
		if !ok {
			t.Errorf("%s stands on no floor: add it to the table", name)
		}
		rooms[room] = true
		for _, i := range p.Imports {
			if dep, in := strings.CutPrefix(i, module); in {
				other, theirs, _ := lookup(dep)
				if theirs >= mine && room != other {
					t.Errorf("%s (floor %d) imports %s (floor %d)", name, mine, dep, theirs)
				}
			}
			if (mine <= pure || slices.Contains(pureAbove, name)) && slices.Contains(impure, i) {
				t.Errorf("%s is pure and imports %s", name, i)
			}
		}
	}
	for room := range floor {
		if !rooms[room] {
			t.Errorf("the table has %s, of which there is no package", room)
		}
	}
}
