package statecontext

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/partition"
)

// ready moves an index to maintenance.
func (n *node) ready(id index.ID) {
	n.t.Helper()
	x := n.state.Index(id)
	var changes []index.CopyID
	for _, c := range x.Topology.Copies {
		changes = append(changes, c.ID)
	}
	n.must(&AllocateCopies{ID: id, Revision: x.PlacedCAS, Copies: changes})
	n.must(&SetIndexState{ID: id, From: index.Pending, To: index.Backfill})
	n.must(&SetIndexState{ID: id, From: index.Backfill, To: index.Maintenance})
}

func (n *node) backup() *Backup {
	n.t.Helper()
	var w bytes.Buffer
	if err := WriteBackup(&w, n.state, n.now, "1.2.3"); err != nil {
		n.t.Fatal(err)
	}
	b, err := ReadBackup(w.Bytes())
	if err != nil {
		n.t.Fatal(err)
	}
	return b
}

// stage sends all of a backup except the end.
func (n *node) stage(b *Backup, mode RestoreMode) {
	n.t.Helper()
	n.must(&BeginRestore{ID: "r1", Mode: mode, Bytes: uint64(len(b.Snapshot)), Sum: sha256.Sum256(b.Snapshot)})
	const piece = 100
	for at := 0; at < len(b.Snapshot); at += piece {
		chunk := &RestoreChunk{ID: "r1", Offset: uint64(at), Data: b.Snapshot[at:min(at+piece, len(b.Snapshot))]}
		n.must(chunk)
		if r := n.must(chunk); r.Changed {
			n.t.Fatal("a piece counted twice")
		}
	}
}

func TestRestoreInPlace(t *testing.T) {
	n := cluster(t)
	gone, stays := n.must(create("gone", 1, 0, 1, 1, 0)).Index, n.must(create("stays", 0, 1)).Index
	deferred := create("deferred", 0, 0)
	deferred.Definition.Deferred = true
	waiting := n.must(deferred).Index
	n.ready(gone)
	n.ready(stays)
	was := n.state.Index(gone)
	b := n.backup()

	n.must(&DropIndex{ID: gone})
	n.must(&RemoveIndex{ID: gone})
	n.must(&DropIndex{ID: waiting})
	later := n.must(create("later", 0, 0)).Index
	again := n.must(create("gone", 0, 1)).Index // the name was reused
	n.must(n.advance("b", vector(9, 9, 9, 9)))
	n.must(&RegisterIndexer{Indexer: Indexer{UUID: "u0", BootID: "boot2", Name: "i0"}})
	n.must(&RegisterIndexer{Indexer: Indexer{UUID: "u2", Name: "i2"}})
	n.apply(Command{TimeMS: n.now, Request: &Request{Principal: "p", Key: "k"}, Body: &DropIndex{ID: 999}})

	plan, err := PlanRestore(n.state, b.State, RestoreInPlace, 8, nil, nil)
	want := RestorePlan{Kept: 1, Rebuilt: 1, Waiting: 1, Dropped: 2, Named: []PlannedIndex{
		{ID: stays, Keyspace: "b", Name: "stays", Fate: FateKept},
		{ID: later, Keyspace: "b", Name: "later", Fate: FateDropped},
		{ID: again, Keyspace: "b", Name: "gone", Fate: FateDropped, Note: "the backup has another index of that name"},
		{ID: gone, Keyspace: "b", Name: "gone", Fate: FateRebuilt, Note: "4 of 4 copies are rebuilt"},
		{ID: waiting, Keyspace: "b", Name: "deferred", Fate: FateWaiting},
	}}
	if err != nil || !reflect.DeepEqual(plan, want) {
		t.Fatalf("plan %+v, %v, want %+v", plan, err, want)
	}
	n.stage(b, RestoreInPlace)
	n.refuse(create("meanwhile", 0, 0), errcode.Restoring)
	n.refuse(&BeginRestore{ID: "r2", Mode: RestoreInPlace, Bytes: 1}, errcode.Restoring)
	middle := n.state
	back, err := ReadSnapshot(bytes.NewReader(snapshot(t, middle)))
	if err != nil || Hash(back) != Hash(middle) || back.Staging().Received != uint64(len(b.Snapshot)) {
		t.Fatalf("a snapshot in the middle of a restore: %v", err)
	}
	n.refuse(&FinishRestore{ID: "r1", Epoch: 7}, errcode.StaleTerm)
	n.must(&FinishRestore{ID: "r1", Epoch: 8})

	s := n.state
	if s.Epoch() != 8 || s.ClusterID() != "c1" || s.LedgerLen() != 0 || s.Staging() != nil ||
		s.Restored().FromCAS != b.CAS || s.Restored().CAS != s.CAS() {
		t.Fatalf("restored\n%s", Describe(s))
	}
	x := s.IndexByName("b", "gone")
	if x == nil || x.Definition.ID != gone || x.Definition.State != index.Pending ||
		len(x.Topology.Copies) != len(was.Topology.Copies) {
		t.Fatalf("the dropped index came back as %+v", x)
	}
	for i, c := range x.Topology.Copies {
		if o := was.Topology.Copies[i]; c.ID != o.ID || c.Node != o.Node || c.State != partition.Placed {
			t.Fatalf("copy %+v of %+v", c, o)
		}
	}
	if k := s.Index(stays); k.Definition.State != index.Maintenance || k.Topology.Copies[0].State != partition.Allocated {
		t.Fatalf("an index that was there all the time is %+v", k)
	}
	if w := s.Index(waiting); w == nil || !w.Definition.Deferred || w.Definition.State != index.Pending {
		t.Fatalf("the deferred one: %+v", w)
	}
	if s.Index(later) != nil || s.Index(again) != nil {
		t.Fatal("indexes that the backup does not have are there")
	}
	if i := s.IndexerByUUID("u0"); i.BootID != "boot2" || s.IndexerByUUID("u2") == nil {
		t.Fatalf("registrations of the running cluster: %+v", i)
	}
	if s.Bucket("b").Stability.Vector.Seqnos[0] != 9 {
		t.Fatal("the stability timestamp went back")
	}
	if r := n.must(create("new", 0, 0)); r.Index <= again {
		t.Fatal("an index id was used again")
	}
}

// TestRestoreKeepsExistingIndexes: an existing index stays as it is and keeps serving, whatever was changed since the
// backup, and whatever became of its bucket or its indexers; the plan reports the differences from the backup.
func TestRestoreKeepsExistingIndexes(t *testing.T) {
	replica := func(x *Index) *AlterIndex {
		return &AlterIndex{ID: x.Definition.ID, Replicas: 1,
			Add: []Placement{{Slice: 0, Replica: 1, Node: 1}, {Slice: 1, Replica: 1, Node: 0}}}
	}
	for _, c := range []struct {
		name   string
		change func(n *node, x *Index)
		note   string
	}{
		{"replica added", func(n *node, x *Index) {
			n.must(replica(x))
			for _, c := range n.state.Index(x.Definition.ID).Topology.Copies {
				n.allocate(x.Definition.ID, c.ID)
			}
		}, "num_replica 1, in the backup 0"},
		{"replica being filled", func(n *node, x *Index) { n.must(replica(x)) }, "num_replica 1, in the backup 0"},
		{"nodes named", func(n *node, x *Index) {
			n.must(&AlterIndex{ID: x.Definition.ID, Nodes: []string{"i0"}})
		}, "nodes i0, in the backup any"},
		{"no more slices by itself", func(n *node, x *Index) {
			n.must(&SetAutoSplit{ID: x.Definition.ID, Off: true})
		}, "auto_split false, in the backup true"},
		{"split", func(n *node, x *Index) {
			n.ready(n.must(split(n.t, x, "10", "20")).Index)
		}, "num_partition 3, in the backup 2"},
		{"split, the first one forgotten", func(n *node, x *Index) {
			n.ready(n.must(split(n.t, x, "20")).Index)
			n.must(&RemoveIndex{ID: x.Definition.ID})
		}, "its split values differ from the backup's"},
		{"built on a bucket that was made again", func(n *node, x *Index) {
			n.must(&SetBucket{Name: "b", UUID: "bu2", VBuckets: 4})
			n.must(&BuildIndexes{IDs: []index.ID{x.Definition.ID}})
			n.ready(x.Definition.ID)
		}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := cluster(t)
			first := n.must(ranged("x", "10")).Index
			n.ready(first)
			b := n.backup()
			c.change(n, n.state.Index(first))
			was := n.state.IndexByName("b", "x")
			fate := FateDiffering
			if c.note == "" {
				fate = FateKept
			}
			want := []PlannedIndex{{ID: was.Definition.ID, Keyspace: "b", Name: "x", Fate: fate, Note: c.note}}
			plan, err := PlanRestore(n.state, b.State, RestoreInPlace, 8, nil, nil)
			if err != nil || !reflect.DeepEqual(plan.Named, want) || plan.Of(fate) != 1 {
				t.Errorf("plan %+v, %v, want %+v", plan, err, want)
			}
			dropping := n.state.Index(first).dropping()
			n.stage(b, RestoreInPlace)
			n.must(&FinishRestore{ID: "r1", Epoch: 8})
			if x := n.state.IndexByName("b", "x"); !reflect.DeepEqual(x, was) || x.Definition.State != index.Maintenance {
				t.Errorf("restored %+v, was %+v", x, was)
			}
			if n.state.Index(first).dropping() != dropping {
				t.Error("the drop of the one that was split does not go on")
			}
		})
	}
}

func (x *Index) dropping() bool { return x != nil && x.Definition.State == index.Dropping }

// TestRestorePlanReportsWhatIsBuilt: an index is adopted if hosts hold a copy of each slice as orphans; otherwise it is
// built, and the plan reports how many copies are made.
func TestRestorePlanReportsWhatIsBuilt(t *testing.T) {
	n := cluster(t)
	id := n.must(create("x", 1, 0, 1, 1, 0)).Index // two slices, two copies of each
	n.ready(id)
	copies := n.state.Index(id).Topology.Copies
	b := n.backup()
	n.must(&DropIndex{ID: id})
	n.must(&RemoveIndex{ID: id})
	for _, c := range []struct {
		name string
		held []int
		fate RestoreFate
		note string
	}{
		{"all", []int{0, 1, 2, 3}, FateAdopted, ""},
		{"one of each slice", []int{0, 3}, FateAdopted, "2 of 4 copies are rebuilt"},
		{"both of one slice", []int{0, 2}, FateRebuilt, "2 of 4 copies are rebuilt"},
		{"one", []int{0}, FateRebuilt, "3 of 4 copies are rebuilt"},
		{"none", nil, FateRebuilt, "4 of 4 copies are rebuilt"},
	} {
		orphans := make(map[index.CopyID]bool)
		for _, at := range c.held {
			orphans[copies[at].ID] = true
		}
		plan, err := PlanRestore(n.state, b.State, RestoreInPlace, 8, nil, orphans)
		want := []PlannedIndex{{ID: id, Keyspace: "b", Name: "x", Fate: c.fate, Note: c.note}}
		if err != nil || !reflect.DeepEqual(plan.Named, want) {
			t.Errorf("%s: plan %+v, %v, want %+v", c.name, plan, err, want)
		}
	}
}

// TestRestorePlanIsBounded: of many indexes with the same fate some are listed, and all are counted.
func TestRestorePlanIsBounded(t *testing.T) {
	n := cluster(t)
	for i := range MaxPlanned + 3 {
		n.must(create(fmt.Sprint("x", i), 0, 0))
	}
	plan, err := PlanRestore(n.state, n.backup().State, RestoreInPlace, 8, nil, nil)
	if err != nil || plan.Kept != MaxPlanned+3 || len(plan.Named) != MaxPlanned {
		t.Errorf("%d kept, %d named, %v", plan.Kept, len(plan.Named), err)
	}
}

func TestRestoreIsAllOrNothing(t *testing.T) {
	n := cluster(t)
	n.must(create("x", 0, 0))
	b := n.backup()
	n.must(&DropIndex{ID: 1})
	n.stage(b, RestoreInPlace)
	n.must(&LeaderStarted{Term: 2, Manager: Manager{ID: "m2"}}) // the leader that ran the restore is dead
	n.refuse(&FinishRestore{ID: "r1", Epoch: 8}, errcode.RestoreMismatch)
	n.refuse(&RestoreChunk{ID: "r1", Data: []byte{1}}, errcode.RestoreMismatch)
	n.must(create("x", 0, 0)) // users need not wait any longer

	n.must(&BeginRestore{ID: "r1", Mode: RestoreInPlace, Bytes: 4, Sum: sha256.Sum256([]byte("abcd"))})
	n.refuse(&RestoreChunk{ID: "r1", Offset: 1, Data: []byte("b")}, errcode.RestoreMismatch)
	n.refuse(&RestoreChunk{ID: "r1", Data: []byte("abcde")}, errcode.InvalidArgument)
	n.must(&RestoreChunk{ID: "r1", Data: []byte("ab")})
	n.refuse(&FinishRestore{ID: "r1", Epoch: 8}, errcode.RestoreMismatch)
	n.must(&RestoreChunk{ID: "r1", Offset: 2, Data: []byte("cd")})
	n.refuse(&FinishRestore{ID: "r1", Epoch: 8}, errcode.BackupUnusable)
	n.must(&AbortRestore{ID: "other"})
	if n.state.Staging() == nil {
		t.Fatal("another restore's end ended this one")
	}
	n.must(&AbortRestore{ID: "r1"})
	if n.state.Staging() != nil {
		t.Fatal("given up, and still there")
	}
	n.must(&BeginRestore{ID: "r1", Mode: RestoreInPlace, Bytes: 4})
	n.now += RestorePatienceMS
	n.must(&BeginRestore{ID: "r2", Mode: RestoreInPlace, Bytes: 4}) // the previous one made no progress
	n.refuse(&BeginRestore{ID: "r3", Mode: 9, Bytes: 4}, errcode.Restoring)
	n.must(&AbortRestore{})
	n.refuse(&BeginRestore{ID: "r3", Mode: 9, Bytes: 4}, errcode.InvalidArgument)
	n.refuse(&BeginRestore{ID: "r3", Mode: RestoreInPlace, Bytes: MaxRestoreBytes + 1}, errcode.LimitExceeded)
}

// elsewhere returns another cluster with some indexers and no indexes.
func elsewhere(t testing.TB, indexers int) *node {
	n := newNode(t)
	n.must(&LeaderStarted{Term: 1, Manager: Manager{ID: "other"}})
	n.must(&BootstrapCluster{ClusterID: "c2", Epoch: 3, FormatLevel: FormatLevel})
	for i := range indexers {
		n.must(&RegisterIndexer{Indexer: Indexer{UUID: fmt.Sprint("v", i), Name: fmt.Sprint("i", i)}})
	}
	return n
}

func TestRestoreIntoANewCluster(t *testing.T) {
	from := cluster(t)
	replicated := from.must(create("replicated", 1, 0, 1, 1, 0)).Index
	named := create("named", 0, 1)
	named.Definition.Nodes = []string{"i1"}
	from.must(named)
	from.ready(replicated)
	from.must(&SetBucket{Name: "lost", UUID: "lu", VBuckets: 2})
	c := create("of_lost", 0, 0)
	c.Definition.Bucket, c.Definition.BucketUUID = "lost", "lu"
	from.must(c)
	b := from.backup()

	one := elsewhere(t, 1)
	one.stage(b, RestoreNewCluster)
	before := Hash(one.state)
	one.refuse(&FinishRestore{ID: "r1", Epoch: 8}, errcode.PlacementImpossible) // a replica needs two indexers
	if Hash(one.state) != before {
		t.Fatal("a refused restore has changed something")
	}

	n := elsewhere(t, 3)
	n.must(n.advanceless())
	n.stage(b, RestoreNewCluster)
	n.must(&FinishRestore{ID: "r1", Epoch: 8, Buckets: []FoundBucket{{Name: "b", UUID: "elsewhere", VBuckets: 8}}})
	s := n.state
	if s.ClusterID() != "c2" || s.Epoch() != 8 {
		t.Fatalf("cluster %s epoch %d", s.ClusterID(), s.Epoch())
	}
	x := s.IndexByName("b", "replicated")
	if x.Definition.State != index.Pending || x.Definition.BucketUUID != "elsewhere" || len(x.Topology.Copies) != 4 {
		t.Fatalf("%+v", x)
	}
	for _, c := range x.Topology.Copies {
		if c.State != partition.Placed || c.ID < b.State.nextCopyID {
			t.Fatalf("copy %+v", c)
		}
	}
	if c := s.IndexByName("b", "named").Topology.Copies[0]; s.Indexer(c.Node).Name != "i1" {
		t.Fatalf("an index that wants to be on i1 is on node %d", c.Node)
	}
	if b := s.Bucket("b"); b.UUID != "elsewhere" || b.VBuckets != 8 || b.Generation != 2 || b.Gone {
		t.Fatalf("bucket %+v", b)
	}
	if x := s.IndexByName("lost", "of_lost"); x.Definition.State != index.Error || !s.Bucket("lost").Gone {
		t.Fatalf("the index of a bucket that is not there: %+v", x)
	}
	n.stage2(b)
}

// TestRestorePlacesOnNodesThatStay: a restore places no copy on an indexer that is being removed, and uses one that
// is to be emptied only if the others are too few.
func TestRestorePlacesOnNodesThatStay(t *testing.T) {
	from := cluster(t)
	from.must(create("lone", 0, 0, 1, 0, 1))
	from.must(create("pair", 1, 0, 1, 1, 0))
	b := from.backup()
	for _, c := range []struct {
		nodes        int
		lone, paired []index.NodeID
	}{{5, []index.NodeID{0, 3, 4}, []index.NodeID{0, 3, 4}}, {3, []index.NodeID{0}, []index.NodeID{0, 2}}} {
		n := elsewhere(t, c.nodes)
		u := func(node index.NodeID) string { return n.state.Indexer(node).UUID }
		n.must(&EvictIndexer{Node: 1, UUID: u(1), Revision: n.state.DefinitionsRevision()})
		n.must(&SetIndexerGoing{Node: 2, UUID: u(2), Going: true})
		n.stage(b, RestoreNewCluster)
		n.must(&FinishRestore{ID: "r1", Epoch: 8, Buckets: []FoundBucket{{Name: "b", UUID: "elsewhere", VBuckets: 8}}})
		for name, want := range map[string][]index.NodeID{"lone": c.lone, "pair": c.paired} {
			for _, o := range n.state.IndexByName("b", name).Topology.Copies {
				if !slices.Contains(want, o.Node) {
					t.Errorf("%d indexers: slice %d of %s was placed on node %d, want one of %v", c.nodes, o.Slice, name, o.Node, want)
				}
			}
		}
	}
	n := elsewhere(t, 2)
	n.must(&EvictIndexer{Node: 1, UUID: n.state.Indexer(1).UUID, Revision: n.state.DefinitionsRevision()})
	n.stage(b, RestoreNewCluster)
	n.refuse(&FinishRestore{ID: "r1", Epoch: 8, Buckets: []FoundBucket{{Name: "b", UUID: "elsewhere", VBuckets: 8}}},
		errcode.PlacementImpossible)
}

// advanceless returns a change that does not concern indexes.
func (n *node) advanceless() Body {
	return &RegisterProjector{Projector: Projector{ID: "p9", Admin: "http://p9"}}
}

// stage2 verifies that a cluster with indexes does not count as a new one.
func (n *node) stage2(b *Backup) {
	n.stage(b, RestoreNewCluster)
	n.refuse(&FinishRestore{ID: "r1", Epoch: 9}, errcode.BackupOfOther)
}

func TestBackupOfAnotherClusterIsRefused(t *testing.T) {
	b := cluster(t).backup()
	for _, c := range []struct {
		to   *node
		mode RestoreMode
	}{{elsewhere(t, 2), RestoreInPlace}, {cluster(t), RestoreNewCluster}} {
		if _, err := PlanRestore(c.to.state, b.State, c.mode, 99, nil, nil); !errors.Is(err, errcode.BackupOfOther) {
			t.Errorf("%s: %v", c.mode, err)
		}
	}
}

// TestBackupIsChecked: a backup with any bit flipped, or truncated at any point, is refused with a named error.
func TestBackupIsChecked(t *testing.T) {
	n := cluster(t)
	n.must(create("x", 1, 0, 1))
	var w bytes.Buffer
	if err := WriteBackup(&w, n.state, 1234, "1.2.3"); err != nil {
		t.Fatal(err)
	}
	good := w.Bytes()
	b, err := ReadBackup(good)
	if err != nil || Hash(b.State) != Hash(n.state) || b.TimeMS != 1234 || b.Version != "1.2.3" || b.CAS != n.state.CAS() {
		t.Fatalf("%+v, %v", b, err)
	}
	for at := range good {
		if _, err := ReadBackup(good[:at]); !errors.Is(err, ErrBackupCorrupt) {
			t.Fatalf("cut at %d: %v", at, err)
		}
		for bit := range 8 {
			bad := bytes.Clone(good)
			bad[at] ^= 1 << bit
			if _, err := ReadBackup(bad); !errors.Is(err, ErrBackupCorrupt) && !errors.Is(err, ErrBackupVersion) {
				t.Fatalf("bit %d of byte %d flipped: %v", bit, at, err)
			}
		}
	}
	if _, err := ReadBackup(append(bytes.Clone(good), 0)); !errors.Is(err, ErrBackupCorrupt) {
		t.Fatalf("one byte too many: %v", err)
	}
	if _, err := ReadBackupUpTo(0, good); !errors.Is(err, ErrBackupVersion) {
		t.Fatalf("read by an older program: %v", err)
	}
	newer := bytes.Clone(good)
	newer[8] = BackupVersion + 1
	if _, err := ReadBackup(newer); !errors.Is(err, ErrBackupVersion) {
		t.Fatalf("a newer form: %v", err)
	}
}

// TestABackupHasNoSecrets: a backup contains no hashes of passwords or tokens, and the state it was made from keeps
// them.
func TestABackupHasNoSecrets(t *testing.T) {
	n := goldenUsers(t)
	var w bytes.Buffer
	if err := WriteBackup(&w, n.state, 1, "1.0"); err != nil {
		t.Fatal(err)
	}
	for u := range n.state.Users() {
		if bytes.Contains(w.Bytes(), []byte(u.Hash)) {
			t.Errorf("the hash of %s is in the backup", u.Name)
		}
	}
	for x := range n.state.Tokens() {
		if bytes.Contains(w.Bytes(), x.Hash[:8]) || bytes.Contains(w.Bytes(), []byte(x.ID)) {
			t.Errorf("token %s is in the backup", x.ID)
		}
	}
	b, err := ReadBackup(w.Bytes())
	if err != nil || b.State.UserCount() != 0 || n.state.UserCount() != 2 {
		t.Errorf("%v; %d users in the backup, %d in the state", err, b.State.UserCount(), n.state.UserCount())
	}
}
