package cli

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"

	"tidemark/indexer"
	"tidemark/internal/testing/ports"
)

// listenConfig returns an indexer's configuration from its flags.
func listenConfig(t *testing.T, dir string, args ...string) (*indexer.Config, *listenFlags, error) {
	t.Helper()
	cfg, f, cmd := &indexer.Config{Dir: dir}, &listenFlags{}, &cobra.Command{}
	cmd.Flags().StringVar(&cfg.Name, "id", "i1", "")
	cmd.Flags().StringVar(&cfg.Scan, "scan", "127.0.0.1:9541", "")
	hostVar(cmd.Flags(), &cfg.Advertise, "advertise", "")
	f.add(cmd)
	if err := cmd.ParseFlags(args); err != nil {
		t.Fatal(err)
	}
	return cfg, f, f.place(cmd, cfg)
}

// TestIndexerListens checks that --listen puts all ports on one host, and that the data folder stores them once the
// indexer listens on them.
func TestIndexerListens(t *testing.T) {
	dir := t.TempDir()
	cfg, f, err := listenConfig(t, dir, "--listen", "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	all := []string{cfg.Admin, cfg.Scan, cfg.Maintenance, cfg.Backfill, cfg.Catchup}
	for i, a := range all {
		if a != joinPort("127.0.0.1", f.first+i) {
			t.Errorf("the ports are at %v", all)
		}
	}
	if kept, err := keptPorts(dir); cfg.Name != cfg.Admin || kept != 0 || err != nil {
		t.Errorf("name %q, stored port %d, %v", cfg.Name, kept, err)
	}
	f.first++ // as if another process had taken the first ones
	if err := f.keep(dir); err != nil {
		t.Fatal(err)
	}
	again, g, err := listenConfig(t, dir, "--listen", "127.0.0.1", "--id", "i7")
	if err != nil || g.first != f.first || g.found || again.Name != "i7" {
		t.Errorf("again: %+v, %q, %v", g, again.Name, err)
	}
	for _, host := range []string{"::1", "[::1]"} {
		one, _, err := listenConfig(t, dir, "--listen", host, "--port", "7000")
		if err != nil || one.Catchup != "[::1]:7004" {
			t.Errorf("%q, %v", one.Catchup, err)
		}
	}
	one, _, err := listenConfig(t, dir, "--listen", "0.0.0.0", "--port", "7000", "--advertise", "10.0.0.7")
	if err != nil || one.Name != "10.0.0.7:7000" {
		t.Errorf("with a wildcard address the name is %q, %v", one.Name, err)
	}
	for _, bad := range []string{`{"first":0}`, `{"first":65533}`, `{`} {
		if err := os.WriteFile(filepath.Join(dir, portsFile), []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		_, _, err := listenConfig(t, dir, "--listen", "127.0.0.1")
		if err == nil || !strings.Contains(err.Error(), portsFile) {
			t.Errorf("stored ports %s: %v", bad, err)
		}
	}
	for _, args := range []string{"--port 7000", "--listen h --port 65532", "--listen h --port -1",
		"--listen h --scan h:1"} {
		if _, _, err := listenConfig(t, dir, strings.Fields(args)...); !errors.As(err, new(usageError)) {
			t.Errorf("%s: %v", args, err)
		}
	}
}

// TestFreePorts checks that five consecutive ports are found on which no process listens.
func TestFreePorts(t *testing.T) {
	from := ports.Range(t)
	l, err := net.Listen("tcp", joinPort("127.0.0.1", from+2))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if first, err := freePorts("127.0.0.1", from); err != nil || first <= from || (first-from)%indexerPorts != 0 {
		t.Errorf("%d, after %d: %v", first, from, err)
	}
	for _, host := range []string{"192.0.2.1", "a b"} { // no port of these hosts would work
		if _, err := freePorts(host, from); err == nil || !strings.HasPrefix(err.Error(), "--listen "+host+": listen tcp") {
			t.Errorf("a host that is not this machine: %v", err)
		}
	}
}

// TestPortsAreStored checks that a start stores the ports that were found once it listens on them, and that the error
// has advice if another process took them first.
func TestPortsAreStored(t *testing.T) {
	first := ports.Range(t)
	start := func(dir string) (*indexer.Config, error) {
		cfg, f, err := listenConfig(t, dir, "--listen", "127.0.0.1", "--port", strconv.Itoa(first))
		if err != nil {
			t.Fatal(err)
		}
		f.found = true // freePorts begins where other tests may listen
		cfg.Managers, cfg.Logger = []string{"http://127.0.0.1:1"}, hclog.NewNullLogger()
		cfg.MemoryQuota = indexer.DefaultMemoryQuota
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		return cfg, runIndexer(ctx, *cfg, f)
	}
	dir := t.TempDir()
	cfg, err := start(dir)
	if err != nil {
		t.Fatal(err)
	}
	if kept, err := keptPorts(dir); kept != first || err != nil {
		t.Errorf("stored %d, %v, want %d", kept, err, first)
	}
	l, err := net.Listen("tcp", cfg.Scan)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	other := t.TempDir()
	if _, err := start(other); !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), "give --port") {
		t.Errorf("the scan port is in use: %v", err)
	}
	if kept, err := keptPorts(other); kept != 0 || err != nil {
		t.Errorf("after a failed start, stored %d, %v", kept, err)
	}
}

// TestAdvertiseIsAHost checks that --advertise is a host, to which the port of the listener is added.
func TestAdvertiseIsAHost(t *testing.T) {
	for given, want := range map[string]string{"a.example": "a.example", "10.0.0.7": "10.0.0.7", "::1": "::1",
		"[2001:db8::1]": "2001:db8::1", "fe80::1%eth0": "fe80::1%eth0", "": "",
		"a.example:9540": "refused", "10.0.0.7:9540": "refused", "[::1]:9540": "refused", "http://a": "refused"} {
		var host string
		if err := (*hostValue)(&host).Set(given); err != nil {
			host = "refused"
		}
		if host != want {
			t.Errorf("%q is %q, want %q", given, host, want)
		}
	}
}
