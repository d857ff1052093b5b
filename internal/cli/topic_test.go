package cli

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"tidemark/keyversion"
	"tidemark/wire"
)

// TestTailCount checks that no more lines than requested are printed, even if other connections still deliver events.
func TestTailCount(t *testing.T) {
	var out bytes.Buffer
	p := &topicPrinter{out: Streams{Out: &out}, left: 2}
	for n := range 4 {
		ev := &keyversion.Event{}
		ev.Kind, ev.Seqno = keyversion.Delete, uint64(n+1)
		if err := p.handle(t.Context(), ev); errors.Is(err, errEnough) != (n > 0) {
			t.Errorf("event %d: %v", n, err)
		}
	}
	if got := strings.Count(out.String(), "\n"); got != 2 {
		t.Errorf("%d lines:\n%s", got, out.String())
	}
}

// TestTailRollback checks that a rollback of KV is printed, also without --sync, and is not counted, and that
// nothing is printed after the last counted line.
func TestTailRollback(t *testing.T) {
	var out bytes.Buffer
	p := &topicPrinter{out: Streams{Out: &out}, left: 1}
	if err := p.rollback(t.Context(), 7, 42); err != nil {
		t.Fatal(err)
	}
	ev := &keyversion.Event{}
	ev.Kind, ev.VBucket, ev.Seqno = keyversion.Delete, 7, 43
	if err := p.handle(t.Context(), ev); !errors.Is(err, errEnough) {
		t.Errorf("the one line: %v", err)
	}
	if err := p.rollback(t.Context(), 7, 41); !errors.Is(err, errEnough) {
		t.Errorf("after the last line: %v", err)
	}
	first, rest, _ := strings.Cut(out.String(), "\n")
	if first != `{"kind":"Rollback","vbucket":7,"seqno":42}` || strings.Count(rest, "\n") != 1 {
		t.Errorf("printed\n%s", out.String())
	}
}

// TestUnreachableSubscriber checks that a projector that cannot reach the subscriber is reported with its reason, for
// this address only.
func TestUnreachableSubscriber(t *testing.T) {
	state := &wire.ProjectorState{Topics: []wire.TopicState{{Endpoints: []wire.EndpointState{
		{Address: "other:1", State: "down", Error: "gone"}, {Address: "up:1", State: "connected"},
		{Address: "me:1", State: "down", Error: "no such host"}}}}}
	for address, want := range map[string]string{"me:1": "no such host", "up:1": "", "unknown:1": ""} {
		if got := unreached(&projectorView{State: state}, address); got != want {
			t.Errorf("%s: %q, want %q", address, got, want)
		}
	}
	if got := unreached(&projectorView{Error: "silent"}, "me:1"); got != "" {
		t.Errorf("of a projector without a state: %q", got)
	}
}
