package ddlhistory

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"tidemark/internal/failpoint"
	"tidemark/internal/testing/testcluster"
	"tidemark/internal/tlsconf"
)

// The network of the hosts. The bridge is in the namespace of the test, so clients reach every host whatever is cut
// between hosts.
const (
	subnet   = "10.77.0."
	bridge   = "tmd-br"
	gateway  = subnet + "254" // the host of the test
	restPort = 9520
	raftPort = 9521
	diskSize = "192m"
)

// host is one machine of the campaign: a network namespace with its own address, a disk of limited size, and at most
// one manager.
type host struct {
	net   *network
	place int    // from 1: the address is subnet + place
	ns    string // the network namespace
	disk  string // mount point

	mu   sync.Mutex
	name string // of its manager, "" if it has none
	proc *testcluster.Process
	born int // number of managers started on it; each began with an empty folder
}

// network holds the hosts, their certificates and their clocks.
type network struct {
	t       testing.TB
	dir     string
	ca      *tlsconf.CA
	faults  failpoint.Dir
	hosts   []*host
	next    int  // number of the next manager
	running bool // ip and mount have changed the system
}

// newNetwork makes n hosts. It needs root, and the commands ip and tc of iproute2.
func newNetwork(t testing.TB, n int) *network {
	t.Helper()
	w := &network{t: t, dir: t.TempDir(), next: 1}
	ca, err := tlsconf.CreateCA(filepath.Join(w.dir, "certs"), "CA of the campaign", 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	w.ca = ca
	w.faults = failpoint.Dir(filepath.Join(w.dir, "faults"))
	if err := os.Mkdir(string(w.faults), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(w.dir, "password"), []byte(adminPassword+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.remove)
	w.running = true
	try("ip", "link", "del", bridge) // left by a campaign that was killed; two at once would share addresses
	for place := 1; place <= n; place++ {
		try("ip", "link", "del", outer(place))
		try("ip", "netns", "del", fmt.Sprintf("tmd%d", place))
	}
	w.must("ip", "link", "add", bridge, "type", "bridge")
	w.must("ip", "addr", "add", gateway+"/24", "dev", bridge)
	w.must("ip", "link", "set", bridge, "up")
	for place := 1; place <= n; place++ {
		h := &host{net: w, place: place, ns: fmt.Sprintf("tmd%d", place),
			disk: filepath.Join(w.dir, fmt.Sprintf("disk%d", place))}
		w.hosts = append(w.hosts, h)
		h.create()
	}
	// neighbour entries are static, without ARP: a cut is an entry with an unused link address
	for _, h := range w.hosts {
		for _, o := range w.hosts {
			if o != h {
				h.neighbour(o, o.mac())
			}
		}
	}
	return w
}

func (w *network) must(name string, args ...string) {
	w.t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		w.t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
}

// try runs a command and ignores its failure: what the command undoes may not exist.
func try(name string, args ...string) { _ = exec.Command(name, args...).Run() }

// remove removes everything that newNetwork has made. The processes have ended, as their cleanups run first.
func (w *network) remove() {
	if !w.running {
		return
	}
	for _, h := range w.hosts {
		try("ip", "link", "del", outer(h.place)) // a namespace ends some time after its name is deleted
		try("ip", "netns", "del", h.ns)
		try("umount", h.disk)
	}
	try("ip", "link", "del", bridge)
}

func (h *host) create() {
	w := h.net
	w.t.Helper()
	if err := os.Mkdir(h.disk, 0o700); err != nil {
		w.t.Fatal(err)
	}
	w.must("mount", "-t", "tmpfs", "-o", "size="+diskSize, "tmpfs", h.disk)
	w.must("ip", "netns", "add", h.ns)
	w.must("ip", "link", "add", outer(h.place), "type", "veth", "peer", "name", "eth0", "address", h.mac(), "netns", h.ns)
	w.must("ip", "link", "set", outer(h.place), "master", bridge)
	w.must("ip", "link", "set", outer(h.place), "up")
	w.must("ip", "-n", h.ns, "link", "set", "lo", "up")
	w.must("ip", "-n", h.ns, "addr", "add", h.ip()+"/24", "dev", "eth0")
	w.must("ip", "-n", h.ns, "link", "set", "eth0", "up")
}

// outer returns the name of a host's link on the bridge.
func outer(place int) string { return fmt.Sprintf("tmd-v%d", place) }

func (h *host) ip() string   { return fmt.Sprint(subnet, h.place) }
func (h *host) mac() string  { return fmt.Sprintf("02:74:6d:00:00:%02x", h.place) }
func (h *host) rest() string { return net.JoinHostPort(h.ip(), fmt.Sprint(restPort)) }

// neighbour sets the link address under which h reaches another host.
func (h *host) neighbour(o *host, mac string) {
	h.net.must("ip", "-n", h.ns, "neigh", "replace", o.ip(), "lladdr", mac, "dev", "eth0", "nud", "permanent")
}

// noHost is a link address that no host has: packets to it are lost silently.
const noHost = "02:74:6d:00:ff:ff"

// mute drops what h sends to others; what they send still arrives.
func (h *host) mute(others ...*host) {
	for _, o := range others {
		if o != h {
			h.neighbour(o, noHost)
		}
	}
}

// part cuts both directions between every host of a and every host of b.
func part(a, b []*host) {
	for _, h := range a {
		h.mute(b...)
	}
	for _, h := range b {
		h.mute(a...)
	}
}

// heal removes all cuts and empties the disks that were filled.
func (w *network) heal() {
	for _, h := range w.hosts {
		for _, o := range w.hosts {
			if o != h {
				h.neighbour(o, o.mac())
			}
		}
		h.narrow("")
		h.free()
	}
}

// narrow limits the rate at which h sends; "" removes the limit.
func (h *host) narrow(rate string) {
	if rate == "" {
		try("ip", "netns", "exec", h.ns, "tc", "qdisc", "del", "dev", "eth0", "root")
		return
	}
	h.net.must("ip", "netns", "exec", h.ns, "tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", rate, "burst",
		"16kbit", "latency", "300ms")
}

func (h *host) filler() string { return filepath.Join(h.disk, "filler") }

// fill fills h's disk to the last byte.
func (h *host) fill() {
	f, err := os.Create(h.filler())
	if err != nil {
		h.net.t.Error(err)
		return
	}
	defer f.Close()
	for block := make([]byte, 1<<20); len(block) > 0; {
		if _, err := f.Write(block); err != nil {
			block = block[:len(block)/2] // down to single bytes
		}
	}
}

func (h *host) free() { _ = os.Remove(h.filler()) }

// start starts a new manager with an empty folder and an unused name, which requests membership from the managers in
// join; expect is the number of managers of a new cluster.
func (h *host) start(expect int, join []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	w := h.net
	w.t.Helper()
	h.name = fmt.Sprintf("m%d", w.next)
	w.next++
	h.born++
	files, err := w.ca.Issue(filepath.Join(w.dir, "certs"), h.name,
		tlsconf.Request{Peer: tlsconf.Peer{Role: tlsconf.Manager, ID: h.name}, Hosts: []string{h.ip()}})
	if err != nil {
		w.t.Fatal(err)
	}
	args := []string{"netns", "exec", h.ns, testcluster.Binary(w.t), "manager", "--id", h.name, "--data",
		filepath.Join(h.disk, h.name),
		"--rest", h.rest(), "--raft", net.JoinHostPort(h.ip(), fmt.Sprint(raftPort)), "--bootstrap-expect",
		fmt.Sprint(expect), "--join", strings.Join(join, ","),
		"--min-free-bytes", "8388608", "--failpoints", string(w.faults), "--log-level", "debug",
		"--tls-ca", files.CA, "--tls-cert", files.Cert, "--tls-key", files.Key, "--initial-admin-password-file",
		filepath.Join(w.dir, "password")}
	if *namespaceBeat > 0 {
		args = append(args, "--heartbeat", namespaceBeat.String())
	}
	h.proc = testcluster.SpawnCommand(w.t, w.dir, h.name, "ip", args...)
}

// again restarts the host's last manager.
func (h *host) again() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.proc != nil {
		h.proc = testcluster.SpawnCommand(h.net.t, h.net.dir, h.name, "ip", h.proc.Args...)
	}
}

// end kills the manager.
func (h *host) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.proc != nil {
		h.proc.Kill()
	}
}

// clear ends the manager permanently and empties its disk.
func (h *host) clear() {
	h.end()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.name != "" {
		_ = os.RemoveAll(filepath.Join(h.disk, h.name))
	}
	h.name, h.proc = "", nil
}

func (h *host) signal(s syscall.Signal) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.proc != nil {
		h.proc.Signal(s)
	}
}

// occupied returns the hosts with a manager, in a random order drawn from r.
func (w *network) occupied(r *rand.Rand) (all []*host) {
	for _, i := range r.Perm(len(w.hosts)) {
		h := w.hosts[i]
		h.mu.Lock()
		if h.name != "" {
			all = append(all, h)
		}
		h.mu.Unlock()
	}
	return all
}

// empty returns a host without a manager, nil if there is none.
func (w *network) empty() *host {
	for _, h := range w.hosts {
		h.mu.Lock()
		name := h.name
		h.mu.Unlock()
		if name == "" {
			return h
		}
	}
	return nil
}

// waitUntil retries f until it returns no error, and fails the test after limit.
func waitUntil(ctx context.Context, t testing.TB, limit time.Duration, what string, f func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		err := f(ctx)
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("%s: not within %s: %v", what, limit, err)
		}
		wait(ctx, 50*time.Millisecond)
	}
}
