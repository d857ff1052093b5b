package localcluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"tidemark/internal/tlsconf"
)

// Names below the data folder.
const (
	certsDir       = "certs"
	adminName      = "admin"
	subscriberName = "subscriber"
)

func (c *Cluster) certsDir() string { return filepath.Join(c.cfg.Dir, certsDir) }

// files returns the files of one certificate.
func (c *Cluster) files(name string) tlsconf.Files { return tlsconf.Files(*filesIn(c.cfg.Dir, name)) }

// filesIn returns the files of one certificate of the cluster in the data folder dir.
func filesIn(dir, name string) *TLSFiles {
	dir = filepath.Join(dir, certsDir)
	return &TLSFiles{CA: filepath.Join(dir, tlsconf.CAFile), Cert: filepath.Join(dir, name+".pem"),
		Key: filepath.Join(dir, name+"-key.pem")}
}

// certificates creates the CA once, and at each start issues a certificate for every process, one for the
// administrator, and one for external subscribers, which take the role of an indexer.
func (c *Cluster) certificates() error {
	ca, err := tlsconf.LoadCA(c.certsDir())
	if errors.Is(err, fs.ErrNotExist) {
		if _, there := os.Stat(filepath.Join(c.certsDir(), tlsconf.CAFile)); there == nil {
			return fmt.Errorf("the CA's key is missing: %w", err)
		}
		ca, err = tlsconf.CreateCA(c.certsDir(), "tidemark up", tlsconf.CAValidity)
	}
	if err != nil {
		return err
	}
	issue := func(role tlsconf.Role, id string) {
		if err == nil {
			_, err = ca.Issue(c.certsDir(), id, tlsconf.Request{Peer: tlsconf.Peer{Role: role, ID: id},
				Hosts: []string{loopback, "localhost"}, Replace: true})
		}
	}
	for _, e := range c.manifest.Managers {
		issue(tlsconf.Manager, e.ID)
	}
	for _, e := range c.manifest.KV {
		issue(tlsconf.KV, e.ID)
	}
	for _, e := range c.manifest.Projectors {
		issue(tlsconf.Projector, e.ID)
	}
	for _, e := range c.manifest.Indexers {
		issue(tlsconf.Indexer, e.ID)
	}
	issue(tlsconf.Indexer, subscriberName)
	issue(tlsconf.Admin, adminName)
	return err
}

// tlsArgs returns the TLS flags of a child.
func (c *Cluster) tlsArgs(id string) []string {
	if !c.cfg.TLS {
		return nil
	}
	f := c.files(id)
	return []string{"--tls-ca", f.CA, "--tls-cert", f.Cert, "--tls-key", f.Key}
}
