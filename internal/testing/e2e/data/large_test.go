package data

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"

	"tidemark/client"
	"tidemark/internal/testing/e2e/harness"
	"tidemark/internal/testing/testcluster"
	"tidemark/kv/kvclient"
	"tidemark/manager/api/v1"
)

// TestDocumentLargerThanAFrame checks that a document within all limits, whose keys in four indexes exceed any
// message between projector and indexer, has all its entries in each index: in one built after it, and in those
// maintained while it changes, with any other indexes beside them.
func TestDocumentLargerThanAFrame(t *testing.T) {
	t.Parallel()
	const entries, text, indexes = 3500, 3900, 4
	up := testcluster.Start(t, t.TempDir(), "--managers", "1", "--kv", "1", "--indexers", "1", "--vbuckets", "16")
	ctx, cancel := context.WithTimeout(t.Context(), verifyTime)
	defer cancel()
	c, kv := up.Client(), up.KV(ctx)
	value := func(first int) []byte {
		var b bytes.Buffer
		b.WriteString(`{"kind":"large","items":[`)
		for i := range entries {
			if i > 0 {
				b.WriteByte(',')
			}
			fmt.Fprintf(&b, `"%05d%s"`, first+i, strings.Repeat("x", text))
		}
		b.WriteString(`]}`)
		return b.Bytes()
	}
	if _, err := kv.Set(ctx, "large::1", value(0), kvclient.StoreOptions{}); err != nil {
		t.Fatal(err)
	}
	for i := range indexes {
		harness.Create(ctx, t, c, fmt.Sprintf(`CREATE INDEX large_%d ON world(DISTINCT items, kind) WHERE kind = "large"`, i))
	}
	check := func(what string) {
		t.Helper()
		for i := range indexes {
			ref := client.Ref("world", fmt.Sprintf("large_%d", i))
			n, err := c.Count(ctx, ref, v1.ScanRequest{Consistency: "session"})
			if err != nil || n.Count != entries {
				t.Errorf("%s: %s: %d entries (%v), want %d", what, ref, n.Count, err, entries)
			}
			if found, end := verified(ctx, t, c, fmt.Sprintf("large_%d", i)); len(found) > 0 || end.Differences > 0 ||
				end.Rows != entries {
				t.Errorf("%s: %s: %d differences, %d rows", what, ref, end.Differences, end.Rows)
			}
		}
	}
	check("built")
	if _, err := kv.Set(ctx, "large::1", value(10_000), kvclient.StoreOptions{}); err != nil {
		t.Fatal(err)
	}
	check("changed")
}
