// Package harness is what the tests of whole clusters share: a workload that remembers every acknowledged write, scans
// that are compared with the oracle at their own timestamp, and small steps over the product's client and commands. It
// promises that a helper that takes a *testing.T fails that test with the reason. It never starts a cluster and holds
// no state of its own; clusters are package testcluster's.
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

// Main is the TestMain of a package that starts clusters: it runs the tests, removes the built binary, and exits.
func Main(m *testing.M) {
	garbage.Rarely() // what scans and the oracle return is compared, and gone
	code := m.Run()
	testcluster.Cleanup()
	os.Exit(code)
}

// SampleIndexes returns the names of the sample's indexes, all of which the oracle knows.
func SampleIndexes() []string {
	return []string{"world_ids", "airports_by_country", "places_by_name", "airports_by_elevation"}
}

// CreateSampleIndexes creates the sample's indexes on a bucket and waits until they are ready.
func CreateSampleIndexes(ctx context.Context, t *testing.T, c *client.Client, bucket string) {
	t.Helper()
	Create(ctx, t, c, sample.Statements(bucket)...)
}

// Create runs CREATE INDEX statements, one after the other, and waits until the indexes are ready.
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

// Tidemark runs a command of the product against a cluster and gives all that it prints.
func Tidemark(ctx context.Context, t *testing.T, up *testcluster.Cluster, args ...string) (out string, err error) {
	t.Helper()
	cmd := exec.CommandContext(ctx, testcluster.Binary(t), append(args, "--data", up.Dir)...)
	b, err := cmd.CombinedOutput()
	return string(b), err
}

// MustRun runs a command that must work, and returns what it prints.
func MustRun(ctx context.Context, t *testing.T, up *testcluster.Cluster, args ...string) string {
	t.Helper()
	out, err := Tidemark(ctx, t, up, args...)
	if err != nil {
		t.Fatalf("tidemark %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// RefusedAs reports whether err is an answer of the API with that code.
func RefusedAs(err error, code errcode.Code) bool {
	var p *wire.Problem
	return errors.As(err, &p) && p.Code == code
}

// Hang is how long a test waits, at the least, for what must come before it gives up: a machine that is slow, or stands
// still for seconds, is not the product's fault. What the product promises in seconds is measured by package bench.
const Hang = 3 * time.Minute

// How often Eventually looks: first soon, then as seldom as leaves the cores to what it waits for.
const (
	lookEvery  = 100 * time.Millisecond
	looksOften = 20
	lookRarely = 300 * time.Millisecond
)

// Eventually waits for a condition, and fails the test when it does not hold within limit, or Hang when that is longer.
// f also tells what is seen, which Eventually gives back, or says when it fails.
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

// maxBody is the most that Get and GetBy read of a body.
const maxBody = 1 << 20

// Get makes one GET request without credentials; a request that fails has status 0, and its error for a body. A
// body of more than maxBody fails the test, and counts as such a request.
func Get(ctx context.Context, t testing.TB, url string) (status int, body string) {
	t.Helper()
	status, body, _ = GetBy(ctx, t, http.DefaultClient, url)
	return status, body
}

// GetBy is Get by a client of one's own, as one that trusts the cluster's CA; state is that of the TLS of the answer's
// connection, nil without any.
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

// Quote gives s as a JSON string.
func Quote(s string) string {
	b, _ := json.Marshal(s)
	return string(b)
}
