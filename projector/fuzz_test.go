package projector

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/fxamacker/cbor/v2"

	"tidemark/index"
	"tidemark/internal/rpc"
	"tidemark/wire"
)

// adminCalls are all calls with a body, each with a valid one.
func adminCalls() []struct {
	method, path string
	body         any
} {
	fence := wire.Fence{ClusterID: "c1", Epoch: 1, Term: 1, Counter: 1}
	start := wire.StreamBucket{Bucket: testBucket, BucketUUID: testUUID}
	start.Restart.Add(wire.StreamStart{VBucket: 1, VBUUID: 7, Seqno: 5, End: 9})
	return []struct {
		method, path string
		body         any
	}{
		{http.MethodPut, "/v1/hello", wire.HelloRequest{Fence: fence}},
		{http.MethodPut, "/v1/definitions", wire.Definitions{Fence: fence, Revision: 1,
			Buckets: []wire.Bucket{{Name: testBucket, UUID: testUUID, VBuckets: vbuckets}},
			Indexes: []index.Definition{{ID: 1 << 33, Bucket: testBucket, State: index.Backfill,
				Keys: []index.KeyExpr{{Expr: "`a`"}}}}}},
		{http.MethodPost, "/v1/definitions:change", wire.DefinitionsChange{Fence: fence, Base: 1, Revision: 2,
			GoneIndexes: []index.ID{1 << 33}}},
		{http.MethodPost, "/v1/bucket", wire.BucketRequest{Bucket: testBucket}},
		{http.MethodPost, "/v1/fields", wire.FieldsRequest{Bucket: testBucket}},
		{http.MethodPost, "/v1/failoverlogs", wire.FailoverLogsRequest{Fence: fence, Bucket: testBucket,
			VBuckets: []uint16{0, 1}}},
		{http.MethodPost, "/v1/streams", wire.StreamRequest{Fence: fence, Topic: wire.MaintenanceTopic,
			Incarnation: incarnation(1), Buckets: []wire.StreamBucket{start}}},
		{http.MethodPost, "/v1/streams", wire.StreamRequest{Fence: wire.Fence{ClusterID: "c1"}, Topic: "/backfill/a",
			Incarnation: index.Incarnation{Counter: 1},
			Buckets:     []wire.StreamBucket{start}, Side: &wire.SideTarget{Indexes: []index.ID{1 << 33},
				Endpoint: "127.0.0.1:1"}}},
		{http.MethodPost, "/v1/streams:stop", wire.StreamStop{Fence: fence, Topic: wire.MaintenanceTopic, Bucket: testBucket,
			VBuckets: []uint16{3}, Incarnation: incarnation(1)}},
		{http.MethodPost, "/v1/topics", wire.Subscribe{ID: "a", Bucket: testBucket, Indexes: []string{"8589934592"},
			Endpoint: "127.0.0.1:1", Counter: 1}},
		{http.MethodPost, "/v1/seqnos", wire.SeqnosRequest{Bucket: testBucket}},
		{http.MethodPost, "/v1/sync", wire.SyncRequest{Fence: fence, Bucket: testBucket}},
	}
}

// FuzzAdmin sends arbitrary requests to the admin server of a projector without a KV node: each is refused with a
// problem, or accepted; nothing panics, and there is no server error.
func FuzzAdmin(f *testing.F) {
	calls := adminCalls()
	for i, c := range calls {
		text, err := json.Marshal(c.body)
		if err != nil {
			f.Fatal(err)
		}
		binary, err := cbor.Marshal(c.body)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(uint8(i), text, false)
		f.Add(uint8(i), binary, true)
	}
	f.Add(uint8(4), []byte("\x9b\x00\x00\x00\x10\x00\x00\x00\x00"), true) // an array of 2^36
	f.Add(uint8(4), []byte("\xbb\x7f\xff\xff\xff\xff\xff\xff\xff"), true)
	p, err := Open(Config{ID: "p1", Managers: []string{"127.0.0.1:1"}, Admin: "127.0.0.1:0", KV: "127.0.0.1:1", User: "u",
		Password: "secret", Workers: 2})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = p.listener.Close() })
	p.runCtx = f.Context() // it admits commands, but neither reports nor registers
	h := p.table().Handler()
	f.Fuzz(func(t *testing.T, which uint8, body []byte, binary bool) {
		c := calls[int(which)%len(calls)]
		r := httptest.NewRequest(c.method, c.path, strings.NewReader(string(body)))
		r.Header.Set("Content-Type", rpc.MediaJSON)
		if binary {
			r.Header.Set("Content-Type", rpc.MediaCBOR)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code == http.StatusOK {
			return
		}
		var problem rpc.Problem
		if err := json.Unmarshal(w.Body.Bytes(), &problem); err != nil || problem.Code == "" || problem.Detail == "" {
			t.Fatalf("%s %s: %d %s is no problem JSON: %v", c.method, c.path, w.Code, w.Body, err)
		}
		if w.Code == http.StatusInternalServerError {
			t.Fatalf("%s %s: %v", c.method, c.path, &problem)
		}
	})
}
