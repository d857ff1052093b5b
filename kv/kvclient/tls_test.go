package kvclient_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"

	"tidemark/kv/kvclient"
	"tidemark/kv/kvclient/kvclienttest"
)

// signer issues certificates.
type signer struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// newCertificate returns a certificate that parent signs, or that is self-signed.
func newCertificate(t *testing.T, template *x509.Certificate, parent *signer) *signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.NotBefore = time.Now().Add(-time.Hour)
	if template.NotAfter.IsZero() {
		template.NotAfter = time.Now().Add(time.Hour)
	}
	s := &signer{key: key}
	if parent == nil {
		template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
		parent = &signer{cert: template, key: key}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent.cert, &key.PublicKey, parent.key)
	if err != nil {
		t.Fatal(err)
	}
	if s.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return s
}

// A certificate without other names than the common name of its node is accepted under an explicitly configured CA;
// all other faults of a certificate are refused.
func TestCertificatesOfOldClusters(t *testing.T) {
	ca := newCertificate(t, &x509.Certificate{Subject: pkix.Name{CommonName: "Couchbase Server"}}, nil)
	other := newCertificate(t, &x509.Certificate{Subject: pkix.Name{CommonName: "Couchbase Server"}}, nil)
	between := newCertificate(t, &x509.Certificate{Subject: pkix.Name{CommonName: "between"}, IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}, ca)
	limited := newCertificate(t, &x509.Certificate{Subject: pkix.Name{CommonName: "limited"}, IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
		PermittedDNSDomainsCritical: true, PermittedDNSDomains: []string{"elsewhere"}}, ca)
	here := []net.IP{net.IPv4(127, 0, 0, 1)}
	server := []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	for _, tt := range []struct {
		name  string
		leaf  x509.Certificate
		by    *signer
		roots *signer // nil: none is configured
		says  string  // empty: accepted
	}{
		{"its common name", x509.Certificate{Subject: pkix.Name{CommonName: "127.0.0.1"}, ExtKeyUsage: server}, ca, ca, ""},
		{"its address", x509.Certificate{Subject: pkix.Name{CommonName: "node"}, IPAddresses: here}, ca, ca, ""},
		{"signed by one that the CA has signed", x509.Certificate{Subject: pkix.Name{CommonName: "127.0.0.1"}}, between, ca,
			""},
		{"signed by one that may not name it", x509.Certificate{Subject: pkix.Name{CommonName: "127.0.0.1"},
			ExtKeyUsage: server}, limited, ca, "limits names"},
		{"another's common name", x509.Certificate{Subject: pkix.Name{CommonName: "127.0.0.2"}}, ca, ca, "127.0.0.1"},
		{"its common name and another's address", x509.Certificate{Subject: pkix.Name{CommonName: "127.0.0.1"},
			IPAddresses: []net.IP{net.IPv4(127, 0, 0, 2)}}, ca, ca, "127.0.0.2"},
		{"its common name and another's host", x509.Certificate{Subject: pkix.Name{CommonName: "127.0.0.1"},
			DNSNames: []string{"elsewhere"}}, ca, ca, "127.0.0.1"},
		{"another CA", x509.Certificate{Subject: pkix.Name{CommonName: "127.0.0.1"}}, ca, other, "authority"},
		{"no CA chosen", x509.Certificate{Subject: pkix.Name{CommonName: "127.0.0.1"}}, ca, nil, "certificate"},
		{"expired", x509.Certificate{Subject: pkix.Name{CommonName: "127.0.0.1"}, NotAfter: time.Now().Add(-time.Minute)}, ca,
			ca, "expired"},
		{"for clients", x509.Certificate{Subject: pkix.Name{CommonName: "127.0.0.1"},
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, ca, ca, "usage"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			leaf := newCertificate(t, &tt.leaf, tt.by)
			chain := [][]byte{leaf.cert.Raw}
			if tt.by == between || tt.by == limited {
				chain = append(chain, tt.by.cert.Raw)
			}
			srv := serve(t, &kvclienttest.Server{TLS: &tls.Config{MinVersion: tls.VersionTLS12,
				Certificates: []tls.Certificate{{Certificate: chain, PrivateKey: leaf.key}}}})
			opt := options()
			opt.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
			if tt.roots != nil {
				opt.TLS.RootCAs = x509.NewCertPool()
				opt.TLS.RootCAs.AddCert(tt.roots.cert)
			}
			s, err := kvclient.Handshake(within(t, time.Minute), srv.Addr(), opt)
			if err == nil {
				_ = s.Close()
			}
			if (err == nil) != (tt.says == "") || err != nil && !strings.Contains(err.Error(), tt.says) {
				t.Fatalf("%v, want it to say %q", err, tt.says)
			}
			if opt.TLS.InsecureSkipVerify || opt.TLS.VerifyConnection != nil {
				t.Fatal("the caller's configuration was changed")
			}
		})
	}
}
