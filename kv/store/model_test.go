package store

import (
	"fmt"
	"sort"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// model is a simple vbucket: every version ever stored, in a slice.
type model struct {
	versions []*modelDoc
	failover int
}

type modelDoc struct {
	seqno      uint64
	key, value string
	deleted    bool
	expired    bool
	rev        uint64
}

func (m *model) latest(key string) *modelDoc {
	for i := len(m.versions) - 1; i >= 0; i-- {
		if m.versions[i].key == key {
			return m.versions[i]
		}
	}
	return nil
}

func (m *model) put(d modelDoc) {
	d.seqno = uint64(len(m.versions) + 1)
	d.rev = 1
	if old := m.latest(d.key); old != nil {
		d.rev = old.rev + 1
	}
	m.versions = append(m.versions, &d)
}

// shown returns what a stream after from must show: the newest version of each key, if its seqno is in (from, limit].
func (m *model) shown(from, limit uint64) []string {
	newest := map[string]*modelDoc{}
	for _, d := range m.versions {
		newest[d.key] = d
	}
	var docs []*modelDoc
	for _, d := range newest {
		if d.seqno > from && d.seqno <= limit {
			docs = append(docs, d)
		}
	}
	sort.Slice(docs, func(i, j int) bool { return docs[i].seqno < docs[j].seqno })
	var out []string
	for _, d := range docs {
		out = append(out, describe(&Doc{Seqno: d.seqno, Key: d.key, Value: []byte(d.value), Deleted: d.deleted,
			Expired: d.expired}))
	}
	return out
}

// Property: for any changes, pending and failed writes, expiries, compactions and stops, the bucket equals the model:
// what was acknowledged is there, what failed is not, streams show exactly the newest versions.
func TestBucketEqualsModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(t, 1)
		defer func() { _ = w.b.Abandon() }()
		w.opts.SegmentBytes = 2 << 10
		w.restart(true)
		m := &model{failover: 1}
		keys := []string{"a", "b", "c", "d", "e"}
		var open []*Snapshot
		var promised [][]string
		steps := rapid.IntRange(1, 60).Draw(rt, "steps")
		for range steps {
			key := rapid.SampledFrom(keys).Draw(rt, "key")
			old := m.latest(key)
			live := old != nil && !old.deleted
			switch rapid.IntRange(0, 9).Draw(rt, "do") {
			case 0, 1, 2:
				value := rapid.StringN(0, 40, 100).Draw(rt, "value")
				if _, err := w.apply(0, Change{Key: []byte(key), Value: []byte(value)}); err != nil {
					rt.Fatal(err)
				}
				m.put(modelDoc{key: key, value: value})
			case 3, 4:
				_, err := w.apply(0, Change{Kind: Delete, Key: []byte(key)})
				if (err == nil) != live {
					rt.Fatalf("delete of a document that is live: %v gave %v", live, err)
				}
				if live {
					m.put(modelDoc{key: key, deleted: true})
				}
			case 5: // several writes, then the disk is full: none of them takes effect
				w.full = true
				for range rapid.IntRange(1, 3).Draw(rt, "lost") {
					r, err := w.b.VBucket(0).Apply(Change{Key: []byte(rapid.SampledFrom(keys).Draw(rt, "lost key")),
						Value: []byte("lost"), Expiry: uint32(w.now.Unix()) + 1})
					if err != nil {
						rt.Fatal(err)
					}
					defer func() {
						if r.Ticket.Wait() == nil {
							rt.Fatal("a write to a full disk was acknowledged")
						}
					}()
				}
				_ = w.b.commit.current().Wait()
				w.full = false
				w.now = w.now.Add(retryAfterFailure)
			case 6: // an expiry, lazily or by the pager
				if !live {
					continue
				}
				if _, err := w.apply(0, Change{Kind: Touch, Key: []byte(key), Expiry: uint32(w.now.Unix()) + 1}); err != nil {
					rt.Fatal(err)
				}
				m.put(modelDoc{key: key, value: old.value})
				w.now = w.now.Add(time.Second)
				w.b.Expire()
				m.put(modelDoc{key: key, deleted: true, expired: true})
			case 7:
				orderly := rapid.Bool().Draw(rt, "orderly")
				w.restart(orderly)
				if !orderly {
					m.failover = min(m.failover+1, maxFailoverEntries)
				}
				open, promised = nil, nil
			case 8:
				if err := w.b.PurgeTombstones(t.Context(), time.Hour); err != nil {
					rt.Fatal(err)
				}
			case 9:
				from := uint64(rapid.IntRange(0, len(m.versions)).Draw(rt, "from"))
				if s, _ := w.b.VBucket(0).SnapshotAfter(from, all); s != nil {
					open, promised = append(open, s), append(promised, m.shown(from, all))
				}
			}
		}
		for i, s := range open {
			if got := drain(s); fmt.Sprint(got) != fmt.Sprint(promised[i]) {
				rt.Fatalf("snapshot %d showed %q, promised %q", i, got, promised[i])
			}
		}
		from := uint64(rapid.IntRange(0, len(m.versions)).Draw(rt, "from"))
		limit := from + uint64(rapid.IntRange(0, 10).Draw(rt, "limit"))
		for _, r := range [][2]uint64{{0, all}, {from, all}, {from, limit}} {
			if got, want := w.shown(0, r[0], r[1]), m.shown(r[0], r[1]); fmt.Sprint(got) != fmt.Sprint(want) {
				rt.Fatalf("stream %d to %d shows %q, want %q", r[0], r[1], got, want)
			}
		}
		i := w.b.VBucket(0).Info()
		if i.High != uint64(len(m.versions)) || len(i.Failover) != m.failover {
			rt.Fatalf("high %d with %d failover entries, want %d with %d", i.High, len(i.Failover), len(m.versions), m.failover)
		}
		for _, key := range keys {
			r, err := w.b.VBucket(0).Get([]byte(key))
			if d := m.latest(key); (err == nil) != (d != nil && !d.deleted) || err == nil &&
				(string(r.Doc.Value) != d.value || r.Doc.Rev != d.rev) {
				rt.Fatalf("get %s: %+v %v, want %+v", key, r.Doc, err, d)
			}
		}
	})
}
