package statecontext

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/timestamp"
)

// model is a simple model of what users see: plain maps, written independently of the implementation.
type model struct {
	cas      uint64
	nextID   index.ID
	state    map[index.ID]index.State
	name     map[index.ID]string
	etag     map[index.ID]uint64
	number   uint64 // of the newest promotion
	rollback uint64
	step     RollbackStep
	ctxID    uint64
	stable   []uint64
	outcomes map[string]outcome
}

type outcome struct {
	hash byte
	code errcode.Code
	cas  uint64
	id   index.ID
}

const modelVBuckets = 3

// byName returns the index with a name that is not being dropped.
func (m *model) byName(name string) (index.ID, bool) {
	for id, n := range m.name {
		if n == name && m.state[id] != index.Dropping {
			return id, true
		}
	}
	return 0, false
}

func (m *model) create(name string, ifNotExists bool) (errcode.Code, index.ID) {
	if id, ok := m.byName(name); ok {
		if ifNotExists {
			return "", id
		}
		return errcode.NameExists, 0
	}
	m.cas++
	id := m.nextID
	m.nextID++
	m.state[id], m.name[id], m.etag[id] = index.Pending, name, m.cas
	return "", id
}

func (m *model) drop(id index.ID, ifMatch uint64) (errcode.Code, index.ID) {
	switch st, ok := m.state[id]; {
	case !ok:
		return errcode.UnknownIndex, 0
	case st == index.Dropping:
		return "", id
	case ifMatch != 0 && ifMatch != m.etag[id]:
		return errcode.CASMismatch, 0
	}
	m.cas++
	m.state[id], m.etag[id] = index.Dropping, m.cas
	return "", id
}

func (m *model) remove(id index.ID) errcode.Code {
	switch st, ok := m.state[id]; {
	case !ok:
		return errcode.UnknownIndex
	case st != index.Dropping:
		return errcode.StateMismatch
	}
	m.cas++
	delete(m.state, id)
	delete(m.name, id)
	return ""
}

// legal is the state machine, written a second time.
var legal = map[[2]index.State]bool{
	{index.Pending, index.Backfill}: true, {index.Pending, index.Error}: true,
	{index.Backfill, index.Maintenance}: true, {index.Backfill, index.Error}: true, {index.Backfill, index.Pending}: true,
	{index.Maintenance, index.Error}: true, {index.Maintenance, index.Backfill}: true,
	{index.Error, index.Pending}: true, {index.Error, index.Backfill}: true,
}

func (m *model) move(id index.ID, from, to index.State) errcode.Code {
	switch st, ok := m.state[id]; {
	case !ok:
		return errcode.UnknownIndex
	case st != from:
		return errcode.StateMismatch
	case !legal[[2]index.State{from, to}]:
		return errcode.IllegalTransition
	}
	m.cas++
	m.state[id], m.etag[id] = to, m.cas
	return ""
}

func (m *model) promote(rollback, number uint64, to []uint64) errcode.Code {
	if m.step != NoRollback || rollback != m.rollback {
		return errcode.RollbackMismatch
	}
	if number != m.number+1 {
		return errcode.StabilityNotMonotone
	}
	same := true
	for v, s := range to {
		if s < m.stable[v] {
			return errcode.StabilityNotMonotone
		}
		same = same && s == m.stable[v]
	}
	if same {
		return errcode.StabilityNotMonotone
	}
	m.cas++
	m.number, m.stable = number, to
	return ""
}

// stepTo moves the rollback: the ring none, started, prepare, restart, rollback, none, and from each step back to
// started.
func (m *model) stepTo(id uint64, from, to RollbackStep, end []uint64) errcode.Code {
	if from != m.step {
		return errcode.StepMismatch
	}
	present := m.rollback
	if m.step != NoRollback {
		present = m.ctxID
	}
	if id != present {
		return errcode.RollbackMismatch
	}
	if to != Started && to != (from+1)%(RollingBack+1) {
		return errcode.IllegalTransition
	}
	switch to {
	case Started:
		m.ctxID = present + 1
	case NoRollback:
		for v, s := range end {
			if s > m.stable[v] {
				return errcode.StabilityNotMonotone
			}
		}
		m.stable, m.rollback, m.number = end, m.ctxID, m.number+1
	}
	m.cas++
	m.step = to
	return ""
}

// TestAgainstModel compares thousands of random commands with the model, replays the log, and restores from a
// snapshot taken at some point in between.
func TestAgainstModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := cluster(t)
		n.must(&DropIndex{ID: n.must(create("seed", 0, 0)).Index})
		n.must(&SetBucket{Name: "v", UUID: "vu", VBuckets: modelVBuckets})
		m := &model{
			cas: n.state.CAS(), nextID: 2, stable: make([]uint64, modelVBuckets), outcomes: map[string]outcome{},
			state: map[index.ID]index.State{1: index.Dropping}, name: map[index.ID]string{1: "seed"},
			etag: map[index.ID]uint64{},
		}
		var middle []byte
		var from int
		for range rapid.IntRange(1, 60).Draw(rt, "commands") {
			oneStep(rt, n, m)
			if middle == nil && rapid.IntRange(0, 20).Draw(rt, "snapshot here") == 0 {
				middle, from = snapshot(t, n.state), len(n.log)
			}
		}
		compare(rt, n.state, m)
		replay := func(s *State, at int) {
			for i := at; i < len(n.log); i++ {
				var err error
				if s, _, _, err = Apply(s, uint64(i+1), n.log[i]); err != nil {
					rt.Fatal(err)
				}
			}
			if Hash(s) != Hash(n.state) {
				rt.Fatalf("the log from entry %d gives\n%s\nwant\n%s", at, Describe(s), Describe(n.state))
			}
		}
		replay(New(), 0)
		if middle != nil {
			s, err := ReadSnapshot(bytes.NewReader(middle))
			if err != nil {
				rt.Fatal(err)
			}
			replay(s, from)
		}
	})
}

// oneStep draws a command, applies it to both, and compares the results.
func oneStep(rt *rapid.T, n *node, m *model) {
	body, expect := drawBody(rt, n, m)
	c := Command{TimeMS: n.now, Body: body}
	key := ""
	hash := byte(0)
	if rapid.Bool().Draw(rt, "with a request id") {
		key = rapid.StringMatching("k[0-5]").Draw(rt, "key")
		hash = byte(rapid.IntRange(0, 1).Draw(rt, "body"))
		c.Request = &Request{Principal: "p", Key: key, BodyHash: [32]byte{hash}}
	}
	var want outcome
	old, known := m.outcomes[key]
	switch {
	case key != "" && known && old.hash != hash:
		want = outcome{code: errcode.RequestMismatch, cas: m.cas}
	case key != "" && known:
		want = old
	default:
		code, id := expect()
		want = outcome{hash: hash, code: code, cas: m.cas, id: id}
		if key != "" {
			m.outcomes[key] = want
		}
	}
	r := n.apply(c)[0]
	var code errcode.Code
	errors.As(r.Err(), &code)
	if code != want.code || r.CAS != want.cas || r.Index != want.id {
		rt.Fatalf("%T %+v: got %+v (%v), want %+v", body, body, r, r.Rejection, want)
	}
}

func drawBody(rt *rapid.T, n *node, m *model) (Body, func() (errcode.Code, index.ID)) {
	id := index.ID(rapid.IntRange(1, 8).Draw(rt, "id"))
	switch rapid.IntRange(0, 6).Draw(rt, "command") {
	case 0, 1:
		name := rapid.StringMatching("[a-d]").Draw(rt, "name")
		c := create(name, 0, index.NodeID(rapid.IntRange(0, 1).Draw(rt, "node")))
		c.IfNotExists = rapid.Bool().Draw(rt, "if not exists")
		return c, func() (errcode.Code, index.ID) { return m.create(name, c.IfNotExists) }
	case 2:
		match := uint64(0)
		if rapid.Bool().Draw(rt, "if match") {
			match = max(1, m.etag[id]+uint64(rapid.IntRange(0, 1).Draw(rt, "off")))
		}
		return &DropIndex{ID: id, IfMatch: match}, func() (errcode.Code, index.ID) { return m.drop(id, match) }
	case 3:
		return &RemoveIndex{ID: id}, func() (errcode.Code, index.ID) { return m.remove(id), 0 }
	case 4:
		from, to := index.State(rapid.IntRange(1, 5).Draw(rt, "from")), index.State(rapid.IntRange(1, 5).Draw(rt, "to"))
		if st, ok := m.state[id]; ok && rapid.Bool().Draw(rt, "right") {
			from = st
		}
		return &SetIndexState{ID: id, From: from, To: to}, func() (errcode.Code, index.ID) { return m.move(id, from, to), 0 }
	case 5:
		to := make([]uint64, modelVBuckets)
		for v := range to {
			to[v] = m.stable[v] + uint64(rapid.IntRange(-1, 3).Draw(rt, "seqno"))
			if to[v] > 1<<40 {
				to[v] = 0
			}
		}
		a := n.advance("v", bare(to))
		b := &a.Buckets[0]
		b.Number += uint64(rapid.SampledFrom([]int{0, 0, 0, 1}).Draw(rt, "number"))
		b.RollbackID += uint64(rapid.SampledFrom([]int{0, 0, 0, 1}).Draw(rt, "rollback"))
		return a, func() (errcode.Code, index.ID) { return m.promote(b.RollbackID, b.Number, to), 0 }
	}
	c := &SetRollbackStep{Bucket: "v", From: m.step, ID: m.rollback, To: (m.step + 1) % (RollingBack + 1)}
	if m.step != NoRollback {
		c.ID = m.ctxID
	}
	if rapid.IntRange(0, 3).Draw(rt, "askew") == 0 {
		c.From, c.To = RollbackStep(rapid.IntRange(0, 4).Draw(rt, "from")), RollbackStep(rapid.IntRange(0, 4).Draw(rt, "to"))
		c.ID = uint64(rapid.IntRange(0, 3).Draw(rt, "rollback id"))
	}
	end := make([]uint64, modelVBuckets)
	for v := range end {
		end[v] = m.stable[v] - min(m.stable[v], uint64(rapid.IntRange(0, 2).Draw(rt, "back")))
	}
	c.Failover, c.Restart, c.Stability = bare(end), bare(end), bare(end)
	return c, func() (errcode.Code, index.ID) { return m.stepTo(c.ID, c.From, c.To, end), 0 }
}

// bare returns a vector without branches.
func bare(seqnos []uint64) timestamp.Vector {
	t := timestamp.New(len(seqnos))
	copy(t.Seqnos, seqnos)
	return t
}

// compare compares the whole state with the model.
func compare(rt *rapid.T, s *State, m *model) {
	got, want := map[index.ID]string{}, map[index.ID]string{}
	for x := range s.Indexes() {
		f := x.Definition
		got[f.ID] = fmt.Sprint(f.Name, " ", f.State)
	}
	for id, st := range m.state {
		want[id] = fmt.Sprint(m.name[id], " ", st)
	}
	b := s.Bucket("v")
	if fmt.Sprint(got) != fmt.Sprint(want) || fmt.Sprint(b.Stability.Vector.Seqnos) != fmt.Sprint(m.stable) ||
		b.step() != m.step ||
		b.Stability.Number != m.number || b.Stability.RollbackID != m.rollback || s.CAS() != m.cas {
		rt.Fatalf("got %v, want %v; model %+v\n%s", got, want, m, Describe(s))
	}
}
