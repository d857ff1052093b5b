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
