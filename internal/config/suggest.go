package config

import (
	"slices"
	"strings"
)

// suggest names the nearest of the known words, and all of them.
func suggest(word string, known []string, what string) string {
	all := "; known " + what + ": " + strings.Join(known, ", ")
	if n := Nearest(word, known); n != "" {
		return "; did you mean " + n + "?" + all
	}
	return all
}

// Nearest returns the word that differs least from a mistyped one; "" when none is near. Case and the choice between -
// and _ make no difference.
func Nearest(word string, known []string) string {
	best, least := "", len(word)/3+2 // so many edits are no slip of the finger any more
	w := normal(word)
	for _, k := range known {
		n := normal(k)
		switch d := 1; {
		case len(w) > 2 && strings.HasPrefix(n, w): // cut short
			if d < least {
				best, least = k, d
			}
		case max(len(w)-len(n), len(n)-len(w)) < least: // else it is further away than that
			if d = distance(w, n); d < least {
				best, least = k, d
			}
		}
	}
	return best
}

func normal(s string) string { return strings.ReplaceAll(strings.ToLower(s), "_", "-") }

// distance counts the insertions, deletions and replacements that make b of a.
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
