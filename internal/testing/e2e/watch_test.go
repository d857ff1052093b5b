package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"tidemark/client"
	"tidemark/internal/localcluster"
	"tidemark/internal/testing/e2e/harness"
	"tidemark/internal/testing/testcluster"
	"tidemark/manager/api/v1"
)

// seen holds what one watcher of all kinds has received.
type seen struct {
	name string

	mu        sync.Mutex
	first     uint64 // CAS of its first snapshot
	cas       uint64
	changes   map[uint64]string
	snapshots int
	starts    int // connections, of readers that make their own
	faults    []string
}

// take records a snapshot, or all changes of one update, which must be the next one.
func (s *seen) take(cas uint64, snapshot bool, changes string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case snapshot:
		if s.snapshots++; s.snapshots == 1 {
			s.first = cas
		} else {
			s.faults = append(s.faults, fmt.Sprintf("another snapshot at cas %d, after %d", cas, s.cas))
		}
	case cas != s.cas+1:
		s.faults = append(s.faults, fmt.Sprintf("cas %d after %d", cas, s.cas))
	default:
		s.changes[cas] = changes
	}
	s.cas = cas
}

func (s *seen) at() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cas
}

// watch receives events with client.Watch.
func (s *seen) watch(ctx context.Context, servers []string) {
	c := client.New(servers...)
	defer c.Close()
	for e, err := range c.Watch(ctx, "", "all") {
		if err != nil {
			if ctx.Err() == nil {
				s.mu.Lock()
				s.faults = append(s.faults, err.Error())
				s.mu.Unlock()
			}
			return
		}
		b, _ := json.Marshal(e.Changes)
		s.take(e.CAS, e.Snapshot != nil, string(b))
	}
}

// read reads event streams as any HTTP client can: from one manager after the other, with Last-Event-ID.
func (s *seen) read(ctx context.Context, servers []string) {
	last := ""
	for i := 0; ctx.Err() == nil; i++ {
		s.stream(ctx, servers[i%len(servers)], &last)
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (s *seen) stream(ctx context.Context, server string, last *string) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, server+"/v1/events?kinds=all", nil)
	if err != nil {
		return
	}
	if *last != "" {
		req.Header.Set("Last-Event-ID", *last)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return
	}
	s.mu.Lock()
	s.starts++
	s.mu.Unlock()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 8<<20)
	var id, event, data string
	for lines.Scan() {
		field, value, _ := strings.Cut(lines.Text(), ": ")
		switch field {
		case "id":
			id = value
		case "event":
			event = value
		case "data":
			data = value
		case "": // the end of an event: only now it counts as received
			var what struct {
				CAS    uint64      `json:"cas"`
				Events []v1.Change `json:"events"`
			}
			if (event == "change" || event == "snapshot") && json.Unmarshal([]byte(data), &what) == nil {
				b, _ := json.Marshal(what.Events)
				s.take(what.CAS, event == "snapshot", string(b))
			}
			if id != "" {
				*last = id
			}
			id, event, data = "", "", ""
		}
	}
}

// TestWatchersOverKills kills the leader and then both followers, one after the other, and cuts one manager off from
// the rest, while indexes are created and dropped. Watchers of the Go client, and plain readers of the event streams
// that resume with Last-Event-ID, see one history: every CAS once, without a gap or a second snapshot, the same
// everywhere, with all that was acknowledged. The manager that is cut off refuses linearizable reads with a named
// error within bounded time.
func TestWatchersOverKills(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	up, links := testcluster.StartLinked(t, t.TempDir(), "--kv", "1", "--indexers", "1", "--vbuckets", "16")
	c, m := up.Client(), up.Manifest()
	servers := m.Servers()

	watching, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	var all []*seen
	for i := range servers {
		turned := append(append([]string(nil), servers[i:]...), servers[:i]...)
		for name, run := range map[string]func(*seen, context.Context, []string){"watch": (*seen).watch,
			"reader": (*seen).read} {
			s := &seen{name: fmt.Sprint(name, i), changes: map[uint64]string{}}
			all = append(all, s)
			wg.Go(func() { run(s, watching, turned) })
		}
	}
	caughtUp := func(cas uint64) {
		t.Helper()
		for _, s := range all {
			harness.Eventually(t, harness.Hang, s.name+" has caught up", func() (bool, string) {
				return s.at() >= cas,
					fmt.Sprintf("it is at %d of %d", s.at(), cas)
			})
		}
	}
	caughtUp(1)

	type acked struct {
		id      string
		dropped bool
	}
	var created []acked
	load, stopLoad := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		pace := time.NewTicker(50 * time.Millisecond)
		defer pace.Stop()
		for i := 0; load.Err() == nil; i++ {
			name := fmt.Sprint("watched_", i)
			info, err := c.Create(ctx, v1.CreateRequest{Bucket: m.Bucket, Name: name, IsPrimary: true, DeferBuild: true})
			if err != nil {
				t.Errorf("create %s: %v", name, err)
				return
			}
			a := acked{id: info.ID.String()}
			if i%2 == 1 {
				if err := c.Drop(ctx, client.Ref(m.Bucket, name), 0); err != nil {
					t.Errorf("drop %s: %v", name, err)
					return
				}
				a.dropped = true
			}
			created = append(created, a)
			<-pace.C
		}
	}()
	kill := func(id string) {
		old := managerPID(id)(up.Manifest())
		if err := syscall.Kill(old, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		up.WaitRestart(old, managerPID(id))
		harness.Eventually(t, readyAgain, id+" is ready again", func() (bool, string) {
			status, _, answer, _ := request(ctx, t, http.MethodGet, restOf(m, id)+"/readyz", "")
			return status == http.StatusOK, answer
		})
	}
	leads := func() (id string) {
		harness.Eventually(t, readyAgain, "a leader is known", func() (bool, string) {
			for asked := range m.Managers {
				if l := up.Leader(ctx, asked); l >= 0 {
					id = m.Managers[l].ID
					return true, ""
				}
			}
			return false, "no manager knows one"
		})
		return id
	}
	kill(leads())
	now := leads()
	for _, e := range m.Managers {
		if e.ID != now {
			kill(e.ID)
		}
	}

	now = leads()
	apart := slices.IndexFunc(m.Managers, func(e localcluster.ManagerEntry) bool { return e.ID != now })
	cut := m.Managers[apart]
	var rest []string
	for _, e := range m.Managers {
		if e.ID != cut.ID {
			rest = append(rest, e.ID)
		}
	}
	links.Partition([]string{cut.ID}, rest)
	for range 2 { // before and after it notices that it has no leader
		status, _, answer, took := request(ctx, t, http.MethodGet, cut.REST+"/v1/indexes", "")
		t.Logf("a linearizable listing at %s, cut off from the others: %d after %s", cut.ID, status,
			took.Round(time.Millisecond))
		if took > minorityLimit || !strings.Contains(answer, "NO_LEADER") && !strings.Contains(answer, `"TIMEOUT"`) {
			t.Errorf("a linearizable listing at one cut off: %d after %s: %.300s", status, took, answer)
		}
	}
	links.HealAll()
	stopLoad()
	<-done

	list, err := c.Indexes(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	caughtUp(list.CAS)
	stop()
	wg.Wait()
	checkSeen(t, all, list.CAS)
	whole := strings.Builder{}
	for _, text := range all[0].changes {
		whole.WriteString(text)
	}
	for _, a := range created {
		if !strings.Contains(whole.String(), `"id":"`+a.id+`"`) {
			t.Errorf("index %s was created, and no watcher was notified", a.id)
		}
	}
	t.Logf("%d indexes created, history up to cas %d", len(created), list.CAS)
}

// checkSeen compares what all watchers have received.
func checkSeen(t *testing.T, all []*seen, cas uint64) {
	t.Helper()
	for _, s := range all {
		for _, f := range s.faults {
			t.Errorf("%s: %s", s.name, f)
		}
		if s.snapshots != 1 {
			t.Errorf("%s: %d snapshots", s.name, s.snapshots)
		}
		for at := max(s.first, all[0].first) + 1; at <= cas; at++ {
			if got, want := s.changes[at], all[0].changes[at]; got != want || got == "" {
				t.Errorf("%s saw at cas %d\n%s\n%s saw\n%s", s.name, at, got, all[0].name, want)
				break
			}
		}
		t.Logf("%s: cas %d to %d, %d connections of its own", s.name, s.first, s.cas, s.starts)
	}
}

// restOf returns the address of a manager.
func restOf(m *localcluster.Manifest, id string) string {
	for _, e := range m.Managers {
		if e.ID == id {
			return e.REST
		}
	}
	return ""
}
