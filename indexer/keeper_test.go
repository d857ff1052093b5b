package indexer

import (
	"testing"
	"time"

	"tidemark/index"
)

// TestTurns: each copy has its turn once in a period, the first one within a period of its first sight, and the turns
// are spread.
func TestTurns(t *testing.T) {
	const period, rounds = 5 * time.Second, 4
	for _, copies := range []int{1, 2, 6, 7, 100, 1000} {
		now := time.Unix(1_700_000_000, 0)
		turns := turns{period: period, due: map[index.CopyID]time.Time{}}
		last, count, began := map[index.CopyID]time.Time{}, map[index.CopyID]int{}, now
		for ; now.Sub(began) < rounds*period; now = now.Add(period / turnsPer) {
			together := 0
			for id := index.CopyID(1); id <= index.CopyID(copies); id++ {
				if last[id].IsZero() {
					last[id] = now
				}
				if !turns.its(id, now) {
					if now.Sub(last[id]) > period+period/turnsPer {
						t.Fatalf("%d copies: number %d has had no turn for %v", copies, id, now.Sub(last[id]))
					}
					continue
				}
				together++
				count[id]++
				last[id] = now
			}
			if most := 2 + 2*copies/turnsPer; together > most {
				t.Errorf("%d copies: %d have their turn together, want at most %d", copies, together, most)
			}
		}
		for id, n := range count {
			if n < rounds-1 || n > rounds {
				t.Errorf("%d copies: number %d had %d turns in %d periods", copies, id, n, rounds)
			}
		}
		if len(count) != copies {
			t.Errorf("%d of %d copies had a turn", len(count), copies)
		}
	}
}

// TestTurnLate: copies that could not have a turn for long have one then, and the next ones are spread again.
func TestTurnLate(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	turns := turns{period: time.Second, due: map[index.CopyID]time.Time{}}
	for id := range index.CopyID(6) {
		if turns.its(id, now) {
			t.Errorf("copy %d has a turn at first sight", id)
		}
	}
	now = now.Add(10*time.Second + 300*time.Millisecond)
	for id := range index.CopyID(6) {
		if !turns.its(id, now) {
			t.Errorf("copy %d has no turn after ten periods", id)
		}
	}
	for range 10 {
		now = now.Add(100 * time.Millisecond)
		together := 0
		for id := range index.CopyID(6) {
			if turns.its(id, now) {
				together++
			}
		}
		if together > 2 {
			t.Errorf("%d of 6 copies have their turn together", together)
		}
	}
}
