package kvclient

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"tidemark/internal/trust"
)

// ErrTLS is wrapped if the files of a TLSFiles are unusable.
var ErrTLS = errors.New("kvclient: TLS settings")

// maxPEMBytes bounds the size of a file of certificates.
const maxPEMBytes = 1 << 20

// TLSFiles configures the encryption of connections to KV by PEM files, in the form in which Couchbase issues them.
type TLSFiles struct {
	// Enabled encrypts even if no file is given: then the system's CAs are trusted.
	Enabled bool
	// CA has the certificates that are trusted instead of the system's. Config reads it.
	CA string
	// Cert and Key are the client's own, for clusters that require one; both or none. They are read for each connection,
	// so that a renewed pair takes effect with the next one.
	Cert, Key string
	// SkipVerify trusts every node. A man in the middle can then read and change everything.
	SkipVerify bool
}

// Config returns the TLS configuration; nil for no TLS. The name that a node must prove is the host that is dialled.
func (f TLSFiles) Config() (*tls.Config, error) {
	if f == (TLSFiles{}) {
		return nil, nil //nolint:nilnil // no TLS
	}
	switch {
	case (f.Cert == "") != (f.Key == ""):
		return nil, fmt.Errorf("%w: a client certificate needs its key, and the key its certificate", ErrTLS)
	case f.SkipVerify && f.CA != "":
		return nil, fmt.Errorf("%w: a CA (%s) and the option not to verify nodes are both given: omit one of "+
			"them", ErrTLS, f.CA)
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: f.SkipVerify} //nolint:gosec // asked for by name
	if f.CA != "" {
		pem, err := readPEM(f.CA)
		if err != nil {
			return nil, err
		}
		if conf.RootCAs, err = trust.Pool(pem); err != nil {
			return nil, fmt.Errorf("%w: %s: %w", ErrTLS, f.CA, err)
		}
	}
	if f.Cert != "" {
		load := func() (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
			if err != nil {
				return nil, fmt.Errorf("%w: client certificate: %w", ErrTLS, err)
			}
			return &pair, nil
		}
		if _, err := load(); err != nil {
			return nil, err
		}
		conf.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() }
	}
	return conf, nil
}

// byCommonName accepts a node by the common name of its certificate if the certificate has no other names, like those
// that older clusters issued for themselves. It does so only under an explicitly configured CA; everything else is
// verified as usual.
func byCommonName(conf *tls.Config) *tls.Config {
	if conf.RootCAs == nil || conf.InsecureSkipVerify || conf.ServerName == "" || conf.VerifyConnection != nil ||
		conf.VerifyPeerCertificate != nil {
		return conf
	}
	conf = conf.Clone()
	conf.InsecureSkipVerify = true // VerifyConnection verifies instead
	conf.VerifyConnection = func(state tls.ConnectionState) error {
		if err := verify(conf, state.PeerCertificates); err != nil {
			return &tls.CertificateVerificationError{UnverifiedCertificates: state.PeerCertificates, Err: err}
		}
		return nil
	}
	return conf
}

// verify verifies a node's certificate, the first one, by its names, or by its common name if it has no others.
func verify(conf *tls.Config, certs []*x509.Certificate) error {
	leaf := certs[0]
	opts := x509.VerifyOptions{Roots: conf.RootCAs, Intermediates: x509.NewCertPool(), DNSName: conf.ServerName}
	if conf.Time != nil {
		opts.CurrentTime = conf.Time()
	}
	for _, c := range certs[1:] {
		opts.Intermediates.AddCert(c)
	}
	if nameless(leaf) && strings.EqualFold(leaf.Subject.CommonName, conf.ServerName) {
		opts.DNSName = ""
	}
	chains, err := leaf.Verify(opts)
	if err == nil && opts.DNSName == "" && !slices.ContainsFunc(chains, anyName) {
		return fmt.Errorf("%w: it has only a common name, and a certificate above it limits names", ErrTLS)
	}
	return err
}

// nameless reports whether a certificate has no names besides its common name.
func nameless(c *x509.Certificate) bool {
	return len(c.DNSNames)+len(c.IPAddresses)+len(c.EmailAddresses)+len(c.URIs) == 0
}

// anyName reports whether no certificate in a chain limits the names of the first one. Such limits do not apply to
// common names, so that a holder restricted to some names could use any other.
func anyName(chain []*x509.Certificate) bool {
	return !slices.ContainsFunc(chain[1:], func(c *x509.Certificate) bool {
		return slices.ContainsFunc(c.Extensions, func(e pkix.Extension) bool { return e.Id.Equal(nameConstraints()) })
	})
}

// nameConstraints returns the id of the extension of RFC 5280, 4.2.1.10.
func nameConstraints() asn1.ObjectIdentifier { return asn1.ObjectIdentifier{2, 5, 29, 30} }

func readPEM(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err == nil && info.Size() > maxPEMBytes {
		return nil, fmt.Errorf("%w: %s has %d bytes, at most %d", ErrTLS, path, info.Size(), maxPEMBytes)
	}
	pem, err := os.ReadFile(path) //nolint:gosec // the operator's file
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrTLS, err)
	}
	return pem, nil
}
