package projector

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"testing"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/internal/rpc"
	"tidemark/keyversion"
	"tidemark/kv/mcbp"
	"tidemark/timestamp"
	"tidemark/wire"
)

// post sends JSON text and returns the answer's text.
func (w *world) post(path, body string) (status int, answer string) {
	w.t.Helper()
	resp, err := http.Post(w.url+path, rpc.MediaJSON, bytes.NewReader([]byte(body)))
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// get returns decoded JSON.
func (w *world) get(path string, into any) {
	w.t.Helper()
	resp, err := http.Get(w.url + path)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(into); err != nil || resp.StatusCode != http.StatusOK {
		w.t.Fatalf("%s: %s, %v", path, resp.Status, err)
	}
}

// The three forms of PR-11 as JSON: a maintenance stream, a backfill for an external subscriber, named by indexes,
// and a catchup of an indexer's copies. Each reply states where its streams stand (PR-12) and the topic's id (PR-14).
func TestTheThreeRequestForms(t *testing.T) {
	e := newEngine(t)
	w := newWorldAt(t, e.Addr())
	w.define(3, 1, 2)
	w.counter += 10
	status, answer := w.post("/v1/streams", fmt.Sprintf(`{"fence":{"cluster_id":"c1","epoch":1,"term":1,"counter":%d},"topic":"/maintenance",
		"incarnation":{"epoch":1,"term":1,"counter":4},"buckets":[{"bucket":"world","bucket_uuid":%q,
		"restart":{"vbuckets":[3,5],"vbuuids":[77,77],"seqnos":[8,0],"snap_starts":[6,0],"snap_ends":[9,0]}}]}`, w.counter, testUUID))
	var reply wire.StreamReply
	if err := json.Unmarshal([]byte(answer), &reply); err != nil || status != http.StatusOK || reply.TopicID != 255 ||
		len(reply.Buckets) != 1 {
		t.Fatalf("%d %s %v", status, answer, err)
	}
	for i, r := range reply.Buckets[0].Results {
		at := timestamp.Position{VBUUID: 77, Seqno: []uint64{8, 0}[i]}
		if r.Outcome != wire.StartBegun || r.Failover != (timestamp.Position{VBUUID: 77}) || r.Stream != at ||
			len(r.Log) != 1 {
			t.Errorf("maintenance: %+v", r)
		}
	}
	e.stream(3).write(8, 9)
	w.expect(3, "4:STREAM_BEGIN@8", "4:INSERT@9")
	w.eventually("both activation timestamps", func() bool {
		a := w.p.bucket(testBucket).joins.activations()
		return len(a) == 1 && fmt.Sprint(a[0]) == "{3 [1 2] [3 5] [8 0]}"
	})

	external := newEndpoint(t)
	e.set(func() { clear(e.streams) }) // the next one comes over another connection
	status, answer = w.post("/v1/streams", fmt.Sprintf(`{"fence":{"cluster_id":"c1"},"topic":"/backfill/audit","incarnation":{"counter":9},
		"buckets":[{"bucket":"world","bucket_uuid":%q,"restart":{"vbuckets":[3],"vbuuids":[0],"seqnos":[0],"ends":[2]}}],
		"side":{"indexes":["2"],"node":0,"endpoint":%q}}`, testUUID, external.addr))
	if err := json.Unmarshal([]byte(answer), &reply); err != nil || status != http.StatusOK || reply.TopicID != 254 {
		t.Fatalf("%d %s %v", status, answer, err)
	}
	e.set(func() { e.value = []byte(`{"f2":"all of it"}`) })
	var topics wire.TopicList
	w.get("/v1/topics", &topics)
	if got := fmt.Sprintf("%d: %s %d %v %d, %s %d", len(topics.Topics), topics.Topics[0].Topic, topics.Topics[0].TopicID,
		topics.Topics[0].Indexes,
		topics.Topics[0].VBuckets, topics.Topics[1].Topic, topics.Topics[1].VBuckets); got != "2: /backfill/audit 254 [2] "+
		"1, /maintenance 2" {
		t.Error(got)
	}
	e.stream(3).write(0, 2)
	e.stream(3).end(mcbp.EndOK)
	w.eventually("END for the subscriber", func() bool { return len(external.kinds(keyversion.StreamEnd)) == 1 })
	if rows := external.rows(2); fmt.Sprint(rows) != `map[k1:["all of it"] k2:["all of it"]]` {
		t.Errorf("the subscriber got %v", rows)
	}

	catchup := w.sideRequest(11, "boot", 3, []index.CopyID{10}, wire.StreamStart{VBucket: 4, End: 2})
	catchup.Topic = "/catchup/1/11"
	got, err := w.client.Streams(context.Background(), w.url, catchup)
	if err != nil || got.TopicID != 1 || got.Buckets[0].Results[0].Outcome != wire.StartBegun ||
		fmt.Sprint(got.Buckets[0].Activations) != "[{3 [1] [4] [0]}]" {
		t.Errorf("catchup: %+v, %v", got, err)
	}
}

// Several buckets in one request: one that does not exist does not affect the others, and its problem is returned.
func TestARequestForSeveralBuckets(t *testing.T) {
	w := newWorld(t)
	w.define(1, 1)
	req := w.request(1, wire.StreamStart{VBucket: 2})
	req.Buckets = append(req.Buckets, wire.StreamBucket{Bucket: "nowhere", BucketUUID: testUUID,
		Restart: req.Buckets[0].Restart})
	reply, err := w.client.Streams(context.Background(), w.url, req)
	if err != nil || reply.Buckets[0].Results[0].Outcome != wire.StartBegun ||
		reply.Buckets[1].Code != errcode.BucketNotInKV || len(reply.Buckets[1].Results) != 0 {
		t.Errorf("%+v, %v", reply, err)
	}
	req.Fence, req.Buckets = w.fence(), req.Buckets[1:]
	if _, err = w.client.Streams(context.Background(), w.url, req); rpc.AsProblem(err).Code != errcode.BucketNotInKV {
		t.Errorf("none that is there gives %v", err)
	}
}

// KV fails over between the reading of its log and the start: the stream is closed on both sides, nothing is sent
// downstream, and the answer has the new log (PR-12).
func TestAFailoverBetweenLogAndStart(t *testing.T) {
	e := newEngine(t)
	w := newWorldAt(t, e.Addr())
	w.define(1, 1)
	logs, err := w.client.FailoverLogs(context.Background(), w.url, &wire.FailoverLogsRequest{Fence: w.fence(),
		Bucket: testBucket, VBuckets: []uint16{3}})
	if err != nil {
		t.Fatal(err)
	}
	branch := logs.Logs[0].Log.Newest()
	e.set(func() { e.log = timestamp.FailoverLog{{VBUUID: 88, Seqno: 40}, {VBUUID: 77}} })
	start := wire.StreamStart{VBucket: 3, VBUUID: branch, Seqno: 30, Branch: branch}
	r := w.ask(w.request(1, start)).Results[0]
	if r.Outcome != wire.StartFailover || r.Failover != (timestamp.Position{VBUUID: 88, Seqno: 40}) || len(r.Log) != 2 {
		t.Fatalf("%+v", r)
	}
	w.eventually("the stream is closed at KV", func() bool { return e.stream(3).peer == nil })
	start.Branch = r.Failover.VBUUID
	if r = w.ask(w.request(2, start)).Results[0]; r.Outcome != wire.StartBegun ||
		r.Stream != (timestamp.Position{VBUUID: 77, Seqno: 30}) {
		t.Fatalf("%+v", r)
	}
	w.expect(3, "2:STREAM_BEGIN@30")
	side := w.sideRequest(7, "boot", 1, []index.CopyID{10}, wire.StreamStart{VBucket: 4, End: 10, Branch: 77})
	if r = w.ask(side).Results[0]; r.Outcome != wire.StartFailover {
		t.Errorf("a side stream on a branch that is not the maintenance stream's: %+v", r)
	}
}

// A producer that lost its newest branch answers ROLLBACK; the branch before covers the same seqno and is tried once.
// If it is refused, too, the answer contains the log.
func TestRollbackIsRetriedOnThePreviousBranch(t *testing.T) {
	e := newEngine(t)
	w := newWorldAt(t, e.Addr())
	w.define(1, 1)
	for i, c := range []struct {
		start wire.StreamStart
		asked string
		want  wire.StartOutcome
	}{
		{wire.StreamStart{VBUUID: 88, Seqno: 40, Previous: 77}, "[88 77]", wire.StartBegun},
		{wire.StreamStart{VBUUID: 88, Seqno: 40}, "[88]", wire.StartRollback},
		{wire.StreamStart{VBUUID: 88, Seqno: 40, Previous: 66}, "[88 66]", wire.StartRollback},
		{wire.StreamStart{VBUUID: 88, Seqno: 40, Previous: 88}, "[88]", wire.StartRollback},
		{wire.StreamStart{VBUUID: 88, Seqno: 40, Previous: 77, Branch: 88}, "[88 77]", wire.StartFailover},
	} {
		e.set(func() { e.asked = nil })
		c.start.VBucket = uint16(i)
		r := w.ask(w.request(uint64(i+1), c.start)).Results[0]
		var asked []uint64
		e.set(func() { asked = e.asked })
		if r.Outcome != c.want || fmt.Sprint(asked) != c.asked || r.Log.Newest() != 77 || r.Failover.VBUUID != 77 {
			t.Errorf("%+v: %+v, %v was requested from KV; want %s, %s", c.start, r, asked, c.want, c.asked)
		}
		c.start.End = 50
		e.set(func() { e.asked = nil; clear(e.streams) })
		r = w.ask(w.sideRequest(uint64(i+1), "boot", 1, []index.CopyID{10}, c.start)).Results[0]
		e.set(func() { asked = e.asked; clear(e.streams) })
		if r.Outcome != c.want || fmt.Sprint(asked) != c.asked {
			t.Errorf("side stream %+v: %+v, %v was requested from KV; want %s, %s", c.start, r, asked, c.want, c.asked)
		}
	}
}

// A request for a running stream restarts that vbucket only (PR-13).
func TestRestartAffectsOneVBucket(t *testing.T) {
	e := newEngine(t)
	w := newWorldAt(t, e.Addr())
	w.define(1, 1)
	w.start(1)
	other := e.stream(4)
	e.stream(3).write(0, 2)
	w.expect(3, "1:STREAM_BEGIN@0", "1:INSERT@1", "1:INSERT@2")
	w.startAt(3, 2, 1)
	e.stream(3).write(1, 2)
	other.write(0, 1)
	w.expect(4, "1:STREAM_BEGIN@0", "1:INSERT@1")
	w.eventually("the restarted one", func() bool {
		story := w.data.story(3)
		return story[len(story)-1] == "2:INSERT@2"
	})
	if got := e.stream(4); got != other {
		t.Error("vbucket 4 was requested again from KV")
	}
}

// A lost KV connection ends the streams on it, and no others (PR-10): a side stream's connection to its endpoint
// ends, too; maintenance streams beside it continue, and vice versa.
func TestLostKVConnectionEndsOnlyItsStreams(t *testing.T) {
	e := newEngine(t)
	w := newWorldAt(t, e.Addr())
	w.define(1, 1)
	w.startAt(3, 1, 0)
	maintenance := e.stream(3)
	side := w.sideRequest(2, "boot", 1, []index.CopyID{10}, wire.StreamStart{VBucket: 4, End: 10})
	if r := w.ask(side).Results[0]; r.Outcome != wire.StartBegun {
		t.Fatalf("%+v", r)
	}
	e.stream(4).write(0, 1)
	w.eventually("the side stream's first document", func() bool { return len(w.side.kinds(keyversion.Insert)) == 1 })
	_ = e.stream(4).peer.Close()
	w.eventually("the side stream is given up", func() bool { return len(w.sides()) == 0 })
	w.eventually("its connections to the endpoint are closed", func() bool { return w.side.closed.Load() > 0 })
	if n := len(w.side.kinds(keyversion.StreamEnd)); n != 0 {
		t.Errorf("%d ENDs of a side stream that did not reach its end", n)
	}
	maintenance.write(0, 1)
	w.expect(3, "1:STREAM_BEGIN@0", "1:INSERT@1")

	e.set(func() { delete(e.streams, 4) })
	if r := w.ask(side).Results[0]; r.Outcome != wire.StartBegun {
		t.Fatalf("%+v", r)
	}
	_ = maintenance.peer.Close()
	w.expect(3, "1:STREAM_BEGIN@0", "1:INSERT@1", "1:STREAM_END@1")
	e.stream(4).write(0, 2)
	e.stream(4).end(mcbp.EndOK)
	w.eventually("the side stream goes on to its end", func() bool { return len(w.side.kinds(keyversion.StreamEnd)) == 1 })
}
