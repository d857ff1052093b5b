package kvclient

import (
	"strings"
	"testing"
	"unicode/utf8"

	"tidemark/kv/mcbp"
)

// TestNodeMessagesArePrintable checks that an error includes a body if it is text, marked where it is cut, and omits
// any other body.
func TestNodeMessagesArePrintable(t *testing.T) {
	for _, c := range []struct{ body, ends string }{
		{"no", ": no"}, {"a\xffb", ": a\ufffdb"}, {strings.Repeat("é", maxDetail), "é…"}, {"x" + strings.Repeat("é",
			maxDetail), "é…"}, {strings.Repeat("x", maxDetail), "xx"}, {"a\x00b", mcbp.StatusInternal.String()},
	} {
		text := NewStatusError(mcbp.Frame{Header: mcbp.Header{Op: mcbp.OpGet, VBucketOrStatus: uint16(mcbp.StatusInternal)},
			Value: []byte(c.body)}).Error()
		if !utf8.ValidString(text) || !strings.HasSuffix(text, c.ends) || len(text) > 3*maxDetail {
			t.Errorf("%q: %q, want the end %q", c.body, text, c.ends)
		}
	}
}
