package config

import (
	"slices"
	"strings"
)

// suggest returns a text with the nearest of the known words, and all of them.
func suggest(word string, known []string, what string) string {
	all := "; known " + what + ": " + strings.Join(known, ", ")
	if n := Nearest(word, known); n != "" {
		return "; did you mean " + n + "?" + all
	}
	return all
}

// Nearest returns the known word closest to a mistyped one; "" if none is close. Case, and - instead of _, do not
// count.
func Nearest(word string, known []string) string {
	best, least := "", len(word)/3+2 // more edits than that are no typing error
	w := normal(word)
	for _, k := range known {
		n := normal(k)
		switch d := 1; {
		case len(w) > 2 && strings.HasPrefix(n, w): // abbreviated
			if d < least {
				best, least = k, d
			}
		case max(len(w)-len(n), len(n)-len(w)) < least: // otherwise the distance is at least that
			if d = distance(w, n); d < least {
				best, least = k, d
			}
		}
	}
	return best
}

func normal(s string) string { return strings.ReplaceAll(strings.ToLower(s), "_", "-") }

// distance returns the number of insertions, deletions and replacements that turn a into b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		next := slices.Clone(row)
		next[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			next[j+1] = min(row[j+1]+1, next[j]+1, row[j]+cost)
		}
		row = next
	}
	return row[len(b)]
}
