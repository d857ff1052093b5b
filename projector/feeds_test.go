package projector

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"tidemark/index"
	"tidemark/keyversion"
	"tidemark/kv/kvclient"
	"tidemark/kv/mcbp"
	"tidemark/wire"
)

// Everything a projector does with KV, with either feed: mutations and deletions become statements, a side stream is
// read to its end, streams of an older incarnation end and are opened again, the death of a KV node ends all streams,
// and the node is found again.
func TestEitherFeed(t *testing.T) {
	t.Parallel()
	for _, kind := range []FeedKind{FeedNative, FeedGocbcore} {
		t.Run(string(kind), func(t *testing.T) {
			dir := t.TempDir()
			addr, stop := startKV(t, dir, "127.0.0.1:0")
			w := newWorldWith(t, addr, kind)
			w.connect(addr)
			w.set("a", map[string]any{"f1": "x"})
			w.define(1, 1)
			w.begun(w.start(1))
			w.set("b", map[string]any{"f1": 2})
			w.set("a", map[string]any{"f1": "y"})
			m, err := w.kv.Delete(context.Background(), "b", 0)
			if err != nil {
				t.Fatal(err)
			}
			want := `map[a:["y"]]`
			w.eventually(want, func() bool { return fmt.Sprint(w.data.rows(1)) == want })
			w.eventually("BEGIN of every vbucket", func() bool { return len(w.data.kinds(keyversion.StreamBegin)) == vbuckets })

			w.define(2, 1, 2)
			w.begun(w.ask(w.sideRequest(7, "boot", 2, []index.CopyID{20}, wire.StreamStart{VBucket: m.VBucket, End: m.Seqno})))
			w.eventually("END of the side stream", func() bool { return len(w.side.kinds(keyversion.StreamEnd)) == 1 })

			w.begun(w.start(2)) // each stream begins again
			w.eventually("BEGIN again", func() bool { return len(w.data.kinds(keyversion.StreamBegin)) == 2*vbuckets })
			ends := len(w.data.kinds(keyversion.StreamEnd))
			stop()
			w.eventually("END of every vbucket", func() bool { return len(w.data.kinds(keyversion.StreamEnd)) == ends+vbuckets })
			startKV(t, dir, addr)
			w.connect(addr)
			w.eventually("streams are begun again", func() bool {
				for _, r := range w.start(w.counter + 3).Results {
					if r.Outcome != wire.StartBegun {
						return false
					}
				}
				return true
			})
			w.set("c", map[string]any{"f1": 3})
			want = `map[a:["y"] c:[3]]`
			w.eventually(want, func() bool { return fmt.Sprint(w.data.rows(1)) == want })
		})
	}
}

// begun expects that every stream has begun.
func (w *world) begun(reply wire.StreamOutcome) {
	w.t.Helper()
	for _, r := range reply.Results {
		if r.Outcome != wire.StartBegun || len(r.Log) == 0 {
			w.t.Fatalf("%+v", r)
		}
	}
}

func TestUnknownFeed(t *testing.T) {
	_, err := Open(Config{ID: "p1", Managers: []string{"http://127.0.0.1:1"}, Admin: "127.0.0.1:0", Feed: "memcached"})
	if !errors.Is(err, ErrFeedKind) {
		t.Fatal(err)
	}
}

// An index on extended attributes is created while streams run: they are requested again over a connection that
// delivers the attributes, and no document is evaluated without them, whenever it was written.
func TestExtendedAttributes(t *testing.T) {
	t.Parallel()
	for _, kind := range []FeedKind{FeedNative, FeedGocbcore} {
		t.Run(string(kind), func(t *testing.T) {
			addr, _ := startKV(t, t.TempDir(), "127.0.0.1:0")
			w := newWorldWith(t, addr, kind)
			w.connect(addr)
			last := make([]uint64, vbuckets)
			set := func(key, owner string) {
				m, err := w.kv.Set(context.Background(), key, []byte(`{"f1":1}`), kvclient.StoreOptions{
					Xattrs: mcbp.AppendXattr(nil, "owner", []byte(`"`+owner+`"`))})
				if err != nil {
					t.Fatal(err)
				}
				last[m.VBucket] = m.Seqno
			}
			define := func(revision uint64, ids ...index.ID) {
				d := w.definitions(revision, ids...)
				if len(ids) > 1 {
					d.Indexes[1].Keys[0].Expr = "META().xattrs.owner"
				}
				if _, err := w.client.Definitions(context.Background(), w.url, d); err != nil {
					t.Fatal(err)
				}
			}
			for i := range 20 {
				set(fmt.Sprint("before", i), "ann")
			}
			define(1, 1)
			w.begun(w.start(1))
			w.eventually("all of index 1", func() bool { return len(w.data.rows(1)) == 20 })

			define(2, 1, 2)
			for i := range 20 {
				set(fmt.Sprint("after", i), "bob")
			}
			// The streams end for the sake of the attributes, as they do when a connection is lost.
			w.eventually("END of every vbucket", func() bool { return len(w.data.kinds(keyversion.StreamEnd)) == vbuckets })
			inc := uint64(1)
			w.eventually("streams are begun again", func() bool {
				inc++
				for _, r := range w.start(inc).Results {
					if r.Outcome != wire.StartBegun {
						return false
					}
				}
				return true
			})
			w.eventually("all of both", func() bool { return len(w.data.rows(1)) == 40 && len(w.data.rows(2)) == 40 })
			for key, row := range w.data.rows(2) {
				if want := map[bool]string{true: `["ann"]`, false: `["bob"]`}[strings.HasPrefix(key, "before")]; row != want {
					t.Errorf("%s has %s, want %s", key, row, want)
				}
			}

			var starts []wire.StreamStart
			for v, seqno := range last {
				if seqno > 0 {
					starts = append(starts, wire.StreamStart{VBucket: uint16(v), End: seqno})
				}
			}
			w.begun(w.ask(w.sideRequest(7, "boot", 2, []index.CopyID{20}, starts...)))
			w.eventually("a side stream brings them, too", func() bool { return len(w.side.rows(2)) == 40 })
			if got := w.side.rows(2)["after7"]; got != `["bob"]` {
				t.Error(got)
			}
		})
	}
}
