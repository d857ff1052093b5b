package statecontext

import (
	"slices"
	"strings"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/partition"
)

func (c *BootstrapCluster) apply(t *tx) *Rejection {
	if t.s.clusterID != "" {
		return reject(errcode.AlreadyBootstrapped, "the cluster already has the id %s", t.s.clusterID)
	}
	if rejection := checkIdentity("cluster id", c.ClusterID); rejection != nil {
		return rejection
	}
	if c.Epoch == 0 {
		return reject(errcode.InvalidArgument, "epoch 0; want at least 1")
	}
	level := max(c.FormatLevel, 1)
	if level > NextLevel {
		return reject(errcode.FormatNotAllowed, "format level %d is not supported", level)
	}
	t.s.clusterID, t.s.epoch, t.s.formatLevel, t.s.limits = c.ClusterID, c.Epoch, level, c.Limits.withDefaults()
	t.changedDefinitions()
	t.emitCluster()
	return nil
}

func (c *LeaderStarted) apply(t *tx) *Rejection {
	if c.Term < t.s.term || c.Term == 0 || c.Term == t.s.term && c.Manager.ID != t.s.leader {
		return reject(errcode.StaleTerm, "%s begins term %d; the state is in term %d of %s", c.Manager.ID, c.Term, t.s.term,
			t.s.leader)
	}
	if rejection := checkManager(&c.Manager); rejection != nil {
		return rejection
	}
	t.s.term, t.s.leader, t.changed = c.Term, c.Manager.ID, true
	t.s.staging = nil // a restore that is not finished ends with the term that began it
	t.emit(Event{Kind: EventLeader, Name: c.Manager.ID, Number: c.Term})
	t.registerManager(c.Manager)
	return nil
}

func (c *RegisterManager) apply(t *tx) *Rejection {
	if rejection := checkManager(&c.Manager); rejection != nil {
		return rejection
	}
	if level := t.s.formatLevel; level > 1 && c.Manager.FormatLevel < level {
		return reject(errcode.FormatNotAllowed, "manager %s supports format levels up to %d, the cluster is at %d; "+
			"install a newer version of tidemark on it",
			c.Manager.ID, c.Manager.FormatLevel, level)
	}
	t.registerManager(c.Manager)
	return nil
}

// CheckManager checks the id and the addresses that a manager registers or begins a term with. A non-nil error is a
// *Rejection.
func CheckManager(m *Manager) error {
	if rejection := checkManager(m); rejection != nil {
		return rejection
	}
	return nil
}

func checkManager(m *Manager) *Rejection {
	if rejection := checkIdentity("manager id", m.ID); rejection != nil {
		return rejection
	}
	return checkAddresses(m.Name, m.REST, m.Raft)
}

func (t *tx) registerManager(m Manager) {
	if old := t.s.Manager(m.ID); old != nil {
		m.ModifiedCAS = old.ModifiedCAS
		if m == *old {
			return
		}
	}
	t.setManager(m)
}

func (c *RegisterProjector) apply(t *tx) *Rejection {
	p := c.Projector
	if rejection := checkIdentity("projector id", string(p.ID)); rejection != nil {
		return rejection
	}
	if rejection := checkAddresses(p.Admin, p.BootID); rejection != nil {
		return rejection
	}
	if old := t.s.Projector(p.ID); old != nil {
		p.ModifiedCAS = old.ModifiedCAS
		if p == *old {
			return nil
		}
	}
	p.ModifiedCAS = t.cas
	own(&t.s.projectors, &t.owned.projectors).Set(p.ID, &p)
	t.changedDefinitions()
	t.emit(Event{Kind: EventProjector, Name: string(p.ID), Projector: &p})
	return nil
}

func (c *RegisterIndexer) apply(t *tx) *Rejection {
	i := c.Indexer
	if rejection := checkIdentity("indexer uuid", i.UUID); rejection != nil {
		return rejection
	}
	if rejection := checkLabel("indexer name", i.Name); rejection != nil {
		return rejection
	}
	if rejection := checkLabel("zone of an indexer", i.Zone); rejection != nil {
		return rejection
	}
	if rejection := checkAddresses(i.BootID, i.Name, i.Zone, i.Admin, i.Scan, i.Data.Maintenance, i.Data.Backfill,
		i.Data.Catchup); rejection != nil {
		return rejection
	}
	if t.s.Removed(i.UUID) {
		return reject(errcode.NodeRemoved, "indexer %s was removed from the cluster; delete its data folder, it then "+
			"joins as a new one", i.UUID)
	}
	if old := t.s.IndexerByUUID(i.UUID); old != nil {
		i.Node, i.ModifiedCAS, i.Evicting, t.result.Node = old.Node, old.ModifiedCAS, old.Evicting, old.Node
		i.Offline = old.Offline // cleared when the leader sees it at work again
		if i == *old {
			return nil
		}
	} else {
		node, ok := t.s.freeNode()
		if !ok {
			return reject(errcode.LimitExceeded, "all node ids 0 to %d are in use by indexers or by copies", index.MaxNodeID)
		}
		i.Node, t.result.Node = node, node
		t.s.nextNodeID = (node + 1) % (index.MaxNodeID + 1)
	}
	i.ModifiedCAS = t.cas
	own(&t.s.indexers, &t.owned.indexers).Set(i.Node, &i)
	own(&t.s.nodes, &t.owned.nodes).Set(i.UUID, i.Node)
	t.changedDefinitions()
	t.emitIndexer(&i)
	return nil
}

// freeNode returns a node id that no indexer has and no copy refers to, searching onward from the id assigned last.
func (s *State) freeNode() (index.NodeID, bool) {
	held := s.nodesWithCopies()
	for k := range int(index.MaxNodeID) + 1 {
		n := index.NodeID((int(s.nextNodeID) + k) % (int(index.MaxNodeID) + 1))
		if s.Indexer(n) == nil && !held[n] {
			return n, true
		}
	}
	return 0, false
}

func (s *State) nodesWithCopies() (held [256]bool) {
	for x := range s.Indexes() {
		for _, c := range x.Topology.Copies {
			held[c.Node] = true
		}
	}
	return held
}

func (c *RemoveManager) apply(t *tx) *Rejection {
	if t.s.Manager(c.ID) == nil {
		return reject(errcode.UnknownNode, "there is no manager with id %q", c.ID)
	}
	own(&t.s.managers, &t.owned.managers).Delete(c.ID)
	t.changed = true
	t.emit(Event{Kind: EventManager, Name: c.ID, Removed: true})
	return nil
}

func (c *BeginRemoval) apply(t *tx) *Rejection {
	if rejection := checkIdentity("manager id", c.ID); rejection != nil {
		return rejection
	}
	t.result.Member = c.ID
	return nil
}

func (c *RemoveProjector) apply(t *tx) *Rejection {
	p := t.s.Projector(c.ID)
	switch {
	case p == nil:
		return reject(errcode.UnknownNode, "there is no projector with id %q", c.ID)
	case c.BootID != "" && c.BootID != p.BootID:
		return reject(errcode.NodeAlive, "projector %s has meanwhile another process (boot %s, before %s); nothing was "+
			"changed",
			c.ID, p.BootID, c.BootID)
	}
	own(&t.s.projectors, &t.owned.projectors).Delete(c.ID)
	t.changedDefinitions()
	t.emit(Event{Kind: EventProjector, Name: string(c.ID), Removed: true})
	return nil
}

func (c *RemoveIndexer) apply(t *tx) *Rejection {
	i := t.s.Indexer(c.Node)
	if i == nil || i.UUID != c.UUID {
		return reject(errcode.UnknownNode, "there is no indexer %d with uuid %q", c.Node, c.UUID)
	}
	if held := t.s.nodesWithCopies(); held[c.Node] {
		return reject(errcode.NodeInUse, "indexer %d (%s) still has copies of indexes; move or drop them first", c.Node,
			i.Name)
	}
	own(&t.s.indexers, &t.owned.indexers).Delete(c.Node)
	own(&t.s.nodes, &t.owned.nodes).Delete(c.UUID)
	own(&t.s.removed, &t.owned.removed).Set(c.UUID, t.cas)
	t.s.rebalances.going[c.Node] = false
	t.changedDefinitions()
	t.emit(Event{Kind: EventIndexer, Name: c.UUID, Node: c.Node, Removed: true})
	return nil
}

func (c *SetFormatLevel) apply(t *tx) *Rejection {
	if c.Level < t.s.formatLevel || c.Level > NextLevel {
		return reject(errcode.FormatNotAllowed, "format level %d; the cluster is at %d, the level cannot be lowered, and a "+
			"level that this version does not support cannot be set", c.Level, t.s.formatLevel)
	}
	if c.Level == t.s.formatLevel {
		return nil
	}
	if rejection := t.s.checkSupported(c.Level); rejection != nil {
		return rejection
	}
	t.s.formatLevel, t.changed = c.Level, true
	t.emitCluster()
	return nil
}

// checkSupported rejects a format level that a registered manager does not support: that manager would stop.
func (s *State) checkSupported(level uint64) *Rejection {
	for m := range s.Managers() {
		if m.FormatLevel < level {
			return reject(errcode.FormatNotAllowed, "manager %s (%s) is registered and supports format levels up to %d, not "+
				"%d; install a newer version of tidemark on it, or remove it", m.Name, m.ID, m.FormatLevel, level)
		}
	}
	return nil
}

func (c *SetLimits) apply(t *tx) *Rejection {
	l := c.Limits.withDefaults()
	if l.LedgerMaxAgeMS < l.LedgerMinAgeMS || l.LedgerMinAgeMS < 0 {
		return reject(errcode.InvalidArgument, "requests are remembered for at most %d ms and at least %d ms; the first "+
			"must not be smaller", l.LedgerMaxAgeMS, l.LedgerMinAgeMS)
	}
	if l == t.s.limits {
		return nil
	}
	t.s.limits, t.changed = l, true
	t.emitCluster()
	return nil
}

func (c *RaiseEpoch) apply(t *tx) *Rejection {
	if c.Epoch <= t.s.epoch {
		return reject(errcode.StaleTerm, "epoch %d, the cluster is at %d", c.Epoch, t.s.epoch)
	}
	t.s.epoch, t.s.term, t.s.leader = c.Epoch, 0, ""
	if c.ClearLedger {
		t.s.ledger = t.s.ledger.cleared()
	}
	if c.SkipNumbers {
		t.skipNumbers()
	}
	if c.ResetLimits {
		t.s.limits = DefaultLimits()
	}
	t.changedDefinitions()
	t.emitCluster()
	return nil
}

// skipNumbers skips numbers that a lost history may have assigned. It runs only in a recovery, when there are no
// subscribers to the events.
func (t *tx) skipNumbers() {
	t.cas += SkippedUpdates
	t.s.nextIndexID += SkippedIDs
	t.s.nextCopyID += SkippedIDs
	t.s.passed.generation += SkippedIDs // of buckets that only the lost history had
	t.s.passed.rollback += SkippedIDs
	for _, old := range slices.Collect(t.s.Buckets()) {
		b := *old
		b.Stability.Number += SkippedStability // also from 0: the lost history may have promoted the bucket
		b.Stability.RollbackID += SkippedIDs
		if b.Rollback != nil {
			r := *b.Rollback
			r.ID += SkippedIDs
			b.Rollback = &r
		}
		b.ModifiedCAS = t.cas
		t.setBucket(&b)
	}
}

// checkName rejects user-given names that are empty, too long, or contain control characters.
func (t *tx) checkName(what, name string) *Rejection {
	return checkText(what, name, int(t.s.limits.NameLength))
}

// checkIdentity is checkName with a fixed bound, for identifiers that users do not choose at run time.
func checkIdentity(what, id string) *Rejection { return checkText(what, id, maxIdentityBytes) }

// checkLabel is checkIdentity for a text that may be empty.
func checkLabel(what, text string) *Rejection {
	if text == "" {
		return nil
	}
	return checkIdentity(what, text)
}

func checkText(what, name string, most int) *Rejection {
	if name == "" || len(name) > most {
		return reject(errcode.InvalidArgument, "%s of %d bytes; want 1 to %d", what, len(name), most)
	}
	if strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\uFFFD' }) {
		return reject(errcode.InvalidArgument, "%s %q has control characters or is not UTF-8", what, name)
	}
	return nil
}

// checkTexts bounds the lengths of statement texts.
func (t *tx) checkTexts(texts ...string) *Rejection {
	return checkLengths(int(t.s.limits.StatementLength), texts)
}

// checkAddresses bounds the lengths of members' addresses and labels, independent of the configured limits.
func checkAddresses(texts ...string) *Rejection { return checkLengths(maxAddressBytes, texts) }

func checkLengths(most int, texts []string) *Rejection {
	for _, s := range texts {
		if len(s) > most {
			return reject(errcode.LimitExceeded, "a text of %d bytes; the limit is %d", len(s), most)
		}
	}
	return nil
}

// checkPlacement rejects copies that an index with this layout may not have. Every node must be registered; every
// slice of every replica needs one copy, or two while it is moved; and a node may hold one copy of a slice at most,
// whatever the replica. Copies that are leaving are not counted.
func (s *State) checkPlacement(l partition.Layout, replicas uint8, copies []partition.Copy) *Rejection {
	each := int(replicas) + 1
	seen, placed := make([]uint8, int(l.Partitions)*each), 0 // number of copies per slice and replica
	onNode := make([]nodeSet, l.Partitions)                  // nodes that hold a copy of the slice
	for _, c := range copies {
		if c.Slice >= index.SliceID(l.Partitions) || uint8(c.Replica) > replicas && c.State != partition.Leaving {
			return reject(errcode.PlacementInconsistent, "slice %d of replica %d; the index has %d slices and replicas 0 to %d",
				c.Slice, c.Replica, l.Partitions, replicas)
		}
		if s.Indexer(c.Node) == nil {
			return reject(errcode.UnknownNode, "slice %d is placed on node %d, which is not registered", c.Slice, c.Node)
		}
		if c.State == partition.Leaving {
			continue
		}
		n := &seen[int(c.Slice)*each+int(c.Replica)]
		switch *n++; *n {
		case 1:
			placed++
		case 3:
			return reject(errcode.PlacementInconsistent, "slice %d of replica %d is placed more than twice", c.Slice, c.Replica)
		}
		if onNode[c.Slice].has(c.Node) {
			return reject(errcode.PlacementInconsistent, "two copies of slice %d on node %d", c.Slice, c.Node)
		}
		onNode[c.Slice].add(c.Node)
	}
	if placed != len(seen) {
		return reject(errcode.PlacementInconsistent, "%d slices of replicas have a place; %d slices with %d replicas need %d",
			placed, l.Partitions, replicas, len(seen))
	}
	return nil
}

// nodeSet is a set of nodes.
type nodeSet [(int(index.MaxNodeID) + 64) / 64]uint64

func (s *nodeSet) has(n index.NodeID) bool { return s[n/64]&(1<<(n%64)) != 0 }

func (s *nodeSet) add(n index.NodeID) { s[n/64] |= 1 << (n % 64) }
