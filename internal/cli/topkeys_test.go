package cli

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"tidemark/index"
	"tidemark/manager/api/v1"
)

func TestSplitKeys(t *testing.T) {
	got := splitKeys("q\x1b[A/\x1b[5~é\x1bOB\x1b")
	if want := []string{"q", "\x1b[A", "/", "\x1b[5~", "é", "\x1bOB", "\x1b"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestTopKeys checks that each key does what the help shows, and that letters of a filter are not keys.
func TestTopKeys(t *testing.T) {
	x := &topScreen{page: 10}
	press := func(keys string) (quit bool) {
		for _, k := range splitKeys(keys) {
			quit = x.key(k)
		}
		return quit
	}
	if press("/qs?é\x7f\r") || x.filter != "qs?" || x.typing || x.help {
		t.Errorf("a filter: %+v", x)
	}
	if press("\x1b"); x.filter != "" {
		t.Errorf("Esc: %+v", x)
	}
	if press("ss"); topOrders[x.order] != "entries" {
		t.Errorf("s: %+v", x)
	}
	if press("sss"); x.order != 0 {
		t.Errorf("s wraps around: %+v", x)
	}
	if press("jj\x1b[B\x1b[6~k"); x.top != 12 {
		t.Errorf("scrolled to %d", x.top)
	}
	if press("?"); !x.help {
		t.Error("? shows nothing")
	}
	for _, k := range []string{"q", "\x03"} {
		if !press(k) {
			t.Errorf("%q does not end top", k)
		}
	}
	if press("/"); !press("\x03") {
		t.Error("Ctrl-C does not end top while a filter is being typed")
	}
}

// TestTopFrame checks that, on 60 columns and 20 rows, no line is wider than the terminal, and nothing scrolls it.
func TestTopFrame(t *testing.T) {
	var text strings.Builder
	for n := range 50 {
		fmt.Fprintf(&text, "%d %s\n", n, strings.Repeat("é", 100))
	}
	x := &topScreen{}
	for _, top := range []int{-5, 0, 7, 1000} {
		x.top = top
		lines := strings.Split(strings.TrimPrefix(x.frame(text.String(), 60, 20), clearScreen), "\r\n")
		if len(lines) != 20 {
			t.Errorf("from line %d: %d lines", top, len(lines))
		}
		for _, l := range lines {
			if utf8.RuneCountInString(l) > 60 || strings.Contains(l, "\n") {
				t.Errorf("%q is too long", l)
			}
		}
		if want := fmt.Sprintf("%d é", min(max(top, 0), 31)); !strings.HasPrefix(lines[0], want) {
			t.Errorf("from line %d: %q first", top, lines[0])
		}
		if last := lines[19]; !strings.HasPrefix(last, "q ends, ? keys; by state; lines ") {
			t.Errorf("%q is last", last)
		}
	}
	if short := x.frame("one\n", 60, 20); short != clearScreen+"one\r\nq ends, ? keys; by state" {
		t.Errorf("%q", short)
	}
}

// TestTopMessages checks that messages printed while the screen is drawn stay on its last line.
func TestTopMessages(t *testing.T) {
	var b strings.Builder
	message := "tidemark: no answer yet (a: silent\nb: refused)\n"
	if n, err := fmt.Fprint(lastLine{&b}, message); n != len(message) || err != nil {
		t.Errorf("%d of %d bytes, %v", n, len(message), err)
	}
	fmt.Fprint(lastLine{&b}, strings.Repeat("é", 100)+"\n")
	want := "\r\x1b[Ktidemark: no answer yet (a: silent b: refused)\r\x1b[K" + strings.Repeat("é", 80)
	if b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
}

// TestTopSelection checks the order and the filter of indexes, with their rates and figures.
func TestTopSelection(t *testing.T) {
	l := &topSample{}
	for n, name := range []string{"beta", "alpha", "gamma"} {
		l.indexes.Indexes = append(l.indexes.Indexes, v1.IndexInfo{ID: index.ID(n + 1), Bucket: "w", Name: name,
			State: index.Maintenance})
		l.stats.Indexes = append(l.stats.Indexes, v1.IndexStats{ID: index.ID(n + 1), ItemsCount: uint64(10 * (n + 1))})
	}
	for _, tc := range []struct {
		keys string
		want []string
	}{
		{"", []string{"beta", "alpha", "gamma"}}, {"s", []string{"alpha", "beta", "gamma"}},
		{"ss", []string{"gamma", "alpha", "beta"}}, {"/W/A\r", []string{"alpha"}}, {"/none\r", nil},
		{"/MM", []string{"gamma"}},
	} {
		x := &topScreen{}
		for _, k := range splitKeys(tc.keys) {
			x.key(k)
		}
		var got []string
		v := compare(l, l, x)
		for _, i := range v.Indexes {
			got = append(got, i.Name)
		}
		if !slices.Equal(got, tc.want) || len(v.Stats.Indexes) != len(got) {
			t.Errorf("%q: %q with figures of %d, want %q", tc.keys, got, len(v.Stats.Indexes), tc.want)
		}
	}
}
