package ddlhistory

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// kind of an operation on one name.
type kind uint8

const (
	create kind = iota
	ensure      // CREATE INDEX IF NOT EXISTS
	drop        // by name
	read        // of a listing, or of the one index
)

func (k kind) String() string { return [...]string{"create", "ensure", "drop", "read"}[k] }

// input is what was asked.
type input struct {
	kind kind
	name string
}

// outcome is what was answered. It is comparable: a retry has to give the same one.
type outcome struct {
	unknown bool   // it may or may not have happened, or happen until the end
	found   bool   // create: the name was taken; ensure: it was there; drop and read: it was there
	id      uint64 // of the index that was created, found, dropped or read; 0: none
}

// nameState is what is known of a name. Ids rise, so that an index that has gone never comes back.
type nameState struct {
	present bool
	id      uint64 // 0: of a creation whose answer nobody has seen
	last    uint64 // highest id that the name has had
}

// is reports whether the name's index may be the one with this id, and returns the state that knows it.
func (s nameState) is(id uint64) (bool, nameState) {
	if !s.present || s.id != id && (s.id != 0 || id <= s.last) {
		return false, s
	}
	return true, nameState{present: true, id: id, last: max(s.last, id)}
}

func (s nameState) created(id uint64) (bool, nameState) {
	if s.present || id <= s.last {
		return false, s
	}
	return true, nameState{present: true, id: id, last: id}
}

// step is the sequential specification. What is unknown fits everywhere: it returns at the end of time, so that one
// that did not happen is put behind everything else.
func step(s nameState, in input, out outcome) (bool, nameState) {
	switch {
	case out.unknown && in.kind == drop:
		return true, nameState{last: s.last}
	case out.unknown && s.present:
		return true, s
	case out.unknown:
		return true, nameState{present: true, last: s.last}
	}
	switch in.kind {
	case create:
		if out.found {
			return s.present, s
		}
		return s.created(out.id)
	case ensure:
		if out.found {
			return s.is(out.id)
		}
		return s.created(out.id)
	case drop:
		if !out.found {
			return !s.present, s
		}
		ok, s := s.is(out.id)
		return ok, nameState{last: s.last}
	case read:
		if !out.found {
			return !s.present, s
		}
		return s.is(out.id)
	}
	return false, s
}

// forever is when an operation returns whose outcome nobody has learnt.
const forever = math.MaxInt64

func model() porcupine.Model {
	return porcupine.Model{
		Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
			var names []string
			parts := map[string][]porcupine.Operation{}
			for _, o := range history {
				name := o.Input.(input).name
				if parts[name] == nil {
					names = append(names, name)
				}
				parts[name] = append(parts[name], o)
			}
			all := make([][]porcupine.Operation, 0, len(names))
			for _, n := range names {
				all = append(all, parts[n])
			}
			return all
		},
		Init: func() any { return nameState{} },
		Step: func(s, in, out any) (bool, any) {
			ok, next := step(s.(nameState), in.(input), out.(outcome))
			return ok, next
		},
		DescribeOperation: func(in, out any) string {
			i, o := in.(input), out.(outcome)
			switch {
			case o.unknown:
				return fmt.Sprintf("%s → ?", i.kind)
			case i.kind == create && o.found:
				return "create → taken"
			case i.kind == ensure && o.found:
				return fmt.Sprintf("ensure → is %d", o.id)
			case i.kind == create || i.kind == ensure:
				return fmt.Sprintf("%s → new %d", i.kind, o.id)
			case !o.found:
				return fmt.Sprintf("%s → none", i.kind)
			}
			return fmt.Sprintf("%s → %d", i.kind, o.id)
		},
		DescribeState: func(s any) string { return fmt.Sprintf("%+v", s) },
	}
}

// checkTimeout is for porcupine; what it has not decided by then counts as a failure of the test.
const checkTimeout = 2 * time.Minute

// TestModel: the checker accepts what may be and refuses what may not.
func TestModel(t *testing.T) {
	type op struct {
		call, end int64
		kind      kind
		out       outcome
	}
	made := func(id uint64) outcome { return outcome{id: id} }
	there := func(id uint64) outcome { return outcome{found: true, id: id} }
	none, taken, lost := outcome{}, outcome{found: true}, outcome{unknown: true}
	for name, tc := range map[string]struct {
		ops  []op
		want bool
	}{
		"one after the other": {[]op{{0, 1, create, made(5)}, {2, 3, read, there(5)}, {4, 5, create, taken},
			{6, 7, drop, there(5)}, {8, 9, read, none}}, true},
		"ensure": {[]op{{0, 1, ensure, made(5)}, {2, 3, ensure, there(5)},
			{4, 5, drop, there(5)}, {6, 7, ensure, made(6)}}, true},
		"an unknown create that happened": {[]op{{0, forever, create, lost}, {2, 3, read, none}, {4, 5, read, there(7)},
			{6, 7, drop, there(7)}, {8, 9, read, none}}, true},
		"an unknown create that did not": {[]op{{0, forever, create, lost}, {2, 3, create, made(7)},
			{4, 5, drop, there(7)}, {6, 7, read, none}}, true},
		"an unknown drop that happened late": {[]op{{0, 1, create, made(3)}, {2, forever, drop, lost},
			{3, 4, read, there(3)}, {5, 6, read, none}, {7, 8, create, made(4)}}, true},
		"two creates at once, one wins": {[]op{{0, 5, create, made(3)}, {0, 5, create, taken}}, true},
		"two creates, both win":         {[]op{{0, 5, create, made(3)}, {0, 5, create, made(4)}}, false},
		"two drops of one index": {[]op{{0, 1, create, made(3)}, {2, 5, drop, there(3)}, {2, 5, drop, there(3)}},
			false},
		"a lost creation": {[]op{{0, 1, create, made(3)}, {2, 3, read, none}}, false},
		"a stale read of a dropped index": {[]op{{0, 1, create, made(3)}, {2, 3, drop, there(3)}, {4, 5, read, there(3)}},
			false},
		"a drop that was done twice": {[]op{{0, 1, create, made(3)}, {2, 3, drop, there(3)}, {4, 5, create, made(4)},
			{6, 7, read, none}}, false},
		"an unknown create done twice": {[]op{{0, forever, create, lost}, {2, 3, drop, there(3)},
			{4, 5, drop, there(4)}}, false},
		"a read that goes back": {[]op{{0, 9, create, made(3)}, {1, 2, read, there(3)}, {3, 4, read, none}},
			false},
		"an old id": {[]op{{0, 1, create, made(3)}, {2, 3, drop, there(3)},
			{4, 5, create, made(2)}}, false},
		"a drop that says there was nothing": {[]op{{0, 1, create, made(3)}, {2, 3, drop, none}}, false},
		"taken, and nothing there":           {[]op{{0, 1, create, taken}}, false},
		"an index from nowhere":              {[]op{{0, 1, read, there(3)}}, false},
		"ensure finds an index that has gone": {[]op{{0, 1, create, made(3)}, {2, 3, drop, there(3)},
			{4, 5, ensure, there(3)}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			var history []porcupine.Operation
			for i, o := range tc.ops {
				history = append(history, porcupine.Operation{ClientId: i, Call: o.call, Return: o.end,
					Input: input{kind: o.kind, name: "n"}, Output: o.out})
			}
			if got := porcupine.CheckOperations(model(), history); got != tc.want {
				t.Errorf("linearizable: %v, want %v", got, tc.want)
			}
		})
	}
}
