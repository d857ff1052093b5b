package expression

import (
	"math/rand/v2"
	"testing"
	"unicode/utf8"
)

// TestLike checks that short texts of few characters match a pattern exactly if an exhaustive search finds a match, and
// that all compared bytes are counted, even if runs of letters are compared at once.
func TestLike(t *testing.T) {
	r, fitting := rand.New(rand.NewPCG(1, 2)), 0
	draw := func(of string, most int) (s string) {
		letters := []rune(of)
		for range r.IntN(most + 1) {
			s += string(letters[r.IntN(len(letters))])
		}
		return s
	}
	for range 20_000 {
		text, pattern, escape := draw("aabé%_!", 7), draw("aabé%%_!è", 6), []string{"!", "a", "è", "%"}[r.IntN(4)]
		want := fitsAnyWay(text, pattern, escape)
		got, work := matchLike([]byte(text), []byte(pattern), []byte(escape), 1<<20)
		if got != want {
			t.Fatalf("%q LIKE %q ESCAPE %q: %v, want %v", text, pattern, escape, got, want)
		}
		if least := utf8.RuneCountInString(text); got && work < least {
			t.Errorf("%q LIKE %q ESCAPE %q counts as %d comparisons, of %d characters", text, pattern, escape, work, least)
		}
		if got {
			fitting++
		}
	}
	if fitting < 1000 {
		t.Errorf("%d fit: too few", fitting)
	}
	long := make([]byte, 1000)
	for i := range long {
		long[i] = 'a'
	}
	if _, work := matchLike(long, long, []byte("!"), 1<<20); work < len(long) {
		t.Errorf("a text of %d bytes counts as %d comparisons", len(long), work)
	}
}

// fitsAnyWay is matchLike by exhaustive search.
func fitsAnyWay(text, pattern, escape string) bool {
	if pattern == "" {
		return text == ""
	}
	p, n := utf8.DecodeRuneInString(pattern)
	rest := pattern[n:]
	switch {
	case string(p) == escape && rest != "":
		p, n = utf8.DecodeRuneInString(rest)
		rest = rest[n:]
	case p == '%':
		return fitsAnyWay(text, rest, escape) || text != "" && fitsAnyWay(text[runeLen([]byte(text)):], pattern, escape)
	case p == '_':
		return text != "" && fitsAnyWay(text[runeLen([]byte(text)):], rest, escape)
	}
	c, n := utf8.DecodeRuneInString(text)
	return text != "" && c == p && fitsAnyWay(text[n:], rest, escape)
}
