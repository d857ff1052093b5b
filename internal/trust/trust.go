// Package trust reads the certificates of CAs from PEM text.
//
// It accepts all of them or none: crypto/x509 skips certificates that are cut or damaged, and a half-written file
// that lacks the second CA of a rotation would look like one that withdraws the trust in that CA.
package trust

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
)

// ErrPEM is wrapped if a text contains no certificates, or damaged ones.
var ErrPEM = errors.New("no usable certificates in PEM form")

// Pool returns the certificates in a PEM text; the text may also contain blocks of other kinds, and plain text.
func Pool(text []byte) (*x509.CertPool, error) {
	pool, blocks, certs := x509.NewCertPool(), 0, 0
	for rest := text; ; blocks++ {
		block, left := pem.Decode(rest)
		if block == nil {
			break
		}
		if rest = left; block.Type != "CERTIFICATE" {
			continue
		}
		certs++
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%w: certificate %d: %w", ErrPEM, certs, err)
		}
		pool.AddCert(cert)
	}
	switch begun := bytes.Count(append([]byte{'\n'}, text...), []byte("\n-----BEGIN ")); {
	case begun != blocks:
		return nil, fmt.Errorf("%w: of %d that begin %d are whole; the file is cut or damaged", ErrPEM, begun, blocks)
	case certs == 0:
		return nil, ErrPEM
	}
	return pool, nil
}
