package localcluster

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func config(dir string) Config {
	return Config{Exe: "/nowhere", Dir: dir, Managers: 3, KV: 2, Indexers: 3, Bucket: "world", FirstREST: 23400,
		LogLevel: "info"}
}

func open(t *testing.T, cfg Config) *Cluster {
	t.Helper()
	c, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.lock.Release() })
	return c
}

// TestPlanIsKept checks that addresses, credentials and the bucket's uuid stay those of the first run,
// and that only one `up` can use a folder.
func TestPlanIsKept(t *testing.T) {
	dir := t.TempDir()
	c := open(t, config(dir))
	first := c.Manifest()
	addrs := first.addresses()
	if len(addrs) != 3*2+2*2+2+3*5 {
		t.Errorf("%d addresses", len(addrs))
	}
	slices.Sort(addrs)
	if len(slices.Compact(addrs)) != 27 {
		t.Error("an address was assigned twice")
	}
	for _, a := range addrs {
		if !strings.HasPrefix(a, loopback+":") {
			t.Errorf("%s is not on loopback", a)
		}
	}
	if len(c.children) != 3+2+2+3 {
		t.Errorf("%d children", len(c.children))
	}
	for _, name := range []string{planFile, passwordFile, "LOCK"} {
		s, err := os.Stat(filepath.Join(dir, name))
		if err != nil || s.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v", name, s, err)
		}
	}
	if _, err := Open(config(dir)); !errors.Is(err, ErrInUse) ||
		!strings.Contains(err.Error(), strconv.Itoa(os.Getpid())) {
		t.Errorf("a second one: %v", err)
	}
	if _, err := ReadManifest(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("there is a manifest although nothing runs: %v", err)
	}
	c.lock.Release()

	again := config(dir)
	again.FirstREST = 23900 // the plan's addresses are used
	c = open(t, again)
	second := c.Manifest()
	if second.KVPassword != first.KVPassword || second.BucketUUID != first.BucketUUID ||
		second.Managers[0].REST != first.Managers[0].REST {
		t.Errorf("%+v, then %+v", first, second)
	}
	c.lock.Release()

	other := config(dir)
	other.Indexers = 2
	if _, err := Open(other); err == nil || !strings.Contains(err.Error(), "--indexers 3") {
		t.Errorf("another size: %v", err)
	}
	other = config(dir)
	other.VBuckets = 64
	if _, err := Open(other); err == nil || !strings.Contains(err.Error(), "--vbuckets 128") {
		t.Errorf("other vbuckets: %v", err)
	}
	c = open(t, config(dir)) // the failed one has released the folder
	c.lock.Release()
	if err := os.Remove(filepath.Join(dir, planFile)); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "m1"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(config(dir)); err == nil || !strings.Contains(err.Error(), planFile) {
		t.Errorf("data without a plan: %v", err)
	}
}

// A run that was killed between the plan and the password's file leaves a folder that the next run has to complete:
// otherwise its KV nodes and projectors fail for ever.
func TestPasswordFileComesBack(t *testing.T) {
	dir := t.TempDir()
	c := open(t, config(dir))
	c.lock.Release()
	path := filepath.Join(dir, passwordFile)
	for name, damage := range map[string]func() error{
		"missing": func() error { return os.Remove(path) },
		"empty":   func() error { return os.Truncate(path, 0) },
	} {
		if err := damage(); err != nil {
			t.Fatal(err)
		}
		c = open(t, config(dir))
		c.lock.Release()
		if b, err := os.ReadFile(path); err != nil || string(b) != c.Manifest().KVPassword+"\n" {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
}

// While an `up` waits for its processes there is no cluster.json, and the commands that say what it waits for, and mend
// it, find its processes by the plan. Nothing is found where none runs.
func TestReadRunning(t *testing.T) {
	dir := t.TempDir()
	conf := config(dir)
	conf.TLS = true
	c := open(t, conf)
	c.lock.Release()
	moved := filepath.Join(t.TempDir(), "moved")
	if err := os.Rename(dir, moved); err != nil {
		t.Fatal(err)
	}
	m, err := ReadRunning(moved) // its lock names this process
	if err != nil || !slices.Equal(m.Servers(), c.manifest.Servers()) || m.KVPassword != c.manifest.KVPassword ||
		m.TLS.Cert != filepath.Join(moved, certsDir, adminName+".pem") {
		t.Errorf("while it starts: %+v, %v", m, err)
	}
	ended := exec.Command("true")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	for _, pid := range []string{"", "0", "-1", strconv.Itoa(ended.Process.Pid)} {
		if err := os.WriteFile(filepath.Join(moved, lockFile), []byte(pid+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if m, err := ReadRunning(moved); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("pid %q: %+v, %v", pid, m, err)
		}
	}
}

func TestBrokenManifest(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, planFile), []byte(`{"managers":`), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Open(config(dir))
	if err == nil || !strings.Contains(err.Error(), planFile) || !strings.Contains(err.Error(), "restore that file") {
		t.Error(err)
	}
}

func TestConfigIsChecked(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"--managers 0":    func(c *Config) { c.Managers = 0 },
		"--vbuckets 2048": func(c *Config) { c.VBuckets = 2 * maxVBuckets },
		"--vbuckets 100":  func(c *Config) { c.VBuckets = 100 },
		"--vbuckets 1":    func(c *Config) { c.VBuckets = 1 },
		"--kv 17":         func(c *Config) { c.KV = MaxNodes + 1 },
		"--indexers -1":   func(c *Config) { c.Indexers = -1 },
		`--bucket "a b`:   func(c *Config) { c.Bucket = "a b" },
		`--bucket ""`:     func(c *Config) { c.Bucket = "" },
		"--bucket \"a:":   func(c *Config) { c.Bucket = "a:1" },
	} {
		cfg := config(t.TempDir())
		change(&cfg)
		if _, err := Open(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// TestPorts checks that a taken port is skipped, none is chosen twice, and all are free again in the end.
func TestPorts(t *testing.T) {
	l, err := net.Listen("tcp", loopback+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	taken := l.Addr().(*net.TCPAddr).Port
	p := &portChooser{next: taken}
	a, b := p.take(), p.take()
	if p.err != nil || a == b || a == l.Addr().String() {
		t.Errorf("%q %q %v", a, b, p.err)
	}
	if portFree(a) == nil {
		t.Errorf("%s is not held", a)
	}
	p.release()
	if err := portFree(a); err != nil {
		t.Error(err)
	}
	p = &portChooser{next: 65536}
	if p.take() != "" || p.err == nil || p.take() != "" {
		t.Errorf("ports beyond the last: %v", p.err)
	}
}

func TestManifestRoundTrip(t *testing.T) {
	dir := t.TempDir()
	m := Manifest{Managers: []ManagerEntry{{ID: "m1", REST: "http://x", PID: 7}}, KVPassword: "p", PID: 9}
	if err := m.write(filepath.Join(dir, ClusterFile)); err != nil {
		t.Fatal(err)
	}
	got, err := ReadManifest(dir)
	if err != nil || got.Managers[0] != m.Managers[0] || got.PID != 9 ||
		!slices.Equal(got.Servers(), []string{"http://x"}) {
		t.Errorf("%+v %v", got, err)
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 1 {
		t.Errorf("files are left over: %v %v", files, err)
	}
}
