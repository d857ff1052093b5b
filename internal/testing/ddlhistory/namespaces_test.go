package ddlhistory

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"tidemark/client"
	"tidemark/internal/testing/ports"
	"tidemark/internal/testing/testcluster"
	"tidemark/internal/tlsconf"
	"tidemark/manager/api/v1"
)

var (
	namespaceFaults = flag.Int("ddl.namespaces", 0, "faults that TestNamespaces makes (root, iproute2); 0: it is skipped")
	namespaceSkew   = flag.Duration("ddl.skew", 36*time.Hour, "how far TestNamespaces sets clocks ahead and back at most")
	namespaceVoters = flag.Int("ddl.managers", 5, "managers in TestNamespaces, 3 or 5")
	namespaceBeat   = flag.Duration("ddl.heartbeat", 0, "the managers' heartbeat in TestNamespaces, longer on a machine "+
		"that is busy with others; 0: their own")
)

const (
	adminPassword = "first-administrator-of-all"
	ddlPassword   = "whoever-creates-indexes"
	bucketName    = "world"

	// pace is the time between two operations of a client. The number of requests that the ledger keeps per user and
	// day must last for 300 faults.
	pace         = 200 * time.Millisecond
	calm         = 2 * time.Second // without a new fault, so that not only retries are observed
	memberWithin = 2 * time.Minute // for a change of members, under faults
)

// campaign makes faults on hosts, and adds and removes members meanwhile.
type campaign struct {
	t     *testing.T
	net   *network
	admin *client.Client
	rand  *rand.Rand
	done  map[string]int
}

// misfortune is one kind of fault, on the leader and the others, which come in random order. It returns when the
// fault is over; the network is healed afterwards.
type misfortune struct {
	name string
	f    func(ctx context.Context, c *campaign, leader *host, others []*host)
}

var misfortunes = []misfortune{
	{"leader killed", func(ctx context.Context, c *campaign, l *host, _ []*host) { c.kill(ctx, l) }},
	{"follower killed", func(ctx context.Context, c *campaign, _ *host, o []*host) { c.kill(ctx, o[0]) }},
	{"all killed", func(ctx context.Context, c *campaign, l *host, o []*host) { c.kill(ctx, append(o, l)...) }},
	{"leader stopped", func(ctx context.Context, c *campaign, l *host, _ []*host) { c.stop(ctx, l) }},
	{"majority stopped", func(ctx context.Context, c *campaign, l *host, o []*host) {
		c.stop(ctx, append(slices.Clone(o[:(len(o)+1)/2]), l)...)
	}},
	{"leader cut off", func(ctx context.Context, c *campaign, l *host, o []*host) { part([]*host{l}, o); c.hold(ctx) }},
	{"follower cut off", func(ctx context.Context, c *campaign, l *host, o []*host) {
		part(o[:1], append(slices.Clone(o[1:]), l))
		c.hold(ctx)
	}},
	{"leader in the minority", func(ctx context.Context, c *campaign, l *host, o []*host) {
		part(append(slices.Clone(o[:len(o)/2-1]), l), o[len(o)/2-1:])
		c.hold(ctx)
	}},
	{"leader is mute", func(ctx context.Context, c *campaign, l *host, o []*host) { l.mute(o...); c.hold(ctx) }},
	{"leader is deaf", func(ctx context.Context, c *campaign, l *host, o []*host) {
		for _, h := range o {
			h.mute(l)
		}
		c.hold(ctx)
	}},
	{"one way cut", func(ctx context.Context, c *campaign, l *host, o []*host) {
		o[0].mute(l)
		l.mute(o[len(o)-1])
		c.hold(ctx)
	}},
	{"ring", func(ctx context.Context, c *campaign, l *host, o []*host) { // each is cut off from one neighbour
		all := append(slices.Clone(o), l)
		for i, h := range all {
			h.mute(all[(i+1)%len(all)])
		}
		c.hold(ctx)
	}},
	{"leader flaps", func(ctx context.Context, c *campaign, l *host, o []*host) { c.flap(ctx, l, o) }},
	{"follower flaps", func(ctx context.Context, c *campaign, l *host, o []*host) {
		c.flap(ctx, o[0], append(slices.Clone(o[1:]), l))
	}},
	{"slow link", func(ctx context.Context, c *campaign, l *host, _ []*host) { l.narrow("400kbit"); c.hold(ctx) }},
	{"leader's disk full", func(ctx context.Context, c *campaign, l *host, _ []*host) { l.fill(); c.hold(ctx) }},
	{"follower's disk full", func(ctx context.Context, c *campaign, _ *host, o []*host) { o[0].fill(); c.hold(ctx) }},
	{"disk full, then killed", func(ctx context.Context, c *campaign, l *host, o []*host) {
		h := append(slices.Clone(o), l)[c.rand.IntN(len(o)+1)]
		h.fill()
		c.hold(ctx)
		h.end()
		h.free()
		h.again()
	}},
	{"leader's clock steps", func(ctx context.Context, c *campaign, l *host, _ []*host) { c.step(ctx, l) }},
	{"follower's clock steps", func(ctx context.Context, c *campaign, _ *host, o []*host) { c.step(ctx, o[0]) }},
	{"member replaced", func(ctx context.Context, c *campaign, l *host, o []*host) {
		c.replace(ctx, append(slices.Clone(o), l)[c.rand.IntN(len(o)+1)])
	}},
	{"leader replaced under cuts", func(ctx context.Context, c *campaign, l *host, o []*host) {
		o[0].mute(l)
		c.replace(ctx, l)
	}},
}

// hold waits for the length of a fault.
func (c *campaign) hold(ctx context.Context) {
	wait(ctx, cutLow+time.Duration(c.rand.Int64N(int64(cutMore))))
}

func (c *campaign) kill(ctx context.Context, which ...*host) {
	for _, h := range which {
		h.end()
	}
	if c.rand.IntN(2) == 0 {
		c.hold(ctx)
	}
	for _, h := range which {
		h.again()
	}
}

func (c *campaign) stop(ctx context.Context, which ...*host) {
	for _, h := range which {
		h.signal(syscall.SIGSTOP)
		defer h.signal(syscall.SIGCONT)
	}
	c.hold(ctx)
}

func (c *campaign) flap(ctx context.Context, h *host, others []*host) {
	for range 6 {
		part([]*host{h}, others)
		wait(ctx, time.Duration(50+c.rand.IntN(250))*time.Millisecond)
		c.net.heal()
		wait(ctx, time.Duration(50+c.rand.IntN(250))*time.Millisecond)
	}
}

// step kills a manager and restarts it with a clock that differs by hours from the others', or with a correct one
// again. Two clocks may differ by more than the time for which the ledger keeps requests (24 h), because the ledger
// does not use them.
func (c *campaign) step(ctx context.Context, h *host) {
	ahead := []time.Duration{0, time.Hour, -time.Hour, *namespaceSkew, -*namespaceSkew, 700 * time.Millisecond}
	h.end()
	if err := c.net.faults.SetClock(h.name, ahead[c.rand.IntN(len(ahead))]); err != nil {
		c.t.Error(err)
	}
	h.again()
	c.hold(ctx)
}

// replace removes a manager permanently and adds a new one on a free host.
func (c *campaign) replace(ctx context.Context, old *host) {
	fresh := c.net.empty()
	fresh.start(0, c.rests())
	gone := old.name
	waitUntil(ctx, c.t, memberWithin, "a new manager becomes a voter", func(ctx context.Context) error {
		role, err := c.role(ctx, fresh.name)
		if err == nil && role != "voter" && role != "leader" {
			err = fmt.Errorf("%s is %q", fresh.name, role)
		}
		return err
	})
	c.net.heal()
	waitUntil(ctx, c.t, memberWithin, "a manager is taken out", func(ctx context.Context) error {
		ask, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		_, err := c.admin.RemoveManager(ask, gone, "")
		if role, asked := c.role(ctx, gone); asked == nil && role == "" {
			return nil // whatever the answer was, it is no member
		}
		return err
	})
	old.clear()
}

// role returns a manager's role in the cluster, "" if it is no member.
func (c *campaign) role(ctx context.Context, name string) (string, error) {
	ask, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	s, err := c.admin.Status(ask)
	if err != nil {
		return "", err
	}
	for _, m := range s.Managers {
		if m.ID == name {
			return m.Role, nil
		}
	}
	if len(s.Managers) == 0 {
		return "", errors.New("a status without managers")
	}
	return "", nil
}

// rests returns the REST addresses of all hosts; hosts without a manager refuse connections.
func (c *campaign) rests() (all []string) {
	for _, h := range c.net.hosts {
		all = append(all, h.rest())
	}
	return all
}

// places returns the leader's host, nil if no manager knows it, and the other hosts with managers in random order.
func (c *campaign) places(ctx context.Context) (leader *host, others []*host) {
	ask, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	s, err := c.admin.Status(ask)
	for _, h := range c.net.occupied(c.rand) {
		if err == nil && h.name == s.Leader.ID {
			leader = h
		} else {
			others = append(others, h)
		}
	}
	return leader, others
}

// run makes n faults; no kind is repeated before every kind has come.
func (c *campaign) run(ctx context.Context, n int) {
	var deck []int
	for made := 0; made < n && ctx.Err() == nil; {
		leader, others := c.places(ctx)
		if leader == nil || len(others) < 2 {
			wait(ctx, betweenLow)
			continue
		}
		if len(deck) == 0 {
			deck = c.rand.Perm(len(misfortunes))
		}
		m := misfortunes[deck[0]]
		deck = deck[1:]
		c.done[m.name]++
		m.f(ctx, c, leader, others)
		c.net.heal()
		if made++; made%len(misfortunes) == 0 {
			wait(ctx, calm)
		}
		wait(ctx, betweenLow+time.Duration(c.rand.Int64N(int64(betweenMore))))
	}
}

// bearer adds a user's password to each request.
type bearer struct {
	user, password string
	next           http.RoundTripper
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.SetBasicAuth(b.user, b.password)
	return b.next.RoundTrip(r)
}

// data starts one KV node, its projector and an indexer on the host of the test: the smallest data path that DDL
// needs.
func (w *network) data(managers []string) {
	w.t.Helper()
	base := ports.Range(w.t)
	at := func(n int) string { return fmt.Sprintf("127.0.0.1:%d", base+n) }
	open := func(n int) string { return fmt.Sprintf("%s:%d", gateway, base+n) } // managers must reach it
	pair := func(role tlsconf.Role, id string) []string {
		files, err := w.ca.Issue(filepath.Join(w.dir, "certs"), id, tlsconf.Request{Peer: tlsconf.Peer{Role: role, ID: id},
			Hosts: []string{gateway}})
		if err != nil {
			w.t.Fatal(err)
		}
		return []string{"--tls-ca", files.CA, "--tls-cert", files.Cert, "--tls-key", files.Key}
	}
	if err := os.WriteFile(filepath.Join(w.dir, "kvpassword"), []byte("kv\n"), 0o600); err != nil {
		w.t.Fatal(err)
	}
	testcluster.Spawn(w.t, w.dir, "kv1", "kv", "--id", "kv1", "--data", filepath.Join(w.dir, "kv1"), "--memcached", at(1),
		"--admin", at(2),
		"--nodes", fmt.Sprintf("kv1=%s=%s", at(1), at(2)), "--buckets", fmt.Sprintf("%s:%032x:%d", bucketName, 7, 16),
		"--kv-user", "u", "--kv-password-file", "kvpassword")
	join := strings.Join(managers, ",")
	testcluster.Spawn(w.t, w.dir, "p1", append([]string{"projector", "--id", "p1", "--managers", join, "--admin", open(3),
		"--kv", at(1),
		"--kv-user", "u", "--kv-password-file", "kvpassword"}, pair(tlsconf.Projector, "p1")...)...)
	testcluster.Spawn(w.t, w.dir, "i1", append([]string{"indexer", "--id", "i1", "--data", filepath.Join(w.dir, "i1"),
		"--managers", join, "--admin", open(4),
		"--scan", open(5), "--maintenance", open(6), "--backfill", open(7), "--catchup", open(8)},
		pair(tlsconf.Indexer, "i1")...)...)
}

// TestNamespaces checks that DDL is linearizable for its clients, with TLS and users, while the managers' hosts, each
// in a network namespace of its own, are cut in one and both directions, flap, fill their disks, get other clocks,
// are killed and stopped, and are replaced by new members. It is a campaign: -ddl.namespaces 300.
func TestNamespaces(t *testing.T) {
	if *namespaceFaults == 0 {
		t.Skip("a campaign: go test ./internal/testing/ddlhistory -run TestNamespaces -ddl.namespaces 300 -timeout 3h, as " +
			"root with iproute2")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(*namespaceFaults)*30*time.Second+10*time.Minute)
	defer cancel()
	t.Logf("-ddl.seed %d", *seed)
	w := newNetwork(t, *namespaceVoters+1)
	var rests []string
	for _, h := range w.hosts {
		rests = append(rests, h.rest())
	}
	for _, h := range w.hosts[:*namespaceVoters] {
		h.start(*namespaceVoters, rests[:*namespaceVoters])
	}
	w.data(rests)
	c := &campaign{t: t, net: w, rand: rand.New(rand.NewPCG(*seed, 1)), done: map[string]int{}}
	source, err := tlsconf.Open(tlsconf.Files{CA: filepath.Join(w.dir, "certs", "ca.pem")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	c.admin = client.Open(client.Options{Servers: rests, TLS: source.UserClient(), User: "admin", Password: adminPassword,
		ViaManagers: true})
	t.Cleanup(c.admin.Close)
	waitUntil(ctx, t, readyWithin, "a cluster with an indexer", func(ctx context.Context) error {
		s, err := c.admin.Status(ctx)
		if err == nil && (len(s.Indexers) == 0 || len(s.Projectors) == 0) {
			err = fmt.Errorf("%d indexers, %d projectors", len(s.Indexers), len(s.Projectors))
		}
		return err
	})
	if _, err := c.admin.PutUser(ctx, "ddl", v1.UserRequest{Role: "ddl", Password: ddlPassword,
		New: true}); err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{TLSClientConfig: source.UserClient(), MaxIdleConnsPerHost: 2 * workers}
	t.Cleanup(transport.CloseIdleConnections)
	var urls []string
	for _, r := range rests {
		urls = append(urls, "https://"+r)
	}
	r := newRecorder()
	var over sync.WaitGroup
	trouble, calmed := context.WithCancel(ctx)
	defer calmed()
	over.Go(func() { defer calmed(); c.run(trouble, *namespaceFaults) })
	all := make([]*worker, workers)
	var working sync.WaitGroup
	for i := range all {
		all[i] = &worker{recorder: r, rand: rand.New(rand.NewPCG(*seed, uint64(100+i))), servers: urls, bucket: bucketName,
			pace: pace,
			http: &http.Client{Transport: bearer{user: "ddl", password: ddlPassword, next: transport}}}
		working.Go(func() {
			all[i].run(ctx, func() bool { return trouble.Err() != nil })
			calmed() // after the first failure the rest adds nothing
		})
	}
	over.Wait()
	working.Wait()
	w.heal()
	settled, done := context.WithTimeout(ctx, readyWithin+patienceOfAll)
	defer done()
	for _, w := range all {
		working.Go(func() {
			for p, ok := w.takeDue(true); ok && w.failed() == nil; p, ok = w.takeDue(true) {
				w.again(settled, p)
			}
		})
	}
	working.Wait()
	for range 3 * len(urls) {
		all[0].list(settled, all[0].names())
	}
	t.Logf("%d operations (%d reads answered), %d entries; faults %v", r.requests.Load(), r.reads.Load(), len(r.history),
		c.done)
	t.Logf("%d attempts again, %d refused, %d outcomes asked for again and kept, %d sent twice at once, %d never learnt",
		r.retries.Load(), r.refusals.Load(), r.replays.Load(), r.hedges.Load(), r.givenUp.Load())
	begun, cancelled, ended := r.splits()
	t.Logf("%d splits, %d cancelled, %d seen to end", begun, cancelled, ended)
	if err := r.failed(); err != nil {
		t.Fatal(err)
	}
	judge(t, r.history)
}
