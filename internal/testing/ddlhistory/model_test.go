package ddlhistory

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// kind is the kind of an operation on one name.
type kind uint8

const (
	create kind = iota
	ensure      // CREATE INDEX IF NOT EXISTS
	drop        // by name
	read        // of a listing, or of the one index
	split       // ALTER INDEX with one more boundary
	merge       // with one boundary less
	cancel      // of a split
)

func (k kind) String() string {
	return [...]string{"create", "ensure", "drop", "read", "split", "merge", "cancel"}[k]
}

// input is a request.
type input struct {
	kind kind
	name string
	at   string // the boundary of split and merge
}

// why is the reason of a refusal; a refused request changes nothing.
type why uint8

const (
	absent  why = iota + 1 // no index has the name
	unready                // the index is not ready and cannot be split
	busy                   // it is being split
	unsplit                // it is not being split
	unfit                  // it has no boundary at that value
)

// outcome is an answer. It is comparable: a retry must return an equal one.
type outcome struct {
	unknown bool // it may have happened, may happen until the end, or never
	// For create: the name was taken; for ensure, drop, read and cancel: the index existed; for split: it has the
	// boundary already.
	found bool
	id    uint64 // of the index that was created, found, dropped or read, that a split builds or a cancel drops; 0: none
	why   why
}

// passing reports whether the ledger does not record an outcome: a retry may then be carried out, and so may an
// earlier attempt that arrives late.
func (o outcome) passing(k kind) bool {
	return o.why == unready || o.why == busy || o.why == unfit || (k == split || k == merge) && o.found
}

// nameState is a possible state of a name. Ids rise, so a dropped index never returns.
type nameState struct {
	present bool
	id      uint64 // 0: created by a request whose answer was lost
	low     uint64 // id is above it
	last    uint64 // highest id that the name has had
	ready   bool   // it has been split, or is the result of a split
	split   bool   // it is being split, or the split has ended and next has its name
	next    uint64 // 0: of a split whose answer was lost
}

// ways returns the states that a name may reach without a request: a split may end at any time.
func (s nameState) ways() []nameState {
	if !s.split {
		return []nameState{s}
	}
	return []nameState{s, {present: true, id: s.next, low: max(s.low, s.id), last: s.last, ready: true}}
}

// leads returns the states in which the name's index is the one with this id.
func (s nameState) leads(id uint64) (all []nameState) {
	for _, v := range s.ways() {
		if v.present && (v.id == id || v.id == 0 && id > v.low && (v.next == 0 || id < v.next)) {
			v.id, v.last = id, max(v.last, id)
			all = append(all, v)
		}
	}
	return all
}

// without returns the states that do not satisfy no.
func without(all []nameState, no func(nameState) bool) []nameState { return slices.DeleteFunc(all, no) }

func (s nameState) created(id uint64) []nameState {
	if s.present || id <= s.last {
		return nil
	}
	return []nameState{{present: true, id: id, low: s.last, last: id}}
}

// gone returns the states without the index and without its successor.
func gone(all ...nameState) []nameState {
	for i, s := range all {
		all[i] = nameState{last: max(s.last, s.id, s.next)}
	}
	return all
}

// mayBe returns the states after an operation with an unknown outcome. Such an operation is always consistent: it
// returns at the end of time, so one that did not happen is ordered after all others.
func (s nameState) mayBe(k kind) []nameState {
	switch {
	case k == drop:
		return gone(s)
	case (k == create || k == ensure) && !s.present:
		return []nameState{{present: true, low: s.last, last: s.last}}
	case k == cancel && s.split:
		u := s
		u.split, u.next, u.last = false, 0, max(s.last, s.next)
		return []nameState{s, u}
	case (k == split || k == merge) && s.present:
		all := []nameState{s}
		for _, v := range s.ways() {
			if !v.split {
				v.split, v.ready = true, true
				all = append(all, v)
			}
		}
		return all
	}
	return []nameState{s}
}

// step is the sequential specification: it returns the states that an operation may leave, none if the operation is
// impossible.
func step(s nameState, in input, out outcome) []nameState {
	if out.unknown {
		return s.mayBe(in.kind)
	}
	if out.why != 0 {
		return s.refused(out.why)
	}
	switch in.kind {
	case create:
		if out.found {
			return without([]nameState{s}, func(s nameState) bool { return !s.present })
		}
		return s.created(out.id)
	case ensure:
		if out.found {
			return s.leads(out.id)
		}
		return s.created(out.id)
	case drop, read:
		if !out.found {
			return without([]nameState{s}, func(s nameState) bool { return s.present })
		}
		if in.kind == drop {
			return gone(s.leads(out.id)...)
		}
		return s.leads(out.id)
	case split, merge:
		if out.found {
			return without(s.leads(out.id), func(v nameState) bool { return v.split })
		}
		return s.parted(out.id)
	case cancel:
		if !s.split || s.next != out.id && (s.next != 0 || out.id <= max(s.low, s.id)) {
			return nil
		}
		s.split, s.next, s.last = false, 0, max(s.last, out.id)
		return []nameState{s}
	}
	return nil
}

// parted returns the states after a split has begun.
func (s nameState) parted(id uint64) (all []nameState) {
	for _, v := range s.ways() {
		if v.present && !v.split && id > v.last {
			v.split, v.ready, v.next, v.last = true, true, id, id
			all = append(all, v)
		}
	}
	return all
}

// refused returns the states in which an operation is refused for a reason.
func (s nameState) refused(w why) []nameState {
	if w == absent {
		return without([]nameState{s}, func(s nameState) bool { return s.present })
	}
	return without(s.ways(), func(v nameState) bool {
		return !v.present || v.split != (w == busy) && w != unfit || w == unready && v.ready
	})
}

// forever is the return time of an operation with an unknown outcome.
const forever = math.MaxInt64

func model() porcupine.Model {
	all := porcupine.NondeterministicModel{
		Partition: byName,
		Init:      func() []any { return []any{nameState{}} },
		Step: func(s, in, out any) (next []any) {
			for _, v := range step(s.(nameState), in.(input), out.(outcome)) {
				next = append(next, v)
			}
			return next
		},
		DescribeOperation: func(in, out any) string {
			i, o := in.(input), out.(outcome)
			switch {
			case o.unknown:
				return fmt.Sprintf("%s → ?", i.kind)
			case o.why != 0:
				return fmt.Sprintf("%s → %s", i.kind, [...]string{"", "none", "not ready", "is split", "is not split",
					"no such value"}[o.why])
			case i.kind == create && o.found:
				return "create → taken"
			case i.kind == ensure && o.found:
				return fmt.Sprintf("ensure → is %d", o.id)
			case i.kind != drop && i.kind != read && i.kind != cancel && !o.found:
				return fmt.Sprintf("%s → new %d", i.kind, o.id)
			case !o.found:
				return fmt.Sprintf("%s → none", i.kind)
			}
			return fmt.Sprintf("%s → %d", i.kind, o.id)
		},
		DescribeState: func(s any) string { return fmt.Sprintf("%+v", s) },
	}
	return all.ToModel()
}

// byName splits a history by name.
func byName(history []porcupine.Operation) [][]porcupine.Operation {
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
}

// checkTimeout is the limit for porcupine; an undecided check fails the test.
const checkTimeout = 2 * time.Minute

// TestModel checks that the model accepts possible histories and rejects impossible ones.
func TestModel(t *testing.T) {
	type op struct {
		call, end int64
		kind      kind
		out       outcome
	}
	made := func(id uint64) outcome { return outcome{id: id} }
	there := func(id uint64) outcome { return outcome{found: true, id: id} }
	no := func(w why) outcome { return outcome{why: w} }
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
		"a split that ends": {[]op{{0, 1, create, made(3)}, {2, 3, split, no(unready)}, {4, 5, split, made(4)},
			{6, 7, read, there(3)}, {8, 9, split, no(busy)}, {10, 11, read, there(4)}, {12, 13, merge, made(5)},
			{14, 15, cancel, there(5)}, {16, 17, cancel, no(unsplit)}, {18, 19, drop, there(4)}}, true},
		"a split of an unseen index": {[]op{{0, forever, create, lost}, {2, 3, split, made(4)}, {4, 5, read, there(3)},
			{6, 7, read, there(4)}}, true},
		"a split that was never seen": {[]op{{0, 1, create, made(3)}, {2, forever, split, lost}, {4, 5, read, there(3)},
			{6, 7, read, there(9)}, {8, 9, drop, there(9)}}, true},
		"a drop of both": {[]op{{0, 1, create, made(3)}, {2, 3, split, made(4)}, {4, 5, drop, there(3)}, {6, 7, read, none},
			{8, 9, cancel, no(absent)}, {10, 11, create, made(5)}}, true},
		"a split done twice": {[]op{{0, 1, create, made(3)}, {2, 3, split, made(4)}, {4, 5, split, made(5)},
			{6, 7, read, there(3)}}, false},
		"a name that goes back": {[]op{{0, 1, create, made(3)}, {2, 3, split, made(4)}, {4, 5, read, there(4)},
			{6, 7, read, there(3)}}, false},
		"a cancelled split ends": {[]op{{0, 1, create, made(3)}, {2, 3, split, made(4)}, {4, 5, cancel, there(4)},
			{6, 7, read, there(4)}}, false},
		"the split index is not ready": {[]op{{0, 1, create, made(3)}, {2, 3, split, made(4)}, {4, 5, cancel, there(4)},
			{6, 7, split, no(unready)}}, false},
		"no split is under way": {[]op{{0, 1, create, made(3)}, {2, 3, split, no(busy)}}, false},
		"a split continues without its index": {[]op{{0, 1, create, made(3)}, {2, 3, split, made(4)}, {4, 5, drop, there(3)},
			{6, 7, read, there(4)}}, false},
		"an index from nowhere": {[]op{{0, 1, read, there(3)}}, false},
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
