// Command bareraft is the baseline for DDL: the smallest program that replicates what is POSTed to it over
// hashicorp/raft and raft-boltdb, with the settings of package consensus, and answers 200 once a majority has stored
// it. Its state machine counts.
//
// It does nothing else: no batching of its own, no ledger, no reads, no duties. Only the benchmarks run it.
//
//	bareraft --id 1 --data DIR --http 127.0.0.1:8001 --raft 127.0.0.1:9001 [--peers 1=127.0.0.1:9001,2=…]
//
// One of the nodes gets --peers and bootstraps the cluster. GET /leader answers 200 on the leader, 503 elsewhere.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
)

// The settings of package consensus.
const (
	heartbeat        = 300 * time.Millisecond
	commitTimeout    = 5 * time.Millisecond
	maxAppendEntries = 256
	logCacheEntries  = 512
	trailingLogs     = 10240
	snapshotEntries  = 8192
	snapshotInterval = 8 * time.Second
	transportPool    = 4
	applyTimeout     = 2 * time.Second
	maxBody          = 1 << 20
)

func main() {
	id := flag.String("id", "", "name of this node")
	dir := flag.String("data", "", "data folder")
	httpAddr := flag.String("http", "", "host:port for HTTP")
	raftAddr := flag.String("raft", "", "host:port for Raft")
	peers := flag.String("peers", "", "id=host:port of all nodes, separated by commas: bootstrap")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *id, *dir, *httpAddr, *raftAddr, *peers); err != nil {
		fmt.Fprintln(os.Stderr, "bareraft:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, id, dir, httpAddr, raftAddr, peers string) error {
	node, err := open(id, dir, raftAddr)
	if err != nil {
		return err
	}
	if peers != "" {
		if err := bootstrap(node, peers); err != nil {
			return err
		}
	}
	lis, err := net.Listen("tcp", httpAddr)
	if err != nil {
		return err
	}
	srv := &http.Server{Handler: handler(node), ReadHeaderTimeout: 5 * time.Second}
	go func() {
		<-ctx.Done()
		_ = srv.Close()
	}()
	if err := srv.Serve(lis); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return node.Shutdown().Error()
}

func open(id, dir, addr string) (*raft.Raft, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	logger := hclog.New(&hclog.LoggerOptions{Name: id, Level: hclog.Warn, Output: os.Stderr})
	store, err := raftboltdb.New(raftboltdb.Options{
		Path:                    filepath.Join(dir, "raft.db"),
		BoltOptions:             &bbolt.Options{NoFreelistSync: true, FreelistType: bbolt.FreelistMapType},
		MsgpackUseNewTimeFormat: true,
	})
	if err != nil {
		return nil, err
	}
	logs, err := raft.NewLogCache(logCacheEntries, store)
	if err != nil {
		return nil, err
	}
	snaps, err := raft.NewFileSnapshotStoreWithLogger(dir, 2, logger)
	if err != nil {
		return nil, err
	}
	trans, err := raft.NewTCPTransportWithLogger(addr, nil, transportPool, heartbeat, logger)
	if err != nil {
		return nil, err
	}
	c := raft.DefaultConfig()
	c.LocalID = raft.ServerID(id)
	c.HeartbeatTimeout, c.ElectionTimeout, c.LeaderLeaseTimeout = heartbeat, heartbeat, heartbeat
	c.CommitTimeout = commitTimeout
	c.MaxAppendEntries = maxAppendEntries
	c.TrailingLogs = trailingLogs
	c.SnapshotThreshold = snapshotEntries
	c.SnapshotInterval = snapshotInterval
	c.Logger = logger
	return raft.NewRaft(c, &counter{}, logs, store, snaps, trans)
}

func bootstrap(node *raft.Raft, peers string) error {
	var c raft.Configuration
	for _, p := range strings.Split(peers, ",") {
		id, addr, ok := strings.Cut(p, "=")
		if !ok {
			return fmt.Errorf("--peers: %q: want id=host:port", p)
		}
		c.Servers = append(c.Servers, raft.Server{ID: raft.ServerID(id), Address: raft.ServerAddress(addr)})
	}
	return node.BootstrapCluster(c).Error()
}

func handler(node *raft.Raft) http.Handler {
	m := http.NewServeMux()
	m.HandleFunc("POST /apply", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
		if err == nil {
			err = node.Apply(body, applyTimeout).Error()
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
	m.HandleFunc("GET /leader", func(w http.ResponseWriter, _ *http.Request) {
		if node.VerifyLeader().Error() != nil {
			http.Error(w, "not the leader", http.StatusServiceUnavailable)
		}
	})
	return m
}

// counter is a state machine that counts entries.
type counter struct{ entries atomic.Uint64 }

func (c *counter) Apply(*raft.Log) any                 { return c.entries.Add(1) }
func (c *counter) Snapshot() (raft.FSMSnapshot, error) { return count(c.entries.Load()), nil }

func (c *counter) Restore(r io.ReadCloser) error {
	defer r.Close()
	var n uint64
	if _, err := fmt.Fscan(r, &n); err != nil {
		return err
	}
	c.entries.Store(n)
	return nil
}

// count is the snapshot of a counter.
type count uint64

func (c count) Persist(sink raft.SnapshotSink) error {
	if _, err := fmt.Fprintln(sink, uint64(c)); err != nil {
		return errors.Join(err, sink.Cancel())
	}
	return sink.Close()
}

func (count) Release() {}
