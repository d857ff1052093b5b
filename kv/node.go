// Package kv is the embedded KV node: buckets of documents in vbuckets, served over the memcached binary protocol and
// DCP, for development, tests and demonstrations (KV-2). Several nodes form a small cluster with replicas, failover
// and rebalance.
//
// Its parts guarantee that what was acknowledged or streamed survives the death of the process (package store), that
// the protocol is that of common clients (package server), and that maps replace each other in one order (package
// clustermap). A node serves documents only after its vbuckets are loaded and its map was compared with a majority of
// the members, so that a node that was failed over while it was away does not consider itself active. A rebalance
// loses nothing that was acknowledged; a failover without loss is refused if it would lose something. One process
// uses a folder at a time.
//
// A cluster never fails over by itself and has no quorum (two operators who fail over each other's half of a
// partitioned network get two clusters). A node does not sync each write, and acknowledges a write before its
// replicas have it.
package kv

import (
	"cmp"
	"context"
	cryptorand "crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"tidemark/internal/filelock"
	"tidemark/internal/rpc"
	"tidemark/internal/rpc/route"
	"tidemark/internal/stop"
	"tidemark/internal/tlsconf"
	"tidemark/kv/mcbp"
	"tidemark/kv/server"
	"tidemark/kv/store"
)

// Version is the version that clients see; drivers parse the number at its beginning.
const Version = "7.6.0-tidemark"

const lockName = "lock"

// ErrInUse means that another process uses the node's folder.
var ErrInUse = errors.New("folder is in use by another process")

// Node is an open KV node.
type Node struct {
	config   Config
	lock     *filelock.Lock
	listener net.Listener
	// listenerTLS is nil if the node does not support TLS.
	listenerTLS net.Listener
	admin       net.Listener
	server      *server.Server
	quota       *store.Quota
	disk        *store.Disk
	shelf       shelf
	started     time.Time

	cluster    *cluster
	replicator *replicator
	ready      chan struct{} // closed when documents are served
	stopped    chan struct{} // closed when Run has stopped everything
	serving    atomic.Bool
	mapStreams *rpc.Places // limits streams of maps
	checks     *rpc.Places // limits checks of passwords
}

// Open locks the node's folder, loads its map and opens its listeners; Run serves. Errors: ErrConfig, ErrInUse,
// clustermap.ErrMap, and those of the operating system.
func Open(config Config) (*Node, error) {
	if err := config.check(); err != nil {
		return nil, err
	}
	n := &Node{config: config, quota: store.NewQuota(config.QuotaBytes), disk: store.NewDisk(config.Dir),
		started: config.Now(), ready: make(chan struct{}), stopped: make(chan struct{}),
		mapStreams: rpc.NewPlaces(maxMapStreams, "streams of maps"),
		checks:     rpc.NewPlaces(maxChecks, "checks of passwords")}
	if err := n.open(); err != nil {
		_ = n.release(false)
		return nil, fmt.Errorf("kv node %q: %w", config.NodeID, err)
	}
	return n, nil
}

func (n *Node) open() error {
	if err := os.MkdirAll(n.config.Dir, 0o700); err != nil {
		return fmt.Errorf("make folder: %w", err)
	}
	var err error
	if n.lock, err = lockFolder(n.config.Dir); err != nil {
		return err
	}
	if n.listener, err = net.Listen("tcp", n.config.Listen); err != nil {
		return fmt.Errorf("memcached address %s: %w", n.config.Listen, err)
	}
	if n.config.ListenTLS != "" {
		l, err := net.Listen("tcp", n.config.ListenTLS)
		if err != nil {
			return fmt.Errorf("memcached address with TLS %s: %w", n.config.ListenTLS, err)
		}
		n.listenerTLS = n.config.TLS.Listen(l, tlsconf.Memcached)
	}
	admin, err := net.Listen("tcp", n.config.Admin)
	if err != nil {
		return fmt.Errorf("admin address %s: %w", n.config.Admin, err)
	}
	n.admin = admin
	if n.cluster, err = openCluster(n); err != nil {
		return err
	}
	n.replicator = newReplicator(n)
	n.listBuckets(n.cluster.current())
	served := map[string]*server.Bucket{}
	for _, b := range n.buckets() {
		served[b.name] = b.served
	}
	n.server = server.New(server.Options{
		NodeID: n.config.NodeID, Version: Version, Buckets: served,
		User: n.config.User, Password: n.config.Password, Users: n.cluster.directory.Load,
		AllowPlain: n.config.AllowPlain, Moods: n.config.Nasty,
		MaxConnections: min(cmp.Or(n.config.MaxConnections, server.DefaultMaxConnections), route.MostConnections()),
		IdleTimeout:    n.config.IdleTimeout, AuthTimeout: n.config.AuthTimeout,
		FrameTimeout: n.config.FrameTimeout, WriteTimeout: n.config.WriteTimeout, DCPTimeout: n.config.DCPTimeout,
		Now: n.config.Now, Random: randomBytes, Logger: n.config.Logger.Named("memcached"),
	})
	return nil
}

// lockFolder locks the folder for this process.
func lockFolder(dir string) (*filelock.Lock, error) {
	l, err := filelock.Acquire(filepath.Join(dir, lockName))
	if errors.Is(err, filelock.ErrHeld) {
		return nil, fmt.Errorf("%w: %s: %w: stop the other node or choose another folder", ErrInUse, dir, err)
	}
	return l, err
}

// Load loads the documents of the buckets. Run does it if it was not called before. Errors: seglog.ErrCorrupt and
// those of the operating system.
func (n *Node) Load() error {
	for _, b := range n.buckets() {
		if b.open.Load() {
			continue
		}
		if err := n.load(b, n.cluster.current()); err != nil {
			return err
		}
	}
	return nil
}

// Ready returns a channel that is closed when the node serves documents.
func (n *Node) Ready() <-chan struct{} { return n.ready }

// SetPeers sets the present addresses of the members, which must be the same ones in the same order as in the
// configuration. The leader commits a revision of the map if they have changed. The node determines its own addresses
// itself.
func (n *Node) SetPeers(peers []Peer) error {
	if !slices.EqualFunc(peers, n.config.Nodes, func(a, b Peer) bool { return a.ID == b.ID }) {
		return fmt.Errorf("%w: the list of members differs from the one the node was opened with", ErrConfig)
	}
	n.cluster.setAddresses(n.mapNodes(peers))
	return nil
}

// MemcachedAddr returns the host:port on which the memcached protocol and DCP are served.
func (n *Node) MemcachedAddr() string { return n.listener.Addr().String() }

// MemcachedTLSAddr returns the host:port on which they are served over TLS; empty if they are not.
func (n *Node) MemcachedTLSAddr() string {
	if n.listenerTLS == nil {
		return ""
	}
	return n.listenerTLS.Addr().String()
}

// AdminAddr returns the host:port of the HTTP interface; with a certificate it serves HTTPS.
func (n *Node) AdminAddr() string { return n.admin.Addr().String() }

// advertised returns the address for clients: the configured one, unless it is empty or has no fixed port. For a
// listener on all interfaces the host is the one through which the client has connected.
func (n *Node) advertised(configured, bound string) string {
	if _, port, err := net.SplitHostPort(configured); err == nil && port != "0" && port != "" {
		return configured
	}
	if host, port, err := net.SplitHostPort(bound); err == nil && net.ParseIP(host).IsUnspecified() {
		return net.JoinHostPort(mcbp.HostPlaceholder, port)
	}
	return bound
}

// stopPatience bounds an orderly stop, in which only the disk has no bound of its own.
const stopPatience = 15 * time.Second

// ErrHangs is wrapped by Run's error if not everything in a node has stopped in time.
var ErrHangs = errors.New("parts of this KV node did not stop, which happens if its disk hangs")

// Run serves until ctx ends or an error occurs, then stops in order: it accepts no more requests, writes and syncs
// everything, and writes the marker of an orderly stop. It does not wait for a disk that hangs: the error is then
// ErrHangs, and the process has to exit; the next start finds what a killed process would have left. A node can be run
// once.
func (n *Node) Run(ctx context.Context) error {
	group, gctx := errgroup.WithContext(ctx)
	patience := cmp.Or(n.config.stopPatience, stopPatience)
	late, err := stop.Within(gctx.Done(), patience, func() error {
		defer close(n.stopped)
		return n.run(gctx, group)
	})
	if !late {
		return err
	}
	err = fmt.Errorf("kv node %q: %w; waited %v for: %s", n.config.NodeID, ErrHangs, patience, n.config.Dir)
	if cause := context.Cause(gctx); !errors.Is(cause, context.Canceled) { // a part that failed has ended the node
		err = errors.Join(cause, err)
	}
	n.config.Logger.Error("kv node stops", "error", err)
	return err
}

// run is Run without the bound on the stop.
func (n *Node) run(ctx context.Context, group *errgroup.Group) error {
	listeners := []net.Listener{n.listener}
	if n.listenerTLS != nil {
		listeners = append(listeners, n.listenerTLS)
	}
	group.Go(func() error { return n.server.Serve(ctx, listeners...) })
	admin := &route.Server{Handler: n.adminTable().Handler(), TLS: n.config.TLS, Log: n.config.Logger, Grace: adminGrace,
		Cut: true}
	group.Go(func() error { return admin.Serve(ctx, n.admin) })
	group.Go(func() error { return n.work(ctx, group) })
	n.config.Logger.Info("kv node listens", "node", n.config.NodeID, "memcached", n.MemcachedAddr(), "memcached_tls",
		n.MemcachedTLSAddr(), "admin", n.AdminAddr())
	err := group.Wait()
	n.shelf.work.end()
	if cerr := n.release(true); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("kv node %q: %w", n.config.NodeID, err)
	}
	return nil
}

// work loads the documents and then does the housekeeping.
func (n *Node) work(ctx context.Context, group *errgroup.Group) error {
	if !n.cluster.learn(ctx) {
		return nil
	}
	n.cluster.settleBuckets()
	if err := n.cluster.emptied(ctx); err != nil {
		return err
	}
	if err := n.Load(); err != nil {
		return err
	}
	n.shelf.work.begin(ctx)
	for _, b := range n.buckets() {
		n.keep(b)
	}
	n.cluster.apply() // a newer map may have arrived while the documents were loaded
	n.serving.Store(true)
	close(n.ready)
	n.config.Logger.Info("kv node serves", "node", n.config.NodeID)
	group.Go(func() error { return n.replicator.Run(ctx) })
	return n.cluster.Run(ctx)
}

// Abandon closes a node that is not running without the marks of an orderly stop: the next start finds what a killed
// process would have left. For tests.
func (n *Node) Abandon() { _ = n.release(false) }

// Lose makes a node with the mood Unpersisted lose what its log has not synced, as a kill would. For tests: later
// writes are lost, too.
func (n *Node) Lose() {
	for _, b := range n.buckets() {
		b.held.lose()
	}
}

// release closes everything that is open.
func (n *Node) release(orderly bool) error {
	var first error
	for _, l := range []net.Listener{n.listener, n.listenerTLS, n.admin} {
		if l != nil {
			_ = l.Close()
		}
	}
	for _, b := range n.buckets() {
		var err error
		switch {
		case !b.open.Load():
		case orderly:
			err = b.store.Close()
		default:
			b.held.lose()
			err = b.store.Abandon()
		}
		if err != nil && first == nil {
			first = err
		}
	}
	if n.lock != nil {
		n.lock.Release()
	}
	return first
}

func randomBytes(b []byte) { _, _ = cryptorand.Read(b) } // crypto/rand.Read never fails

func randomUint64() uint64 {
	var b [8]byte
	randomBytes(b[:])
	return binary.BigEndian.Uint64(b[:])
}
