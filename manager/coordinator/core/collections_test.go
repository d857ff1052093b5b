package core

import (
	"fmt"
	"testing"

	"github.com/hashicorp/go-hclog"

	"tidemark/index"
	"tidemark/partition"
	"tidemark/statecontext"
	"tidemark/wire"
)

// TestCollectionGone checks that an index loses its collection after goneAfter consecutive answers whose manifest
// lacks the collection's id and is not older than the one in which it was found, whatever collection has the name by
// then. Answers with an older manifest, or without one, prove nothing.
func TestCollectionGone(t *testing.T) {
	create := func(name string, m index.Member) statecontext.Body {
		return &statecontext.CreateIndex{Definition: index.Definition{Name: name, Bucket: "b", BucketUUID: "u", Member: m,
			Keys: []index.KeyExpr{{Expr: "a"}}, Statement: "CREATE INDEX", Partitions: 1},
			Layout: partition.Layout{Scheme: partition.HashDocID, Partitions: 1}, Placement: []statecontext.Placement{{}}}
	}
	now := Now{MS: 1_000_000, WallMS: 1_000_000, State: stateOf(t,
		&statecontext.BootstrapCluster{ClusterID: "c1", Epoch: 1, FormatLevel: statecontext.FormatLevel}, member("i1"),
		&statecontext.SetBucket{Name: "b", UUID: "u", VBuckets: 4}, create("plain", index.Member{}),
		create("on", index.Member{Scope: "s", Collection: "c", ID: 9, Manifest: 5}))}
	there := wire.Collection{Scope: "s", Name: "c", ID: 9}
	again := wire.Collection{Scope: "s", Name: "c", ID: 11}
	emptied := func(by uint64) wire.Collection { return wire.Collection{Scope: "s", Name: "c", ID: 9, Flushed: by} }
	for _, x := range []struct {
		what  string
		found *wire.Collections
		gone  string // the end of the reason, "" if nothing is proposed
	}{
		{"there", &wire.Collections{UID: 7, All: []wire.Collection{{Scope: "_default", Name: "_default"}, there}}, ""},
		{"dropped", &wire.Collections{UID: 7}, "was dropped; drop the index"},
		{"made again", &wire.Collections{UID: 8, All: []wire.Collection{again}}, "was dropped; drop the index"},
		{"emptied since", &wire.Collections{UID: 7, All: []wire.Collection{emptied(7)}},
			"was emptied; drop the index and create it again"},
		{"emptied before", &wire.Collections{UID: 7, All: []wire.Collection{emptied(5)}}, ""},
		{"an older manifest", &wire.Collections{UID: 4}, ""},
		{"not reported", nil, ""},
	} {
		l, _ := New(DefaultSettings(), wire.Leader{ID: "m1", Term: 1}, hclog.NewNullLogger(), now)
		var got []*statecontext.SetIndexState
		answer := func(found *wire.Collections) {
			for _, e := range l.Step(now, &BucketChecked{CheckBucket: CheckBucket{Bucket: "b", UUID: "u", Collections: true},
				Found: &wire.BucketReply{Name: "b", UUID: "u", VBuckets: 4, Collections: found}}) {
				if p, is := e.(Propose); is {
					if c, is := p.Body.(*statecontext.SetIndexState); is {
						got = append(got, c)
					}
				}
			}
		}
		for range goneAfter - 1 {
			answer(x.found)
		}
		answer(&wire.Collections{UID: 9, All: []wire.Collection{there}}) // one that has it resets the count
		for range goneAfter - 1 {
			answer(x.found)
			answer(&wire.Collections{UID: 3}) // of KV nodes that are behind: do not reset the count
			answer(&wire.Collections{UID: 6, All: []wire.Collection{there}})
		}
		if len(got) > 0 {
			t.Errorf("%s: proposed %+v too early", x.what, got)
		}
		answer(x.found)
		switch {
		case x.gone == "" && len(got) == 0:
		case x.gone != "" && len(got) == 1 && got[0].ID == 2 && got[0].To == index.Error &&
			got[0].Reason == "COLLECTION_GONE: collection b.s.c (id 9) "+x.gone:
		default:
			t.Errorf("%s: proposed %+v", x.what, got)
		}
	}
}

// TestProjectorsAreQueriedForBucketsInTurn checks that projectors are queried in turn, however many there are and
// however long the interval is: one that cannot answer delays the others by its own turn only.
func TestProjectorsAreQueriedForBucketsInTurn(t *testing.T) {
	commands := []statecontext.Body{
		&statecontext.BootstrapCluster{ClusterID: "c1", Epoch: 1, FormatLevel: statecontext.FormatLevel}, member("i1"),
		&statecontext.SetBucket{Name: "b", UUID: "u", VBuckets: 4},
		&statecontext.CreateIndex{Definition: index.Definition{Name: "x", Bucket: "b", BucketUUID: "u",
			Keys: []index.KeyExpr{{Expr: "a"}}, Statement: "CREATE INDEX", Partitions: 1},
			Layout: partition.Layout{Scheme: partition.HashDocID, Partitions: 1}, Placement: []statecontext.Placement{{}}}}
	const n = 5
	for i := range n {
		commands = append(commands, &statecontext.RegisterProjector{Projector: statecontext.Projector{
			ID: index.ProjectorID(fmt.Sprint("p", i)), Admin: fmt.Sprint("http://p", i), BootID: "boot"}})
	}
	now := Now{MS: 1_000_000, WallMS: 1_000_000, State: stateOf(t, commands...)}
	l, _ := New(DefaultSettings(), wire.Leader{ID: "m1", Term: 1}, hclog.NewNullLogger(), now)
	l.active = true
	l.membership.watchProjectors()
	queries := map[index.ProjectorID]int{}
	for range 2 * n {
		now.MS += l.settings.BucketCheck.Milliseconds()
		l.at(now)
		l.effects = l.effects[:0]
		l.ledgers.checkBuckets()
		for _, e := range l.effects {
			if sent, is := e.(Send); is {
				if c, is := sent.Message.(CheckBucket); is {
					queries[c.Projector]++
				}
			}
		}
	}
	for i := range n {
		if id := index.ProjectorID(fmt.Sprint("p", i)); queries[id] != 2 {
			t.Errorf("of %d queries %s got %d: %v", 2*n, id, queries[id], queries)
		}
	}
}

// TestMissingCollectionIsCheckedSooner checks that checks come more often while a collection is missing, and at the
// usual interval once it is there again.
func TestMissingCollectionIsCheckedSooner(t *testing.T) {
	now := Now{MS: 1_000_000, WallMS: 1_000_000, State: stateOf(t,
		&statecontext.BootstrapCluster{ClusterID: "c1", Epoch: 1, FormatLevel: statecontext.FormatLevel}, member("i1"),
		&statecontext.SetBucket{Name: "b", UUID: "u", VBuckets: 4},
		&statecontext.CreateIndex{Definition: index.Definition{Name: "on", Bucket: "b", BucketUUID: "u",
			Member: index.Member{Scope: "s", Collection: "c", ID: 9, Manifest: 5},
			Keys:   []index.KeyExpr{{Expr: "a"}}, Statement: "CREATE INDEX", Partitions: 1},
			Layout: partition.Layout{Scheme: partition.HashDocID, Partitions: 1}, Placement: []statecontext.Placement{{}}},
		&statecontext.RegisterProjector{Projector: statecontext.Projector{ID: "p1", Admin: "http://p1", BootID: "boot"}})}
	l, _ := New(DefaultSettings(), wire.Leader{ID: "m1", Term: 1}, hclog.NewNullLogger(), now)
	l.active = true
	l.membership.watchProjectors()
	next := func() (waited int64) { // until the next check is sent
		for began := now.MS; ; now.MS += 10 {
			l.at(now)
			l.effects = l.effects[:0]
			if l.ledgers.checkBuckets(); len(l.effects) > 0 || now.MS > began+60_000 {
				return now.MS - began
			}
		}
	}
	answer := func(all ...wire.Collection) {
		l.ledgers.bucketChecked(&BucketChecked{CheckBucket: CheckBucket{Bucket: "b", UUID: "u", Collections: true},
			Found: &wire.BucketReply{Name: "b", UUID: "u", VBuckets: 4, Collections: &wire.Collections{UID: 7, All: all}}})
	}
	next()
	whole := l.settings.BucketCheck.Milliseconds()
	for _, x := range []struct {
		what string
		all  []wire.Collection
		want int64
	}{
		{"there", []wire.Collection{{Scope: "s", Name: "c", ID: 9}}, whole},
		{"gone", nil, whole / lostChecks},
		{"gone by two", nil, whole / lostChecks},
		{"there again", []wire.Collection{{Scope: "s", Name: "c", ID: 9}}, whole},
	} {
		answer(x.all...)
		if got := next(); got != x.want {
			t.Errorf("%s: requested again after %d ms, want %d", x.what, got, x.want)
		}
	}
}
