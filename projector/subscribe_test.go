package projector

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"tidemark/errcode"
	"tidemark/internal/testing/ports"
	"tidemark/keyversion"
	"tidemark/projector/core"
	"tidemark/wire"
)

// POST /v1/topics: an external subscriber gets existing documents and later changes, without an end, and is not given
// up while it has taken everything.
func TestSubscribe(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.define(1, 1, 2)
	w.set("k1", map[string]any{"f1": "a", "f2": "b"})
	external := newEndpoint(t)
	post := func(body string) (status int, answer string) { // while KV is slow, the projector waits for nothing of this
		w.eventually("KV answers", func() bool {
			status, answer = w.post("/v1/topics", body)
			return !strings.Contains(answer, string(errcode.KVUnavailable))
		})
		return status, answer
	}
	status, answer := post(fmt.Sprintf(`{"id":"audit","bucket":"world","indexes":["2"],"endpoint":%q,"counter":9}`,
		external.addr))
	var reply wire.Subscription
	if err := json.Unmarshal([]byte(answer), &reply); err != nil || status != http.StatusOK {
		t.Fatalf("%d %s %v", status, answer, err)
	}
	if reply.ClusterID != "c1" || reply.Topic != "/backfill/audit" || reply.BucketUUID != testUUID ||
		reply.VBuckets != vbuckets || fmt.Sprint(reply.Indexes) != "[2]" ||
		len(reply.Results) != vbuckets {
		t.Errorf("%+v", reply)
	}
	for _, r := range reply.Results {
		if r.Outcome != wire.StartBegun {
			t.Errorf("%+v", r)
		}
	}
	w.eventually("the first document", func() bool { return fmt.Sprint(external.rows(2)) == `map[k1:["b"]]` })
	w.set("k2", map[string]any{"f2": "c"})
	w.eventually("the second one", func() bool { return fmt.Sprint(external.rows(2)) == `map[k1:["b"] k2:["c"]]` })
	s := w.p.sides.get("/backfill/audit", testBucket)
	w.eventually("that it waits for more", s.rests)
	if len(external.kinds(keyversion.StreamEnd)) != 0 {
		t.Error("it has ended")
	}

	for body, want := range map[string]string{
		`{"id":"x","bucket":"world","indexes":["nobody"],"endpoint":"127.0.0.1:1"}`:                                            "no active index",
		`{"id":"x","bucket":"world","indexes":["1","1"],"endpoint":"127.0.0.1:1"}`:                                             "each once",
		`{"id":"","bucket":"world","endpoint":"127.0.0.1:1"}`:                                                                  "a part of it is empty",
		`{"id":"x","bucket":"world","endpoint":""}`:                                                                            "endpoint",
		`{"id":"x","bucket":"world","bucket_uuid":"other","endpoint":"127.0.0.1:1"}`:                                           "BUCKET_GONE",
		`{"id":"x","bucket":"world","bucket_uuid":"other","indexes":["7"],"endpoint":"127.0.0.1:1"}`:                           "BUCKET_GONE",
		`{"id":"x","bucket":"world","endpoint":"127.0.0.1:1","restart":{"vbuckets":[1,1],"vbuuids":[0,0],"seqnos":[0,0]}}`:     "twice",
		`{"id":"x","bucket":"world","endpoint":"127.0.0.1:1","restart":{"vbuckets":[1],"vbuuids":[0],"seqnos":[5],"ends":[]}}`: "",
	} {
		if status, answer := post(body); want != "" && (status < 400 || !strings.Contains(answer, want)) {
			t.Errorf("%s: %d %s", body, status, answer)
		}
	}
	if err := w.client.Stop(t.Context(), w.url, &wire.StreamStop{Fence: wire.Fence{ClusterID: "c1"},
		Topic: "/backfill/audit"}); err != nil {
		t.Error(err)
	}
}

// A request none of whose vbuckets is hosted here is answered from the map: while a KV node is away, a subscriber
// requests its vbuckets from all projectors repeatedly. It still replaces an earlier one.
func TestSubscriberOfForeignVBuckets(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	w := newWorldAt(t, e.Addr())
	var err error
	if w.p.cfg.Share, err = core.ParseShare("2-3"); err != nil { // nothing has looked at it yet
		t.Fatal(err)
	}
	w.define(1, 1)
	w.start(1)
	ask := func(vbuckets ...uint16) string {
		t.Helper()
		var restart wire.RestartTimestamp
		for _, vb := range vbuckets {
			restart.Add(wire.StreamStart{VBucket: vb, End: wire.NoEnd})
		}
		reply, err := w.client.Subscribe(t.Context(), w.url, &wire.Subscribe{ID: "audit", Bucket: testBucket, Counter: 1,
			Endpoint: w.side.addr, Restart: &restart})
		if err != nil {
			t.Fatal(err)
		}
		if fmt.Sprint(reply.Indexes) != "[1]" || reply.VBuckets != len(w.p.bucket(testBucket).gates) {
			t.Errorf("%+v", reply)
		}
		all := ""
		for _, r := range reply.Results {
			all += fmt.Sprint(r.VBucket, " ", r.Outcome, " ")
		}
		return all
	}
	if got := ask(3, 4); got != "3 begun 4 not_mine " {
		t.Errorf("of one that is hosted and one that is not: %s", got)
	}
	opened := func() string { // of connections, from the metrics
		for line := range strings.Lines(w.metrics()) {
			if strings.HasPrefix(line, "tidemark_projector_kv_connections_total ") {
				return line
			}
		}
		t.Fatal("no such metric")
		return ""
	}
	before := opened()
	for range 3 {
		if got := ask(4, 5); got != "4 not_mine 5 not_mine " {
			t.Errorf("of two that are not hosted: %s", got)
		}
	}
	if now := opened(); now != before {
		t.Errorf("connections to KV: %s, were %s", now, before)
	}
	if w.p.sides.get("/backfill/audit", testBucket) != nil {
		t.Error("the earlier request's topic goes on")
	}
	if _, err := w.client.Subscribe(t.Context(), w.url, &wire.Subscribe{ID: "audit", Bucket: testBucket,
		Restart: &wire.RestartTimestamp{VBuckets: []uint16{4}, VBUUIDs: []uint64{0}, Seqnos: []uint64{0}}}); err == nil {
		t.Error("a request that cannot be is not refused")
	}
}

// A standstill of finite streams is a failure, unless the request was to retry forever (RT-5).
func TestStalledStreamsAreGivenUp(t *testing.T) {
	finite := &wire.StreamBucket{Restart: wire.RestartTimestamp{VBuckets: []uint16{1}, VBUUIDs: []uint64{0},
		Seqnos: []uint64{0}, Ends: []uint64{9}}}
	if (&side{want: finite, target: &wire.SideTarget{}}).rests() {
		t.Error("a finite stream may stand still")
	}
	if !(&side{want: finite, target: &wire.SideTarget{RetryForever: true}}).rests() {
		t.Error("it is given up although it is to be retried for ever")
	}
}

// When KV has sent all of a finite stream, an endpoint that takes nothing is given up; if the request was to retry
// forever, it is not, and gets everything as soon as it can be reached.
func TestUnsentDataAtTheEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.define(1, 1)
	w.p.sides.drainFor = 20 * time.Millisecond
	const n = 40
	ends := map[uint16]uint64{}
	for i := range n {
		m := w.set(fmt.Sprint("k", i), map[string]any{"f1": i})
		ends[m.VBucket] = m.Seqno
	}
	ask := func(id, addr string, forever bool) *side {
		t.Helper()
		var restart wire.RestartTimestamp
		for vb, end := range ends {
			restart.Add(wire.StreamStart{VBucket: vb, End: end})
		}
		b, err := json.Marshal(wire.Subscribe{ID: id, Bucket: testBucket, Endpoint: addr, Counter: 1, Restart: &restart,
			RetryForever: forever})
		if err != nil {
			t.Fatal(err)
		}
		if status, answer := w.post("/v1/topics", string(b)); status != http.StatusOK {
			t.Fatalf("%d %s", status, answer)
		}
		return w.p.sides.get("/backfill/"+id, testBucket)
	}
	there := func(id string) bool {
		return w.p.sides.get("/backfill/"+id, testBucket) != nil
	}
	ask("once", ports.Addr(t), false)
	w.eventually("it is given up", func() bool { return !there("once") })

	addr := ports.Addr(t)
	s := ask("ever", addr, true)
	w.eventually("KV has sent all", func() bool { return s.open.Load() == 0 })
	beats := s.beats.Load()
	w.eventually("it has waited again and again", func() bool { return s.beats.Load() >= beats+5 })
	late := newEndpointAt(t, addr)
	w.eventually("everything", func() bool {
		return len(late.rows(1)) == n &&
			len(late.kinds(keyversion.StreamEnd)) == len(ends)
	})
	w.eventually("its end", func() bool { return !there("ever") })
}
