package topic

import (
	"github.com/hashicorp/go-hclog"

	"tidemark/internal/tlsconf"
)

// TLSFiles returns a value for Config.TLS, from PEM files: the CAs of the projectors' certificates, and a certificate
// with the role indexer and its key. The files are read again when they change. Errors name the file that cannot be
// used, and the reason.
func TLSFiles(ca, cert, key string) (*tlsconf.Source, error) {
	return tlsconf.Open(tlsconf.Files{CA: ca, Cert: cert, Key: key}, hclog.NewNullLogger())
}
