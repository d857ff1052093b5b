// Package trust reads the certificates of CAs out of PEM text.
//
// It promises all of them or none: crypto/x509 passes over what is cut or damaged, and a file that is half written,
// with the second CA of a rotation missing, would be taken for one that takes the trust in that CA back.
package trust

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
)

// ErrPEM is wrapped when a text does not hold certificates, or not whole.
var ErrPEM = errors.New("no usable certificates in PEM form")

// Pool returns the certificates of a text in PEM form; beside them it may hold blocks of other kinds, and words.
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
	switch begun := bytes.Count(text, []byte("-----BEGIN ")); {
	case begun != blocks:
		return nil, fmt.Errorf("%w: of %d that begin %d are whole; the file is cut or damaged", ErrPEM, begun, blocks)
	case certs == 0:
		return nil, ErrPEM
	}
	return pool, nil
}
