package projector

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/kv/kvclient"
	"tidemark/kv/mcbp"
	"tidemark/projector/feed"
	"tidemark/wire"
)

// TestFields: with either feed a projector returns the fields of sampled documents, nested ones too, and ignores
// deletions and anything but objects; a bucket that does not exist is refused.
func TestFields(t *testing.T) {
	t.Parallel()
	for _, kind := range []FeedKind{FeedNative, FeedGocbcore} {
		t.Run(string(kind), func(t *testing.T) {
			addr, _ := startKV(t, t.TempDir(), "127.0.0.1:0")
			w := newWorldWith(t, addr, kind)
			w.p.looks.timeout = patience
			w.connect(addr)
			ask := func(bucket string) (*wire.FieldsReply, error) {
				return w.p.fields(context.Background(), &wire.FieldsRequest{Bucket: bucket})
			}
			if r, err := ask(testBucket); err != nil || r.Documents != 0 || len(r.Fields) != 0 {
				t.Fatalf("of an empty bucket: %+v, %v", r, err)
			}
			w.set("a", map[string]any{"name": "x", "geo": map[string]any{"lat": 1}})
			w.set("b", map[string]any{"name": 7})
			if _, err := w.kv.Set(context.Background(), "c", []byte("[1,2]"), kvclient.StoreOptions{}); err != nil {
				t.Fatal(err)
			}
			w.set("d", map[string]any{"gone": true})
			if _, err := w.kv.Delete(context.Background(), "d", 0); err != nil {
				t.Fatal(err)
			}
			r, err := ask(testBucket)
			if err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprint(r.Documents, r.Fields); got != "2 [{[geo] 1} {[geo lat] 1} {[name] 2}]" || !r.Whole {
				t.Errorf("%s", got)
			}
			var p *rpc.Problem
			if _, err := ask("nothing"); !errors.As(err, &p) || p.Code != errcode.BucketNotInKV {
				t.Errorf("of a bucket that there is not: %v", err)
			}
			_, err = w.p.fields(context.Background(), &wire.FieldsRequest{Bucket: testBucket, Scope: "s",
				Collection: "c"})
			if !errors.As(err, &p) || !strings.Contains(p.Detail, "no collection s.c") {
				t.Errorf("of a collection that there is not: %v", err)
			}
		})
	}
}

// TestFieldsAreCached: the result is cached for a while; then KV is queried again.
func TestFieldsAreCached(t *testing.T) {
	w := newWorld(t)
	ask := func(want string) {
		t.Helper()
		r, err := w.p.fields(context.Background(), &wire.FieldsRequest{Bucket: testBucket})
		if err != nil || fmt.Sprint(r.Fields) != want {
			t.Fatalf("%+v, %v; want %s", r, err, want)
		}
	}
	ask("[]")
	w.set("a", map[string]any{"name": "x"})
	ask("[{[name] 1}]")
	w.set("b", map[string]any{"kind": "x"})
	w.p.looks.busy.Lock()
	for of, l := range w.p.looks.newest {
		l.at = time.Now().Add(fieldsAge / 2)
		w.p.looks.newest[of] = l
	}
	w.p.looks.busy.Unlock()
	ask("[{[name] 1}]")
	w.p.looks.busy.Lock()
	for of, l := range w.p.looks.newest {
		l.at = time.Now().Add(-fieldsAge)
		w.p.looks.newest[of] = l
	}
	w.p.looks.busy.Unlock()
	ask("[{[kind] 1} {[name] 1}]")
}

// TestFieldsAreBounded: the number of documents sampled, and of fields returned, is bounded.
func TestFieldsAreBounded(t *testing.T) {
	w := newWorld(t)
	for i := range fieldsDocuments + 50 {
		doc := map[string]any{}
		for j := range 20 {
			doc[fmt.Sprintf("f%d_%d", i, j)] = 1
		}
		w.set(fmt.Sprintf("k%d", i), doc)
	}
	w.p.looks.timeout = patience
	r, err := w.p.fields(context.Background(), &wire.FieldsRequest{Bucket: testBucket})
	if err != nil {
		t.Fatal(err)
	}
	if r.Documents != fieldsDocuments || r.Whole || len(r.Fields) != wire.MaxFieldPaths {
		t.Errorf("%d documents, all: %v, %d fields", r.Documents, r.Whole, len(r.Fields))
	}
}

// cutFeed is KV with one vbucket whose stream breaks off.
type cutFeed struct{ feed.Feed }

func (cutFeed) HighSeqnos(context.Context) ([]mcbp.VBucketSeqno, error) {
	return []mcbp.VBucketSeqno{{VBucket: 1, Seqno: 7}}, nil
}
func (cutFeed) NewStreamID() feed.StreamID { return 1 }
func (cutFeed) OpenStreams(_ context.Context, reqs []feed.StreamRequest) []feed.StreamAnswer {
	return make([]feed.StreamAnswer, len(reqs))
}
func (cutFeed) Next(context.Context) (*feed.Block, error) { return nil, errStreamBroken }

// TestFieldsOfAFeedThatBreaksOff: the sample is not taken for complete.
func TestFieldsOfAFeedThatBreaksOff(t *testing.T) {
	seen := &fieldCounts{all: map[string]*wire.FieldCount{}}
	err := look(context.Background(), cutFeed{}, &wire.FieldsRequest{}, seen)
	if !errors.Is(err, errStreamBroken) || seen.whole {
		t.Errorf("all: %v, %v", seen.whole, err)
	}
	for end, want := range map[mcbp.EndReason]bool{mcbp.EndOK: true, mcbp.EndStateChanged: false} {
		seen := &fieldCounts{whole: true}
		if seen.take(&feed.Event{Kind: feed.StreamEnd, EndReason: end}, 0); seen.whole != want {
			t.Errorf("a stream that ends with %v: all: %v", end, seen.whole)
		}
	}
}
