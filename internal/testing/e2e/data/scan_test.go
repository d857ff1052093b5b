package data

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"tidemark/client"
	"tidemark/errcode"
	"tidemark/internal/testing/e2e/harness"
	"tidemark/internal/testing/oracle"
	"tidemark/internal/testing/testcluster"
	"tidemark/kv/kvclient"
	"tidemark/manager/api/v1"
	"tidemark/wire"
)

// handMade are indexes in addition to the sample's, with their contents written out by hand.
var handMade = []struct {
	name, statement string
	oracle          oracle.Index
}{
	{"mixed", `CREATE INDEX mixed ON world(iso_country, elevation_ft DESC) WHERE elevation_ft IS NOT MISSING`, oracle.Index{Desc: []bool{false, true},
		Key: func(_ string, d map[string]any) []any {
			if oracle.IsMissing(oracle.Field(d, "iso_country")) || oracle.IsMissing(oracle.Field(d, "elevation_ft")) {
				return nil
			}
			return []any{oracle.Field(d, "iso_country"), oracle.Field(d, "elevation_ft")}
		}}},
	{"down_up", `CREATE INDEX down_up ON world(kind DESC, name)`, oracle.Index{Desc: []bool{true, false},
		Key: func(_ string, d map[string]any) []any {
			if oracle.IsMissing(oracle.Field(d, "kind")) {
				return nil
			}
			return []any{oracle.Field(d, "kind"), oracle.Field(d, "name")}
		}}},
	{"heights", `CREATE INDEX heights ON world(elevation_ft) WITH {"num_partition": 2}`, oracle.Index{Desc: []bool{false},
		Key: func(_ string, d map[string]any) []any {
			if oracle.IsMissing(oracle.Field(d, "elevation_ft")) {
				return nil
			}
			return []any{oracle.Field(d, "elevation_ft")}
		}}},
}

func raw(texts []string) (all []json.RawMessage) {
	for _, s := range texts {
		all = append(all, json.RawMessage(s))
	}
	return all
}

// bound returns leading components of a random row's key, sometimes with another value in the last one.
func bound(r *rand.Rand, rows []oracle.Row) []string {
	odd := []string{"null", "true", "false", "0", "-1e3", "291.0", `""`, `"A"`, `"\u00e9"`, "[]", `["a",1]`, "{}", "9007199254740993"}
	for range 100 {
		key := rows[r.IntN(len(rows))].Key
		var texts []string
		for _, v := range key[:1+r.IntN(len(key))] {
			if oracle.IsMissing(v) {
				break
			}
			b, err := json.Marshal(v)
			if err != nil {
				break
			}
			texts = append(texts, string(b))
		}
		if len(texts) == 0 {
			continue
		}
		if r.IntN(6) == 0 {
			texts[len(texts)-1] = odd[r.IntN(len(odd))]
		}
		return texts
	}
	return []string{"null"}
}

// randomScan returns a random scan with bounds around existing rows, as a request and for the oracle.
func randomScan(r *rand.Rand, all []oracle.Row) (req v1.ScanRequest, ranges []oracle.Range) {
	inclusion := func() string { return []string{"both", "low", "high", "neither"}[r.IntN(4)] }
	req.Reverse = r.IntN(2) == 0
	if r.IntN(3) == 0 {
		req.Limit = 1 + r.IntN(40)
	}
	switch r.IntN(4) {
	case 0:
		at := bound(r, all)
		req.Equal = raw(at)
		return req, []oracle.Range{{Low: at, High: at, Inclusion: "both"}}
	case 1:
		for range 1 + r.IntN(5) {
			ranges = append(ranges, oracle.Range{Low: bound(r, all), High: bound(r, all), Inclusion: inclusion()})
		}
		for _, o := range ranges {
			req.Ranges = append(req.Ranges, v1.Range{Low: raw(o.Low), High: raw(o.High), Inclusion: o.Inclusion})
		}
		return req, ranges
	}
	o := oracle.Range{Inclusion: inclusion()}
	if r.IntN(4) > 0 {
		o.Low = bound(r, all)
	}
	if r.IntN(4) > 0 {
		o.High = bound(r, all)
	}
	req.Range = &v1.Range{Low: raw(o.Low), High: raw(o.High), Inclusion: o.Inclusion}
	return req, []oracle.Range{o}
}

var scansEach = flag.Int("scans.each", 20, "random scans of each index in TestScansAgainstOracle")

// TestScansAgainstOracle checks that scans with limits, both directions, one and several ranges with every inclusion,
// prefixes, ascending and descending components, and values of every type, equal the oracle's.
func TestScansAgainstOracle(t *testing.T) {
	t.Parallel()
	perIndex := *scansEach
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute+time.Duration(*scansEach)*10*time.Second)
	defer cancel()
	up := testcluster.Start(t, t.TempDir(), "--kv", "1", "--vbuckets", "32")
	c, bucket := up.Client(), up.Manifest().Bucket
	w := harness.NewWorkloadOf(ctx, t, up.KV(ctx), 4)
	r := rand.New(rand.NewPCG(7, 11))
	gone := map[string]bool{}
	for range 1500 {
		if err := w.One(ctx, r, w.Keys[r.IntN(len(w.Keys))], gone); err != nil {
			t.Fatal(err)
		}
	}
	docs := w.History.At(w.History.High())
	selected := 0
	for _, h := range handMade {
		harness.Create(ctx, t, c, h.statement)
		all, err := h.oracle.Rows(docs)
		if err != nil {
			t.Fatal(err)
		}
		if s, err := harness.CollectSoon(ctx, c, bucket, h.name, v1.ScanRequest{Consistency: "session"},
			harness.Hang); err != nil || oracle.Diff(all, s.Keys, s.IDs) != "" {
			t.Fatalf("%s: %v %s", h.name, err, oracle.Diff(all, s.Keys, s.IDs))
		}
		for n := range perIndex {
			req, ranges := randomScan(r, all)
			want, err := h.oracle.Select(all, oracle.Query{Ranges: ranges, Reverse: req.Reverse, Limit: req.Limit})
			if err != nil {
				t.Fatal(err)
			}
			selected += len(want)
			s, err := harness.CollectSoon(ctx, c, bucket, h.name, req, harness.Hang)
			if err != nil {
				t.Fatalf("%s, scan %d, %+v: %v", h.name, n, ranges, err)
			}
			if d := oracle.Diff(want, s.Keys, s.IDs); d != "" {
				t.Errorf("%s, scan %d, ranges %+v, reverse %v, limit %d: %s", h.name, n, ranges, req.Reverse, req.Limit, d)
			}
			if req.Limit == 0 {
				count, err := c.Count(ctx, client.Ref(bucket, h.name), req)
				if err != nil || count.Count != uint64(len(want)) {
					t.Errorf("%s, count %d, ranges %+v: %+v, %v; want %d", h.name, n, ranges, count.Count, err, len(want))
				}
			}
		}
	}
	if selected < 5_000 {
		t.Errorf("the scans selected only %d rows: they prove little", selected)
	}
	t.Logf("%d scans with %d rows equal the oracle's", perIndex*len(handMade), selected)
	t.Run("tokens", func(t *testing.T) { tokens(ctx, t, up, c, w) })
}

// tokens tests at_plus scans: with the token of a write a scan shows it; a scan waits for a write that does not exist
// yet, fails with TIMEOUT if it never comes, and with TOKEN_LOST for a token of an unknown branch.
func tokens(ctx context.Context, t *testing.T, up *testcluster.Cluster, c *client.Client, w *harness.Workload) {
	bucket := up.Manifest().Bucket
	equal := func(v string) []json.RawMessage { return []json.RawMessage{json.RawMessage(harness.Quote(v))} }
	last := kvclient.Mutation{}
	for n := range 30 {
		name := fmt.Sprintf("token %d", n)
		m, err := w.KV.Set(ctx, fmt.Sprintf("token::%d", n%7), []byte(`{"kind":`+harness.Quote(name)+`}`), kvclient.StoreOptions{})
		if err != nil {
			t.Fatal(err)
		}
		last = m
		s, err := harness.Collect(ctx, c, bucket, "down_up", v1.ScanRequest{Consistency: "at_plus", Equal: equal(name),
			Tokens: []v1.Token{{VBucket: m.VBucket, VBUUID: m.VBUUID, Seqno: m.Seqno}}})
		if err != nil || len(s.IDs) != 1 || s.Seqnos[m.VBucket] < m.Seqno {
			t.Fatalf("write %d: %v, %v: an at_plus scan does not show it", n, s.IDs, err)
		}
	}
	key := "token::1" // a key of a vbucket whose next seqno a scan waits for
	m, err := w.KV.Set(ctx, key, []byte(`{"kind":"before"}`), kvclient.StoreOptions{})
	if err != nil {
		t.Fatal(err)
	}
	type answer struct {
		s   harness.Scanned
		err error
	}
	waiting := make(chan answer, 1)
	go func() {
		s, err := harness.Collect(ctx, c, bucket, "down_up", v1.ScanRequest{Consistency: "at_plus", Equal: equal("after"),
			Tokens: []v1.Token{{VBucket: m.VBucket, VBUUID: m.VBUUID, Seqno: m.Seqno + 1}}})
		waiting <- answer{s, err}
	}()
	select {
	case a := <-waiting:
		t.Errorf("a scan with a token of the future came back before the write: %v, %v", a.s.IDs, a.err)
	case <-time.After(700 * time.Millisecond):
	}
	if _, err := w.KV.Set(ctx, key, []byte(`{"kind":"after"}`), kvclient.StoreOptions{}); err != nil {
		t.Fatal(err)
	}
	if a := <-waiting; a.err != nil || len(a.s.IDs) != 1 {
		t.Errorf("the scan that waited gives %v, %v; want the write it waited for", a.s.IDs, a.err)
	}
	for _, tc := range []struct {
		name   string
		token  v1.Token
		status int
		code   errcode.Code
		detail string
	}{
		{"future", v1.Token{VBucket: last.VBucket, VBUUID: last.VBUUID, Seqno: last.Seqno + 1000},
			http.StatusGatewayTimeout, "TIMEOUT", ""},
		{"another branch", v1.Token{VBucket: last.VBucket, VBUUID: last.VBUUID + 1, Seqno: last.Seqno},
			http.StatusConflict, "TOKEN_LOST", fmt.Sprint(last.VBucket)},
		{"no such vbucket", v1.Token{VBucket: 4711, VBUUID: 1, Seqno: 1}, http.StatusBadRequest, "BAD_REQUEST", "4711"},
	} {
		began := time.Now()
		b, err := json.Marshal(v1.ScanRequest{Consistency: "at_plus", Tokens: []v1.Token{tc.token}})
		if err != nil {
			t.Fatal(err)
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodPost,
			up.Manifest().Managers[1].REST+"/v1/indexes/world/down_up:scan", bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		patience := "60000"
		if tc.status == http.StatusGatewayTimeout {
			patience = "2000"
		}
		req.Header.Set("Tidemark-Timeout-Ms", patience)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		var p wire.Problem
		err = errors.Join(json.NewDecoder(resp.Body).Decode(&p), resp.Body.Close())
		if took := time.Since(began); err != nil || resp.StatusCode != tc.status || p.Code != tc.code ||
			!strings.Contains(p.Detail, tc.detail) || took > harness.Hang {
			t.Errorf("%s: after %s %d %s: %s (%v); want %d %s with %q", tc.name, took.Round(time.Millisecond), resp.StatusCode,
				p.Code, p.Detail, err, tc.status, tc.code, tc.detail)
		} else {
			t.Logf("%s: after %s %d %s: %s", tc.name, took.Round(time.Millisecond), resp.StatusCode, p.Code, p.Detail)
		}
	}
}
