package scan

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// listed is a source of rows that ends with err.
type listed struct {
	rows []Row
	err  error
}

func (l *listed) next() (Row, error) {
	if len(l.rows) == 0 {
		return Row{}, l.err
	}
	r := l.rows[0]
	l.rows = l.rows[1:]
	return r, nil
}

var errBroken = errors.New("broken")

// TestMergeIsInOrder: with any number of sources, some empty, some added between two rows, some failing: every row
// is returned once, none after a greater one that was available, and each failure is returned once.
func TestMergeIsInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		reverse := rapid.Bool().Draw(t, "reverse")
		m := &merger{reverse: reverse}
		var want []Row
		broken := 0
		source := func(rows []Row) *listed {
			slices.SortFunc(rows, Row.Compare)
			if reverse {
				slices.Reverse(rows)
			}
			s := &listed{rows: rows, err: io.EOF}
			if len(rows) > 0 && rapid.IntRange(0, 4).Draw(t, "breaks") == 0 {
				s.err = errBroken
				broken++
			}
			want = append(want, rows...)
			return s
		}
		row := func(low, high int) Row {
			return Row{Key: fmt.Appendf(nil, "%03d", rapid.IntRange(low, high).Draw(t, "key")),
				DocID: fmt.Appendf(nil, "%d", rapid.IntRange(0, 3).Draw(t, "id"))}
		}
		add := func(low, high int) {
			var rows []Row
			for range rapid.IntRange(0, 6).Draw(t, "rows") {
				rows = append(rows, row(low, high))
			}
			if err := m.add(source(rows)); err != nil {
				t.Fatal(err)
			}
		}
		for range rapid.IntRange(0, 11).Draw(t, "sources") {
			add(500, 600)
		}
		var got []Row
		failures, behind, later := 0, 0, rapid.IntRange(0, 3).Draw(t, "later")
		for {
			r, _, ok := m.top()
			if !ok {
				break
			}
			got = append(got, r)
			// like slices that are opened later: after everything there is
			if later > 0 && rapid.IntRange(0, 3).Draw(t, "now") == 0 {
				later--
				if behind += 100; reverse {
					add(500-behind, 550-behind)
				} else {
					add(550+behind, 600+behind)
				}
			}
			if err := m.advance(); errors.Is(err, errBroken) {
				failures++
			} else if err != nil {
				t.Fatal(err)
			}
		}
		slices.SortFunc(want, Row.Compare)
		if reverse {
			slices.Reverse(want)
		}
		if !slices.EqualFunc(got, want, func(a, b Row) bool { return a.Compare(b) == 0 }) || failures != broken {
			t.Fatalf("%d rows, want %d; %d failures of %d returned\n%s\n%s", len(got), len(want), failures, broken, got, want)
		}
	})
}
