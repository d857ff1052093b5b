package trust

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"strings"
	"testing"
)

// newCA returns a certificate, also as PEM.
func newCA(t *testing.T, serial int64) (*x509.Certificate, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// TestPool: a text gives all of its certificates, or none and what is wrong with it.
func TestPool(t *testing.T) {
	a, first := newCA(t, 1)
	b, second := newCA(t, 2)
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	other := pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: []byte("list")})
	for _, tc := range []struct {
		name string
		text []byte
		want []*x509.Certificate
		says string // "": it is good
	}{
		{"one", first, []*x509.Certificate{a}, ""},
		{"two", join(first, second), []*x509.Certificate{a, b}, ""},
		{"words and other blocks between", join([]byte("the old one:\n"), first, other, second), []*x509.Certificate{a, b}, ""},
		{"nothing", nil, nil, "no usable certificates"},
		{"words", []byte("hello\n"), nil, "no usable certificates"},
		{"no certificate", other, nil, "no usable certificates"},
		{"the second is cut", join(first, second[:len(second)/2]), nil, "of 2 that begin 1 are whole"},
		{"the second has no end", join(first, second[:len(second)-5]), nil, "of 2 that begin 1 are whole"},
		{"the first is cut", join(first[:len(first)/2], []byte("\n"), second), nil, "of 2 that begin 1 are whole"},
		{"not a certificate inside", join(first, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE",
			Bytes: b.Raw[:len(b.Raw)/2]})), nil, "certificate 2"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pool, err := Pool(tc.text)
			if tc.says != "" {
				if !errors.Is(err, ErrPEM) || !strings.Contains(err.Error(), tc.says) {
					t.Fatalf("%v, want it to say %q", err, tc.says)
				}
				return
			}
			want := x509.NewCertPool()
			for _, c := range tc.want {
				want.AddCert(c)
			}
			if err != nil || !pool.Equal(want) {
				t.Fatalf("%v, or other certificates than %d", err, len(tc.want))
			}
		})
	}
}
