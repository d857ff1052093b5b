package cli

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"tidemark/keyversion"
)

// TestCountOfATail: no more lines than asked for, though other connections still bring events.
func TestCountOfATail(t *testing.T) {
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

// TestRollbackOfATail: that KV has gone back is printed, also without --sync, and is none of the lines that are
// counted; nothing comes behind the last of these.
func TestRollbackOfATail(t *testing.T) {
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
		t.Errorf("behind the last line: %v", err)
	}
	first, rest, _ := strings.Cut(out.String(), "\n")
	if first != `{"kind":"Rollback","vbucket":7,"seqno":42}` || strings.Count(rest, "\n") != 1 {
		t.Errorf("printed is\n%s", out.String())
	}
}
