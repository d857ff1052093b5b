package tlsconf

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"time"
)

// Validity of the certificates that `tidemark cert` issues.
const (
	CAValidity   = 10 * 365 * 24 * time.Hour
	LeafValidity = 397 * 24 * time.Hour
	backdate     = 5 * time.Minute // for clocks that differ
)

// File names of a CA in its folder.
const (
	CAFile    = "ca.pem"
	CAKeyFile = "ca-key.pem"
)

// ErrExists is wrapped when a file would be overwritten.
var ErrExists = errors.New("the file already exists")

// CA signs certificates: for development, and for clusters without a CA of their own.
type CA struct {
	cert *x509.Certificate
	key  crypto.Signer
}

// CreateCA creates a CA and writes DIR/ca.pem and DIR/ca-key.pem (mode 0600). It never overwrites one.
func CreateCA(dir, name string, validity time.Duration) (*CA, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making a key: %w", err)
	}
	template, err := newTemplate(name, validity)
	if err != nil {
		return nil, err
	}
	template.IsCA, template.BasicConstraintsValid, template.MaxPathLenZero = true, true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("signing the CA: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("signing the CA: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("folder of certificates: %w", err)
	}
	if err := writePair(filepath.Join(dir, CAFile), filepath.Join(dir, CAKeyFile), der, key, false); err != nil {
		return nil, err
	}
	return &CA{cert: cert, key: key}, nil
}

// LoadCA reads a CA from its folder.
func LoadCA(dir string) (*CA, error) {
	cert, err := readPEM(filepath.Join(dir, CAFile), "CERTIFICATE")
	if err != nil {
		return nil, err
	}
	key, err := readPEM(filepath.Join(dir, CAKeyFile), "PRIVATE KEY")
	if err != nil {
		return nil, err
	}
	ca := &CA{}
	if ca.cert, err = x509.ParseCertificate(cert); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrFiles, filepath.Join(dir, CAFile), err)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(key)
	signer, ok := parsed.(crypto.Signer)
	if err != nil || !ok {
		return nil, fmt.Errorf("%w: %s is not a PKCS#8 key that can sign", ErrFiles, filepath.Join(dir, CAKeyFile))
	}
	if pub, ok := signer.Public().(interface{ Equal(crypto.PublicKey) bool }); !ok || !pub.Equal(ca.cert.PublicKey) {
		return nil, fmt.Errorf("%w: the key in %s is not that of %s", ErrFiles, CAKeyFile, CAFile)
	}
	ca.key = signer
	return ca, nil
}

// Cap returns when the CA expires, and whether that is before a certificate of the given validity would expire. Such a
// certificate expires with its CA: it would not be accepted for longer, and a monitor of its end would warn too late.
func (ca *CA) Cap(validity time.Duration) (end time.Time, sooner bool) {
	end = ca.cert.NotAfter
	return end, time.Now().Add(validity).After(end)
}

// Request describes a certificate to issue.
type Request struct {
	Peer     Peer
	Hosts    []string      // names and addresses that users dial
	Validity time.Duration // LeafValidity if 0; at most that of the CA (CA.Cap)
	Replace  bool          // overwrite existing files
}

// Issue issues a certificate and writes DIR/<name>.pem and DIR/<name>-key.pem (mode 0600). It returns their paths.
func (ca *CA) Issue(dir, name string, req Request) (Files, error) {
	files := Files{CA: filepath.Join(dir, CAFile), Cert: filepath.Join(dir, name+".pem"),
		Key: filepath.Join(dir, name+"-key.pem")}
	if err := req.Peer.check(); err != nil {
		return files, err
	}
	if req.Validity == 0 {
		req.Validity = LeafValidity
	}
	end, sooner := ca.Cap(req.Validity)
	if !time.Now().Before(end) {
		return files, fmt.Errorf("%w: the CA expired at %s; make another one and replace it on all nodes", ErrFiles,
			end.UTC().Format(time.RFC3339))
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return files, fmt.Errorf("making a key: %w", err)
	}
	template, err := newTemplate(string(req.Peer.Role)+" "+req.Peer.ID, req.Validity)
	if err != nil {
		return files, err
	}
	if sooner {
		template.NotAfter = end
	}
	template.URIs = []*url.URL{req.Peer.uri()}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if req.Peer.Role != User && req.Peer.Role != Admin {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	for _, h := range req.Hosts {
		if a, err := netip.ParseAddr(h); err == nil { // without its zone, which differs from machine to machine
			template.IPAddresses = append(template.IPAddresses, a.WithZone("").AsSlice())
		} else {
			template.DNSNames = append(template.DNSNames, h)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, key.Public(), ca.key)
	if err != nil {
		return files, fmt.Errorf("signing the certificate of %s: %w", req.Peer, err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return files, fmt.Errorf("folder of certificates: %w", err)
	}
	if !exists(files.CA) {
		if err := writePEM(files.CA, "CERTIFICATE", ca.cert.Raw, 0o644, false); err != nil {
			return files, err
		}
	}
	return files, writePair(files.Cert, files.Key, der, key, req.Replace)
}

func newTemplate(name string, validity time.Duration) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("serial number: %w", err)
	}
	now := time.Now()
	return &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{Organization: []string{"tidemark"},
		CommonName: name},
		NotBefore: now.Add(-backdate), NotAfter: now.Add(validity)}, nil
}

// writePair writes certificate and key; the key first, so that a reader that finds the certificate finds its key.
func writePair(certPath, keyPath string, der []byte, key *ecdsa.PrivateKey, replace bool) error {
	if !replace {
		for _, p := range []string{certPath, keyPath} {
			if exists(p) {
				return fmt.Errorf("%w: %s", ErrExists, p)
			}
		}
	}
	b, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fmt.Errorf("writing the key: %w", err)
	}
	if err := writePEM(keyPath, "PRIVATE KEY", b, 0o600, replace); err != nil {
		return err
	}
	return writePEM(certPath, "CERTIFICATE", der, 0o644, replace)
}

// writePEM writes a temporary file and moves it into place: a reader sees the old file or the new one.
func writePEM(path, kind string, der []byte, mode os.FileMode, replace bool) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	_, err = f.Write(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	if err == nil {
		err = f.Chmod(mode)
	}
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil && replace {
		err = os.Rename(f.Name(), path)
	} else if err == nil {
		if err = os.Link(f.Name(), path); err == nil { // fails if the file has appeared meanwhile
			err = os.Remove(f.Name())
		}
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}

func readPEM(path, kind string) ([]byte, error) {
	b, err := readFile(path)
	if err != nil {
		return nil, err
	}
	block, rest := pem.Decode(b)
	if block == nil || block.Type != kind || len(bytes.TrimSpace(rest)) > 0 {
		return nil, fmt.Errorf("%w: %s: want one PEM block %q", ErrFiles, path, kind)
	}
	return block.Bytes, nil
}
