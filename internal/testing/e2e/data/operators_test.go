package data

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"tidemark/index"
	"tidemark/internal/testing/e2e/harness"
	"tidemark/internal/testing/oracle"
	"tidemark/internal/testing/testcluster"
	"tidemark/manager/api/v1"
	"tidemark/wire"
)

var (
	operatorsRounds = flag.Int("operators.rounds", 0, "rounds of TestOperators; 0: it is skipped")
	operatorsSeed   = flag.Uint64("operators.seed", uint64(time.Now().UnixNano()), "of TestOperators")
)

const (
	operatorsKeys    = 20_000
	operatorsIndexes = 8               // the number of indexes beyond which none is created
	operatorsJoining = 2               // indexers that come and go, in addition to those of `up`
	operatorPatience = 3 * time.Minute // for one operation
)

// wanted is whether an index must exist.
type wanted uint8

const (
	mustNot wanted = iota + 1
	must           // the newest operation on it was acknowledged
	mayBe          // it was not
)

// operators is one run of the campaign.
type operators struct {
	differential
	dir      string
	backup   string                 // file of the newest backup; "" before the first
	made     map[string]schemeIndex // all indexes ever requested, by name
	want     map[string]wanted
	backedUp map[string]wanted               // as of the backup
	joined   map[string]*testcluster.Process // indexers, by id
	next     int                             // next number of an indexer or index
	outcomes map[string]int
}

// TestOperators runs the operations of a cluster's operators in any order, under writes and faults of every role:
// indexes are created, dropped, split, moved, and given more and fewer replicas; indexers join, and leave for good;
// copies are rebalanced, and rebalances cancelled; the state is backed up and restored; KV nodes are removed, added
// and failed over with loss; the bucket is flushed or recreated; leadership is transferred. After each round's faults
// the cluster settles by itself: exactly the acknowledged indexes exist, all are ready, and each equals its
// definition applied to the documents that KV has then. It is a campaign: -operators.rounds 50; -differential.moods
// and -differential.feed apply here, too.
func TestOperators(t *testing.T) {
	if *operatorsRounds == 0 {
		t.Skip("a campaign: go test ./internal/testing/e2e/data -run TestOperators -operators.rounds 50 -timeout 3h")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(*operatorsRounds)*10*time.Minute)
	defer cancel()
	moods := differentialNasty()
	t.Logf("-operators.seed %d -differential.feed %s -differential.moods %s", *operatorsSeed, *differentialFeed, moods)
	dir := t.TempDir()
	up := testcluster.Start(t, dir, "--managers", "3", "--kv", "3", "--kv-replicas", "1", "--indexers", "3", "--vbuckets",
		"64", "--feed", *differentialFeed, "--nasty", moods)
	o := &operators{dir: dir, made: map[string]schemeIndex{}, want: map[string]wanted{},
		joined: map[string]*testcluster.Process{}, outcomes: map[string]int{},
		differential: differential{t: t, up: up, c: up.Client(), admin: harness.KVAdmin(up), kv: up.KV(ctx),
			bucket: up.Manifest().Bucket, rand: rand.New(rand.NewPCG(*operatorsSeed, 1)), faults: map[string]int{}}}
	for i := range operatorsKeys {
		o.keys = append(o.keys, fmt.Sprintf("doc::%d", i))
	}
	documents := oracle.Documents()
	for i := range pool {
		o.values = append(o.values, documents.Example(int(*operatorsSeed%1_000_000)*pool+i))
	}
	harness.MustRun(ctx, t, up, "kv", "bucket", "edit", o.bucket, "--flush", "on")
	o.load(ctx)
	for round := 0; round < *operatorsRounds && !t.Failed(); round++ {
		began := time.Now()
		o.round(ctx, round)
		t.Logf("round %d: %s, %d indexes", round, time.Since(began).Round(time.Second), len(o.there()))
	}
	t.Logf("%d writes, %d rows equal the oracle's; faults %v", o.writes.Load(), o.rows, o.faults)
	for _, what := range slices.Sorted(maps.Keys(o.outcomes)) {
		t.Logf("%4d × %s", o.outcomes[what], what)
	}
}

// there returns the indexes that must exist.
func (o *operators) there() (names []string) {
	for _, name := range slices.Sorted(maps.Keys(o.want)) {
		if o.want[name] == must {
			names = append(names, name)
		}
	}
	return names
}

// round makes some operations, under writes and faults, and compares everything afterwards.
func (o *operators) round(ctx context.Context, round int) {
	load, stop := context.WithCancel(ctx)
	defer stop()
	var writing sync.WaitGroup
	writing.Go(func() { o.write(load, uint64(round)) })
	if len(o.there()) < operatorsIndexes/2 {
		o.make(ctx)
	}
	for range 4 + o.rand.IntN(8) {
		var faulty sync.WaitGroup
		what := o.draw()
		if o.rand.IntN(3) > 0 && !strings.HasPrefix(what.name, "KV") {
			done := make(chan struct{})
			faulty.Go(func() { defer close(done); time.Sleep(time.Duration(o.writes.Load()%300) * time.Millisecond) })
			kind := o.someFault(ctx)
			faulty.Go(func() { <-done; kind() })
		}
		o.do(ctx, what)
		faulty.Wait()
	}
	stop()
	writing.Wait()
	harness.Settled(ctx, o.t, o.admin, o.up.Manifest().VBuckets)
	o.rests(ctx)
	docs, err := testcluster.Documents(ctx, o.kv, o.keys)
	if err != nil {
		o.t.Fatal(err)
	}
	for _, name := range o.there() {
		o.compare(ctx, o.made[name], docs)
	}
}

// operation is an operation of an operator. Its errors are logged and counted: it may be refused, or remain
// unanswered, while another one is in progress.
type operation struct {
	name string
	f    func(ctx context.Context) error
}

func (o *operators) draw() operation {
	all := []operation{
		{"CREATE INDEX", o.createSome}, {"CREATE INDEX", o.createSome}, {"DROP INDEX", o.dropOne},
		{"ALTER INDEX replica_count", o.alter(func() string {
			return fmt.Sprintf(`{"action":"replica_count","num_replica":%d}`, o.rand.IntN(2))
		})},
		{"ALTER INDEX split", o.alter(func() string {
			return fmt.Sprintf(`{"action":"split","num_partition":%d}`, 2+o.rand.IntN(9))
		})},
		{"ALTER INDEX cancel_split", o.alter(func() string { return `{"action":"cancel_split"}` })},
		{"ALTER INDEX move", o.alter(func() string {
			nodes := o.indexers()
			o.rand.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
			return fmt.Sprintf(`{"action":"move","nodes":["%s"]}`, strings.Join(nodes[:2], `","`))
		})},
		{"rebalance run", o.rebalance}, {"rebalance cancel", o.cancelRebalance},
		{"an indexer joins", o.join}, {"an indexer leaves", o.leave},
		{"cluster backup", o.backUp}, {"cluster restore", o.restore}, {"cluster transfer", o.transfer},
		{"KV node out and in", o.outAndIn}, {"KV bucket flushed", o.flush},
		{"KV bucket made anew", o.anew}, {"BUILD INDEX", func(ctx context.Context) error {
			_, err := o.c.Build(ctx, o.bucket, o.there()...)
			return err
		}},
	}
	return all[o.rand.IntN(len(all))]
}

// do runs an operation, for operatorPatience at most.
func (o *operators) do(ctx context.Context, what operation) {
	began := time.Now()
	one, cancel := context.WithTimeout(ctx, operatorPatience)
	defer cancel()
	err := what.f(one)
	outcome := "ok"
	if err != nil {
		outcome, _, _ = strings.Cut(err.Error(), "\n")
		var p *wire.Problem
		if errors.As(err, &p) {
			outcome = string(p.Code)
		}
	}
	o.outcomes[what.name+": "+outcome]++
	o.t.Logf("%s: %v (%v)", what.name, err, time.Since(began).Round(time.Millisecond))
}

// someFault makes a random fault of any role, or a failover with loss.
func (o *operators) someFault(ctx context.Context) func() {
	round := 1 + o.rand.IntN(2) // these rounds need not lose writes
	return func() { o.fault(ctx, round, 1) }
}

// make creates indexes of every scheme.
func (o *operators) make(ctx context.Context) { o.do(ctx, operation{"CREATE INDEX", o.createSome}) }

func (o *operators) createSome(ctx context.Context) error {
	if len(o.there()) >= operatorsIndexes {
		return o.dropOne(ctx)
	}
	o.next++
	seed := int(*operatorsSeed%1_000_000) + o.next
	var errs []error
	for _, x := range schemeIndexes(o.t, oracle.Statements(o.bucket, fmt.Sprintf("op_%d", o.next), nil, nil,
		nil).Example(seed)) {
		o.made[x.name] = x
		o.want[x.name] = mayBe
		_, err := o.c.Statement(ctx, x.statement)
		if err == nil {
			o.want[x.name] = must
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// some returns the name of an existing index, "" if there is none.
func (o *operators) some() string {
	names := o.there()
	if len(names) == 0 {
		return ""
	}
	return names[o.rand.IntN(len(names))]
}

func (o *operators) dropOne(ctx context.Context) error {
	name := o.some()
	if name == "" {
		return nil
	}
	o.want[name] = mayBe
	_, err := o.c.Statement(ctx, "DROP INDEX "+name+" ON "+o.bucket)
	if err == nil {
		o.want[name] = mustNot
	}
	return err
}

func (o *operators) alter(with func() string) func(context.Context) error {
	return func(ctx context.Context) error {
		name := o.some()
		if name == "" {
			return nil
		}
		_, err := o.c.Statement(ctx, "ALTER INDEX "+name+" ON "+o.bucket+" WITH "+with())
		return err
	}
}

// indexers returns the ids of the running indexers.
func (o *operators) indexers() (ids []string) {
	for _, e := range o.up.Manifest().Indexers {
		ids = append(ids, e.ID)
	}
	return append(ids, slices.Sorted(maps.Keys(o.joined))...)
}

// rebalance starts a rebalance, and sometimes waits for its end.
func (o *operators) rebalance(ctx context.Context) error {
	r, err := o.c.Rebalance(ctx, v1.RebalanceRequest{}, false)
	if err != nil || r.ID == 0 || o.rand.IntN(2) == 0 {
		return err
	}
	return o.moved(ctx, r.ID)
}

// moved waits for the end of a rebalance.
func (o *operators) moved(ctx context.Context, id uint64) error {
	for {
		r, err := o.c.RebalanceStatus(ctx, id)
		if err == nil && r.Phase.Over() {
			return nil
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("rebalance %d is not over: %+v, %w", id, r, err)
		}
	}
}

func (o *operators) cancelRebalance(ctx context.Context) error {
	r, err := o.c.Rebalance(ctx, v1.RebalanceRequest{}, false)
	if err != nil || r.ID == 0 {
		return err
	}
	_, err = o.c.CancelRebalance(ctx, r.ID)
	return err
}

// join starts one more indexer, which a rebalance fills with copies.
func (o *operators) join(ctx context.Context) error {
	if len(o.joined) >= operatorsJoining {
		return o.leave(ctx)
	}
	o.next++
	id := fmt.Sprintf("j%d", o.next)
	o.joined[id] = oneMore(o.t, o.up, o.dir, id)
	for {
		st, err := o.c.Status(ctx)
		if err == nil && slices.ContainsFunc(st.Indexers, func(s v1.IndexerStatus) bool { return s.ID == id }) {
			return o.rebalance(ctx)
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("%s has not registered: %w", id, err)
		}
	}
}

// leave removes one of the joined indexers for good.
func (o *operators) leave(ctx context.Context) error {
	if len(o.joined) == 0 {
		return nil
	}
	ids := slices.Sorted(maps.Keys(o.joined))
	id := ids[o.rand.IntN(len(ids))]
	r, err := o.c.Rebalance(ctx, v1.RebalanceRequest{Remove: []string{id}}, false)
	if err == nil && r.ID != 0 {
		err = o.moved(ctx, r.ID)
	}
	if err != nil {
		return err
	}
	if _, err := o.c.RemoveIndexer(ctx, id, true, false); err != nil {
		return err
	}
	select {
	case <-o.joined[id].Ended():
		delete(o.joined, id)
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s was removed and does not end", id)
	}
}

func (o *operators) backUp(ctx context.Context) error {
	file := filepath.Join(o.dir, fmt.Sprintf("backup%d", o.writes.Load()))
	before := maps.Clone(o.want)
	if out, err := harness.Tidemark(ctx, o.t, o.up, "cluster", "backup", file); err != nil {
		return fmt.Errorf("%s: %w", out, err)
	}
	o.backup, o.backedUp = file, before
	return nil
}

func (o *operators) restore(ctx context.Context) error {
	if o.backup == "" {
		return o.backUp(ctx)
	}
	for name := range o.made {
		o.want[name] = mayBe
	}
	out, err := harness.Tidemark(ctx, o.t, o.up, "cluster", "restore", o.backup, "--yes")
	if err != nil { // its outcome shows after the cluster has settled
		return fmt.Errorf("%s: %w", out, err)
	}
	for name := range o.made {
		if o.want[name] = mustNot; o.backedUp[name] != 0 {
			o.want[name] = o.backedUp[name]
		}
	}
	return nil
}

func (o *operators) transfer(ctx context.Context) error {
	_, err := o.c.TransferLeadership(ctx, "")
	return err
}

// outAndIn removes a KV node from its cluster, and adds it again.
func (o *operators) outAndIn(ctx context.Context) error {
	all := o.up.Manifest().KV
	e := all[o.rand.IntN(len(all))]
	out, err := harness.Tidemark(ctx, o.t, o.up, "kv", "rebalance", "--remove", e.ID)
	if err != nil {
		err = fmt.Errorf("%s: %w", out, err)
	}
	harness.WaitFor(ctx, o.t, func() error {
		if out, err := harness.Tidemark(ctx, o.t, o.up, "kv", "rebalance", "--add", harness.Addition(e)); err != nil &&
			!strings.Contains(out, "is a member") {
			return fmt.Errorf("%s is not added again: %w: %s", e.ID, err, out)
		}
		return nil
	})
	return err
}

func (o *operators) flush(ctx context.Context) error {
	out, err := harness.Tidemark(ctx, o.t, o.up, "kv", "flush", o.bucket, "--yes")
	if err != nil {
		return fmt.Errorf("%s: %w", out, err)
	}
	o.load(ctx)
	return nil
}

// anew drops the bucket and creates another one of its name; its indexes are rebuilt on request.
func (o *operators) anew(ctx context.Context) error {
	if out, err := harness.Tidemark(ctx, o.t, o.up, "kv", "bucket", "drop", o.bucket, "--yes"); err != nil {
		return fmt.Errorf("%s: %w", out, err)
	}
	harness.WaitFor(ctx, o.t, func() error {
		out, err := harness.Tidemark(ctx, o.t, o.up, "kv", "bucket", "create", o.bucket, "--vbuckets", "64")
		if err != nil && strings.Contains(out, "exists") {
			return nil
		}
		return err
	})
	o.load(ctx)
	return nil
}

// load gives every key a document, so that builds and moves take a while. A document that cannot be stored, because a
// node is away, is left out.
func (o *operators) load(ctx context.Context) {
	n := 0
	_, err := o.kv.Load(ctx, func() (string, []byte, bool, error) {
		if n++; n > len(o.keys) {
			return "", nil, false, nil
		}
		return o.keys[n-1], o.values[n%pool], true, nil
	}, nil)
	if err != nil {
		o.t.Logf("%d documents: %v", n, err)
	}
}

// rests waits until no operation is in progress, the indexes are those that must exist, and the cluster is ready. For
// an unacknowledged operation it accepts either outcome.
func (o *operators) rests(ctx context.Context) {
	o.t.Helper()
	harness.Eventually(o.t, roundPatience, "all has come to rest", func() (bool, string) {
		if all, err := o.c.Rebalances(ctx); err != nil || len(all.Splits) > 0 || slices.ContainsFunc(all.Rebalances,
			func(r v1.RebalanceInfo) bool { return !r.Phase.Over() }) {
			return false, fmt.Sprintf("rebalances %+v, %v", all, err)
		}
		list, err := o.c.Indexes(ctx, o.bucket)
		if err != nil {
			return false, err.Error()
		}
		for i := range list.Indexes {
			if x := &list.Indexes[i]; x.State != index.Maintenance {
				if x.State == index.Error { // its bucket was recreated
					_, err = o.c.Build(ctx, o.bucket, x.Name)
				}
				return false, fmt.Sprintf("%s is %s %s %v; %v", x.Name, x.State, x.Reason, x.WaitingFor, err)
			}
		}
		st, err := o.c.Status(ctx)
		return err == nil && st.Verdict == v1.VerdictReady, fmt.Sprintf("%s %q, %v", st.Verdict, st.Reasons, err)
	})
	list, err := o.c.Indexes(ctx, o.bucket)
	if err != nil {
		o.t.Fatal(err)
	}
	found := map[string]bool{}
	for i := range list.Indexes {
		found[list.Indexes[i].Name] = true
	}
	for name := range found {
		if o.want[name] == mustNot || o.want[name] == 0 {
			o.t.Errorf("index %s is there, which was dropped", name)
		}
	}
	for name, w := range o.want {
		switch {
		case w == must && !found[name]:
			o.t.Errorf("index %s is not there, which was acknowledged", name)
		case w == mayBe && found[name]:
			o.want[name] = must
		case w == mayBe:
			o.want[name] = mustNot
		}
	}
}
