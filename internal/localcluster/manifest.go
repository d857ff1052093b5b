package localcluster

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"tidemark/internal/filelock"
	"tidemark/internal/tlsconf"
)

// ClusterFile is the name of the manifest in the data folder.
const ClusterFile = "cluster.json"

// Manifest is DIR/cluster.json: the processes, their addresses, and the credentials for clients. It is written when
// all children answer and replaced atomically whenever a pid changes; mode 0600. Readers ignore unknown fields.
type Manifest struct {
	Managers   []ManagerEntry   `json:"managers"`
	KV         []KVEntry        `json:"kv"`
	Projectors []ProjectorEntry `json:"projectors"`
	Indexers   []IndexerEntry   `json:"indexers"`
	KVUser     string           `json:"kv_user"`
	KVPassword string           `json:"kv_password"`
	KVReplicas int              `json:"kv_replicas,omitempty"`
	Bucket     string           `json:"bucket"`
	BucketUUID string           `json:"bucket_uuid"`
	VBuckets   int              `json:"vbuckets"`
	PID        int              `json:"pid"` // of `up` itself
	// TLS names the files of an administrator's certificate, for clients; nil without TLS.
	TLS *TLSFiles `json:"tls,omitempty"`
	// Subscriber names the files of a certificate for subscribing at the projectors; nil without TLS.
	Subscriber *TLSFiles `json:"subscriber_tls,omitempty"`
	// SampleLoaded is set once the sample documents have been stored.
	SampleLoaded bool `json:"sample_loaded,omitempty"`
}

// TLSFiles are paths of PEM files.
type TLSFiles struct {
	CA   string `json:"ca"`
	Cert string `json:"cert"`
	Key  string `json:"key"`
}

// UserTLS returns the TLS configuration of a client of the cluster; nil without TLS.
func (m *Manifest) UserTLS() (*tls.Config, error) {
	if m.TLS == nil {
		return nil, nil //nolint:nilnil // no TLS
	}
	source, err := tlsconf.Open(tlsconf.Files(*m.TLS), nil)
	return source.UserClient(), err
}

// ManagerEntry is a manager: REST is a base URL, Raft host:port.
type ManagerEntry struct {
	ID   string `json:"id"`
	REST string `json:"rest"`
	Raft string `json:"raft"`
	PID  int    `json:"pid"`
}

// KVEntry is an embedded KV node: Memcached is host:port, Admin a base URL.
type KVEntry struct {
	ID        string `json:"id"`
	Memcached string `json:"memcached"`
	// MemcachedTLS is the memcached port with TLS; empty without --tls.
	MemcachedTLS string `json:"memcached_tls,omitempty"`
	Admin        string `json:"admin"`
	PID          int    `json:"pid"`
}

// ProjectorEntry is a projector; Admin is a base URL.
type ProjectorEntry struct {
	ID    string `json:"id"`
	Admin string `json:"admin"`
	PID   int    `json:"pid"`
}

// IndexerEntry is an indexer; Admin is a base URL, the others are host:port.
type IndexerEntry struct {
	ID    string    `json:"id"`
	Admin string    `json:"admin"`
	Scan  string    `json:"scan"`
	Data  DataPorts `json:"data"`
	PID   int       `json:"pid"`
}

// DataPorts are the data ports by stream type.
type DataPorts struct {
	Maintenance string `json:"maintenance"`
	Backfill    string `json:"backfill"`
	Catchup     string `json:"catchup"`
}

// Servers returns the managers' base URLs.
func (m *Manifest) Servers() []string {
	var s []string
	for _, e := range m.Managers {
		s = append(s, e.REST)
	}
	return s
}

// ReadManifest reads DIR/cluster.json. The error wraps fs.ErrNotExist if there is none.
func ReadManifest(dir string) (*Manifest, error) {
	return readManifest(filepath.Join(dir, ClusterFile))
}

// ReadPlan reads DIR/plan.json: the addresses of a cluster as soon as `up` has chosen them, without pids. The error
// wraps fs.ErrNotExist if there is none.
func ReadPlan(dir string) (*Manifest, error) {
	return readManifest(filepath.Join(dir, planFile))
}

// ReadRunning is ReadManifest, and reads DIR/plan.json while an `up` that runs there waits for its processes: whoever
// wants to know what it waits for, or to mend it, needs commands then.
func ReadRunning(dir string) (*Manifest, error) {
	m, err := ReadManifest(dir)
	if !errors.Is(err, fs.ErrNotExist) || !filelock.Alive(filepath.Join(dir, lockFile)) {
		return m, err
	}
	plan, planErr := ReadPlan(dir)
	if planErr != nil {
		return nil, err
	}
	if plan.TLS != nil {
		plan.findCertificates(dir)
	}
	return plan, nil
}

// findCertificates sets the certificates' paths: the folder may have been moved since the plan was written.
func (m *Manifest) findCertificates(dir string) {
	m.TLS, m.Subscriber = filesIn(dir, adminName), filesIn(dir, subscriberName)
}

func readManifest(path string) (*Manifest, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	m := &Manifest{}
	if err := json.Unmarshal(b, m); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return m, nil
}

// write replaces path by m, atomically.
func (m *Manifest) write(path string) error {
	b, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	return replaceFile(path, append(b, '\n'))
}

// replaceFile writes a temporary file and renames it, so that a reader sees the old file or the new one. Mode 0600.
func replaceFile(path string, b []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}
