package kv

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"tidemark/kv/access"
	"tidemark/kv/clustermap"
	"tidemark/kv/mcbp"
	"tidemark/kv/server"
	"tidemark/kv/store"
)

const (
	mapName      = "cluster.json"
	reservedName = "reserved.json"
	promisesName = "promises.json"

	defaultHeartbeat = 500 * time.Millisecond
	// learnPause is the pause between two rounds of polling members that do not answer yet.
	learnPause = 50 * time.Millisecond
	// followAgain is the interval at which a waiting request checks whether a change of the map has been carried out.
	followAgain = 100 * time.Millisecond
)

// errOlder means that a map is not newer than the present one.
var errOlder = errors.New("the map is not newer")

// cluster is a node's part in the cluster: its present map, and how the map is replaced by a newer one. A map or a
// promise is on disk before it takes effect. mu is a leaf lock; changing serializes changes.
type cluster struct {
	n     *Node
	peers *peers
	wake  chan struct{} // capacity 1: process the map now

	spare *spare

	making chan struct{} // capacity 1: the right to make a revision of the map, from reading the previous one on

	changing sync.Mutex
	loaded   bool      // the stores are loaded; guarded by changing
	turn     time.Time // until then epochs are promised only to the maker of the last promise; guarded by changing

	mu        sync.Mutex
	m         clustermap.Map
	promises  clustermap.Promises // outstanding; changed under changing
	configs   map[string]server.ClusterConfig
	manifests map[string]*mcbp.Manifest // by bucket; as in m, without the default manifest
	addresses []clustermap.Node         // as given to this node, possibly newer than the map's
	progress  Progress
	missing   []string      // members that did not answer the newest poll
	learnt    bool          // the map has been compared with a majority
	changed   chan struct{} // closed and replaced at each new map

	directory atomic.Pointer[access.Directory] // of the map's users; replaced only when they change
	refused   store.Repeated                   // what the log has about a newer map that cannot be used
}

// reserved is the highest revision that this node has tried to make, whether or not another node has taken it: no two
// maps have the same number.
type reserved struct {
	RevEpoch int64 `json:"rev_epoch"`
	Rev      int64 `json:"rev"`
}

// openCluster loads the node's map, or creates the first one.
func openCluster(n *Node) (*cluster, error) {
	c := &cluster{n: n, peers: newPeers(n.config), spare: newSpare(n.config.Dir), wake: make(chan struct{}, 1),
		making: make(chan struct{}, 1), changed: make(chan struct{}), addresses: n.mapNodes(n.config.Nodes)}
	specs := n.config.specs()
	m, stored, err := loadMap(n.config.Dir, specs)
	if err == nil {
		err = c.loadPromises(m.RevEpoch)
	}
	switch {
	case err != nil:
		return nil, err
	case stored:
		if err := m.Check(specs); err != nil {
			return nil, err
		}
	case n.config.Join:
		self, _ := find(c.addresses, n.config.NodeID)
		c.m = clustermap.Alone(self, specs)
		return c, c.publish(c.m)
	default:
		m = clustermap.Derive(c.addresses, specs)
		if err := c.store(m); err != nil {
			return nil, err
		}
	}
	return c, c.publish(m)
}

func find(nodes []clustermap.Node, id string) (clustermap.Node, bool) {
	return clustermap.Map{Nodes: nodes}.Node(id)
}

// loadMap loads the stored map. Versions without replicas stored one map per bucket, which never changed; their
// chains are converted.
func loadMap(dir string, specs []clustermap.Spec) (m clustermap.Map, stored bool, err error) {
	path := filepath.Join(dir, mapName)
	stored, err = readMap(path, &m)
	if stored || err != nil {
		return m, stored, err
	}
	for _, s := range specs {
		var old struct {
			Rev    int64             `json:"rev"`
			UUID   string            `json:"uuid"`
			Nodes  []clustermap.Node `json:"nodes"`
			Chains [][]string        `json:"chains"`
		}
		if stored, err = readMap(filepath.Join(dir, "buckets", s.Name, "map.json"), &old); !stored || err != nil {
			return m, false, err
		}
		m.Format, m.RevEpoch, m.Rev, m.Nodes = clustermap.Format, 1, max(m.Rev, old.Rev+1), old.Nodes
		m.Buckets = append(m.Buckets, clustermap.Bucket{Name: s.Name, UUID: old.UUID, Replicas: s.Replicas,
			Chains: old.Chains})
	}
	if len(m.Nodes) > 0 {
		m.Leader = m.Nodes[0].ID
	}
	return m, true, nil
}

func readMap(path string, to any) (bool, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read map: %w", err)
	}
	switch err := json.Unmarshal(raw, to); {
	case errors.Is(err, clustermap.ErrNewer):
		return false, fmt.Errorf("%s: %w", path, err)
	case err != nil:
		return false, fmt.Errorf("%w: %s: %w; restore it from another node's folder", clustermap.ErrMap, path, err)
	}
	return true, nil
}

// loadPromises loads the node's promises; have is the epoch of the stored map.
func (c *cluster) loadPromises(have int64) error {
	path := filepath.Join(c.n.config.Dir, promisesName)
	raw, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read promises: %w", err)
	}
	var all clustermap.Promises
	if err := json.Unmarshal(raw, &all); err != nil {
		return fmt.Errorf("%w: %s: %w; it lists the failovers that this node waits for: restore it from a copy, or, if no "+
			"failover was begun and not finished, remove it",
			clustermap.ErrMap, path, err)
	}
	c.promises = all.Beyond(have)
	return nil
}

// promise stores promises on disk, then in memory. The caller holds changing.
func (c *cluster) promise(all clustermap.Promises) error {
	if err := c.spare.write(promisesName, all); err != nil {
		return err
	}
	c.mu.Lock()
	c.promises = all
	c.mu.Unlock()
	return nil
}

// promised returns this node's outstanding promises.
func (c *cluster) promised() clustermap.Promises {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.promises
}

func (c *cluster) store(m clustermap.Map) error { return c.spare.write(mapName, m) }

// publish makes a map visible to clients.
func (c *cluster) publish(m clustermap.Map) error {
	configs, err := c.configsOf(m)
	if err == nil {
		c.showUsers(m)
		c.show(m, configs)
	}
	return err
}

// configsOf returns the cluster configs for clients, by bucket. This node's own addresses are the present ones, even
// before the leader has committed a revision with them.
func (c *cluster) configsOf(m clustermap.Map) (map[string]server.ClusterConfig, error) {
	c.mu.Lock()
	self, ok := find(c.addresses, c.n.config.NodeID)
	c.mu.Unlock()
	if ok {
		present, _ := m.WithAddresses([]clustermap.Node{self})
		m.Nodes = present.Nodes
	}
	configs := map[string]server.ClusterConfig{}
	for _, b := range m.Buckets {
		config, err := m.Config(b.Name, c.n.config.NodeID)
		if err != nil {
			return nil, err
		}
		if c.n.config.Nasty.Has(server.OddMaps) {
			odd(config)
		}
		raw, err := config.Marshal()
		if err != nil {
			return nil, fmt.Errorf("encode cluster config: %w", err)
		}
		configs[b.Name] = server.ClusterConfig{JSON: raw, RevEpoch: m.RevEpoch, Rev: m.Rev}
	}
	return configs, nil
}

func (c *cluster) show(m clustermap.Map, configs map[string]server.ClusterConfig) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.m, c.configs, c.promises = m, configs, c.promises.Beyond(m.RevEpoch)
	c.manifests = map[string]*mcbp.Manifest{}
	for i := range m.Buckets {
		c.manifests[m.Buckets[i].Name] = m.Buckets[i].Manifest()
	}
	close(c.changed)
	c.changed = make(chan struct{})
}

// changes returns a channel that is closed at the next new map.
func (c *cluster) changes() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed
}

func (c *cluster) config(bucket string) server.ClusterConfig {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.configs[bucket]
}

// configOf returns the config of this very bucket; empty if the map has another bucket of that name, or none.
func (c *cluster) configOf(id bucketID) server.ClusterConfig {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.m.BucketOf(id.name, id.uuid) == nil {
		return server.ClusterConfig{}
	}
	return c.configs[id.name]
}

func (c *cluster) current() clustermap.Map {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.m
}

func (c *cluster) setAddresses(nodes []clustermap.Node) {
	c.mu.Lock()
	c.addresses = nodes
	c.mu.Unlock()
	c.kick()
}

// contact returns the addresses of a member: those given to this node, or else the map's.
func (c *cluster) contact(id string) clustermap.Node {
	node, _ := clustermap.Map{Nodes: c.present(c.current().Nodes)}.Node(id)
	return node
}

// present returns the nodes with the addresses given to this node.
func (c *cluster) present(nodes []clustermap.Node) []clustermap.Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	m, _ := clustermap.Map{Nodes: nodes}.WithAddresses(c.addresses)
	return m.Nodes
}

func (c *cluster) kick() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// sealed holds, by bucket and vbucket, the seqnos at which vbuckets must have stayed sealed for a map to be taken.
type sealed map[string]map[uint16]uint64

// adopt takes a newer map: to disk, then to clients, then to the vbuckets. If expect is set, its seals must have held
// (store.ErrSealBroken). It returns errOlder if the map is not newer (an equal one is accepted) or would break a
// promise.
func (c *cluster) adopt(m clustermap.Map, expect sealed) error {
	c.changing.Lock()
	defer c.changing.Unlock()
	have := c.current()
	if m.RevEpoch == have.RevEpoch && m.Rev == have.Rev && m.Leader == have.Leader {
		return nil
	}
	if !m.Newer(have) {
		return fmt.Errorf("%w: %d.%d, have %d.%d", errOlder, m.RevEpoch, m.Rev, have.RevEpoch, have.Rev)
	}
	if p, ok := c.promised().Against(m.RevEpoch); ok {
		return fmt.Errorf("%w: %d.%d, but this node promised %s that its epoch %d is next", errOlder, m.RevEpoch, m.Rev,
			p.Maker, p.RevEpoch)
	}
	if err := m.Check(c.n.config.specs()); err != nil {
		return err
	}
	configs, err := c.configsOf(m)
	if err != nil {
		return err
	}
	held, err := c.hold(expect)
	if err == nil {
		err = c.store(m)
	}
	if err != nil {
		for _, v := range held {
			v.ReleaseSeal()
		}
		return err
	}
	others := c.showUsers(m) // first, so that re-created buckets are not judged by the roles for the old ones
	if c.loaded {
		c.n.followBuckets(m) // before clients see the buckets
	}
	c.show(m, configs)
	if others {
		c.n.server.Rejudge()
	}
	c.n.config.Logger.Info("map adopted", "rev_epoch", m.RevEpoch, "rev", m.Rev, "leader", m.Leader, "nodes", len(m.Nodes),
		"operation", m.Operation != nil)
	c.applyLocked()
	return nil
}

// give promises the maker of an epoch that it comes next, and returns the newest map that this node has taken
// (clustermap.Promise). For the duration turn no other node is promised an epoch; turn 0 takes the promise back.
func (c *cluster) give(p clustermap.Promise, turn time.Duration) (clustermap.Map, error) {
	c.changing.Lock()
	defer c.changing.Unlock()
	have, all, now := c.current(), c.promised(), c.n.config.Now()
	if turn == 0 {
		if left := all.Without(p); len(left) < len(all) {
			return have, c.promise(left)
		}
		return have, nil
	}
	if last, ok := all.Against(have.RevEpoch); ok && last.Maker != p.Maker && now.Before(c.turn) {
		return have, fmt.Errorf("%w: %s is beginning epoch %d", ErrRefused, last.Maker, last.RevEpoch)
	}
	all, err := all.With(p, have.RevEpoch)
	if err != nil {
		return have, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	if err := c.promise(all); err != nil {
		return have, err
	}
	c.turn = now.Add(turn)
	return have, nil
}

// alone waits for the right to make a revision; the returned function releases it.
func (c *cluster) alone(ctx context.Context) (func(), error) {
	select {
	case c.making <- struct{}{}:
		return func() { <-c.making }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: another change of the map is running: %w", ErrRefused, context.Cause(ctx))
	}
}

// hold makes the given seals permanent.
func (c *cluster) hold(expect sealed) (held []*store.VBucket, err error) {
	for name, vbuckets := range expect {
		for vb, high := range vbuckets {
			v := c.n.vbucket(name, vb)
			if v == nil {
				return held, fmt.Errorf("%w: there is no vbucket %[3]d of bucket %[2]q", store.ErrSealBroken, name, vb)
			}
			if err := v.HoldSeal(high); err != nil {
				return held, err
			}
			held = append(held, v)
		}
	}
	return held, nil
}

// apply sets the states of the vbuckets to those of the map.
func (c *cluster) apply() {
	c.changing.Lock()
	defer c.changing.Unlock()
	c.loaded = true
	c.n.followBuckets(c.current())
	c.applyLocked()
}

func (c *cluster) applyLocked() {
	if !c.loaded {
		return
	}
	m, self := c.current(), c.n.config.NodeID
	for _, b := range c.n.openBuckets() {
		part := m.BucketOf(b.name, b.uuid)
		if part == nil {
			continue
		}
		for i := range part.Chains {
			v := b.store.VBucket(uint16(i))
			want := stateOf(part.Role(uint16(i), self))
			if state, _ := v.Status(); state == want {
				continue
			}
			c.n.replicator.forget(b.id(), uint16(i))
			// The vbucket has the state in memory, and the map on disk has it. A vbucket that is being emptied gets it at the
			// next call.
			if err := v.SetState(want); err != nil {
				c.n.config.Logger.Warn("state of a vbucket could not be "+
					"stored", "bucket", b.name, "vbucket", i, "state", want, "error", err)
			}
		}
		if err := b.store.SetManifest(part.Manifest()); err != nil { // retried at the next look at the map
			c.n.config.Logger.Warn("collections of a bucket could not be stored yet", "bucket", b.name, "error", err)
		}
	}
	c.n.replicator.kick()
}

// settleBuckets lists the buckets of the newest map before any is loaded, and removes the files of dropped buckets.
func (c *cluster) settleBuckets() {
	c.changing.Lock()
	defer c.changing.Unlock()
	m := c.current()
	c.n.listBuckets(m)
	c.n.sweep(m)
}

// stateOf returns the state of a vbucket on a node with that role.
func stateOf(role clustermap.Role, _ string) store.State {
	switch role {
	case clustermap.Active:
		return store.Active
	case clustermap.Replica:
		return store.Replica
	}
	return store.Dead
}

// vbucket returns a loaded vbucket, or nil.
func (n *Node) vbucket(bucket string, vb uint16) *store.VBucket {
	for _, b := range n.loadedBuckets() {
		if b.name == bucket {
			return b.store.VBucket(vb)
		}
	}
	return nil
}

// others returns the members except this node.
func (c *cluster) others(m clustermap.Map) (out []clustermap.Node) {
	for _, x := range m.Nodes {
		if x.ID != c.n.config.NodeID {
			out = append(out, c.contact(x.ID))
		}
	}
	return out
}

// poll compares maps with the other members, takes the newest one, and returns the members that did not answer.
func (c *cluster) poll(ctx context.Context) (missing []string) { return c.pollLeaving(ctx, nil) }

// pollLeaving is poll with a shorter timeout for nodes that are about to leave.
func (c *cluster) pollLeaving(ctx context.Context, leaving []string) (missing []string) {
	have := c.current()
	answers := c.peers.each(ctx, c.others(have), func(ctx context.Context, p clustermap.Node) (clustermap.Map, error) {
		if slices.Contains(leaving, p.ID) {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, leavingTimeout)
			defer cancel()
		}
		return c.peers.newerMap(ctx, p, have)
	})
	newest := have
	for _, a := range answers {
		switch {
		case a.err != nil:
			missing = append(missing, a.id)
		case a.value.Newer(newest):
			newest = a.value
		}
	}
	if newest.Newer(have) {
		c.take(newest)
	}
	return missing
}

// take adopts the newest map of the members. Each poll tries it again, as while the disk is full: the log has it once.
func (c *cluster) take(newest clustermap.Map) {
	err := c.adopt(newest, nil)
	if errors.Is(err, errOlder) {
		return
	}
	if c.refused.First(fmt.Sprintf("%d.%d ", newest.RevEpoch, newest.Rev), err) {
		c.n.config.Logger.Error("newer map cannot be used; trying again until it can", "rev_epoch", newest.RevEpoch, "rev",
			newest.Rev, "error", err)
	}
}

// learn returns once the node has compared its map with a majority of the members, including itself: a node that was
// failed over while it was away learns it before it serves. It returns false if ctx has ended.
func (c *cluster) learn(ctx context.Context) bool {
	logged := false
	for {
		c.poll(ctx)
		missing := c.poll(ctx) // the first poll may have returned a map with other members
		m := c.current()
		if _, member := m.Node(c.n.config.NodeID); !member || 2*(len(m.Nodes)-len(missing)) > len(m.Nodes) {
			c.waits(nil, true)
			return ctx.Err() == nil
		}
		c.waits(missing, false)
		if !logged {
			logged = true
			c.n.config.Logger.Warn("waiting for other members before serving documents: one of them may have a newer map; "+
				"if they are lost permanently, fail them over",
				"missing", missing, "members", len(m.Nodes))
		}
		select {
		case <-ctx.Done():
			return false
		case <-c.wake:
		case <-time.After(learnPause):
		}
	}
}

// Run compares maps, applies the map to the vbuckets, and does the leader's work, until ctx ends.
func (c *cluster) Run(ctx context.Context) error {
	for {
		pause := c.n.config.Heartbeat
		missing := c.poll(ctx)
		c.waits(missing, true)
		c.apply()
		c.clean()
		c.spare.refill(c.n.config.Now())
		if c.lead(ctx, missing) {
			pause = 0
		}
		select {
		case <-ctx.Done():
			return nil
		case <-c.wake:
		case <-time.After(pause):
		}
	}
}

// clean empties the vbuckets that the map no longer assigns to this member. A node that is not a member keeps its
// data until it is added again.
func (c *cluster) clean() {
	c.changing.Lock()
	defer c.changing.Unlock()
	m := c.current()
	if _, member := m.Node(c.n.config.NodeID); !member {
		return
	}
	for _, b := range c.n.loadedBuckets() {
		for i := range b.store.VBuckets() {
			v := b.store.VBucket(uint16(i))
			if state, high := v.Status(); state == store.Dead && high > 0 {
				if err := v.Reset(); err != nil {
					return // the log cannot be written, which the store reports
				}
			}
		}
	}
}

// commit makes a revision of the map: its number is reserved, it is stored on this node, and all reachable members
// get it. first, if set, must take the map before any other node, under the seals of expect.
func (c *cluster) commit(ctx context.Context, m clustermap.Map, first string, expect sealed) (clustermap.Map, error) {
	m, _, err := c.commitTo(ctx, m, first, expect)
	return m, err
}

// commitTo is commit; late holds the members that could not be reached.
func (c *cluster) commitTo(ctx context.Context, m clustermap.Map, first string, expect sealed) (
	made clustermap.Map, late []clustermap.Node, err error) {
	before := c.current()
	if p, ok := c.promised().Against(m.RevEpoch); ok { // checked before any other node takes the map
		return m, nil, fmt.Errorf("%w: this node has promised that epoch %d of %s is next: repeat the failover "+
			"that was begun", ErrRefused, p.RevEpoch, p.Maker)
	}
	if m, err = c.reserve(m); err != nil {
		return m, nil, err
	}
	if first != "" && first != c.n.config.NodeID {
		if err := c.peers.push(ctx, c.contact(first), m, expect); err != nil {
			return m, nil, err
		}
		expect = nil
	}
	if err := c.adopt(m, expect); err != nil {
		return m, nil, err
	}
	targets := c.others(m)
	for _, x := range before.Nodes { // nodes that are no longer members get the map, too
		if _, ok := m.Node(x.ID); !ok && x.ID != c.n.config.NodeID {
			targets = append(targets, x)
		}
	}
	for _, a := range c.peers.each(ctx, targets, func(ctx context.Context, p clustermap.Node) (clustermap.Map, error) {
		if _, stays := m.Node(p.ID); !stays {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, leavingTimeout)
			defer cancel()
		}
		return m, c.peers.push(ctx, p, m, nil)
	}) {
		if a.err != nil {
			c.n.config.Logger.Info("node did not receive the new map; it will ask for it", "node", a.id, "rev_epoch", m.RevEpoch,
				"rev", m.Rev, "error", a.err)
			if _, stays := m.Node(a.id); stays {
				late = append(late, c.contact(a.id))
			}
		}
	}
	return m, late, nil
}

// revise makes a revision of the newest map, on the leader, unless change returns the map unchanged; late holds the
// members that could not be reached. Errors: ErrRefused, NotLeaderError, and those of change.
func (c *cluster) revise(ctx context.Context, change func(clustermap.Map) (clustermap.Map, error)) (
	m clustermap.Map, late []clustermap.Node, err error) {
	end, err := c.alone(ctx)
	if err != nil {
		return m, nil, err
	}
	defer end()
	if m, err = c.ask(ctx, nil); err != nil {
		return m, nil, err
	}
	next, err := change(m)
	if err != nil || !next.Newer(m) {
		return next, nil, err
	}
	return c.commitTo(ctx, next, "", nil)
}

// reserve assigns the map a number that no other map has had.
func (c *cluster) reserve(m clustermap.Map) (clustermap.Map, error) {
	path := filepath.Join(c.n.config.Dir, reservedName)
	var r reserved
	if _, err := readMap(path, &r); err != nil {
		return m, err
	}
	if r.RevEpoch == m.RevEpoch {
		m.Rev = max(m.Rev, r.Rev+1)
	}
	return m, c.spare.write(reservedName, reserved{RevEpoch: m.RevEpoch, Rev: m.Rev})
}
