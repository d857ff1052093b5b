package matrix

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"tidemark/client"
	"tidemark/client/topic"
	"tidemark/index"
	"tidemark/internal/localcluster"
	"tidemark/internal/testing/e2e/harness"
	"tidemark/internal/testing/testcluster"
	"tidemark/keyversion"
	"tidemark/kv"
	"tidemark/manager/api/v1"
)

var hangFlag = flag.String("hangs", "indexer",
	"roles that TestHangs stops, separated by commas, or all: "+strings.Join(roleNames(), ", "))

var hangMost = flag.Duration("hang-most", hangLimit,
	"how long a duty may take beside a process that hangs: a campaign on an idle machine holds the table by it")

const (
	hangFor   = 8 * time.Second  // shortest stop of a process: longer than the 5 s after which it counts as silent
	hangLimit = 60 * time.Second // detects a hang of a duty
	probeGap  = 50 * time.Millisecond
	hungIndex = "airports_by_country" // with a replica of each slice
	rest      = "as long as it hangs"
)

// role is a process that hangs.
type role struct {
	name string
	pid  func(w *world, m *localcluster.Manifest) int
	// not maps the duties that cannot be done while the role hangs, whichever process waits, to the reason.
	not map[string]string
}

func roles() []role {
	streamsAlone := "it is the only one at its KV node"
	kvAlone := "only it has the documents, until it is failed over"
	return []role{
		{name: "leader", pid: func(w *world, m *localcluster.Manifest) int { return m.Managers[w.leader()].PID }},
		{name: "follower", pid: func(w *world, m *localcluster.Manifest) int { return m.Managers[(w.leader()+1)%3].PID }},
		{name: "projector", pid: func(_ *world, m *localcluster.Manifest) int { return m.Projectors[1].PID },
			not: map[string]string{"session scan": streamsAlone, "session scan by managers": streamsAlone,
				"promotion": streamsAlone, "subscriber": streamsAlone,
				"CREATE INDEX until it is ready": streamsAlone, "verify": streamsAlone}},
		{name: "indexer", pid: func(_ *world, m *localcluster.Manifest) int { return m.Indexers[2].PID },
			not: map[string]string{"CREATE INDEX until it is ready": "it has copies of the new index"}},
		{name: "KV node", pid: func(_ *world, m *localcluster.Manifest) int { return m.KV[1].PID },
			not: map[string]string{"session scan": kvAlone, "session scan by managers": kvAlone, "promotion": kvAlone,
				"subscriber":                     kvAlone,
				"CREATE INDEX until it is ready": kvAlone, "verify": kvAlone}},
	}
}

func roleNames() (names []string) {
	for _, r := range roles() {
		names = append(names, r.name)
	}
	return names
}

// duty is an operation that is done while a process hangs.
type duty struct {
	name string
	// With again the duty is repeated, in parallel with others; otherwise it is done once, with a hang of its own.
	again bool
	do    func(ctx context.Context, h *hang) error
}

func duties() []duty {
	return []duty{
		{"CREATE and DROP INDEX", true, makeAndDrop},
		{"scan", true, func(ctx context.Context, h *hang) error { return h.scan(ctx, h.c, "any") }},
		{"session scan", true, func(ctx context.Context, h *hang) error { return h.scan(ctx, h.c, "session") }},
		{"scan by managers", true, func(ctx context.Context, h *hang) error { return h.scan(ctx, h.via, "any") }},
		{"session scan by managers", true, func(ctx context.Context, h *hang) error { return h.scan(ctx, h.via, "session") }},
		{"promotion", true, promoted},
		{"subscriber", true, subscribed},
		{"REST reads of each manager", true, readAll},
		{"cluster status", true, func(ctx context.Context, h *hang) error { _, err := h.c.Status(ctx); return err }},
		{"statistics", true, func(ctx context.Context, h *hang) error { _, err := h.c.Stats(ctx, h.bucket); return err }},
		{"CREATE INDEX until it is ready", false, buildOne},
		{"verify", false, verifyIndex},
		{"another process's start", false, startAnother},
		{"rollback after a failover with loss", false, failOver},
	}
}

// hang is one stopped process, and the clients at work meanwhile.
type hang struct {
	*world
	role   *role
	via    *client.Client // a client that reads through the managers
	awake  []*client.Client
	sub    *subscriber
	number int // of indexes and documents made
	struck time.Time
}

// TestHangs stops each role of -hangs (SIGSTOP: it neither answers nor ends) during each duty and logs the longest
// time that the duty took. It checks that each duty is done while the process is stopped, except those that need the
// process; the table is for docs/campaigns.md.
func TestHangs(t *testing.T) {
	t.Parallel()
	up := testcluster.Start(t, t.TempDir(), "--kv", "3", "--kv-replicas", "2")
	w := &world{t: t, ctx: t.Context(), up: up, c: up.Client(), admin: harness.KVAdmin(up), bucket: up.Manifest().Bucket,
		out: map[string]bool{}}
	defer w.release()
	w.w = harness.NewWorkloadOf(w.ctx, t, up.KV(w.ctx), 4)
	harness.CreateSampleIndexes(w.ctx, t, w.c, w.bucket)
	if err := w.c.Drop(w.ctx, client.Ref(w.bucket, hungIndex), 0); err != nil {
		t.Fatal(err)
	}
	harness.Create(w.ctx, t, w.c, fmt.Sprintf(`CREATE INDEX %s ON %s(iso_country, name) WHERE kind = "airport" WITH {"num_replica":1}`, hungIndex, w.bucket))
	via := client.Open(client.Options{Servers: up.Manifest().Servers(), ViaManagers: true})
	t.Cleanup(via.Close)
	sub := subscribe(w)

	table := map[[2]string]string{}
	for _, r := range roles() {
		if *hangFlag != "all" && !slices.Contains(strings.Split(*hangFlag, ","), r.name) {
			continue
		}
		h := &hang{world: w, role: &r, via: via, sub: sub}
		for _, batch := range batches(r.not) {
			h.beside(batch, table)
		}
		for name, why := range r.not {
			table[[2]string{name, r.name}] = "—"
			t.Logf("%s beside the %s: %s, %s", name, r.name, rest, why)
		}
	}
	t.Log(hangTable(table))
}

// batches returns the possible duties; all that are repeated form one batch.
func batches(not map[string]string) (all [][]duty) {
	all = append(all, nil)
	for _, d := range duties() {
		switch {
		case not[d.name] != "":
		case d.again:
			all[0] = append(all[0], d)
		default:
			all = append(all, []duty{d})
		}
	}
	return all
}

// beside stops the process, does the duties, and waits until the cluster is healthy.
func (h *hang) beside(batch []duty, table map[[2]string]string) {
	m := h.up.Manifest()
	h.turn++
	if batch[0].name == "rollback after a failover with loss" {
		h.beyondReplicas()
	}
	pid := h.role.pid(h.world, m)
	h.awake = nil
	for _, e := range m.Managers {
		if e.PID != pid {
			h.awake = append(h.awake, client.New(e.REST))
		}
	}
	h.hold(pid)
	h.struck = time.Now()
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, d := range batch {
		all.Go(func() {
			longest, why := h.longest(&d)
			mu.Lock()
			defer mu.Unlock()
			table[[2]string{d.name, h.role.name}] = fmt.Sprintf("%.1f", longest.Seconds())
			h.t.Logf("%s beside the %s that hangs: %s at the longest (%v)", d.name, h.role.name, longest.Round(time.Millisecond),
				why)
			if most := min(*hangMost, hangLimit); longest >= most { // nothing waits longer than hangLimit
				h.t.Errorf("%s beside the %s that hangs: not done in %s: %v", d.name, h.role.name, most, why)
			}
		})
	}
	all.Wait()
	h.release()
	for _, c := range h.awake {
		c.Close()
	}
	if batch[0].name == "rollback after a failover with loss" {
		h.pause(false)
		h.whole()
	}
	ctx, cancel := context.WithTimeout(h.ctx, recoverIn)
	defer cancel()
	if why := h.ready(ctx); why != "" {
		h.t.Fatalf("after %s hung beside %s: %s\n%s", h.role.name, batch[0].name, why, h.picture())
	}
}

// longest does a duty, repeatedly if it is one of those, and returns the longest time until it was done, including
// failed tries, and the last failure of that time.
func (h *hang) longest(d *duty) (longest time.Duration, why error) {
	for {
		began := time.Now()
		ctx, cancel := context.WithTimeout(h.ctx, hangLimit)
		var last error
		for {
			err := d.do(ctx, h)
			if err == nil || ctx.Err() != nil {
				last = errors.Join(last, ctx.Err())
				break
			}
			last = err
			time.Sleep(probeGap)
		}
		cancel()
		if took := time.Since(began); took > longest {
			longest, why = took, last
		}
		if !d.again || time.Since(h.struck) > hangFor {
			return longest, why
		}
		time.Sleep(probeGap)
	}
}

func makeAndDrop(ctx context.Context, h *hang) error {
	h.number++
	name := fmt.Sprintf("made_%d", h.number)
	_, err := h.c.Create(ctx, v1.CreateRequest{Bucket: h.bucket, Name: name, IsPrimary: true, DeferBuild: true})
	if err != nil && !strings.Contains(err.Error(), "INDEX_EXISTS") {
		return err
	}
	return h.c.Drop(ctx, client.Ref(h.bucket, name), 0)
}

func (h *hang) scan(ctx context.Context, c *client.Client, consistency string) error {
	_, err := harness.Collect(ctx, c, h.bucket, hungIndex, v1.ScanRequest{Consistency: consistency, Limit: 10})
	return err
}

// promoted waits until a stability timestamp covers what is written now.
func promoted(ctx context.Context, h *hang) error {
	before, err := h.c.Timestamps(ctx, h.bucket, 0, 1)
	if err != nil {
		return err
	}
	if err := h.set1(ctx); err != nil {
		return err
	}
	for {
		now, err := h.c.Timestamps(ctx, h.bucket, 0, 1)
		if err != nil || now.Number > before.Number {
			return err
		}
		time.Sleep(probeGap)
		if ctx.Err() != nil {
			return fmt.Errorf("none above %d: %w", before.Number, ctx.Err())
		}
	}
}

// set1 writes one document.
func (h *hang) set1(ctx context.Context) error {
	key := h.w.Keys[int(time.Now().UnixNano()/1000)%len(h.w.Keys)]
	return h.w.Set(ctx, key, fmt.Appendf(nil, `{"kind":"airport","name":"at %d","iso_country":"CH"}`, time.Now().UnixNano()))
}

func readAll(ctx context.Context, h *hang) error {
	for _, c := range h.awake {
		if _, err := c.Indexes(ctx, h.bucket); err != nil {
			return err
		}
	}
	return nil
}

func buildOne(ctx context.Context, h *hang) error {
	const name = "made_to_be_ready"
	defer func() {
		_ = h.c.Drop(context.WithoutCancel(ctx), client.Ref(h.bucket, name), 0) // there may be none
	}()
	all, err := h.c.Statement(ctx, fmt.Sprintf("CREATE INDEX %s ON %s(name)", name, h.bucket))
	if err != nil {
		return err
	}
	return h.c.WaitReady(ctx, []index.ID{all[0].ID}, nil)
}

// verifyIndex is done when it has an answer of any kind: the answer names what cannot be verified. The client would
// retry until that has changed.
func verifyIndex(ctx context.Context, h *hang) error {
	m := h.up.Manifest().Managers[(h.leader()+2)%3]
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, m.REST+"/v1/indexes/"+h.bucket+"/"+hungIndex+":verify", strings.NewReader(`{"rate":1000000}`))
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

// startAnother kills an indexer, which is restarted after a second, and waits until it is active.
func startAnother(ctx context.Context, h *hang) error {
	h.kill(func(m *localcluster.Manifest) int { return m.Indexers[0].PID })()
	for {
		status, why := harness.Get(ctx, h.t, h.up.Manifest().Indexers[0].Admin+"/readyz")
		if status == http.StatusOK {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%w: %s", ctx.Err(), why)
		}
		time.Sleep(probeGap)
	}
}

// failOver fails kv2 over without what its replicas lack, and waits for a session scan of the remaining data.
func failOver(ctx context.Context, h *hang) error {
	h.out["kv2"] = true
	if _, err := h.admin.Failover(ctx, kv.FailoverRequest{Nodes: []string{"kv2"}, Lose: true}); err != nil {
		return err
	}
	_, err := harness.ScanSoon(ctx, h.c, h.bucket, hungIndex, hangLimit)
	return err
}

// subscriber receives each document's keys, and keeps the newest.
type subscriber struct {
	mu   sync.Mutex
	seen map[string]bool
}

func subscribe(w *world) *subscriber {
	s := &subscriber{seen: map[string]bool{}}
	sub, err := topic.Open(topic.Config{ID: "hangs", Bucket: w.bucket, Indexes: []string{hungIndex},
		Projectors: func(context.Context) (all []string, err error) {
			for _, p := range w.up.Manifest().Projectors {
				all = append(all, p.Admin)
			}
			return all, nil
		},
		Handle: func(_ context.Context, ev *keyversion.Event) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			if ev.Kind == keyversion.Insert {
				s.seen[fmt.Sprint(ev.VBucket, "/", ev.Seqno)] = true
			}
			return nil
		}})
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- sub.Run(ctx) }()
	w.t.Cleanup(func() {
		cancel()
		<-done
	})
	return s
}

// subscribed writes a document and waits until the subscriber has received it.
func subscribed(ctx context.Context, h *hang) error {
	key := h.w.Keys[int(time.Now().UnixNano()/1000)%len(h.w.Keys)]
	value := fmt.Appendf(nil, `{"kind":"airport","name":"at %d","iso_country":"CH"}`, time.Now().UnixNano())
	m, err := h.w.Store(ctx, key, value)
	if err != nil {
		return err
	}
	for place := fmt.Sprint(m.VBucket, "/", m.Seqno); ; time.Sleep(probeGap / 5) {
		h.sub.mu.Lock()
		seen := h.sub.seen[place]
		h.sub.mu.Unlock()
		if seen {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("nothing of %s: %w", place, ctx.Err())
		}
	}
}

// hangTable formats the table of docs/campaigns.md.
func hangTable(table map[[2]string]string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "seconds at the longest\n| beside it | %s |\n|---|%s\n", strings.Join(roleNames(), " | "),
		strings.Repeat("---|", len(roles())))
	for _, d := range duties() {
		fmt.Fprintf(&b, "| %s |", d.name)
		for _, r := range roles() {
			fmt.Fprintf(&b, " %s |", table[[2]string{d.name, r.name}])
		}
		b.WriteString("\n")
	}
	return b.String()
}
