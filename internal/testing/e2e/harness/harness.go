// Package harness has what the tests of whole clusters share: a workload that records every acknowledged write, scans
// that are compared with the oracle at their own timestamp, and small steps over the product's client and commands. A
// helper that takes a *testing.T fails that test with the reason. The package never starts a cluster and holds no
// state of its own; package testcluster runs clusters.
package harness

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"tidemark/client"
	"tidemark/errcode"
	"tidemark/index"
	"tidemark/internal/sample"
	"tidemark/internal/testing/garbage"
	"tidemark/internal/testing/testcluster"
	"tidemark/wire"
)

// Main is the TestMain of a package that starts clusters: it runs the tests, removes the product's binary, and exits.
func Main(m *testing.M) {
	garbage.Rarely() // results of scans and of the oracle are short-lived
	code := m.Run()
	testcluster.Cleanup()
	os.Exit(code)
}

// SampleIndexes returns the names of the sample's indexes; the oracle has them all.
func SampleIndexes() []string {
	return []string{"world_ids", "airports_by_country", "places_by_name", "airports_by_elevation"}
}

// CreateSampleIndexes creates the sample's indexes on a bucket and waits until they are ready.
func CreateSampleIndexes(ctx context.Context, t *testing.T, c *client.Client, bucket string) {
	t.Helper()
	Create(ctx, t, c, sample.Statements(bucket)...)
}

// Create runs CREATE INDEX statements one after the other, and waits until the indexes are ready.
func Create(ctx context.Context, t testing.TB, c *client.Client, statements ...string) {
	t.Helper()
	var ids []index.ID
	for _, statement := range statements {
		r, err := c.Statement(ctx, statement)
		if err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
		ids = append(ids, r[0].ID)
	}
	if err := c.WaitReady(ctx, ids, nil); err != nil {
		t.Fatalf("%q: %v", statements, err)
	}
}

// WaitReady waits until all indexes of a bucket are ready.
func WaitReady(ctx context.Context, t testing.TB, c *client.Client, bucket string) {
	t.Helper()
	list, err := c.Indexes(ctx, bucket)
	if err != nil {
		t.Fatal(err)
	}
	var ids []index.ID
	for _, i := range list.Indexes {
		ids = append(ids, i.ID)
	}
	if err := c.WaitReady(ctx, ids, nil); err != nil {
		t.Fatal(err)
	}
}

// Tidemark runs a command of the product against a cluster and returns its output.
func Tidemark(ctx context.Context, t *testing.T, up *testcluster.Cluster, args ...string) (out string, err error) {
	t.Helper()
	cmd := exec.CommandContext(ctx, testcluster.Binary(t), append(args, "--data", up.Dir)...)
	b, err := cmd.CombinedOutput()
	return string(b), err
}

// MustRun runs a command, fails the test if the command fails, and returns its output.
func MustRun(ctx context.Context, t *testing.T, up *testcluster.Cluster, args ...string) string {
	t.Helper()
	out, err := Tidemark(ctx, t, up, args...)
	if err != nil {
		t.Fatalf("tidemark %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// RefusedAs reports whether err is an answer of the API with this code.
func RefusedAs(err error, code errcode.Code) bool {
	var p *wire.Problem
	return errors.As(err, &p) && p.Code == code
}

// Hang is the shortest time after which a test gives up waiting: a machine that is slow, or stalls for seconds, is
// not the product's fault. Package bench measures what the product promises in seconds.
const Hang = 3 * time.Minute

// The intervals at which Eventually polls: short at first, then long enough to leave the cores to the processes that
// it waits for.
const (
	lookEvery  = 100 * time.Millisecond
	looksOften = 20
	lookRarely = 300 * time.Millisecond
)

// Eventually waits for a condition, and fails the test if it does not hold within limit, or within Hang if that is
// longer. f also describes what it saw; Eventually returns the last description, or prints it on failure.
func Eventually(t testing.TB, limit time.Duration, what string, f func() (bool, string)) string {
	t.Helper()
	limit = max(limit, Hang)
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	over := time.After(limit)
	for n := 0; ; n++ {
		ok, last := f()
		if ok {
			return last
		}
		if n == looksOften {
			look.Reset(lookRarely)
		}
		select {
		case <-look.C:
		case <-over:
			t.Fatalf("%s: not within %s; last: %s", what, limit, last)
		}
	}
}

// maxBody is the most bytes that Get and GetBy read of a body.
const maxBody = 1 << 20

// Get sends one GET request without credentials. A request that fails has status 0 and its error as body. A body of
// more than maxBody fails the test and counts as a failed request.
func Get(ctx context.Context, t testing.TB, url string) (status int, body string) {
	t.Helper()
	status, body, _ = GetBy(ctx, t, http.DefaultClient, url)
	return status, body
}

// GetBy is Get with the caller's client, such as one that trusts the cluster's CA; state is that of the answer's TLS
// connection, nil without TLS.
func GetBy(ctx context.Context, t testing.TB, c *http.Client, url string) (status int, body string,
	state *tls.ConnectionState) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Do(req)
	if err != nil {
		return 0, err.Error(), nil
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	if err == nil && len(b) > maxBody {
		err = fmt.Errorf("%s: a body of more than %d bytes", url, maxBody)
		t.Error(err)
	}
	if err != nil {
		return 0, err.Error(), nil
	}
	return resp.StatusCode, string(b), resp.TLS
}

// Quote returns s as a JSON string.
func Quote(s string) string {
	b, _ := json.Marshal(s)
	return string(b)
}
