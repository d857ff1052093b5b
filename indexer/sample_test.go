package indexer

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"

	"tidemark/errcode"
	"tidemark/wire"
)

// TestSample checks that a copy that serves returns a sample of its keys, and that one that does not serve, one that
// is not here, and too large a sample are refused. A request waits for its turn no longer than it wants to.
func TestSample(t *testing.T) {
	w := newWorld(t)
	w.write(docs(0, 200, 1)...)
	w.start()
	if err := w.define(10); err != nil {
		t.Fatal(err)
	}
	most := wire.SampleRequest{Copy: 10, Wanted: wire.MaxSampled, Keys: wire.MaxSampleKeys, Bytes: wire.MaxSampleBytes}
	ask := func(req wire.SampleRequest) (*wire.SampleReply, error) {
		return w.admin.Sample(t.Context(), w.endpoint.Admin, &req, time.Minute)
	}
	if _, err := ask(most); code(err) != errcode.IndexNotHosted {
		t.Errorf("before it serves: %v", err)
	}
	w.begin(nil)
	w.promote(t.Context())
	w.held(10)
	r, err := ask(most)
	if err != nil || r.Rows != 200 || r.Of != 200 || len(r.Keys) != 200 {
		t.Errorf("%+v, %v", r, err)
	}
	all := r.Keys
	few := most
	few.Keys = 10
	if r, err = ask(few); err != nil || r.Rows != 200 || r.Of != 200 || len(r.Keys) != 10 {
		t.Errorf("%+v, %v", r, err)
	}
	whole := few
	whole.Whole = true
	if r, err = ask(whole); err != nil || r.Rows != 200 || r.Of != 200 || len(r.Keys) != 0 || len(r.Entries) != 10 {
		t.Errorf("%+v, %v", r, err)
	}
	for _, e := range r.Entries {
		if len(e) != 1 || e[0].Hash != xxhash.Sum64(e[0].Value) || !slices.ContainsFunc(all, func(k []byte) bool {
			return bytes.Equal(k, e[0].Value)
		}) {
			t.Errorf("entry %x", e)
		}
	}
	whole.Bytes = 1
	if r, err = ask(whole); err != nil || r.Of != 200 || len(r.Entries) != 0 {
		t.Errorf("more than there is room for: %+v, %v", r, err)
	}
	for name, change := range map[string]func(*wire.SampleRequest){
		"entries": func(r *wire.SampleRequest) { r.Wanted++ }, "keys": func(r *wire.SampleRequest) { r.Keys++ },
		"bytes": func(r *wire.SampleRequest) { r.Bytes++ }, "none": func(r *wire.SampleRequest) { r.Bytes = 0 },
	} {
		req := most
		change(&req)
		if _, err := ask(req); code(err) != errcode.BadRequest {
			t.Errorf("too many, or no %s: %v", name, err)
		}
	}
	other := most
	other.Copy = 11
	if _, err := ask(other); code(err) != errcode.IndexNotHosted {
		t.Errorf("a copy that is not here: %v", err)
	}
	for range samplesAtOnce {
		w.x.samples <- struct{}{}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := w.x.sample(ctx, &most); !errors.Is(err, context.Canceled) {
		t.Errorf("no turn: %v", err)
	}
}
