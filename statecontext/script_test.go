package statecontext

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/partition"
	"tidemark/timestamp"
)

var writeGolden = flag.Bool("write-golden", false, "write the golden log and snapshot of the present format; never "+
	"over one that was released")

// TestScripts runs the golden scripts: each block applies commands, one per line, as separate entries (`apply`) or
// together (`entry`), and prints the results; `describe` prints the state; `time` moves the proposers' clock.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		n := newNode(t)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			n.t = t
			switch d.Cmd {
			case "apply", "entry":
				return runScript(t, n, d.Input, d.Cmd == "entry")
			case "describe":
				return Describe(n.state)
			case "time":
				n.now += number(t, d.Input)
				return ""
			}
			t.Fatalf("%s: unknown directive %s", d.Pos, d.Cmd)
			return ""
		})
		if testing.Short() {
			return
		}
		replayGolden(t, n)
	})
}

func runScript(t *testing.T, n *node, input string, together bool) string {
	var w strings.Builder
	var commands []Command
	flush := func() {
		for _, r := range n.apply(commands...) {
			fmt.Fprintln(&w, describeResult(&r))
			for _, b := range r.Buckets {
				fmt.Fprintf(&w, "  without %s: %v\n", b.Bucket, b.Rejection)
			}
		}
		commands = nil
	}
	for line := range strings.Lines(input) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		commands = append(commands, parseCommand(t, n, line))
		if !together {
			flush()
		}
	}
	if together {
		flush()
	}
	return w.String()
}

// words holds the fields of a script line: positional ones and name=value.
type words struct {
	t     *testing.T
	plain []string
	named map[string]string
}

func (w *words) next() string {
	if len(w.plain) == 0 {
		w.t.Fatal("a word is missing")
	}
	s := w.plain[0]
	w.plain = w.plain[1:]
	return s
}

func (w *words) num() uint64 { return uint64(number(w.t, w.next())) }

func number(t *testing.T, s string) int64 {
	i, err := strconv.ParseInt(strings.TrimSpace(s), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// vec parses seqno[/branch] words up to the end of the text.
func vec(t *testing.T, text string) timestamp.Vector {
	parts := strings.Split(text, ",")
	v := timestamp.New(len(parts))
	for i, p := range parts {
		seq, branch, ok := strings.Cut(p, "/")
		pos := timestamp.Position{Seqno: uint64(number(t, seq))}
		if ok {
			u, err := strconv.ParseUint(branch, 16, 64)
			if err != nil {
				t.Fatal(err)
			}
			pos.VBUUID = u
		}
		v.Set(i, pos)
	}
	return v
}

func parseCommand(t *testing.T, n *node, line string) Command {
	w := &words{t: t, named: map[string]string{}}
	fields := strings.Fields(line)
	for _, f := range fields[1:] {
		if name, value, ok := strings.Cut(f, "="); ok {
			w.named[name] = value
		} else {
			w.plain = append(w.plain, f)
		}
	}
	c := Command{TimeMS: n.now, Body: parseBody(t, n, fields[0], w)}
	if key := w.named["key"]; key != "" {
		c.Request = &Request{Principal: "user", Key: key}
		copy(c.Request.BodyHash[:], w.named["body"])
	} else if by := w.named["by"]; by != "" {
		c.Request = &Request{Principal: by}
	}
	if len(w.plain) > 0 {
		t.Fatalf("%q: too many words: %q", line, w.plain)
	}
	return c
}

func parseBody(t *testing.T, n *node, verb string, w *words) Body {
	opt := func(name string) uint64 {
		if s := w.named[name]; s != "" {
			return uint64(number(t, s))
		}
		return 0
	}
	switch verb {
	case "leader":
		return &LeaderStarted{Term: w.num(), Manager: Manager{ID: w.next(), REST: "http://" + w.named["rest"]}}
	case "bootstrap":
		return &BootstrapCluster{ClusterID: w.next(), Epoch: w.num()}
	case "epoch":
		return &RaiseEpoch{Epoch: w.num(), ClearLedger: w.named["skip"] == "", SkipNumbers: w.named["skip"] != ""}
	case "projector":
		return &RegisterProjector{Projector: Projector{ID: index.ProjectorID(w.next()), Admin: w.next(),
			BootID: w.named["boot"]}}
	case "indexer":
		return &RegisterIndexer{Indexer: Indexer{UUID: w.next(), Admin: w.next(), BootID: w.named["boot"]}}
	case "remove-indexer":
		return &RemoveIndexer{Node: index.NodeID(w.num()), UUID: w.next()}
	case "put-user": // put-user new|change|first NAME ROLE HASH; - for none
		modes := map[string]PutMode{"new": PutNew, "change": PutChange, "first": PutFirst}
		c := &PutUser{Mode: modes[w.next()], Name: w.next()}
		c.Role, _ = ParseUserRole(w.next())
		if c.Hash = w.next(); c.Hash == "-" {
			c.Hash = ""
		}
		return c
	case "remove-user":
		return &RemoveUser{Name: w.next()}
	case "put-token": // put-token SECRET USER ROLE [ends=MS] [note=TEXT | session-of=CAS]
		x := Token{Hash: sha256.Sum256([]byte(w.next())), User: w.next(), Note: w.named["note"],
			ExpiresMS: int64(opt("ends"))}
		if at := w.named["session-of"]; at != "" { // with the user's version at that cas
			x.Note, x.ModifiedCAS = SessionNote, opt("session-of")
		}
		x.Role, _ = ParseUserRole(w.next())
		return &PutToken{Token: x}
	case "remove-token": // remove-token SECRET
		return &RemoveToken{ID: TokenID(sha256.Sum256([]byte(w.next())))}
	case "level":
		return &SetFormatLevel{Level: w.num()}
	case "evict":
		return parseEvict(t, n, w)
	case "evict-copies":
		return parseEvictCopies(t, n, w)
	case "rollback-logs": // rollback-logs BUCKET ID
		return &RollbackLogs{Bucket: w.next(), ID: w.num(), Generation: opt("generation"), Logs: parseLogs(t, w)}
	case "bucket":
		return &SetBucket{Name: w.next(), UUID: w.next(), VBuckets: int(w.num())}
	case "bucket-gone":
		return &BucketGone{Name: w.next(), UUID: w.next()}
	case "create":
		return parseCreate(t, w)
	case "build":
		return &BuildIndexes{IDs: []index.ID{index.ID(w.num())}}
	case "drop":
		return &DropIndex{ID: index.ID(w.num()), IfMatch: opt("if-match")}
	case "remove":
		return &RemoveIndex{ID: index.ID(w.num())}
	case "state":
		c := &SetIndexState{ID: index.ID(w.num()), Reason: w.named["reason"], Guard: Guard{Generation: opt("generation"),
			RollbackID: opt("rollback")}}
		for _, s := range []*index.State{&c.From, &c.To} {
			if err := s.UnmarshalText([]byte(w.next())); err != nil {
				t.Fatal(err)
			}
		}
		return c
	case "allocate": // allocate revision=N INDEX COPY [COPY ...]
		c := &AllocateCopies{Revision: opt("revision"), ID: index.ID(w.num())}
		for len(w.plain) > 0 {
			c.Copies = append(c.Copies, index.CopyID(w.num()))
		}
		return c
	}
	return parseBucketBody(t, n, verb, w, opt)
}

func parseBucketBody(t *testing.T, n *node, verb string, w *words, opt func(string) uint64) Body {
	switch verb {
	case "promote": // promote BUCKET VECTOR [BUCKET VECTOR ...]
		c := &AdvanceStability{}
		for len(w.plain) > 0 {
			b := n.state.Bucket(w.next())
			v := vec(t, w.next())
			a, err := NewBucketAdvance(b, v, v, parseLogs(t, w))
			if err != nil {
				t.Fatal(err)
			}
			if w.named["number"] != "" {
				a.Number = opt("number")
			}
			c.Buckets = append(c.Buckets, a)
		}
		return c
	case "backfill":
		return &SetBackfillTimestamp{Bucket: w.next(), Generation: opt("generation"), Vector: vec(t, w.next())}
	case "rollback": // rollback BUCKET ID FROM TO
		c := &SetRollbackStep{Bucket: w.next(), ID: w.num(), Generation: opt("generation"), Logs: parseLogs(t, w)}
		for _, s := range []*RollbackStep{&c.From, &c.To} {
			if err := s.UnmarshalText([]byte(w.next())); err != nil {
				t.Fatal(err)
			}
		}
		for name, v := range map[string]*timestamp.Vector{"failover": &c.Failover, "restart": &c.Restart,
			"stability": &c.Stability} {
			if s := w.named[name]; s != "" {
				*v = vec(t, s)
			}
		}
		return c
	}
	t.Fatalf("unknown command %q", verb)
	return nil
}

// parseEvict parses evict NODE UUID [revision=N].
func parseEvict(t *testing.T, n *node, w *words) Body {
	c := &EvictIndexer{Node: index.NodeID(w.num()), UUID: w.next(), Revision: n.state.DefinitionsRevision()}
	if s := w.named["revision"]; s != "" {
		c.Revision = uint64(number(t, s))
	}
	return c
}

// parseEvictCopies parses evict-copies NODE UUID [topology=N], and for each index the new copies:
// SLICE/REPLICA@NODE+..., or - for none.
func parseEvictCopies(t *testing.T, n *node, w *words) Body {
	c := &EvictCopies{Node: index.NodeID(w.num()), UUID: w.next()}
	for len(w.plain) > 0 {
		e := Eviction{ID: index.ID(w.num())}
		if x := n.state.Index(e.ID); x != nil {
			e.IfTopology = x.TopologyCAS
		}
		if s := w.named["topology"]; s != "" {
			e.IfTopology = uint64(number(t, s))
		}
		if list := w.next(); list != "-" {
			for _, one := range strings.Split(list, "+") {
				slice, rest, _ := strings.Cut(one, "/")
				replica, on, _ := strings.Cut(rest, "@")
				e.Add = append(e.Add, Placement{Slice: index.SliceID(number(t, slice)),
					Replica: partition.Replica(number(t, replica)), Node: index.NodeID(number(t, on))})
			}
		}
		c.Indexes = append(c.Indexes, e)
	}
	return c
}

// parseLogs parses log=VB:uuid@seqno+uuid@seqno, newest first, with the map revision from rev=.
func parseLogs(t *testing.T, w *words) []timestamp.VBucketLog {
	text := w.named["log"]
	if text == "" {
		return nil
	}
	vb, list, _ := strings.Cut(text, ":")
	l := timestamp.VBucketLog{VBucket: uint16(number(t, vb))}
	if r := w.named["rev"]; r != "" {
		l.Revision.Rev = uint64(number(t, r))
	}
	for _, e := range strings.Split(list, "+") {
		uuid, seqno, _ := strings.Cut(e, "@")
		u, err := strconv.ParseUint(uuid, 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		l.Log = append(l.Log, timestamp.LogEntry{VBUUID: u, Seqno: uint64(number(t, seqno))})
	}
	return []timestamp.VBucketLog{l}
}

// parseCreate parses create BUCKET NAME UUID NODE,NODE... [replicas=N] [if-not-exists=1] [deferred=1]: the nodes of
// all slices of replica 0, then of replica 1, and so on.
func parseCreate(t *testing.T, w *words) *CreateIndex {
	bucket, name, uuid := w.next(), w.next(), w.next()
	var nodes []index.NodeID
	for _, s := range strings.Split(w.next(), ",") {
		nodes = append(nodes, index.NodeID(number(t, s)))
	}
	replicas := 0
	if s := w.named["replicas"]; s != "" {
		replicas = int(number(t, s))
	}
	c := create(name, uint8(replicas), nodes...)
	c.Definition.Bucket, c.Definition.BucketUUID = bucket, uuid
	c.Definition.Deferred = w.named["deferred"] != ""
	c.IfNotExists = w.named["if-not-exists"] != ""
	c.Layout.Scheme = partition.HashDocID
	return c
}

// goldens lists the golden logs by format level and subject. The logs of a released version are never written again;
// a kind of command added later gets a log of its own.
var goldens = []struct {
	name string
	play func(t testing.TB) *node
}{
	{"v1", populated},
	{"v1-restore", goldenRestore},
	{"v1-partitions", goldenPartitions},
	{"v1-rules", goldenRules},
	{"v1-forgets", goldenForgets},
	{"v1-settings", goldenSettings},
	{"v1-evict", goldenEvict},
	{"v1-users", goldenUsers},
	{"v1-collections", goldenCollections},
	{"v1-split", goldenSplit},
	{"v1-names", goldenNames},
	{"v1-cause", goldenSplitByItself},
	{"v1-seen", goldenSeen},
	{"v1-autosplit", goldenAutoSplit},
	{"v1-absence", goldenAbsence},
	{"v1-removal", goldenRemoval},
	{"next", goldenNext},
}

// goldenPaths returns the golden files, which preserve each format's log and snapshot: a log with one entry per line,
// followed by its hash, and the snapshot of the resulting state.
func goldenPaths(name string) (log, snapshot string) {
	return fmt.Sprintf("testdata/golden/log-%s.txt", name), fmt.Sprintf("testdata/golden/snapshot-%s.bin", name)
}

// goldenEvict removes indexers that hold copies of indexes that wait, are ready, or are being dropped.
func goldenEvict(t testing.TB) *node {
	n := cluster(t)
	n.must(&RegisterIndexer{Indexer: Indexer{UUID: "u2", Admin: "http://2", Name: "i2"}})
	n.must(create("lone", 0, 0, 1))
	n.must(create("pair", 1, 0, 1, 1, 0))
	n.must(create("going", 0, 0))
	n.ready(2)
	n.must(&DropIndex{ID: 3})
	topology := func(id index.ID) uint64 { return n.state.Index(id).TopologyCAS }
	n.must(&EvictIndexer{Node: 0, UUID: "u0", Revision: n.state.DefinitionsRevision()})
	n.refuse(&EvictCopies{Node: 0, UUID: "u0", Indexes: []Eviction{{ID: 1, IfTopology: topology(1)}}},
		errcode.PlacementInconsistent)
	n.must(&EvictCopies{Node: 0, UUID: "u0", Indexes: []Eviction{{ID: 3, IfTopology: topology(3)},
		{ID: 1, IfTopology: topology(1), Add: []Placement{{Slice: 0, Node: 2}}}}})
	n.must(&EvictIndexer{Node: 1, UUID: "u1", Revision: n.state.DefinitionsRevision()})
	n.must(&EvictCopies{Node: 0, UUID: "u0", Indexes: []Eviction{
		{ID: 2, IfTopology: topology(2), Add: []Placement{{Slice: 0, Node: 2}, {Slice: 1, Replica: 1, Node: 2}}}}})
	n.must(&RemoveIndexer{Node: 0, UUID: "u0"})
	n.must(&SetRollbackStep{Bucket: "b", Generation: 1, To: Started})
	n.must(&RollbackLogs{Bucket: "b", Generation: 1, ID: 1, Logs: []timestamp.VBucketLog{{VBucket: 2,
		Log:      timestamp.FailoverLog{{VBUUID: 0xb, Seqno: 3}, {VBUUID: 0xa}},
		Revision: timestamp.MapRevision{Epoch: 1, Rev: 5}}}})
	return n // node 1 is still being removed
}

// goldenSeen has commands of proposers that were overtaken and of some that were not: a projector that leaves after
// it has registered again, a bucket reported twice.
func goldenSeen(t testing.TB) *node {
	n := cluster(t)
	n.must(&RegisterProjector{Projector: Projector{ID: "p", BootID: "2"}})
	n.refuse(&RemoveProjector{ID: "p", BootID: "1"}, errcode.NodeAlive)
	n.must(&RemoveProjector{ID: "p", BootID: "2"})
	n.refuse(&RemoveProjector{ID: "p", BootID: "2"}, errcode.UnknownNode)
	n.must(&RegisterProjector{Projector: Projector{ID: "q", BootID: "1"}})
	n.must(&RemoveProjector{ID: "q"}) // whichever process is registered
	learnt := func(uuid string, seen SeenBucket) *SetBucket {
		return &SetBucket{Name: "new", UUID: uuid, VBuckets: 4, Seen: &seen}
	}
	unknown := n.state.Seen("new")
	n.must(learnt("n1", unknown))
	first := n.state.Seen("new")
	n.must(learnt("n2", first))
	n.refuse(learnt("n1", unknown), errcode.GenerationMismatch)
	n.refuse(learnt("n1", first), errcode.GenerationMismatch)
	if r := n.must(learnt("n2", unknown)); r.Changed || r.Number != n.state.Bucket("new").Generation {
		t.Fatalf("what is known already: %+v", r)
	}
	keeps := create("keeps", 0, 0, 1)
	keeps.Definition.Bucket, keeps.Definition.BucketUUID = "new", "n2"
	n.must(keeps)
	n.must(&BucketGone{Name: "new", UUID: "n2"})
	lived := n.state.Seen("new")
	lived.Gone = false
	n.refuse(learnt("n2", lived), errcode.GenerationMismatch)
	n.must(learnt("n3", n.state.Seen("new")))
	return n
}

// goldenCollections has indexes of the same name on collections of a bucket, one of them dropped.
func goldenCollections(t testing.TB) *node {
	n := cluster(t)
	for i, m := range []index.Member{{}, {Scope: "s", Collection: "c", ID: 9, Manifest: 2},
		{Scope: "_default", Collection: "c", ID: 10, Manifest: 3}} {
		c := create("same", 0, 0, 1)
		c.Definition.Member = m
		n.must(c)
		if x := n.state.IndexIn(c.Definition.Keyspace(), "same"); x == nil || x.Definition.ID != index.ID(i+1) {
			t.Fatalf("index %d is not found by its keyspace", i+1)
		}
	}
	again := create("same", 0, 0, 1)
	again.Definition.Member = index.Member{Scope: "s", Collection: "c", ID: 11, Manifest: 4}
	n.refuse(again, errcode.NameExists)
	again.Definition.Member.ID = 0
	again.Definition.Name = "other"
	n.refuse(again, errcode.InvalidArgument)
	n.must(&SetIndexState{ID: 2, From: index.Pending, To: index.Error, Reason: index.ReasonCollectionGone + "dropped"})
	n.refuse(&BuildIndexes{IDs: []index.ID{2}}, errcode.CollectionGone)
	n.must(&DropIndex{ID: 1})
	n.must(&SetBucket{Name: "b", UUID: "bu2", VBuckets: 4})
	n.refuse(&BuildIndexes{IDs: []index.ID{3}}, errcode.CollectionGone) // it was on the previous bucket
	return n
}

// goldenPartitions has indexes partitioned by key components and by the leading component, among others.
func goldenPartitions(t testing.TB) *node {
	n := cluster(t)
	n.must(create("by_id", 0, 0, 1))
	n.must(createByKey("by_hash", index.PartitionBy{Scheme: index.PartitionHash, Exprs: []string{"c", "a"}}, 0, 0, 1, 0))
	n.must(createByKey("by_range", index.PartitionBy{Scheme: index.PartitionRange, Exprs: []string{"a"},
		Values: []json.RawMessage{json.RawMessage("null"), json.RawMessage(`"m"`)}}, 1, 0, 1, 0, 1, 0, 1))
	n.ready(2)
	n.must(&DropIndex{ID: 1})
	b := n.backup()
	n.must(&DropIndex{ID: 3})
	n.stage(b, RestoreInPlace)
	n.must(&FinishRestore{ID: "r1", Epoch: 9, Buckets: []FoundBucket{{Name: "b", UUID: "bu1", VBuckets: 4}}})
	return n
}

// goldenRules has indexes with the versions of their expression rules. An index built for the first time, or with new
// copies, gets the present version; one that keeps its copies keeps the lowest.
func goldenRules(t testing.TB) *node {
	n := cluster(t)
	rules := func(name string, want uint32) {
		t.Helper()
		if d := n.state.IndexByName("b", name).Definition; d.Rules != want {
			t.Fatalf("%s carries rules %d, want %d\n%s", name, d.Rules, want, Describe(n.state))
		}
	}
	for _, deferred := range []bool{false, true} {
		c := create("now", 0, 0, 1)
		if deferred {
			c.Definition.Name = "later"
		}
		c.Definition.Deferred, c.Definition.Rules = deferred, 2
		n.must(c)
	}
	byKey := createByKey("by_key", index.PartitionBy{Scheme: index.PartitionHash, Exprs: []string{"a"}}, 0, 0, 1, 0)
	byKey.Definition.Rules = 300
	n.must(byKey)
	n.must(create("unknown", 0, 0, 1))
	n.must(&BuildIndexes{IDs: []index.ID{2}, Rules: 3}) // for the first time
	rules("later", 3)
	n.ready(1)
	n.must(&SetIndexState{ID: 1, From: index.Maintenance, To: index.Error, Reason: index.ReasonCannotEvaluate + "no"})
	n.must(&BuildIndexes{IDs: []index.ID{1}, Rules: 3}) // it has entries made by the old rules
	rules("now", 2)
	n.ready(4)
	n.must(&SetIndexState{ID: 4, From: index.Maintenance, To: index.Error, Reason: "no"})
	n.must(&BuildIndexes{IDs: []index.ID{4}, Rules: 3})
	rules("unknown", 0)
	n.must(&SetBucket{Name: "b", UUID: "bu2", VBuckets: 4})
	n.must(&BuildIndexes{IDs: []index.ID{1}, Rules: 3}) // with new copies
	rules("now", 3)
	b := n.backup()
	n.must(&DropIndex{ID: 3})
	n.stage(b, RestoreInPlace)
	n.must(&FinishRestore{ID: "r1", Epoch: 9, Rules: 5, Buckets: []FoundBucket{{Name: "b", UUID: "bu2", VBuckets: 4}}})
	rules("now", 3)
	rules("by_key", 300) // its bucket is gone: it is not built
	return n
}

// goldenForgets deletes buckets: one without an index, one whose index is removed later, one with settings.
func goldenForgets(t testing.TB) *node {
	n := cluster(t)
	n.must(&SetBucket{Name: "old", UUID: "o", VBuckets: 1})
	n.must(&BucketGone{Name: "old", UUID: "o"})
	n.must(&SetBucket{Name: "lone", UUID: "l", VBuckets: 1})
	n.must(&BucketGone{Name: "lone", UUID: "l"})
	n.must(&SetBucket{Name: "set", UUID: "s", VBuckets: 1})
	n.must(&SetBucketSettings{Bucket: "set", StabilitySource: "sync"})
	n.must(&BucketGone{Name: "set", UUID: "s"})
	id := n.must(create("x", 0, 0)).Index
	n.must(n.advance("b", vector(9, 9, 9, 9)))
	b := n.backup()
	n.must(&BucketGone{Name: "b", UUID: "bu1"})
	n.must(&DropIndex{ID: id})
	n.must(&RemoveIndex{ID: id})
	n.must(&SetBucket{Name: "b", UUID: "bu2", VBuckets: 4})
	n.must(&BucketGone{Name: "b", UUID: "bu2"})
	n.stage(b, RestoreInPlace)
	n.must(&FinishRestore{ID: "r1", Epoch: 9, Buckets: []FoundBucket{{Name: "b", UUID: "bu3", VBuckets: 4}}})
	return n
}

// goldenSettings sets the stability source of a bucket, which a restore of an older backup reverts.
func goldenSettings(t testing.TB) *node {
	n := cluster(t)
	n.refuse(&SetBucketSettings{Bucket: "nobody", StabilitySource: "sync"}, errcode.UnknownBucket)
	n.refuse(&SetBucketSettings{Bucket: "b", StabilitySource: "mean"}, errcode.InvalidArgument)
	n.must(&SetBucketSettings{Bucket: "b", StabilitySource: "heartbeat"})
	b := n.backup()
	n.must(&SetBucketSettings{Bucket: "b", StabilitySource: ""})
	n.must(&SetBucketSettings{Bucket: "b", StabilitySource: "sync"})
	n.stage(b, RestoreInPlace)
	n.must(&FinishRestore{ID: "r1", Epoch: 9, Buckets: []FoundBucket{{Name: "b", UUID: "bu1", VBuckets: 4}}})
	if got := n.state.BucketSettings("b").StabilitySource; got != "heartbeat" {
		t.Fatalf("after the restore the source is %q", got)
	}
	return n
}

// goldenUsers has users and tokens that were added, changed and removed.
func goldenUsers(t testing.TB) *node {
	n := cluster(t)
	n.must(&PutUser{Mode: PutFirst, Name: "admin", Role: UserAdmin, Hash: "$argon2id$v=19$m=8,t=1,p=1$c2FsdA$aGFzaA"})
	n.must(&PutUser{Mode: PutFirst, Name: "admin", Role: UserAdmin, Hash: "other"}) // no effect
	n.must(&PutUser{Mode: PutNew, Name: "ann", Role: UserDDL, Hash: "h1"})
	n.must(&PutUser{Mode: PutNew, Name: "bob", Role: UserReads, Hash: "h2"})
	n.must(&PutUser{Mode: PutChange, Name: "ann", Role: UserAdmin})
	n.must(&PutUser{Mode: PutChange, Name: "ann", Hash: "h3"})
	for i, user := range []string{"ann", "ann", "bob", "admin"} {
		n.must(&PutToken{Token: Token{User: user, Role: UserReads, Hash: [32]byte{1, byte(i)}, Note: "of " + user,
			ExpiresMS: n.now + wallsAheadMS + int64(i+1)*3_600_000}})
	}
	n.must(&RemoveToken{ID: TokenID([32]byte{1, 1})})
	n.must(&RemoveUser{Name: "bob"})
	return n
}

// goldenNext was raised to NextLevel and has used its command.
func goldenNext(t testing.TB) *node {
	n := cluster(t)
	n.must(&RegisterManager{Manager: Manager{ID: "m2-bb", Name: "m2", FormatLevel: NextLevel}})
	n.refuse(&SetFormatLevel{Level: NextLevel}, errcode.FormatNotAllowed) // m1 has not reported support for it
	n.raise()
	n.must(&Reserved{})
	return n
}

// goldenRestore has every command of a restore.
func goldenRestore(t testing.TB) *node {
	n := populated(t)
	n.must(&RegisterManager{Manager: Manager{ID: "m4-dd", FormatLevel: 1}})
	b := n.backup()
	n.must(&DropIndex{ID: 3})
	n.stage(b, RestoreInPlace)
	n.must(&AbortRestore{ID: "r1"})
	n.stage(b, RestoreInPlace)
	n.must(&FinishRestore{ID: "r1", Epoch: 9, Buckets: []FoundBucket{{Name: "b", UUID: "bu1", VBuckets: 4}}})
	n.must(&BeginRestore{ID: "r2", Mode: RestoreNewCluster, Bytes: 5, Sum: [32]byte{1, 2, 3}})
	n.must(&RestoreChunk{ID: "r2", Data: []byte("abc")})
	return n
}

// replayGolden verifies that the log of a script, replayed, leads to the same state.
func replayGolden(t *testing.T, n *node) {
	t.Helper()
	s := New()
	for i, data := range n.log {
		next, _, _, err := applyEntry(s, uint64(i+1), data)
		if err != nil {
			t.Fatal(err)
		}
		s = next
	}
	if Hash(s) != Hash(n.state) {
		t.Fatalf("the same log gave another state:\n%s\nwant\n%s", Describe(s), Describe(n.state))
	}
}

// TestGoldenLog replays the logs that each format level wrote. They must never be edited: every later version has to
// read them in the same way.
func TestGoldenLog(t *testing.T) {
	for _, g := range goldens {
		t.Run(g.name, func(t *testing.T) {
			logPath, snapshotPath := goldenPaths(g.name)
			if _, err := os.Stat(logPath); *writeGolden && os.IsNotExist(err) { // never overwrite an existing file
				writeGoldenFiles(t, g.play(t), logPath, snapshotPath)
			}
			replayFiles(t, logPath, snapshotPath)
		})
	}
}

// TestEncodingIsStable: the present program encodes the same commands to exactly the bytes in the files.
func TestEncodingIsStable(t *testing.T) {
	for _, g := range goldens {
		logPath, snapshotPath := goldenPaths(g.name)
		n := g.play(t)
		var w strings.Builder
		for _, data := range n.log {
			fmt.Fprintln(&w, hex.EncodeToString(data))
		}
		fmt.Fprintf(&w, "hash %016x\n", Hash(n.state))
		for path, have := range map[string]string{logPath: w.String(), snapshotPath: string(snapshot(t, n.state))} {
			if want, err := os.ReadFile(path); err != nil || string(want) != have {
				t.Errorf("%s is not what is written now (%v)", path, err)
			}
		}
	}
}

func writeGoldenFiles(t *testing.T, n *node, logPath, snapshotPath string) {
	t.Helper()
	var w strings.Builder
	for _, data := range n.log {
		fmt.Fprintln(&w, hex.EncodeToString(data))
	}
	fmt.Fprintf(&w, "hash %016x\n", Hash(n.state))
	for path, data := range map[string][]byte{logPath: []byte(w.String()), snapshotPath: snapshot(t, n.state)} {
		if err := os.WriteFile(path, data, 0o644); err != nil { //nolint:gosec // test data is world-readable
			t.Fatal(err)
		}
	}
}

func replayFiles(t *testing.T, logPath, snapshotPath string) {
	t.Helper()
	text, err := os.ReadFile(logPath)
	if err != nil {
		t.Fatal(err)
	}
	s, want, index := New(), "", uint64(0)
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if hash, ok := strings.CutPrefix(line, "hash "); ok {
			want = hash
			continue
		}
		data, err := hex.DecodeString(line)
		if err != nil {
			t.Fatal(err)
		}
		index++
		if s, _, _, err = applyEntry(s, index, data); err != nil {
			t.Fatalf("entry %d: %v", index, err)
		}
		if err := Check(s); err != nil {
			t.Fatalf("entry %d: %v", index, err)
		}
	}
	if got := fmt.Sprintf("%016x", Hash(s)); got != want {
		t.Fatalf("the golden log gives hash %s, want %s:\n%s", got, want, Describe(s))
	}
	file, err := os.Open(snapshotPath)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	restored, err := ReadSnapshotUpTo(NextLevel, file)
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprintf("%016x", Hash(restored)); got != want || restored.AppliedIndex() != index {
		t.Fatalf("the golden snapshot gives hash %s at %d, want %s at %d", got, restored.AppliedIndex(), want, index)
	}
}
