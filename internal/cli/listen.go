package cli

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"tidemark/indexer"
)

const (
	firstIndexerPort = 9540
	indexerPorts     = 5
	// portsFile has, in an indexer's data folder, the first of the ports that were found free.
	portsFile = "ports"
)

// listenFlags are one host for all ports of an indexer.
type listenFlags struct {
	host  string
	first int  // of the ports
	found bool // nobody has said which, and none are kept
}

func (f *listenFlags) add(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVar(&f.host, "listen", "", fmt.Sprintf("`HOST` on which all %d ports are, instead of an address for each: "+
		"the first that are free from %d on; the data folder keeps which", indexerPorts, firstIndexerPort))
	fl.IntVar(&f.first, "port", 0, fmt.Sprintf("with --listen, the first of the %d ports", indexerPorts))
}

// place sets the addresses, and the name where --id says none.
func (f *listenFlags) place(cmd *cobra.Command, cfg *indexer.Config) error {
	if f.host == "" {
		if f.first != 0 {
			return usage("--port is the first of the ports on the host that --listen names: give --listen too")
		}
		return nil
	}
	if f.first < 0 || f.first > 1<<16-indexerPorts {
		return usage("--port %d: want the first of %d ports, 1 to %d", f.first, indexerPorts, 1<<16-indexerPorts)
	}
	for _, flag := range []string{"admin", "scan", "maintenance", "backfill", "catchup"} {
		if cmd.Flags().Changed(flag) {
			return usage("--listen is the host of all ports: leave --%s out", flag)
		}
	}
	if f.first == 0 {
		f.first = keptPorts(cfg.Dir)
	}
	if f.found = f.first == 0; f.found {
		var err error
		if f.first, err = freePorts(f.host, firstIndexerPort); err != nil {
			return err
		}
	}
	for i, to := range []*string{&cfg.Admin, &cfg.Scan, &cfg.Maintenance, &cfg.Backfill, &cfg.Catchup} {
		*to = joinPort(f.host, f.first+i)
	}
	if !cmd.Flags().Changed("id") {
		cfg.Name = cfg.Admin
	}
	return nil
}

// keep notes which ports were found, once they are taken: it has the same ones when it starts again.
func (f *listenFlags) keep(dir string) error {
	if !f.found {
		return nil
	}
	if err := os.WriteFile(filepath.Join(dir, portsFile), []byte(strconv.Itoa(f.first)+"\n"), 0o644); err != nil {
		return fmt.Errorf("keeping the ports: %w", err)
	}
	return nil
}

// keptPorts returns the first of the ports that a data folder keeps, 0: none.
func keptPorts(dir string) int {
	b, err := os.ReadFile(filepath.Join(dir, portsFile))
	if err != nil {
		return 0
	}
	first, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || first < 1 || first > 1<<16-indexerPorts {
		return 0
	}
	return first
}

// portsToTry bounds how many times so many ports are tried.
const portsToTry = 200

// freePorts finds so many ports in a row on which nobody listens.
func freePorts(host string, from int) (first int, err error) {
	for i := range portsToTry {
		first = from + i*indexerPorts
		if err = portsFree(host, first); err == nil {
			return first, nil
		}
		if !errors.Is(err, syscall.EADDRINUSE) { // no other port mends it
			return 0, fmt.Errorf("--listen %s: %w", host, err)
		}
	}
	return 0, fmt.Errorf("--listen %s: no %d free ports in a row from %d to %d; the last try: %w", host, indexerPorts,
		from, first+indexerPorts-1, err)
}

func portsFree(host string, first int) error {
	for i := range indexerPorts {
		l, err := net.Listen("tcp", joinPort(host, first+i))
		if err != nil {
			return err
		}
		defer l.Close()
	}
	return nil
}
