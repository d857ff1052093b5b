package e2e

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"tidemark/client"
	"tidemark/errcode"
	"tidemark/internal/testing/e2e/harness"
	"tidemark/internal/testing/testcluster"
	"tidemark/internal/tlsconf"
	"tidemark/kv/kvclient"
	"tidemark/manager/api/v1"
	"tidemark/wire"
)

// asked counts a client's requests to managers; requests straight to an indexer are not among them.
type asked struct{ locates, scans atomic.Int64 }

func (a *asked) watch(c *client.Client) {
	c.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(r *http.Request) (*http.Response, error) {
			switch {
			case strings.HasSuffix(r.URL.Path, ":locate"):
				a.locates.Add(1)
			case strings.HasSuffix(r.URL.Path, ":scan"), strings.HasSuffix(r.URL.Path, ":count"):
				a.scans.Add(1)
			}
			return next.RoundTrip(r)
		})
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// direct counts an index's rows and scans them until both have gone straight to an indexer: on a machine that stalls,
// one of them may scan through a manager.
func (a *asked) direct(ctx context.Context, t *testing.T, who string, c *client.Client, ref string, want int) {
	t.Helper()
	harness.Eventually(t, harness.Hang, who+" scans without a manager between", func() (bool, string) {
		before := a.scans.Load()
		n, err := c.Count(ctx, ref, v1.ScanRequest{Consistency: "session"})
		if err != nil || int(n.Count) != want {
			t.Fatalf("%s: %+v %v", who, n, err)
		}
		rows, err := c.Scan(ctx, ref, v1.ScanRequest{Consistency: "session"})
		if err != nil {
			t.Fatalf("%s: %v", who, err)
		}
		defer rows.Close()
		got := 0
		for rows.Next() {
			got++
		}
		if rows.Err() != nil || got != want {
			t.Fatalf("%s: %d rows, %v", who, got, rows.Err())
		}
		if a.locates.Load() == 0 {
			t.Fatalf("%s asked no manager for the way: the counters count nothing", who)
		}
		return a.scans.Load() == before, fmt.Sprintf("%d by way of managers", a.scans.Load()-before)
	})
}

// certified checks that a process reports the expiry of the certificate that it presents.
func certified(ctx context.Context, t *testing.T, at string, conf *tls.Config) {
	t.Helper()
	by := &http.Client{Transport: &http.Transport{TLSClientConfig: conf, DisableKeepAlives: true}}
	status, text, state := harness.GetBy(ctx, t, by, at+"/metrics")
	if status != http.StatusOK {
		t.Fatalf("%s: %.1000s", at, text)
	}
	end := state.PeerCertificates[0].NotAfter
	shown := regexp.MustCompile(`(?m)^tidemark_certificate_end_timestamp_seconds\S* (\S+)$`).
		FindAllStringSubmatch(text, -1)
	if len(shown) != 1 {
		t.Fatalf("%s shows %q", at, shown)
	}
	if v, err := strconv.ParseFloat(shown[0][1], 64); err != nil || int64(v) != end.Unix() {
		t.Errorf("%s: its certificate ends at %d, it shows %s", at, end.Unix(), shown[0][1])
	}
}

// TestScansGoStraightWithTLS checks that with TLS and users a scan goes straight to an indexer, with an
// administrator's certificate, a user's password and a token alike, and that none is refused. A revoked token and a
// deleted user scan no more, over open connections too.
func TestScansGoStraightWithTLS(t *testing.T) {
	t.Parallel()
	up := testcluster.Start(t, t.TempDir(), "--tls", "--managers", "1", "--kv", "1", "--indexers", "1", "--vbuckets", "16")
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	m := up.Manifest()
	conf, err := m.UserTLS()
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{m.Managers[0].REST, m.Projectors[0].Admin, m.Indexers[0].Admin, m.KV[0].Admin} {
		certified(ctx, t, at, conf)
	}
	only, err := tlsconf.Open(tlsconf.Files{CA: m.TLS.CA}, nil)
	if err != nil {
		t.Fatal(err)
	}
	open := func(o client.Options) (*client.Client, *asked) {
		if o.Servers = m.Servers(); o.TLS == nil {
			o.TLS = only.UserClient()
		}
		c, a := client.Open(o), &asked{}
		t.Cleanup(c.Close)
		a.watch(c)
		return c, a
	}
	admin, byAdmin := open(client.Options{TLS: conf})
	kv := up.KV(ctx)
	for i := range 40 {
		if _, err := kv.Set(ctx, fmt.Sprintf("d%02d", i), fmt.Appendf(nil, `{"a":%d}`, i), kvclient.StoreOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	harness.Create(ctx, t, admin, "CREATE INDEX n ON "+m.Bucket+"(a)")
	harness.WaitReady(ctx, t, admin, m.Bucket)
	ref := client.Ref(m.Bucket, "n")
	byAdmin.direct(ctx, t, "an administrator's certificate", admin, ref, 40)

	if _, err := admin.PutUser(ctx, "first", v1.UserRequest{New: true, Role: "admin",
		Password: firstPassword}); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.PutUser(ctx, "ann", v1.UserRequest{New: true, Role: "read",
		Password: otherPassword}); err != nil {
		t.Fatal(err)
	}
	token, secret, err := admin.CreateToken(ctx, v1.TokenRequest{User: "ann"})
	if err != nil {
		t.Fatal(err)
	}
	ann, byAnn := open(client.Options{User: "ann", Password: otherPassword})
	bearer, byBearer := open(client.Options{Token: secret})
	byAnn.direct(ctx, t, "a user's password", ann, ref, 40)
	byBearer.direct(ctx, t, "a token", bearer, ref, 40)
	anonymous, _ := open(client.Options{})
	refused(ctx, t, "nobody", anonymous, ref)

	if err := admin.RevokeToken(ctx, token.ID); err != nil {
		t.Fatal(err)
	}
	ends(ctx, t, "a token that was taken away", bearer, ref)
	byAnn.direct(ctx, t, "the token's user", ann, ref, 40)
	if err := admin.RemoveUser(ctx, "ann"); err != nil {
		t.Fatal(err)
	}
	ends(ctx, t, "a user that was taken away", ann, ref)
}

func unauthenticated(err error) bool {
	var p *wire.Problem
	return errors.As(err, &p) && p.Code == errcode.Unauthenticated
}

func refused(ctx context.Context, t *testing.T, who string, c *client.Client, ref string) {
	t.Helper()
	if n, err := c.Count(ctx, ref, v1.ScanRequest{}); !unauthenticated(err) {
		t.Errorf("%s: %+v %v", who, n, err)
	}
}

// ends repeats a count until it is refused. An indexer caches a manager's answer for 4 s, which its own tests check
// with a fake clock.
func ends(ctx context.Context, t *testing.T, who string, c *client.Client, ref string) {
	t.Helper()
	harness.Eventually(t, harness.Hang, who+" is refused", func() (bool, string) {
		n, err := c.Count(ctx, ref, v1.ScanRequest{})
		if err != nil && !unauthenticated(err) {
			t.Fatalf("%s: %v", who, err)
		}
		return err != nil, fmt.Sprintf("%+v", n)
	})
	refused(ctx, t, who, c, ref)
}
