package core

import (
	"errors"
	"strings"
	"testing"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/keyversion"
	"tidemark/wire"
)

// TestTopics: the topic distinguishes the three request forms.
func TestTopics(t *testing.T) {
	for _, c := range []struct {
		topic string
		class keyversion.Class
		node  index.NodeID
		id    uint8
		bad   bool
	}{
		{topic: "/maintenance", class: keyversion.ClassMaintenance, id: 255},
		{topic: "/backfill/a", class: keyversion.ClassBackfill, id: 254},
		{topic: "/catchup/7/12", class: keyversion.ClassCatchup, node: 7, id: 7},
		{topic: "/catchup/250", class: keyversion.ClassCatchup, node: 250, id: 250},
		{topic: "/catchup/251", bad: true},
		{topic: "/catchup/", bad: true},
		{topic: "/backfill", bad: true},
		{topic: "/backfill/a b", bad: true},
		{topic: "/backfill/ä", bad: true},
		{topic: "maintenance", bad: true},
		{topic: "/other/a", bad: true},
		{topic: "/backfill/" + strings.Repeat("a", wire.MaxTopic), bad: true},
	} {
		class, node, err := ParseTopic(c.topic)
		if errors.Is(err, errcode.BadRequest) != c.bad || class != c.class || node != c.node {
			t.Errorf("%.40s: class %v, node %d, %v", c.topic, class, node, err)
		}
		if !c.bad && TopicID(class, node) != c.id {
			t.Errorf("%s: id %d, want %d", c.topic, TopicID(class, node), c.id)
		}
	}
}

// TestInvalidRequests: an invalid request is refused before any stream begins.
func TestInvalidRequests(t *testing.T) {
	bucket := func(name string, starts ...wire.StreamStart) wire.StreamBucket {
		b := wire.StreamBucket{Bucket: name}
		for _, s := range starts {
			b.Restart.Add(s)
		}
		return b
	}
	open, ends := wire.StreamStart{VBucket: 1}, wire.StreamStart{VBucket: 1, End: 9}
	copies := &wire.SideTarget{Endpoint: "a:1", Node: 3, Copies: []index.CopyID{1}}
	for _, c := range []struct {
		topic   string
		buckets []wire.StreamBucket
		side    *wire.SideTarget
		want    string // part of the refusal's text; "": accepted
	}{
		{topic: "/maintenance", buckets: []wire.StreamBucket{bucket("a", open), bucket("b", open)}},
		{topic: "/other/a", buckets: []wire.StreamBucket{bucket("a", open)}, want: "no such class"},
		{topic: "/maintenance", want: "0 buckets, want 1 to 1000"},
		{topic: "/maintenance", buckets: make([]wire.StreamBucket, MaxBuckets+1), want: "1001 buckets"},
		{topic: "/maintenance", buckets: []wire.StreamBucket{bucket("a", open), bucket("a", open)}, want: `"a" is given twice`},
		{topic: "/maintenance", buckets: []wire.StreamBucket{bucket("", open)}, want: "has no name"},
		{topic: "/maintenance", buckets: []wire.StreamBucket{bucket("a")}, want: "has no vbucket"},
		{topic: "/maintenance", buckets: []wire.StreamBucket{bucket("a", open, open)}, want: "vbucket 1 is given twice"},
		{topic: "/maintenance", buckets: []wire.StreamBucket{bucket("a", open)}, side: copies, want: "side is allowed only for"},
		{topic: "/backfill/x", buckets: []wire.StreamBucket{bucket("a", ends)}, side: copies},
		{topic: "/catchup/3/x", buckets: []wire.StreamBucket{bucket("a", ends)}, side: copies},
		{topic: "/catchup/4/x", buckets: []wire.StreamBucket{bucket("a", ends)}, side: copies, want: "it belongs to indexer 4, the request to 3"},
		{topic: "/backfill/x", buckets: []wire.StreamBucket{bucket("a", open)}, side: copies, want: "a side stream needs an end"},
		{topic: "/backfill/x", buckets: []wire.StreamBucket{bucket("a", ends)}, want: "want side"},
		{topic: "/backfill/x", buckets: []wire.StreamBucket{bucket("a", ends)}, side: &wire.SideTarget{Endpoint: "a:1"}, want: "either indexes or copies"},
		{topic: "/backfill/x", buckets: []wire.StreamBucket{bucket("a", ends)}, side: &wire.SideTarget{Copies: copies.Copies}, want: "with an endpoint"},
	} {
		_, _, err := CheckRequest(&wire.StreamRequest{Topic: c.topic, Buckets: c.buckets, Side: c.side})
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", c.topic, err)
		case c.want != "" && (!errors.Is(err, errcode.BadRequest) || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want %q", c.topic, err, c.want)
		}
	}
}
