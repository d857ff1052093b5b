package harness

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"tidemark/client"
	"tidemark/internal/testing/oracle"
	"tidemark/internal/testing/testcluster"
	"tidemark/manager/api/v1"
)

// Scanned is the result of one scan: for each row its key and its document's id, in order, and the scan's timestamp:
// its id, and one seqno per vbucket.
type Scanned struct {
	Index     string
	Keys      [][]json.RawMessage
	IDs       []string
	Timestamp string
	Seqnos    []uint64
	Took      time.Duration
}

// Scan reads a whole index with a consistency of docs/scans.md: any or session.
func Scan(ctx context.Context, c *client.Client, bucket, name, consistency string) (Scanned, error) {
	return Collect(ctx, c, bucket, name, v1.ScanRequest{Consistency: consistency})
}

// Collect runs any scan of an index and reads all its rows.
func Collect(ctx context.Context, c *client.Client, bucket, name string, req v1.ScanRequest) (Scanned, error) {
	s := Scanned{Index: name}
	started := time.Now()
	req.WantTimestamp = true
	rows, err := c.Scan(ctx, client.Ref(bucket, name), req)
	if err != nil {
		return s, err
	}
	defer rows.Close()
	for rows.Next() {
		row := rows.Row()
		s.Keys, s.IDs = append(s.Keys, slices.Clone(row.Key)), append(s.IDs, row.ID)
	}
	end, err := rows.End()
	if err != nil {
		return s, err
	}
	if end.Rows != uint64(len(s.IDs)) {
		return s, fmt.Errorf("the end says %d rows, %d came", end.Rows, len(s.IDs))
	}
	s.Timestamp = end.Timestamp.ID
	for _, p := range end.Timestamp.Vector {
		s.Seqnos = append(s.Seqnos, p.Seqno)
	}
	s.Took = time.Since(started)
	return s, nil
}

// ScanSoon retries a session scan until it succeeds, for limit.
func ScanSoon(ctx context.Context, c *client.Client, bucket, name string, limit time.Duration) (Scanned, error) {
	return CollectSoon(ctx, c, bucket, name, v1.ScanRequest{Consistency: "session"}, limit)
}

// CollectSoon retries Collect until it succeeds, for limit. It is for scans without a fault, on a machine that may
// have stalled so that connections broke and processes were taken for dead. If no try succeeds it returns the last
// failure before the end of limit.
func CollectSoon(ctx context.Context, c *client.Client, bucket, name string, req v1.ScanRequest,
	limit time.Duration) (s Scanned, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		again, failure := Collect(ctx, c, bucket, name, req)
		if failure == nil {
			return again, nil
		}
		if err == nil || ctx.Err() == nil {
			err = failure
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return s, err
		}
	}
}

// Check compares a scan of a whole sample index with the oracle at the scan's own timestamp, and returns the first
// difference, "" if there is none.
func (s Scanned) Check(h *oracle.History) string {
	want, err := oracle.Rows(s.Index, h.At(s.Seqnos))
	if err != nil {
		return err.Error()
	}
	return oracle.Diff(want, s.Keys, s.IDs)
}

// CheckFinal compares every sample index, or the named ones, with the documents that KV has now. It reads documents
// one by one, so that writes with an unknown outcome count as what KV holds.
func CheckFinal(ctx context.Context, t *testing.T, c *client.Client, w *Workload, bucket string, indexes ...string) {
	t.Helper()
	if len(indexes) == 0 {
		indexes = SampleIndexes()
	}
	docs, err := testcluster.Documents(ctx, w.KV, w.Keys)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range indexes {
		s, err := ScanSoon(ctx, c, bucket, name, Hang)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		want, err := oracle.Rows(name, maps.Clone(docs))
		if err != nil {
			t.Fatal(err)
		}
		if d := oracle.Diff(want, s.Keys, s.IDs); d != "" {
			t.Errorf("%s at the end: %s", name, d)
		}
		t.Logf("%s: %d rows equal the oracle's", name, len(s.IDs))
	}
}
