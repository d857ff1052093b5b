package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"tidemark/indexer"
	"tidemark/indexer/jsonfile"
)

const (
	firstIndexerPort = 9540
	indexerPorts     = 5
	// portsFile stores, in an indexer's data folder, the first of the free ports that were found.
	portsFile = "ports.json"
)

// listenFlags set one host for all ports of an indexer.
type listenFlags struct {
	host  string
	first int  // of the ports
	found bool // the ports were searched, as none were given or stored
}

func (f *listenFlags) add(cmd *cobra.Command) {
	fl := cmd.Flags()
	hostVar(fl, &f.host, "listen", fmt.Sprintf("`HOST` for all %d ports, instead of an address for each: the first "+
		"free ports from %d on, which are stored in the data folder", indexerPorts, firstIndexerPort))
	fl.IntVar(&f.first, "port", 0, fmt.Sprintf("with --listen, the first of the %d ports", indexerPorts))
}

// place sets the addresses, and the name if --id is not given.
func (f *listenFlags) place(cmd *cobra.Command, cfg *indexer.Config) error {
	if f.host == "" {
		if f.first != 0 {
			return usage("--port is the first port on the host of --listen: give --listen, too")
		}
		return nil
	}
	if f.first < 0 || f.first > 1<<16-indexerPorts {
		return usage("--port %d: want the first of %d ports, 1 to %d", f.first, indexerPorts, 1<<16-indexerPorts)
	}
	for _, flag := range []string{"admin", "scan", "maintenance", "backfill", "catchup"} {
		if cmd.Flags().Changed(flag) {
			return usage("--listen is the host of all ports: omit --%s", flag)
		}
	}
	var err error
	if f.first == 0 {
		if f.first, err = keptPorts(cfg.Dir); err != nil {
			return err
		}
	}
	if f.found = f.first == 0; f.found {
		if f.first, err = freePorts(f.host, firstIndexerPort); err != nil {
			return err
		}
	}
	for i, to := range []*string{&cfg.Admin, &cfg.Scan, &cfg.Maintenance, &cfg.Backfill, &cfg.Catchup} {
		*to = joinPort(f.host, f.first+i)
	}
	if !cmd.Flags().Changed("id") {
		cfg.Name = joinPort(cmp.Or(cfg.Advertise, f.host), f.first)
	}
	return nil
}

// keptFirst is the content of portsFile.
type keptFirst struct {
	First int `json:"first"`
}

// keep stores the ports that were found, once this process listens on them, so that a restart uses the same ones.
func (f *listenFlags) keep(dir string) error {
	if !f.found {
		return nil
	}
	if err := jsonfile.Write(dir, portsFile, keptFirst{f.first}); err != nil {
		return fmt.Errorf("storing the ports: %w", err)
	}
	return nil
}

// keptPorts returns the first of the ports stored in a data folder, 0 if there are none.
func keptPorts(dir string) (int, error) {
	var kept keptFirst
	if err := jsonfile.Read(dir, portsFile, &kept); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return 0, nil
		}
		return 0, fmt.Errorf("%w; remove it, or give --port", err)
	}
	if kept.First < 1 || kept.First > 1<<16-indexerPorts {
		return 0, fmt.Errorf("%s has port %d; remove it, or give --port", filepath.Join(dir, portsFile), kept.First)
	}
	return kept.First, nil
}

// taken adds advice to the error of a start if another process took the ports after they were found.
func (f *listenFlags) taken(err error) error {
	if f.found && errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("%w; the port was free a moment ago: start it again, or give --port", err)
	}
	return err
}

// portsToTry limits the search for free ports.
const portsToTry = 200

// freePorts returns the first of indexerPorts consecutive ports on which no process listens.
func freePorts(host string, from int) (first int, err error) {
	for i := range portsToTry {
		first = from + i*indexerPorts
		if err = portsFree(host, first); err == nil {
			return first, nil
		}
		if !errors.Is(err, syscall.EADDRINUSE) { // another port would not help
			return 0, fmt.Errorf("--listen %s: %w", host, err)
		}
	}
	return 0, fmt.Errorf("--listen %s: no %d consecutive free ports from %d to %d; the last attempt: %w", host,
		indexerPorts, from, first+indexerPorts-1, err)
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

// hostVar adds a flag for a host without a port.
func hostVar(fl *pflag.FlagSet, to *string, name, use string) {
	fl.Var((*hostValue)(to), name, use)
}

// hostValue is a host without a port; an IPv6 address may have brackets.
type hostValue string

func (v *hostValue) String() string { return string(*v) }
func (*hostValue) Type() string     { return "string" }

func (v *hostValue) Set(s string) error {
	host := s
	if in, ok := strings.CutPrefix(s, "["); ok && strings.HasSuffix(in, "]") {
		host = strings.TrimSuffix(in, "]")
	}
	if strings.Contains(host, ":") && !addressOf6(host) {
		return errors.New("want a host alone, without a port")
	}
	*v = hostValue(host)
	return nil
}

// addressOf6 reports whether a text with colons is an IPv6 address, possibly with a zone.
func addressOf6(host string) bool {
	a, err := netip.ParseAddr(host)
	return err == nil && a.Is6()
}
