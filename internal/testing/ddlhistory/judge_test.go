package ddlhistory

import (
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/anishathalye/porcupine"
)

// linearizable checks each name on its own and returns the first verdict that is not Ok, with its details. Porcupine
// tries every order of overlapping operations, and writes that were retried much later overlap with many. Two steps
// that change no verdict keep the search small: tighten, and leaving out unknown operations at first, as they may
// come after all others.
func linearizable(history []porcupine.Operation) (porcupine.CheckResult, porcupine.LinearizationInfo) {
	m := model()
	for _, part := range m.Partition(history) {
		part = tighten(part)
		sure := slices.DeleteFunc(slices.Clone(part), func(o porcupine.Operation) bool { return o.Output.(outcome).unknown })
		if porcupine.CheckOperationsTimeout(m, sure, checkTimeout) == porcupine.Ok {
			continue
		}
		if result, info := porcupine.CheckOperationsVerbose(m, part, checkTimeout); result != porcupine.Ok {
			return result, info
		}
	}
	return porcupine.Ok, porcupine.LinearizationInfo{}
}

// tighten narrows the times of one name's operations by means of their ids: an index was created before the end of
// the first operation that saw it, was dropped after the start of the last one that saw it, and existed in between.
func tighten(part []porcupine.Operation) []porcupine.Operation {
	part = slices.Clone(part)
	made, gone := map[uint64]int{}, map[uint64]int{}
	for i, o := range part {
		switch in, out := o.Input.(input), o.Output.(outcome); {
		case out.id == 0:
		case in.kind == drop, in.kind == cancel:
			gone[out.id] = i
		case !out.found:
			made[out.id] = i
		}
	}
	narrow := func(i int, call, end int64) {
		// otherwise it is a violation, which stays as it is
		if call = max(call, part[i].Call); call <= min(end, part[i].Return) {
			part[i].Call, part[i].Return = call, min(end, part[i].Return)
		}
	}
	first, last := int64(math.MinInt64), int64(forever)
	for i, o := range part {
		id := o.Output.(outcome).id
		if id == 0 {
			continue
		}
		if m, ok := made[id]; ok && m != i {
			narrow(m, first, o.Return)
			narrow(i, part[m].Call, last)
		}
		if g, ok := gone[id]; ok && g != i {
			narrow(g, o.Call, last)
			narrow(i, first, part[g].Return)
		}
	}
	return part
}

// judge fails the test if the history is not linearizable, and saves a drawing of it.
func judge(t *testing.T, history []porcupine.Operation) {
	t.Helper()
	result, info := linearizable(history)
	if result == porcupine.Ok {
		return
	}
	t.Errorf("porcupine says %s of %d operations, want %s", result, len(history), porcupine.Ok)
	path := filepath.Join(os.TempDir(), "tidemark-ddl-history.html")
	if err := porcupine.VisualizePath(model(), info, path); err != nil {
		t.Error(err)
		return
	}
	t.Logf("drawn in %s", path)
}

// TestShortcutsKeepTheVerdict checks on random histories, most of them nearly correct, that porcupine's verdict is the
// same with and without the steps of linearizable.
func TestShortcutsKeepTheVerdict(t *testing.T) {
	t.Parallel()
	var good, bad int
	for n := range uint64(20_000) {
		r := rand.New(rand.NewPCG(7, n))
		history := randomHistory(r)
		want := porcupine.CheckOperations(model(), history)
		got, _ := linearizable(history)
		if (got == porcupine.Ok) != want {
			t.Fatalf("history %d: %v with the short cuts, %v without: %+v", n, got, want, history)
		}
		if want {
			good++
		} else {
			bad++
		}
	}
	if good < 1000 || bad < 1000 {
		t.Errorf("%d linearizable histories and %d others: too few of one kind", good, bad)
	}
}

// randomHistory runs the model sequentially, spreads the operations in time, and falsifies some answers.
func randomHistory(r *rand.Rand) (history []porcupine.Operation) {
	var s nameState
	next := uint64(1)
	for at := range int64(4 + r.IntN(6)) {
		in := input{kind: kind(r.IntN(int(cancel) + 1)), name: "n"}
		if s.split && r.IntN(3) == 0 {
			s = s.ways()[1]
		}
		out := outcome{found: s.present}
		switch {
		case in.kind >= split && !s.present:
			out = outcome{why: absent}
		case in.kind == cancel && !s.split:
			out = outcome{why: unsplit}
		case in.kind == cancel:
			out.id, s.split, s.next = s.next, false, 0
		case in.kind >= split && s.split:
			out = outcome{why: busy}
		case in.kind >= split:
			out = outcome{id: next}
			s.split, s.next = true, next
			next++
		case in.kind == create && s.present:
		case (in.kind == create || in.kind == ensure) && !s.present:
			out.id = next
			s = nameState{present: true, id: next}
			next++
		default:
			out.id = s.id
			if in.kind == drop {
				s = nameState{}
			}
		}
		o := porcupine.Operation{Input: in, Call: 10*at - r.Int64N(15), Return: 10*at + r.Int64N(15)}
		switch n := r.IntN(40); {
		case n < 4 && in.kind != read:
			out, o.Return = outcome{unknown: true}, forever
		case n >= 5 && n < 8 && in.kind == read:
			out = outcome{}
		case n >= 8 && n < 10 && out.id > 1:
			out.id--
		}
		o.Output = out
		history = append(history, o)
	}
	return history
}
