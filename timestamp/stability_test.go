package timestamp

import "testing"

func TestRefsAreOrderedByGenerationRollbackNumber(t *testing.T) {
	order := []Ref{
		{Generation: 1, RollbackID: 0, Number: 9}, {Generation: 1, RollbackID: 1, Number: 2},
		{Generation: 1, RollbackID: 1, Number: 3},
		{Generation: 2, RollbackID: 0, Number: 1},
	}
	for i, a := range order {
		for j, b := range order {
			if got := a.Compare(b); (got < 0) != (i < j) || (got == 0) != (i == j) {
				t.Errorf("%+v against %+v: %d", a, b, got)
			}
		}
	}
}
