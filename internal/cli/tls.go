package cli

import (
	"context"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"unicode"
	"unicode/utf8"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"

	"tidemark/internal/tlsconf"
)

// tlsFlags are the TLS flags of every process that listens.
type tlsFlags struct {
	files    tlsconf.Files
	insecure bool
}

func (f *tlsFlags) add(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVar(&f.files.CA, "tls-ca", "", "PEM `FILE` with the CAs that are trusted; with it every port speaks TLS")
	fl.StringVar(&f.files.Cert, "tls-cert", "", "PEM `FILE` with this process's certificate; see tidemark cert node")
	fl.StringVar(&f.files.Key, "tls-key", "", "PEM `FILE` with its key")
	fl.BoolVar(&f.insecure, "insecure", false, "listen beyond loopback without TLS")
}

// open reads the files, and reloads them at SIGHUP until ctx ends. Without TLS that signal is ignored: it may be sent
// to all processes of a machine.
func (f *tlsFlags) open(ctx context.Context, role tlsconf.Role, id string, log hclog.Logger) (*tlsconf.Source, error) {
	if err := checkID(id); err != nil {
		return nil, err
	}
	source, err := tlsconf.OpenNode(f.files, role, id, log.Named("tls"))
	if err != nil {
		return nil, usageError{err}
	}
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	go func() {
		defer signal.Stop(hangup)
		for {
			select {
			case <-hangup:
				if source == nil {
					log.Info("SIGHUP: without TLS there are no certificates to read again")
					continue
				}
				_ = source.Reload() // Reload has logged it
			case <-ctx.Done():
				return
			}
		}
	}()
	return source, nil
}

// checkID checks the name of a process. It is printed in tables and in commands that users copy, and is part of paths.
func checkID(id string) error {
	bad := func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) || strings.ContainsRune("/?#", r) }
	if id == "" || len(id) > maxIDBytes || !utf8.ValidString(id) || strings.ContainsFunc(id, bad) {
		return usage("--id %.200q: want 1 to %d bytes of UTF-8 without spaces, control characters, or any of / ? #", id,
			maxIDBytes)
	}
	return nil
}

// maxIDBytes bounds --id, as certificates do.
const maxIDBytes = 128
