package partition_test

import (
	"encoding/json"
	"errors"
	"slices"
	"testing"

	"tidemark/partition"
)

func raws(texts ...string) (all []json.RawMessage) {
	for _, t := range texts {
		all = append(all, json.RawMessage(t))
	}
	return all
}

func TestWithAndWithout(t *testing.T) {
	values := raws("10", `"m"`)
	got, err := partition.With(values, raws(`"z"`, "5", `"a"`))
	if want := raws("5", "10", `"a"`, `"m"`, `"z"`); err != nil || !slices.EqualFunc(got, want, same) {
		t.Errorf("%s, %v", got, err)
	}
	if got, err = partition.Without(got, raws(`"z"`, "5", `"a"`)); err != nil || !slices.EqualFunc(got, values, same) {
		t.Errorf("%s, %v", got, err)
	}
	for name, do := range map[string]func() ([]json.RawMessage, error){
		"there already": func() ([]json.RawMessage, error) { return partition.With(values, raws("10.0")) },
		"twice":         func() ([]json.RawMessage, error) { return partition.With(values, raws("1", "1")) },
		"no JSON":       func() ([]json.RawMessage, error) { return partition.With(values, raws("x")) },
		"unknown":       func() ([]json.RawMessage, error) { return partition.Without(values, raws("11")) },
		"gone twice":    func() ([]json.RawMessage, error) { return partition.Without(values, raws("10", "10")) },
	} {
		if got, err := do(); !errors.Is(err, partition.ErrDefinition) {
			t.Errorf("%s: %s, %v", name, got, err)
		}
	}
}

func same(a, b json.RawMessage) bool { return string(a) == string(b) }
