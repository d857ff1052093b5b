package index

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

func TestTransitions(t *testing.T) {
	states := []State{Pending, Backfill, Maintenance, Dropping, Error}
	legal := map[State]string{
		Pending: "backfill dropping error", Backfill: "ready dropping error pending",
		Maintenance: "dropping error backfill",
		Error:       "pending backfill dropping", Dropping: "",
	}
	for _, from := range states {
		for _, to := range states {
			err := from.CheckTransition(to)
			want := from == to || strings.Contains(" "+legal[from]+" ", " "+to.String()+" ")
			if (err == nil) != want || err != nil && !errors.Is(err, ErrTransition) {
				t.Errorf("%s to %s: %v", from, to, err)
			}
		}
		if got, err := ParseState(from.String()); got != from || err != nil {
			t.Errorf("%s reads back as %s, %v", from, got, err)
		}
	}
	if _, err := ParseState("READY"); !errors.Is(err, ErrState) {
		t.Errorf("READY was parsed, which is not the name of a state: %v", err)
	}
}

func TestIncarnationsAreOrdered(t *testing.T) {
	order := []Incarnation{{}, {0, 1, 9}, {1, 0, 0}, {1, 1, 0}, {1, 1, 7}, {1, 2, 0}, {2, 0, 0}}
	for i, a := range order {
		for j, b := range order {
			if got := a.Compare(b); (got < 0) != (i < j) || (got == 0) != (i == j) {
				t.Errorf("%v against %v: %d", a, b, got)
			}
		}
	}
}

func TestIDsAreStringsInJSON(t *testing.T) {
	d := Definition{ID: 1<<63 + 1, Name: "i", State: Maintenance}
	b, err := json.Marshal(d)
	if err != nil || !strings.Contains(string(b), `"id":"9223372036854775809"`) || !strings.Contains(string(b), `"state":"ready"`) {
		t.Errorf("%s, %v", b, err)
	}
	var back Definition
	if err := json.Unmarshal(b, &back); err != nil || back.ID != d.ID || back.State != d.State {
		t.Errorf("%+v, %v", back, err)
	}
}

func TestPartitionBy(t *testing.T) {
	none := PartitionBy{}
	by := PartitionBy{Scheme: PartitionRange, Exprs: []string{"a"}, Values: []json.RawMessage{json.RawMessage(`{"x":1}`)}}
	spaced := PartitionBy{Scheme: PartitionRange, Exprs: []string{"a"},
		Values: []json.RawMessage{json.RawMessage("{\n \"x\": 1 }")}}
	other := PartitionBy{Scheme: PartitionRange, Exprs: []string{"a"}, Values: []json.RawMessage{json.RawMessage(`{"x":2}`)}}
	if !none.IsZero() || by.IsZero() || !by.Equal(&spaced) || by.Equal(&other) || by.Equal(&none) {
		t.Errorf("%v %v %v %v %v", none.IsZero(), by.IsZero(), by.Equal(&spaced), by.Equal(&other), by.Equal(&none))
	}
	for want, d := range map[string]*Definition{"": {State: Pending}, `"scheme":"range"`: {State: Pending, PartitionBy: by}} {
		b, err := json.Marshal(d)
		if has := bytes.Contains(b, []byte("partition_by")); err != nil || has != (want != "") ||
			!bytes.Contains(b, []byte(want)) {
			t.Errorf("%s %v", b, err)
		}
		var back Definition
		if err := json.Unmarshal(b, &back); err != nil || !back.PartitionBy.Equal(&d.PartitionBy) {
			t.Errorf("%+v %v", back, err)
		}
	}
}
