package kv

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/couchbase/gocbcore/v10"
	"github.com/couchbase/gocbcore/v10/memd"
	"go.uber.org/goleak"

	"tidemark/kv/mcbp"
)

const (
	testUser     = "Administrator"
	testPassword = "secret"
	testTimeout  = 3 * time.Minute // hang guard
)

// goleakMain runs the tests and fails when goroutines are left.
func goleakMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testConfig returns the configuration of a node with one bucket "world" of 16 vbuckets.
func testConfig(dir string) Config {
	return Config{
		NodeID: "kv1", Dir: dir, Listen: "127.0.0.1:0", Admin: "127.0.0.1:0",
		Buckets: []BucketConfig{{Name: "world", UUID: "0123456789abcdef0123456789abcdef", VBuckets: 16}},
		User:    testUser, Password: testPassword,
	}
}

// runNode opens and runs a node; the returned function stops it in order.
func runNode(t testing.TB, config Config) (*Node, func()) {
	t.Helper()
	n, err := Open(config)
	if err != nil {
		t.Fatal(err)
	}
	return n, serve(t, n)
}

// serve runs a node and waits until it serves documents.
func serve(t testing.TB, n *Node) func() {
	t.Helper()
	stop := start(t, n)
	ready(t, n)
	return stop
}

// keepStates lets a test set states of a node's vbuckets that differ from the map. Otherwise the node restores the
// map's states every second; here it changes nothing until the test ends.
func keepStates(t testing.TB, n *Node) {
	n.cluster.changing.Lock()
	t.Cleanup(n.cluster.changing.Unlock)
}

func ready(t testing.TB, n *Node) {
	t.Helper()
	select {
	case <-n.Ready():
	case <-time.After(testTimeout):
		t.Fatalf("node %s does not serve", n.config.NodeID)
	}
}

// eventually repeats check until it returns no error.
func eventually(t testing.TB, check func() error) {
	t.Helper()
	for deadline := time.Now().Add(testTimeout); ; {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// start runs a node; the returned function stops it in order.
func start(t testing.TB, n *Node) func() {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	stopped := false
	stop := func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(testTimeout):
			t.Error("node did not stop")
		}
	}
	t.Cleanup(stop)
	return stop
}

// keysOf returns n keys of one vbucket.
func keysOf(vb uint16, vbuckets, n int) []string {
	var out []string
	for i := 0; len(out) < n; i++ {
		k := "doc::" + string(rune('a'+i%26)) + time.Duration(i).String()
		if mcbp.VBucket([]byte(k), vbuckets) == vb {
			out = append(out, k)
		}
	}
	return out
}

// await runs an asynchronous gocbcore operation and waits for its result.
func await(t testing.TB, start func(done chan<- error) error) error {
	t.Helper()
	done := make(chan error, 1)
	if err := start(done); err != nil {
		return err
	}
	select {
	case err := <-done:
		return err
	case <-time.After(testTimeout):
		return errors.New("no answer")
	}
}

func mechanisms() []gocbcore.AuthMechanism {
	return []gocbcore.AuthMechanism{gocbcore.ScramSha512AuthMechanism}
}

func kvAgent(t testing.TB, addr, bucket string) *gocbcore.Agent {
	t.Helper()
	return kvAgentOf(t, addr, bucket, testUser, testPassword)
}

func kvAgentOf(t testing.TB, addr, bucket, user, password string) *gocbcore.Agent {
	t.Helper()
	agent, err := gocbcore.CreateAgent(&gocbcore.AgentConfig{
		BucketName: bucket,
		SeedConfig: gocbcore.SeedConfig{MemdAddrs: []string{addr}},
		SecurityConfig: gocbcore.SecurityConfig{
			Auth: gocbcore.PasswordAuthProvider{Username: user, Password: password}, AuthMechanisms: mechanisms(),
		},
		IoConfig: gocbcore.IoConfig{UseCollections: true, UseMutationTokens: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = agent.Close() })
	err = await(t, func(done chan<- error) error {
		_, err := agent.WaitUntilReady(time.Now().Add(testTimeout),
			gocbcore.WaitUntilReadyOptions{ServiceTypes: []gocbcore.ServiceType{gocbcore.MemdService}},
			func(_ *gocbcore.WaitUntilReadyResult, err error) { done <- err })
		return err
	})
	if err != nil {
		t.Fatalf("kv agent is not ready: %v", err)
	}
	return agent
}

func dcpAgent(t testing.TB, addr, bucket, name string, flags memd.DcpOpenFlag) *gocbcore.DCPAgent {
	t.Helper()
	return dcpAgentOf(t, addr, bucket, name, flags, testUser, testPassword)
}

func dcpAgentOf(t testing.TB, addr, bucket, name string, flags memd.DcpOpenFlag, user,
	password string) *gocbcore.DCPAgent {
	t.Helper()
	agent, err := gocbcore.CreateDcpAgent(&gocbcore.DCPAgentConfig{
		BucketName: bucket,
		SeedConfig: gocbcore.SeedConfig{MemdAddrs: []string{addr}},
		SecurityConfig: gocbcore.SecurityConfig{
			Auth: gocbcore.PasswordAuthProvider{Username: user, Password: password}, AuthMechanisms: mechanisms(),
		},
		IoConfig:         gocbcore.IoConfig{UseCollections: true},
		DCPConfig:        gocbcore.DCPConfig{BufferSize: 2 << 20, UseExpiryOpcode: true},
		EnableCCCPPoller: true,
	}, name, flags)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = agent.Close() })
	err = await(t, func(done chan<- error) error {
		_, err := agent.WaitUntilReady(time.Now().Add(testTimeout),
			gocbcore.WaitUntilReadyOptions{ServiceTypes: []gocbcore.ServiceType{gocbcore.MemdService}},
			func(_ *gocbcore.WaitUntilReadyResult, err error) { done <- err })
		return err
	})
	if err != nil {
		t.Fatalf("dcp agent is not ready: %v", err)
	}
	return agent
}

func set(t testing.TB, a *gocbcore.Agent, key, value string) gocbcore.MutationToken {
	t.Helper()
	var token gocbcore.MutationToken
	err := await(t, func(done chan<- error) error {
		_, err := a.Set(gocbcore.SetOptions{Key: []byte(key), Value: []byte(value)},
			func(r *gocbcore.StoreResult, err error) {
				if err == nil {
					token = r.MutationToken
				}
				done <- err
			})
		return err
	})
	if err != nil {
		t.Fatalf("set %s: %v", key, err)
	}
	return token
}

func remove(t testing.TB, a *gocbcore.Agent, key string) {
	t.Helper()
	err := await(t, func(done chan<- error) error {
		_, err := a.Delete(gocbcore.DeleteOptions{Key: []byte(key)},
			func(_ *gocbcore.DeleteResult, err error) { done <- err })
		return err
	})
	if err != nil {
		t.Fatalf("delete %s: %v", key, err)
	}
}

func get(t testing.TB, a *gocbcore.Agent, key string) (string, error) {
	t.Helper()
	var value string
	err := await(t, func(done chan<- error) error {
		_, err := a.Get(gocbcore.GetOptions{Key: []byte(key)}, func(r *gocbcore.GetResult, err error) {
			if err == nil {
				value = string(r.Value)
			}
			done <- err
		})
		return err
	})
	return value, err
}
