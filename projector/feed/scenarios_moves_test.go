package feed_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"tidemark/kv"
	"tidemark/kv/clustermap"
	"tidemark/kv/kvclient"
	"tidemark/kv/mcbp"
	"tidemark/projector/feed"
)

// Scenarios with two nodes: vbuckets move, and fail over.

// join starts a second node besides the first, and adds it to the cluster: half of the vbuckets move to it.
func (s *stage) join() {
	s.Helper()
	conf := kv.Config{NodeID: "kv2", Dir: s.TempDir(), Listen: "127.0.0.1:0", Admin: "127.0.0.1:0", User: kvUser,
		Password: kvPassword, Join: true,
		Nodes: []kv.Peer{{ID: "kv2"}}, Buckets: []kv.BucketConfig{{Name: kvBucket, UUID: stageUUID, VBuckets: stageVBuckets,
			Replicas: 1}}, Heartbeat: 20 * time.Millisecond}
	s.mood(&conf)
	if s.edit != nil {
		s.edit(&conf)
	}
	n, err := kv.Open(conf)
	if err != nil {
		s.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	s.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			s.Error(err)
		}
	})
	s.second = n
	<-n.Ready()
	s.warmUp(n)
	s.post(s.node, "rebalance", kv.RebalanceRequest{Add: []clustermap.Node{{ID: "kv2", Memcached: n.MemcachedAddr(),
		Admin: n.AdminAddr()}}})
}

// post sends a request to a node's cluster interface.
func (s *stage) post(n *kv.Node, what string, body any) {
	s.Helper()
	r := kv.Remote{User: kvUser, Password: kvPassword,
		HTTP: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
	for ctx := within(s, 60*time.Second); ; time.Sleep(10 * time.Millisecond) {
		err := r.Call(ctx, n.AdminAddr(), http.MethodPost, "/v1/cluster/"+what, body, nil)
		if err == nil {
			return
		}
		if !errors.Is(err, kv.ErrRefused) || ctx.Err() != nil { // refusals while the map changes are repeated
			s.Fatal(err)
		}
	}
}

// copies returns the states of the vbuckets that a node has, and their high seqnos.
func copies(n *kv.Node) (states map[uint16]string, highs map[uint16]uint64) {
	states, highs = map[uint16]string{}, map[uint16]uint64{}
	for _, c := range n.View().Copies[kvBucket] {
		states[c.VBucket], highs[c.VBucket] = c.State, c.High
	}
	return states, highs
}

// settle waits until half of the vbuckets are active on each node, and each has the replicas of the other.
func (s *stage) settle() (moved []uint16) {
	s.Helper()
	within60 := time.Now().Add(60 * time.Second)
	for ; ; time.Sleep(10 * time.Millisecond) {
		a, ah := copies(s.node)
		b, bh := copies(s.second)
		moved = nil
		same := s.node.View().Map.Operation == nil && len(a) == stageVBuckets && len(b) == stageVBuckets
		for vb := range uint16(stageVBuckets) {
			if b[vb] == "active" {
				moved = append(moved, vb)
			}
			same = same && ah[vb] == bh[vb] && (a[vb] == "active" && b[vb] == "replica" || a[vb] == "replica" &&
				b[vb] == "active")
		}
		if same && len(moved) == stageVBuckets/2 {
			return moved
		}
		if time.Now().After(within60) {
			s.Fatalf("the nodes do not settle: %v %v, %v %v", a, ah, b, bh)
		}
	}
}

// feedAt returns a feed of another node.
func (s *stage) feedAt(n *kv.Node) feed.Feed {
	s.Helper()
	conf := s.conf()
	conf.Addr = n.MemcachedAddr()
	return dialWith(s, s.dial, conf)
}

// Vbuckets move to another node during the stream: it ends; opened at the new owner on the old branch it continues,
// and nothing rolls back.
func takeover(s *stage) {
	m, c, moved := s.takeOver()
	ctx := within60(s)
	for len(m.ends) < len(moved) {
		b, err := c.Next(ctx)
		if err != nil {
			s.Fatalf("%v: ends of %v, want those of %v", err, m.ends, moved)
		}
		for i := range b.Events {
			m.apply(s, &b.Events[i])
		}
		b.Release()
	}
	for _, vb := range moved {
		if m.ends[vb] != mcbp.EndStateChanged {
			s.Errorf("the stream of vbucket %d ended for reason %d, want %d", vb, m.ends[vb], mcbp.EndStateChanged)
		}
	}
	s.goOn(m, moved)
}

// The node sends nothing when vbuckets leave it; it only answers queries. When they have come back it has them again,
// but not their streams; opened again, these continue where they stopped.
func silentTakeover(s *stage) {
	m, c, moved := s.takeOver()
	gone := func() {
		s.Helper()
		for vb := range uint16(stageVBuckets) {
			var there bool
			err := patiently(s, func() (err error) {
				if there, err = c.HasStream(within60(s), vb); err == nil && there {
					there, err = c.HasStream(within60(s), vb) // an ended stream may stay on a list for a moment
				}
				return err
			})
			if err != nil || there == slices.Contains(moved, vb) {
				s.Errorf("the node has the stream of vbucket %d: %t, %v; %v have moved", vb, there, err, moved)
			}
		}
		if len(m.ends) > 0 {
			s.Errorf("ends came: %v", m.ends)
		}
	}
	gone()
	s.goOn(m, moved)
	s.post(s.node, "rebalance", kv.RebalanceRequest{Remove: []string{"kv2"}})
	eventually(s, "they are back", func() bool {
		states, _ := copies(s.node)
		v := s.node.View()
		return v.Map.Operation == nil && len(v.Map.Nodes) == 1 && states[moved[0]] == "active" && states[moved[1]] == "active"
	})
	for i := range 50 {
		s.set(fmt.Sprint("k", i), "moved back")
	}
	stays := targets(s, c)
	for _, vb := range moved {
		delete(stays, vb)
	}
	m.read(s, c, stays)
	gone()
	for _, vb := range moved {
		if err := c.CloseStream(within60(s), vb); !errors.Is(err, feed.ErrNoStream) {
			s.Errorf("closing vbucket %d: %v", vb, err)
		}
	}
	if n := m.followBack(s, c, moved); n > 0 {
		s.Errorf("%d vbuckets rolled back by a takeover", n)
	}
	m.read(s, c, targets(s, c))
	s.compare(m)
}

// takeOver lets a mirror follow all vbuckets and moves half of them to a second node while documents change. The
// mirror has everything of the vbuckets that stay.
func (s *stage) takeOver() (m *mirror, c feed.Feed, moved []uint16) {
	s.Helper()
	for i := range 100 {
		s.set(fmt.Sprint("k", i), "1")
	}
	m, c = s.mirror(), s.feed()
	m.follow(s, c, all())
	m.read(s, c, targets(s, c))
	s.join()
	for i := range 50 {
		s.set(fmt.Sprint("k", i), "moved")
	}
	moved = s.settle()
	stays := targets(s, c)
	for _, vb := range moved {
		if _, ok := stays[vb]; ok {
			s.Fatalf("vbucket %d is still active on the first node", vb)
		}
		_, err := c.OpenStream(within60(s), feed.StreamRequest{VBucket: vb, End: mcbp.EndOfTime})
		if err == nil {
			s.Fatalf("vbucket %d is opened at a node that does not own it", vb)
		}
	}
	m.read(s, c, stays)
	return m, c, moved
}

// goOn follows moved vbuckets at their new owner.
func (s *stage) goOn(m *mirror, moved []uint16) {
	s.Helper()
	d := s.feedAt(s.second)
	if n := m.followBack(s, d, moved); n > 0 {
		s.Errorf("%d vbuckets rolled back by a takeover", n)
	}
	m.read(s, d, targets(s, d))
	s.compare(m)
	_ = d.Close()
}

// A node is failed over to a replica that lagged: two branches diverge, and what only the old owner had disappears
// from the mirror, too.
func failover(s *stage) {
	for i := range 100 {
		s.set(fmt.Sprint("k", i), "1")
	}
	s.join()
	s.settle()
	m := s.mirror()
	for _, n := range []*kv.Node{s.node, s.second} {
		c := s.feedAt(n)
		goal := targets(s, c)
		m.follow(s, c, keysOf(goal))
		m.read(s, c, goal)
		_ = c.Close()
	}
	s.compare(m)
	kept := maps.Clone(s.truth)
	s.post(s.node, "replication", kv.PauseRequest{Paused: true})
	s.post(s.second, "replication", kv.PauseRequest{Paused: true})
	c := s.feedAt(s.node)
	mine := targets(s, c)
	_, before := copies(s.second)
	for i := range 100 { // only to those of the first node
		key := fmt.Sprint("k", i)
		if _, ok := mine[mcbp.VBucket([]byte(key), stageVBuckets)]; ok {
			s.set(key, "lost")
		}
	}
	m.follow(s, c, keysOf(mine))
	m.read(s, c, targets(s, c))
	_ = c.Close()
	s.compare(m)
	if _, now := copies(s.second); !maps.Equal(before, now) {
		s.Fatalf("a replica took a write although replication was paused: %v, now %v; the first node's vbuckets are %v",
			before, now, mine)
	}
	s.stop()
	s.truth = kept
	s.post(s.second, "failover", kv.FailoverRequest{Nodes: []string{"kv1"}, Lose: true})
	w, err := kvclient.Connect(within(s, 60*time.Second), []string{s.second.MemcachedAddr()},
		kvclient.Options{User: kvUser, Password: kvPassword, Bucket: kvBucket, Name: "writer"})
	if err != nil {
		s.Fatal(err)
	}
	defer func() { _ = w.Close() }()
	s.writer = w
	for i := range 30 {
		s.set(fmt.Sprint("other", i), "branch")
	}
	d := s.feedAt(s.second)
	if n := m.followBack(s, d, all()); n != len(mine) {
		s.Errorf("%d vbuckets were rolled back, want the %d of the lost node", n, len(mine))
	}
	m.read(s, d, targets(s, d))
	s.compare(m)
}
