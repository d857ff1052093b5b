package statecontext

import (
	"strings"
	"testing"

	"tidemark/errcode"
)

// TestNamesOfIndexers checks that an indexer cannot register with a name or zone that would change the terminal of
// whoever lists the members, or break a table apart.
func TestNamesOfIndexers(t *testing.T) {
	for text, fine := range map[string]bool{"": true, "i1": true, "10.0.0.6:9540": true, "[fe80::1%eth0]:9540": true,
		"rack 2": true, "Größe": true, "a\nb": false, "\x1b[31mred": false, "\x7f": false, "bad\xff": false,
		strings.Repeat("n", maxIdentityBytes+1): false} {
		for what, i := range map[string]Indexer{"name": {UUID: "new", Name: text}, "zone": {UUID: "new", Zone: text}} {
			n := bootstrapped(t)
			r := n.do(&RegisterIndexer{Indexer: i})[0]
			var why errcode.Code
			if r.Rejection != nil {
				why = r.Rejection.Code
			}
			if fine != (why == "") || !fine && why != errcode.InvalidArgument || fine != (n.state.IndexerByUUID("new") != nil) {
				t.Errorf("%s %.40q: %+v", what, text, r)
			}
		}
	}
}
