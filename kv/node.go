// Package kv is the embedded KV node: buckets of documents in vbuckets, served over the memcached binary protocol and DCP,
// for development, tests and demonstrations (KV-2). Several nodes hold a bucket together by a static map.
//
// It promises what its parts promise: what is acknowledged or streamed survives the death of the process (package store),
// the protocol is that of known clients (package server), every node gives the same map (package clustermap). One process
// uses a folder at a time.
//
// It never syncs per write, and does not replicate, rebalance or fail over yet: the map keeps a chain of owners per vbucket
// for that.
package kv

import (
	"context"
	cryptorand "crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"tidemark/kv/clustermap"
	"tidemark/kv/seglog"
	"tidemark/kv/server"
	"tidemark/kv/store"
	"tidemark/mcbp"
	"tidemark/tlsconf"
)

// Version is what clients are told; drivers look for a number at its beginning.
const Version = "7.6.0-tidemark"

const (
	lockName = "lock"
	mapName  = "map.json"
)

// ErrInUse means that another process has the node's folder open.
var ErrInUse = errors.New("folder is in use by another process")

// Node is an open KV node.
type Node struct {
	config   Config
	lock     *os.File
	listener net.Listener
	// listenerTLS is nil when the node speaks no TLS.
	listenerTLS net.Listener
	admin       net.Listener
	server      *server.Server
	quota       *store.Quota
	buckets     []*bucket // in the order of the configuration
	started     time.Time
}

// bucket is a bucket with the map its clients see.
type bucket struct {
	store  *store.Bucket
	dir    string
	report seglog.Report

	mu     sync.Mutex
	m      clustermap.Map
	config server.ClusterConfig
}

// Open opens the node's folder, its buckets and its listeners; Run serves. Errors: ErrConfig, ErrInUse, seglog.ErrCorrupt,
// clustermap.ErrMap, and those of the operating system.
func Open(config Config) (*Node, error) {
	if err := config.check(); err != nil {
		return nil, err
	}
	n := &Node{config: config, quota: store.NewQuota(config.QuotaBytes), started: config.Now()}
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
	if n.admin, err = net.Listen("tcp", n.config.Admin); err != nil {
		return fmt.Errorf("admin address %s: %w", n.config.Admin, err)
	}
	served := map[string]*server.Bucket{}
	for _, bc := range n.config.Buckets {
		b, err := n.openBucket(bc)
		if err != nil {
			return err
		}
		n.buckets = append(n.buckets, b)
		served[bc.Name] = &server.Bucket{Store: b.store, Config: b.clusterConfig}
	}
	n.server = server.New(server.Options{
		NodeID: n.config.NodeID, Version: Version, Buckets: served,
		User: n.config.User, Password: n.config.Password, AllowPlain: n.config.AllowPlain,
		MaxConnections: n.config.MaxConnections, IdleTimeout: n.config.IdleTimeout, AuthTimeout: n.config.AuthTimeout,
		FrameTimeout: n.config.FrameTimeout, WriteTimeout: n.config.WriteTimeout, DCPTimeout: n.config.DCPTimeout,
		Now: n.config.Now, Random: randomBytes, Logger: n.config.Logger.Named("memcached"),
	})
	return nil
}

// lockFolder takes the folder for this process; the lock goes with the process, however it ends.
func lockFolder(dir string) (*os.File, error) {
	path := filepath.Join(dir, lockName)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("%w: %s: stop the other node or choose another folder", ErrInUse, dir)
	}
	return f, nil
}

// openBucket opens a bucket's documents and its map.
func (n *Node) openBucket(bc BucketConfig) (*bucket, error) {
	b := &bucket{dir: filepath.Join(n.config.Dir, "buckets", bc.Name)}
	if err := os.MkdirAll(b.dir, 0o700); err != nil {
		return nil, fmt.Errorf("make bucket folder: %w", err)
	}
	nodes := n.mapNodes(n.config.Nodes)
	m, stored, err := loadMap(filepath.Join(b.dir, mapName))
	switch {
	case err != nil:
		return nil, err
	case !stored:
		m = clustermap.Derive(bc.Name, bc.UUID, bc.VBuckets, nodes)
	default:
		if err := m.Check(bc.Name, bc.UUID, bc.VBuckets); err != nil {
			return nil, err
		}
	}
	if err := b.publish(n.config.NodeID, m, nodes, !stored); err != nil {
		return nil, err
	}
	b.store, b.report, err = store.Open(store.Options{
		Dir: filepath.Join(b.dir, "log"), Name: bc.Name, UUID: bc.UUID, VBuckets: bc.VBuckets,
		Active: func(vb uint16) bool { return b.m.Owner(vb) == n.config.NodeID },
		Quota:  n.quota, PurgeAfter: n.config.PurgeAfter, SegmentBytes: n.config.SegmentBytes, Housekeep: n.config.Housekeep,
		Now: n.config.Now, Random: randomUint64, Logger: n.config.Logger.Named("store"), WrapFile: n.config.WrapFile,
	})
	if err != nil {
		return nil, err
	}
	r := b.report
	n.config.Logger.Info("bucket opened", "bucket", bc.Name, "new", r.Fresh, "orderly_stop", r.Clean, "records", r.Records,
		"bytes", r.Bytes, "torn_bytes", r.TornBytes)
	return b, nil
}

// publish brings the map up to date with the nodes' addresses, stores it when it changed and shows it to clients.
func (b *bucket) publish(self string, m clustermap.Map, nodes []clustermap.Node, write bool) error {
	next, err := m.WithNodes(nodes)
	if err != nil {
		return err
	}
	config, err := next.Config(self)
	if err != nil {
		return err
	}
	raw, err := config.Marshal()
	if err != nil {
		return fmt.Errorf("encode cluster config: %w", err)
	}
	if write || next.Rev != m.Rev {
		if err := seglog.WriteJSON(filepath.Join(b.dir, mapName), next); err != nil {
			return err
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.m, b.config = next, server.ClusterConfig{JSON: raw, RevEpoch: next.RevEpoch, Rev: next.Rev}
	return nil
}

func (b *bucket) clusterConfig() server.ClusterConfig {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.config
}

func (b *bucket) clusterMap() clustermap.Map {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.m
}

func loadMap(path string) (m clustermap.Map, stored bool, err error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return m, false, nil
	}
	if err != nil {
		return m, false, fmt.Errorf("read map: %w", err)
	}
	if err := json.Unmarshal(raw, &m); err != nil {
		return m, false, fmt.Errorf("%w: %s: %w; restore it from another node's folder of the same name", clustermap.ErrMap, path, err)
	}
	return m, true, nil
}

// SetPeers tells the node the cluster's present addresses (the same members in the same order); clients are shown a higher
// revision when they changed. The addresses of this node itself are known to it.
func (n *Node) SetPeers(peers []Peer) error {
	if !slices.EqualFunc(peers, n.config.Nodes, func(a, b Peer) bool { return a.ID == b.ID }) {
		return fmt.Errorf("%w: another list of members than the node was opened with", ErrConfig)
	}
	nodes := n.mapNodes(peers)
	for _, b := range n.buckets {
		if err := b.publish(n.config.NodeID, b.clusterMap(), nodes, false); err != nil {
			return fmt.Errorf("kv node %q: %w", n.config.NodeID, err)
		}
	}
	return nil
}

// MemcachedAddr is the host:port on which the memcached protocol and DCP are served.
func (n *Node) MemcachedAddr() string { return n.listener.Addr().String() }

// MemcachedTLSAddr is the host:port on which they are served inside TLS; empty when they are not.
func (n *Node) MemcachedTLSAddr() string {
	if n.listenerTLS == nil {
		return ""
	}
	return n.listenerTLS.Addr().String()
}

// AdminAddr is the host:port of the HTTP interface.
func (n *Node) AdminAddr() string { return n.admin.Addr().String() }

// advertised is the address clients are told: the configured one, unless it is empty or leaves the port open. A listener
// on all interfaces is where the client reached it.
func (n *Node) advertised(configured, bound string) string {
	if _, port, err := net.SplitHostPort(configured); err == nil && port != "0" && port != "" {
		return configured
	}
	if host, port, err := net.SplitHostPort(bound); err == nil && net.ParseIP(host).IsUnspecified() {
		return net.JoinHostPort(mcbp.HostPlaceholder, port)
	}
	return bound
}

// Run serves until ctx ends or something breaks, then stops in order: no more requests, everything written and synced, the
// marker of an orderly stop. A node can be run once.
func (n *Node) Run(ctx context.Context) error {
	group, gctx := errgroup.WithContext(ctx)
	listeners := []net.Listener{n.listener}
	if n.listenerTLS != nil {
		listeners = append(listeners, n.listenerTLS)
	}
	group.Go(func() error { return n.server.Serve(gctx, listeners...) })
	group.Go(func() error { return n.serveAdmin(gctx) })
	for _, b := range n.buckets {
		group.Go(func() error { return b.store.Run(gctx) })
	}
	n.config.Logger.Info("kv node serves", "node", n.config.NodeID, "memcached", n.MemcachedAddr(), "memcached_tls", n.MemcachedTLSAddr(), "admin", n.AdminAddr())
	err := group.Wait()
	if cerr := n.release(true); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("kv node %q: %w", n.config.NodeID, err)
	}
	return nil
}

// Abandon closes a node that is not running without the marks of an orderly stop: the next start finds what a killed
// process would have left. For tests.
func (n *Node) Abandon() { _ = n.release(false) }

// release closes everything that is open.
func (n *Node) release(orderly bool) error {
	var first error
	for _, l := range []net.Listener{n.listener, n.listenerTLS, n.admin} {
		if l != nil {
			_ = l.Close()
		}
	}
	for _, b := range n.buckets {
		var err error
		if orderly {
			err = b.store.Close()
		} else {
			err = b.store.Abandon()
		}
		if err != nil && first == nil {
			first = err
		}
	}
	if n.lock != nil {
		_ = n.lock.Close()
	}
	return first
}

func randomBytes(b []byte) { _, _ = cryptorand.Read(b) } // crypto/rand.Read never fails

func randomUint64() uint64 {
	var b [8]byte
	randomBytes(b[:])
	return binary.BigEndian.Uint64(b[:])
}
