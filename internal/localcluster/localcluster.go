// Package localcluster runs the cluster of `tidemark up`: managers, embedded KV nodes with a projector each, and
// indexers as child processes of the same binary on loopback (OP-1).
//
// It guarantees that the same data folder resumes with all its data, that a child that dies is restarted after a
// second (later if it ends by itself again and again), that one damaged node of several does not prevent the others
// from serving, that an orderly stop leaves no child behind, and that children end by themselves when this process is
// killed (each watches a pipe to it). It listens only on loopback.
package localcluster

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"tidemark/internal/filelock"
)

// Limits and defaults.
const (
	FirstREST      = 9520 // port of the first manager, or the next free one
	VBuckets       = 128
	maxVBuckets    = 1024
	MaxNodes       = 16 // of one role
	maxReplicas    = 3
	ReadyTimeout   = 60 * time.Second // for all children to answer
	stopGrace      = 3500 * time.Millisecond
	patience       = 10 * time.Second // with children that the cluster can do without
	kvUser         = "tidemark"
	planFile       = "plan.json"
	passwordFile   = "kv-password"
	lockFile       = "LOCK"
	maxLogBytes    = 32 << 20 // a larger log is rotated when its child starts
	portsToTry     = 200
	loopback       = "127.0.0.1"
	readyPoll      = 30 * time.Millisecond
	portGrace      = 5 * time.Second // for the children of a run that was killed to stop
	readyCallLimit = time.Second
)

var (
	// ErrInUse is wrapped when another process runs the data folder.
	ErrInUse = filelock.ErrHeld
	// ErrConfig matches errors of an invalid configuration.
	ErrConfig = errors.New("wrong configuration")
)

// configError is an error that matches ErrConfig, with its own message.
type configError string

func (e configError) Error() string      { return string(e) }
func (configError) Is(target error) bool { return target == ErrConfig }

func wrongConfig(format string, args ...any) error { return configError(fmt.Sprintf(format, args...)) }

// Config describes the cluster to run.
type Config struct {
	Exe      string // the binary whose subcommands are the roles
	Dir      string // data folder
	Managers int
	KV       int
	KVAll    bool // one projector serves all KV nodes, instead of one per node
	// KVReplicas is the number of copies of a vbucket on KV nodes, besides the active one.
	KVReplicas int
	VBuckets   int // of the bucket; 0: the constant VBuckets, or those of the folder
	Indexers   int
	Bucket     string
	FirstREST  int // first port to try
	LogLevel   string
	LogFormat  string // text or json; text when empty
	// Advertise is the host under which children reach each other instead of the one they listen on, for tests that
	// place a proxy between them; the ports are the same.
	Advertise string
	TLS       bool   // on every port; KV nodes keep a memcached port without TLS besides the one with it
	Feed      string // --feed of the projectors; native if empty
	KVREST    bool   // projectors find their KV nodes through the nodes' cluster managers
	Throttle  string // --throttle of the projectors; all if empty
	Nasty     string // --nasty of the KV nodes; mild if empty
	// MemoryQuota is --memory-quota of the indexers in bytes; 0: their default.
	MemoryQuota int64
	// ManagerArgs are further arguments of each manager, after the others.
	ManagerArgs []string
	// Changed is called with the manifest whenever it was written.
	Changed func(m Manifest)
	// Died is called when a child ends unexpectedly, and is restarted after the delay.
	Died func(id string, err error, delay time.Duration)
	// Removed is called when a child ends because its node was removed from the cluster: it is not restarted.
	Removed func(id string, why error)
	// Missing is called before Run's onReady for each child that does not run, was not removed, and that the cluster can
	// do without.
	Missing func(id string, why error)
	// Env is additional environment of the children.
	Env []string
}

// projectors returns the number of projectors.
func (c *Config) projectors() int {
	if c.KVAll {
		return 1
	}
	return c.KV
}

func (c *Config) check() error {
	for _, n := range []struct {
		flag string
		n    int
	}{{"managers", c.Managers}, {"kv", c.KV}, {"indexers", c.Indexers}} {
		if n.n < 1 || n.n > MaxNodes {
			return wrongConfig("--%s %d: want 1 to %d", n.flag, n.n, MaxNodes)
		}
	}
	if c.Feed != "" && c.Feed != "native" && c.Feed != "gocbcore" {
		return wrongConfig("--feed %q: want native or gocbcore", c.Feed)
	}
	if c.Throttle != "" && c.Throttle != "all" && c.Throttle != "smart" {
		return wrongConfig("--throttle %q: want all or smart", c.Throttle)
	}
	return c.checkBucket()
}

// checkBucket checks the bucket and its distribution over the KV nodes.
func (c *Config) checkBucket() error {
	if c.KVReplicas < 0 || c.KVReplicas > maxReplicas || c.KVReplicas >= c.KV {
		return wrongConfig("--kv-replicas %d: want 0 to %d, and fewer than the %d KV nodes", c.KVReplicas, maxReplicas, c.KV)
	}
	if c.VBuckets < 0 || c.VBuckets > maxVBuckets || c.VBuckets&(c.VBuckets-1) != 0 || c.VBuckets > 0 &&
		c.VBuckets < c.KV {
		return wrongConfig("--vbuckets %d: want a power of two up to %d, at least one for each KV node", c.VBuckets,
			maxVBuckets)
	}
	if c.Bucket == "" || len(c.Bucket) > 100 || strings.ContainsAny(c.Bucket, "`/:,= \t\n") {
		return wrongConfig("--bucket %q: want a name of 1 to 100 characters without spaces, quotes or any of / : , =",
			c.Bucket)
	}
	return nil
}

// Cluster is a running local cluster.
type Cluster struct {
	cfg      Config
	lock     *filelock.Lock
	children []*child

	mu       sync.Mutex
	manifest Manifest
	ready    bool
}

// Open locks the data folder, and plans addresses or reads those of an earlier run; it starts nothing yet. The error
// wraps ErrInUse if another process has the folder.
func Open(cfg Config) (*Cluster, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Join(cfg.Dir, "logs"), 0o700); err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}
	lock, err := takeLock(filepath.Join(cfg.Dir, lockFile))
	if err != nil {
		return nil, err
	}
	c := &Cluster{cfg: cfg, lock: lock}
	err = c.plan()
	if err == nil && cfg.TLS {
		err = c.certificates()
	}
	if err != nil {
		lock.Release()
		return nil, err
	}
	// The file of an earlier run names processes that no longer run; a reader must not mistake it for this run's.
	if err := os.Remove(filepath.Join(cfg.Dir, ClusterFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		lock.Release()
		return nil, fmt.Errorf("data folder: %w", err)
	}
	c.makeChildren()
	return c, nil
}

// takeLock locks path for the lifetime of the process.
func takeLock(path string) (*filelock.Lock, error) {
	l, err := filelock.Acquire(path)
	switch {
	case errors.Is(err, ErrInUse):
		return nil, fmt.Errorf("the data folder is %w: %s has a running `tidemark up`; stop that one or name another folder "+
			"with --data", err, filepath.Dir(path))
	case err != nil:
		return nil, fmt.Errorf("data folder: %w", err)
	}
	return l, nil
}

// plan reads the addresses of an earlier run, or chooses new ones and stores them in the folder.
func (c *Cluster) plan() error {
	path := filepath.Join(c.cfg.Dir, planFile)
	m, err := readManifest(path)
	switch {
	case err == nil:
		if err := c.resume(m); err != nil {
			return err
		}
		c.manifest = *m
		return c.keepPassword()
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("data folder: %w: restore that file or name another folder with --data", err)
	}
	if exists(filepath.Join(c.cfg.Dir, "m1")) {
		return fmt.Errorf("%s holds a cluster's data but its %s is missing: restore that file or name another folder "+
			"with --data", c.cfg.Dir, planFile)
	}
	m, err = c.fresh()
	if err != nil {
		return err
	}
	if err := m.write(path); err != nil {
		return err
	}
	c.manifest = *m
	return c.keepPassword()
}

// keepPassword writes the plan's password to the file that KV nodes and projectors read, unless the file has it: a run
// that was killed after it had written the plan has left none.
func (c *Cluster) keepPassword() error {
	path, content := filepath.Join(c.cfg.Dir, passwordFile), []byte(c.manifest.KVPassword+"\n")
	if has, err := os.ReadFile(path); err == nil && bytes.Equal(has, content) {
		return nil
	}
	if err := replaceFile(path, content); err != nil {
		return fmt.Errorf("data folder: %w", err)
	}
	return nil
}

// resume checks that the folder matches the configuration and that its ports are free.
func (c *Cluster) resume(m *Manifest) error {
	if err := c.same(m); err != nil {
		return err
	}
	if m.TLS != nil {
		m.findCertificates(c.cfg.Dir)
		for i := range m.KV { // plans of versions whose KV nodes had no TLS there
			m.KV[i].Admin = "https://" + hostport(m.KV[i].Admin)
		}
	}
	deadline := time.Now().Add(portGrace)
	for _, a := range m.addresses() {
		err := portFree(a)
		// children of a killed run may be stopping
		for ; err != nil && time.Now().Before(deadline); err = portFree(a) {
			<-time.After(readyPoll)
		}
		if err != nil {
			return fmt.Errorf("%s keeps its addresses, and %s is taken: %w; end the process that has it, or name another "+
				"folder with --data", c.cfg.Dir, a, err)
		}
	}
	return nil
}

// same returns an error if the folder's cluster differs from the configured one.
func (c *Cluster) same(m *Manifest) error {
	if len(m.Managers) != c.cfg.Managers || len(m.KV) != c.cfg.KV || len(m.Indexers) != c.cfg.Indexers ||
		m.Bucket != c.cfg.Bucket {
		return wrongConfig("%s was made with --managers %d --kv %d --indexers %d --bucket %s: use the same, or another "+
			"folder with --data", c.cfg.Dir, len(m.Managers), len(m.KV), len(m.Indexers), m.Bucket)
	}
	if c.cfg.KVAll != (len(m.Projectors) < len(m.KV)) && len(m.KV) > 1 {
		return wrongConfig("%s was made %s --kv-all: use the same, or another folder with --data", c.cfg.Dir,
			map[bool]string{true: "without", false: "with"}[c.cfg.KVAll])
	}
	if m.KVReplicas != c.cfg.KVReplicas {
		return wrongConfig("%s was made with --kv-replicas %d: use the same, or another folder with --data", c.cfg.Dir,
			m.KVReplicas)
	}
	if c.cfg.VBuckets != 0 && m.VBuckets != c.cfg.VBuckets {
		return wrongConfig("%s was made with --vbuckets %d: use the same, or another folder with --data", c.cfg.Dir,
			m.VBuckets)
	}
	if (m.TLS != nil) != c.cfg.TLS {
		return wrongConfig("%s was made %s --tls: use the same, or another folder with --data", c.cfg.Dir,
			map[bool]string{true: "with", false: "without"}[m.TLS != nil])
	}
	return nil
}

// fresh chooses addresses and credentials.
func (c *Cluster) fresh() (*Manifest, error) {
	ports := &portChooser{next: c.cfg.FirstREST}
	defer ports.release()
	m := &Manifest{KVUser: kvUser, KVPassword: rand.Text(), KVReplicas: c.cfg.KVReplicas, Bucket: c.cfg.Bucket,
		BucketUUID: strings.ToLower(rand.Text()), VBuckets: cmp.Or(c.cfg.VBuckets, VBuckets)}
	scheme := "http://"
	if c.cfg.TLS {
		scheme = "https://"
		m.TLS, m.Subscriber = filesIn(c.cfg.Dir, adminName), filesIn(c.cfg.Dir, subscriberName)
	}
	for i := range c.cfg.Managers {
		m.Managers = append(m.Managers, ManagerEntry{ID: fmt.Sprintf("m%d", i+1), REST: scheme + ports.take(), Raft: ""})
	}
	for i := range m.Managers {
		m.Managers[i].Raft = ports.take()
	}
	for i := range c.cfg.KV {
		m.KV = append(m.KV, KVEntry{ID: fmt.Sprintf("kv%d", i+1), Memcached: ports.take(), Admin: scheme + ports.take()})
		if c.cfg.TLS {
			m.KV[i].MemcachedTLS = ports.take()
		}
		if c.cfg.KVAll && i > 0 {
			continue
		}
		m.Projectors = append(m.Projectors, ProjectorEntry{ID: fmt.Sprintf("p%d", i+1), Admin: scheme + ports.take()})
	}
	for i := range c.cfg.Indexers {
		m.Indexers = append(m.Indexers, IndexerEntry{ID: fmt.Sprintf("i%d", i+1), Admin: scheme + ports.take(),
			Scan: ports.take(),
			Data: DataPorts{Maintenance: ports.take(), Backfill: ports.take(), Catchup: ports.take()}})
	}
	return m, ports.err
}

// addresses returns every host:port of the plan.
func (m *Manifest) addresses() []string {
	var all []string
	for _, e := range m.Managers {
		all = append(all, hostport(e.REST), e.Raft)
	}
	for _, e := range m.KV {
		all = append(all, e.Memcached, hostport(e.Admin))
		if e.MemcachedTLS != "" {
			all = append(all, e.MemcachedTLS)
		}
	}
	for _, e := range m.Projectors {
		all = append(all, hostport(e.Admin))
	}
	for _, e := range m.Indexers {
		all = append(all, hostport(e.Admin), e.Scan, e.Data.Maintenance, e.Data.Backfill, e.Data.Catchup)
	}
	return all
}

// advertised returns the host:port under which other children reach an address.
func (c *Cluster) advertised(hostport string) string {
	_, port, err := net.SplitHostPort(hostport)
	if c.cfg.Advertise == "" || err != nil {
		return hostport
	}
	return net.JoinHostPort(c.cfg.Advertise, port)
}

func hostport(url string) string {
	_, addr, _ := strings.Cut(url, "://")
	return addr
}

// Run starts the children and supervises them until ctx ends, then stops them in order: projectors, indexers and
// managers first, the KV nodes last. onReady is called once, when all children answer, except those that the cluster
// can do without.
func (c *Cluster) Run(ctx context.Context, onReady func(ctx context.Context, m Manifest) error) error {
	defer c.lock.Release()
	early, stopEarly := context.WithCancel(context.WithoutCancel(ctx)) // all but KV
	late, stopLate := context.WithCancel(context.WithoutCancel(ctx))   // KV
	defer stopLate()
	defer stopEarly()
	var roles, kv errgroup.Group
	for _, ch := range c.children {
		if ch.late {
			kv.Go(func() error { return ch.process.Run(late) })
		} else {
			roles.Go(func() error { return ch.process.Run(early) })
		}
	}
	work, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	failed := make(chan error, 1)
	go func() {
		missing, err := c.waitReady(work)
		for _, ch := range c.children {
			if why, ok := missing[ch.id]; ok && err == nil && !ch.process.Gone() && c.cfg.Missing != nil {
				c.cfg.Missing(ch.id, why)
			}
		}
		if err == nil {
			err = onReady(work, c.Manifest())
		}
		if err != nil {
			cancel(err)
		}
		failed <- err
	}()
	<-work.Done()
	err := <-failed
	stopEarly()
	done := make(chan struct{})
	go func() {
		_ = roles.Wait() // each child has reported its own end
		close(done)
	}()
	select {
	case <-done:
		stopLate()
	case <-time.After(stopGrace / 3):
		stopLate()
		<-done
	}
	_ = kv.Wait() // children report their ends by Died
	c.mu.Lock()
	c.ready = false
	c.mu.Unlock()
	_ = os.Remove(filepath.Join(c.cfg.Dir, ClusterFile)) // nothing runs any more; the next Open removes it, too
	if ctx.Err() != nil {                                // a requested stop is not an error
		return nil
	}
	return err
}

// Manifest returns the current manifest.
func (c *Cluster) Manifest() Manifest {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.manifest.clone()
}

func (m *Manifest) clone() Manifest {
	n := *m
	n.Managers = append([]ManagerEntry(nil), m.Managers...)
	n.KV = append([]KVEntry(nil), m.KV...)
	n.Projectors = append([]ProjectorEntry(nil), m.Projectors...)
	n.Indexers = append([]IndexerEntry(nil), m.Indexers...)
	return n
}

// SampleLoaded records that the sample documents are stored.
func (c *Cluster) SampleLoaded() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.manifest.SampleLoaded = true
	if err := c.manifest.write(filepath.Join(c.cfg.Dir, planFile)); err != nil {
		return err
	}
	return c.publish()
}

// publish writes cluster.json. The caller holds c.mu.
func (c *Cluster) publish() error {
	c.manifest.PID = os.Getpid()
	if err := c.manifest.write(filepath.Join(c.cfg.Dir, ClusterFile)); err != nil {
		return err
	}
	if c.cfg.Changed != nil {
		c.cfg.Changed(c.manifest.clone())
	}
	return nil
}

// started records a child's pid, in cluster.json, too, once that exists.
func (c *Cluster) started(set func(m *Manifest, pid int), pid int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	set(&c.manifest, pid)
	if !c.ready {
		return nil
	}
	return c.publish()
}
