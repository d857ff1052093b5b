package cli

import (
	"strings"
	"testing"
)

// TestIDs checks which names a process may have: they are printed in tables and in commands that users copy.
func TestIDs(t *testing.T) {
	for id, fine := range map[string]bool{"m1": true, "10.0.0.6:9540": true, "[fe80::1%eth0]:9540": true, "p1@kv": true,
		"Größe": true, "": false, "i 4": false, "a\nb": false, "\x1b[31mred": false, "x/../y": false, "a?b": false,
		"a#b": false, "bad\xff": false, strings.Repeat("n", maxIDBytes+1): false} {
		if err := checkID(id); (err == nil) != fine {
			t.Errorf("%.40q: %v", id, err)
		}
	}
	for _, args := range [][]string{{"indexer", "--id", "i 4", "--data", t.TempDir(), "--managers", "127.0.0.1:1"},
		{"manager", "--id", "i 4", "--data", t.TempDir()}} {
		if code, _, talk := run(t, "", args...); code != 2 || !strings.Contains(talk, `--id "i 4"`) {
			t.Errorf("%s: exit code %d, %s", args, code, talk)
		}
	}
}
