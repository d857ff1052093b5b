package expression

import (
	"strings"
	"testing"
)

// TestZones reads every zone of the archive.
func TestZones(t *testing.T) {
	var s Scratch
	n := 0
	for name := range zoneFiles {
		if strings.HasSuffix(name, "/") {
			continue
		}
		if _, ok := s.zoneNamed(value{kindString, []byte(name)}); !ok {
			t.Errorf("%s cannot be read", name)
		}
		n++
	}
	if n < 500 {
		t.Errorf("%d zones", n)
	}
	for _, name := range []string{"Local", "No/Where", "europe/berlin", "../etc/passwd", strings.Repeat("a", 1000)} {
		if _, ok := s.zoneNamed(value{kindString, []byte(name)}); ok {
			t.Errorf("%.20s is a zone", name)
		}
	}
}
