package consensus_test

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"github.com/prometheus/client_golang/prometheus"
	"go.etcd.io/bbolt"

	"tidemark/fsm"
	"tidemark/manager/consensus"
	"tidemark/statecontext"
)

func benchCluster(b *testing.B) *server {
	all := make(servers, 3)
	for i := range all {
		all[i] = newServer(b, fmt.Sprintf("m%d", i+1))
		all[i].tune = func(c *consensus.Config) { c.Heartbeat = consensus.DefaultHeartbeat }
		all[i].start()
	}
	all.bootstrap()
	return all.leader()
}

// spread reports the distribution of latencies.
func spread(b *testing.B, took []time.Duration) {
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
}

// BenchmarkPropose measures the write path without HTTP, with three nodes on one disk. For comparison, Bare does the
// same with the library alone: 3 nodes, same settings, same entries, an FSM that does the same.
func BenchmarkPropose(b *testing.B) {
	b.Run("sequential", func(b *testing.B) {
		l := benchCluster(b)
		took := make([]time.Duration, 0, b.N)
		for i := 0; b.Loop(); i++ {
			start := time.Now()
			if _, err := l.node.Propose(context.Background(), projector("p", fmt.Sprint(i))); err != nil {
				b.Fatal(err)
			}
			took = append(took, time.Since(start))
		}
		spread(b, took)
	})
	b.Run("64", func(b *testing.B) {
		l := benchCluster(b)
		b.ResetTimer()
		parallel(b, func(c, i int) error {
			_, err := l.node.Propose(context.Background(), projector(fmt.Sprint("p", c), fmt.Sprint(i)))
			return err
		})
	})
}

func BenchmarkRead(b *testing.B) {
	l := benchCluster(b)
	b.Run("sequential", func(b *testing.B) {
		took := make([]time.Duration, 0, b.N)
		for b.Loop() {
			start := time.Now()
			if err := l.node.ReadBarrier(context.Background()); err != nil {
				b.Fatal(err)
			}
			took = append(took, time.Since(start))
		}
		spread(b, took)
	})
	b.Run("64", func(b *testing.B) {
		parallel(b, func(int, int) error { return l.node.ReadBarrier(context.Background()) })
	})
}

// parallel runs b.N operations with 64 clients.
func parallel(b *testing.B, op func(client, i int) error) {
	const clients = 64
	var wg sync.WaitGroup
	var next atomic.Int64
	var mu sync.Mutex
	var took []time.Duration
	for c := range clients {
		wg.Go(func() {
			for {
				i := int(next.Add(1))
				if i > b.N {
					return
				}
				start := time.Now()
				if err := op(c, i); err != nil {
					b.Error(err)
					return
				}
				d := time.Since(start)
				mu.Lock()
				took = append(took, d)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	spread(b, took)
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "ops/s")
}

func BenchmarkBare(b *testing.B) {
	b.Run("sequential", func(b *testing.B) {
		l := bare(b)
		took := make([]time.Duration, 0, b.N)
		for i := 0; b.Loop(); i++ {
			start := time.Now()
			if err := l.Apply(bareEntry(b, "p", i), time.Second).Error(); err != nil {
				b.Fatal(err)
			}
			took = append(took, time.Since(start))
		}
		spread(b, took)
	})
	b.Run("64", func(b *testing.B) {
		l := bare(b)
		b.ResetTimer()
		parallel(b, func(c, i int) error { return l.Apply(bareEntry(b, fmt.Sprint("p", c), i), time.Second).Error() })
	})
}

func bareEntry(b *testing.B, id string, i int) []byte {
	data, err := statecontext.Encode(projector(id, fmt.Sprint(i)))
	if err != nil {
		b.Fatal(err)
	}
	return data
}

// bare starts three nodes of the library alone and returns the leader.
func bare(b *testing.B) *raft.Raft {
	var members raft.Configuration
	var nodes []*raft.Raft
	dir := b.TempDir()
	for i := range 3 {
		id := fmt.Sprint("n", i)
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		store, err := raftboltdb.New(raftboltdb.Options{
			Path:        filepath.Join(dir, id+".db"),
			BoltOptions: &bbolt.Options{NoFreelistSync: true, FreelistType: bbolt.FreelistMapType},
		})
		if err != nil {
			b.Fatal(err)
		}
		logs, err := raft.NewLogCache(512, store)
		if err != nil {
			b.Fatal(err)
		}
		trans := raft.NewNetworkTransport(plain{listener}, 3, time.Second, nil)
		c := raft.DefaultConfig()
		c.LocalID, c.Logger = raft.ServerID(id), hclog.NewNullLogger()
		c.HeartbeatTimeout, c.ElectionTimeout, c.LeaderLeaseTimeout = consensus.DefaultHeartbeat, consensus.DefaultHeartbeat,
			consensus.DefaultHeartbeat
		c.CommitTimeout, c.MaxAppendEntries = 5*time.Millisecond, 256
		r, err := raft.NewRaft(c, fsm.New(hclog.NewNullLogger(), func(err error) { b.Error(err) }), logs, store,
			raft.NewDiscardSnapshotStore(), trans)
		if err != nil {
			b.Fatal(err)
		}
		nodes = append(nodes, r)
		members.Servers = append(members.Servers, raft.Server{ID: c.LocalID, Address: trans.LocalAddr()})
		b.Cleanup(func() {
			r.Shutdown().Error()
			trans.CloseStreams()
			trans.Close()
			store.Close()
		})
	}
	if err := nodes[0].BootstrapCluster(members).Error(); err != nil {
		b.Fatal(err)
	}
	var leader *raft.Raft
	eventually(b, "a bare leader", func() bool {
		for _, r := range nodes {
			if r.State() == raft.Leader {
				leader = r
			}
		}
		return leader != nil
	})
	boot, err := statecontext.Encode(
		statecontext.Command{Body: &statecontext.LeaderStarted{Term: 1, Manager: statecontext.Manager{ID: "m"}}},
		statecontext.Command{Body: &statecontext.BootstrapCluster{ClusterID: "c", Epoch: 1}})
	if err != nil {
		b.Fatal(err)
	}
	if err := leader.Apply(boot, time.Second).Error(); err != nil {
		b.Fatal(err)
	}
	return leader
}

type plain struct{ net.Listener }

func (plain) Dial(a raft.ServerAddress, d time.Duration) (net.Conn, error) {
	return net.DialTimeout("tcp", string(a), d)
}

// BenchmarkWritePath shows where the time of a proposal goes, as means over all proposals: writes to the log store
// (bbolt with its sync) on the leader and, after the library has sent the entry, on a follower; and the state
// machine.
func BenchmarkWritePath(b *testing.B) {
	var applied time.Duration
	all := make(servers, 3)
	for i := range all {
		all[i] = newServer(b, fmt.Sprintf("m%d", i+1))
		all[i].start()
	}
	all.bootstrap()
	l, f := all.leader(), all.follower()
	machine := fsm.New(hclog.NewNullLogger(), func(err error) { b.Error(err) })
	before := [2]writes{writesOf(b, l), writesOf(b, f)}
	took := make([]time.Duration, 0, b.N)
	for i := 0; b.Loop(); i++ {
		start := time.Now()
		c := projector("p", fmt.Sprint(i))
		if _, err := l.node.Propose(context.Background(), c); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(start))
		data, err := statecontext.Encode(c)
		if err != nil {
			b.Fatal(err)
		}
		start = time.Now() // the same entry again, with nothing else running
		machine.Apply(&raft.Log{Index: uint64(i + 1), Term: 1, Type: raft.LogCommand, Data: data})
		applied += time.Since(start)
	}
	spread(b, took)
	total := time.Duration(0)
	for _, d := range took {
		total += d
	}
	mean := func(seconds float64, n int) float64 { return seconds * 1e6 / float64(n) }
	b.ReportMetric(mean(total.Seconds(), len(took)), "mean-µs")
	for i, name := range []string{"leader", "follower"} {
		w := writesOf(b, []*server{l, f}[i])
		b.ReportMetric(mean(w.seconds-before[i].seconds, int(w.count-before[i].count)), name+"-store-µs")
		b.ReportMetric(float64(w.count-before[i].count)/float64(len(took)), name+"-writes/op")
	}
	b.ReportMetric(mean(applied.Seconds(), len(took)), "apply-µs")
}

// writes holds the number and duration of writes to one server's log store.
type writes struct {
	seconds float64
	count   uint64
}

func writesOf(b *testing.B, s *server) writes {
	r := prometheus.NewRegistry()
	r.MustRegister(s.node.Collector())
	families, err := r.Gather()
	if err != nil {
		b.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "tidemark_raft_log_write_seconds" {
			h := f.GetMetric()[0].GetHistogram()
			return writes{h.GetSampleSum(), h.GetSampleCount()}
		}
	}
	b.Fatal("no histogram of writes")
	return writes{}
}
