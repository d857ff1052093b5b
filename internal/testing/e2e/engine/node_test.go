package engine

import (
	"context"
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"tidemark/internal/testing/e2e/harness"
	"tidemark/kv/kvclient"
	"tidemark/kv/mcbp"
)

// Opcodes that a cluster manager sends to an engine; no client uses them.
const (
	opCreateBucket mcbp.Opcode = 0x85
	opSetVBucket   mcbp.Opcode = 0x3d
	opSetConfig    mcbp.Opcode = 0xb4
	opTraffic      mcbp.Opcode = 0xad
	opCompact      mcbp.Opcode = 0xb3
	opDelVBucket   mcbp.Opcode = 0x3f
	opStopStoring  mcbp.Opcode = 0x80
)

const (
	admin    = "@admin"
	user     = "app"
	password = "password"
	uuid     = "5a3e5a3e5a3e5a3e5a3e5a3e5a3e5a3e"
	active   = 1
	dead     = 4
)

// node is one engine process, with the operations of a cluster manager on it.
type node struct {
	t     testing.TB
	built string // folder of the engine's build
	dir   string
	port  int
	cmd   *exec.Cmd
	rev   int      // revision of the map
	extra []string // settings of the bucket
}

// startNode writes the engine's configuration files and starts it.
func startNode(t testing.TB, engineDir, dir string, port int) *node {
	t.Helper()
	n := newNode(t, engineDir, dir, port)
	n.start()
	return n
}

// newNode is startNode without the start.
func newNode(t testing.TB, engineDir, dir string, port int) *node {
	t.Helper()
	n := &node{t: t, built: filepath.Join(engineDir, "b"), dir: dir, port: port}
	maps := filepath.Join(engineDir, "kv_engine", "etc", "couchbase", "kv", "error_maps")
	if _, err := os.Stat(maps); err != nil {
		maps = filepath.Join(engineDir, "kv_engine", "etc", "error_maps")
	}
	n.write("users.json", map[string]any{"users": []any{credentials(t, admin), credentials(t, user)}})
	data := []string{"Read", "Insert", "Delete", "Upsert", "SimpleStats", "DcpProducer", "MetaRead", "MetaWrite",
		"XattrRead", "SystemXattrRead"}
	node := []string{"Stats", "BucketManagement", "NodeManagement", "SessionManagement", "SecurityManagement"}
	n.write("rights.json", map[string]any{
		admin: map[string]any{"buckets": map[string]any{"*": data}, "privileges": node, "type": "builtin"},
		user:  map[string]any{"buckets": map[string]any{"*": data}, "privileges": []string{}, "type": "builtin"},
	})
	n.write("memcached.json", map[string]any{
		"root": n.dir, "admin": admin, "threads": 2, "rbac_file": filepath.Join(n.dir, "rights.json"), "error_maps_dir": maps,
		"breakpad": map[string]any{"enabled": false, "minidump_dir": n.dir, "content": "default"},
		"interfaces": []any{map[string]any{"host": "127.0.0.1", "port": port, "IPv4": true, "IPv6": false, "maxconn": 2000,
			"backlog":     1024,
			"tcp_nodelay": true, "protocol": "memcached", "management": true}},
		"datatype_json": true, "datatype_snappy": true, "max_packet_size": 30, "xattr_enabled": true, "stdin_listener": false,
		"verbosity":       0,
		"sasl_mechanisms": "SCRAM-SHA512 SCRAM-SHA256 SCRAM-SHA1 PLAIN", "ssl_sasl_mechanisms": "PLAIN",
		"logger": map[string]any{"filename": filepath.Join(n.dir, "engine.log"), "cyclesize": 100 << 20,
			"sleeptime": 1, "unit_test": true},
		"opcode_attributes_override": map[string]any{"version": 1, "default": map[string]any{"slow": "10 s"}},
	})
	return n
}

func (n *node) write(name string, v any) {
	n.t.Helper()
	b, err := json.Marshal(v)
	if err == nil {
		err = os.WriteFile(filepath.Join(n.dir, name), b, 0o600)
	}
	if err != nil {
		n.t.Fatal(err)
	}
}

// credentials returns a user's entry in an engine's password file.
func credentials(t testing.TB, name string) map[string]any {
	t.Helper()
	const rounds = 4000
	u := map[string]any{"n": name}
	salt := func(size int) []byte {
		b := make([]byte, size)
		_, _ = rand.Read(b) // never fails
		return b
	}
	derived := func(key string, h func() hash.Hash, size int) {
		s := salt(size)
		k, err := pbkdf2.Key(h, password, s, rounds, size)
		if err != nil {
			t.Fatal(err)
		}
		u[key] = map[string]any{"h": base64.StdEncoding.EncodeToString(k), "s": base64.StdEncoding.EncodeToString(s),
			"i": rounds}
	}
	derived("sha1", sha1.New, sha1.Size)
	derived("sha256", sha256.New, sha256.Size)
	derived("sha512", sha512.New, sha512.Size)
	s := salt(16)
	mac := hmac.New(sha1.New, s)
	mac.Write([]byte(password))
	u["plain"] = base64.StdEncoding.EncodeToString(mac.Sum(s))
	return u
}

// start runs the engine until the end of the test, and waits until it listens.
func (n *node) start() {
	n.t.Helper()
	var libraries []string
	err := filepath.WalkDir(n.built, func(path string, _ fs.DirEntry, err error) error {
		if dir := filepath.Dir(path); strings.Contains(filepath.Base(path), ".so") && !slices.Contains(libraries, dir) {
			libraries = append(libraries, dir)
		}
		return err
	})
	if err != nil {
		n.t.Fatal(err)
	}
	out, err := os.Create(filepath.Join(n.dir, "engine.out"))
	if err != nil {
		n.t.Fatal(err)
	}
	n.cmd = exec.Command(filepath.Join(n.built, "kv_engine", "memcached"), "-C", filepath.Join(n.dir, "memcached.json"))
	n.cmd.Dir, n.cmd.Stdout, n.cmd.Stderr = filepath.Join(n.built, "kv_engine"), out, out
	n.cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+strings.Join(libraries, ":"),
		"CBSASL_PWFILE="+filepath.Join(n.dir, "users.json"))
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := errors.Join(n.cmd.Start(), out.Close()); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		_ = n.cmd.Process.Kill()
		_ = n.cmd.Wait()
	})
	harness.Eventually(n.t, harness.Hang, "the engine listens", func() (bool, string) {
		c, err := net.Dial("tcp", n.addr())
		if err != nil {
			return false, err.Error()
		}
		return true, fmt.Sprint(c.Close())
	})
}

func (n *node) addr() string { return fmt.Sprintf("127.0.0.1:%d", n.port) }

// dial opens the administrator's connection; the caller closes it.
func (n *node) dial(ctx context.Context, bucket string) *kvclient.Conn {
	n.t.Helper()
	c, err := kvclient.Dial(ctx, n.addr(), kvclient.Options{User: admin, Password: password, Bucket: bucket,
		OpTimeout: time.Minute})
	if err != nil {
		n.t.Fatal(err)
	}
	return c
}

// must sends a request that must succeed.
func (n *node) must(ctx context.Context, c *kvclient.Conn, f mcbp.Frame) {
	n.t.Helper()
	a, err := c.Do(ctx, f)
	if err == nil && a.Status() != mcbp.StatusOK {
		err = kvclient.NewStatusError(a)
	}
	if err != nil {
		n.t.Fatalf("%v of vbucket %d: %v", f.Op, f.VBucket(), err)
	}
}

// kill kills the engine as a crash does: it loses what it has acknowledged but not stored.
func (n *node) kill() {
	_ = n.cmd.Process.Kill()
	_ = n.cmd.Wait() // killed on purpose
}

// flush empties the bucket as a cluster manager does: each vbucket is set dead, deleted, and created again.
func (n *node) flush(ctx context.Context, bucket string, vbuckets int) {
	n.t.Helper()
	c := n.dial(ctx, bucket)
	defer c.Close()
	for vb := range uint16(vbuckets) {
		for _, f := range []mcbp.Frame{
			{Header: mcbp.Request(opSetVBucket, vb, 0), Extras: binary.BigEndian.AppendUint32(nil, dead)},
			{Header: mcbp.Request(opDelVBucket, vb, 0)},
			{Header: mcbp.Request(opSetVBucket, vb, 0), Extras: binary.BigEndian.AppendUint32(nil, active)},
		} {
			n.must(ctx, c, f)
		}
	}
}

// create creates a bucket whose vbuckets are all active on this node, with the data in its folder, and publishes the
// map to clients.
func (n *node) create(ctx context.Context, bucket string, vbuckets int) {
	n.t.Helper()
	c := n.dial(ctx, "")
	settings := strings.Join(append([]string{"dbname=" + filepath.Join(n.dir, bucket), "max_size=1073741824",
		fmt.Sprint("max_vbuckets=", vbuckets), "uuid=" + uuid,
		"couch_bucket=" + bucket, "ht_size=3079", "backend=couchdb", "data_traffic_enabled=false", "failpartialwarmup=false",
		"max_num_workers=3",
		"conflict_resolution_type=seqno", "item_eviction_policy=value_only", "alog_path=" +
			filepath.Join(n.dir, "access.log")}, n.extra...), ";")
	n.must(ctx, c, mcbp.Frame{Header: mcbp.Request(opCreateBucket, 0, 0), Key: []byte(bucket),
		Value: append([]byte("ep.so\x00"), settings...)})
	_ = c.Close()
	c = n.dial(ctx, bucket)
	defer c.Close()
	harness.Eventually(n.t, harness.Hang, "the bucket is warm", func() (bool, string) {
		a, err := c.Do(ctx, mcbp.Frame{Header: mcbp.Request(opTraffic, 0, 0)})
		return err == nil && a.Status() == mcbp.StatusOK, fmt.Sprint(a.Status(), err)
	})
	n.rev++
	placed := make([][]int, vbuckets)
	for vb := range placed {
		placed[vb] = []int{0}
		n.must(ctx, c, mcbp.Frame{Header: mcbp.Request(opSetVBucket, uint16(vb), 0),
			Extras: binary.BigEndian.AppendUint32(nil, active)})
	}
	shown, err := json.Marshal(map[string]any{
		"rev": n.rev, "name": bucket, "uuid": uuid, "nodeLocator": "vbucket", "bucketCapabilitiesVer": "",
		"uri": "/pools/default/buckets/" + bucket, "streamingUri": "/pools/default/bucketsStreaming/" + bucket,
		"bucketCapabilities": []string{"xattr", "dcp", "cbhello", "touch", "cccp", "nodesExt"},
		"nodes": []any{map[string]any{"hostname": "$HOST:8091",
			"ports": map[string]int{"proxy": 11211, "direct": n.port}}},
		"nodesExt": []any{map[string]any{"services": map[string]int{"mgmt": 8091, "kv": n.port}, "thisNode": true}},
		"vBucketServerMap": map[string]any{"hashAlgorithm": "CRC", "numReplicas": 0,
			"serverList": []string{fmt.Sprint("$HOST:", n.port)},
			"vBucketMap": placed},
	})
	if err != nil {
		n.t.Fatal(err)
	}
	n.must(ctx, c, mcbp.Frame{Header: mcbp.Request(opSetConfig, 0, 0), Value: shown})
}

// purge makes the engine purge all stored deletions.
func (n *node) purge(ctx context.Context, bucket string, vbuckets int) {
	n.t.Helper()
	c := n.dial(ctx, bucket)
	defer c.Close()
	extras := make([]byte, 24)
	extras[16] = 1 // all deletions of any age
	for vb := range vbuckets {
		n.must(ctx, c, mcbp.Frame{Header: mcbp.Request(opCompact, uint16(vb), 0), Extras: extras})
	}
}

// purged returns the purge seqno of each vbucket.
func (n *node) purged(ctx context.Context, bucket string) map[string]uint64 {
	n.t.Helper()
	return n.details(ctx, bucket, ":purge_seqno")
}

// highs returns the high seqno of each vbucket.
func (n *node) highs(ctx context.Context, bucket string) map[string]uint64 {
	n.t.Helper()
	return n.details(ctx, bucket, ":high_seqno")
}

// details returns one of an engine's per-vbucket statistics.
func (n *node) details(ctx context.Context, bucket, name string) map[string]uint64 {
	n.t.Helper()
	c := n.dial(ctx, bucket)
	defer c.Close()
	all := map[string]uint64{}
	err := c.Stat(ctx, "vbucket-details", func(key, value []byte) {
		if vb, ok := strings.CutSuffix(string(key), name); ok {
			all[vb], _ = strconv.ParseUint(string(value), 10, 64)
		}
	})
	if err != nil {
		n.t.Fatal(err)
	}
	return all
}
