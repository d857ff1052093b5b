package cli

import (
	"context"
	"os"
	"os/signal"
	"syscall"

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
