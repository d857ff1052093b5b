package topic

import (
	"github.com/hashicorp/go-hclog"

	"tidemark/internal/tlsconf"
)

// TLSFiles returns what Config.TLS takes, of PEM files: the CAs that projectors' certificates come from, and a
// certificate with the role indexer and its key. They are read again when they change. Errors say which file cannot be
// used, and why.
func TLSFiles(ca, cert, key string) (*tlsconf.Source, error) {
	return tlsconf.Open(tlsconf.Files{CA: ca, Cert: cert, Key: key}, hclog.NewNullLogger())
}
