package clustermap

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestPromises(t *testing.T) {
	a, b := Promise{2, "kv2"}, Promise{3, "kv1"}
	p, err := Promises(nil).With(a, 1)
	if err == nil {
		p, err = p.With(a, 1) // requested again
	}
	if err != nil || len(p) != 1 {
		t.Fatalf("%v %v", p, err)
	}
	for _, q := range []Promise{{2, "kv3"}, {1, "kv2"}} {
		if _, err := p.With(q, 1); !errors.Is(err, ErrMap) {
			t.Errorf("%v beside %v: %v", q, p, err)
		}
	}
	if p, err = p.With(b, 1); err != nil {
		t.Fatal(err)
	}
	if got, ok := p.Against(2); !ok || got != b {
		t.Errorf("a map of epoch 2 breaks %v", got)
	}
	if got, ok := p.Against(3); ok {
		t.Errorf("a map of epoch 3 breaks %v", got)
	}
	if next := p.Next(1, Promise{}); next != 4 {
		t.Errorf("next is %d", next)
	}
	if next := p.Next(1, b); next != 3 {
		t.Errorf("next is %d, 3 was not used", next)
	}
	if p := p.Without(b); !slices.Equal(p, Promises{a}) || p.Next(1, Promise{}) != 3 {
		t.Errorf("without the second: %v", p)
	}
	if p := p.Beyond(2); !slices.Equal(p, Promises{b}) {
		t.Errorf("after a map of epoch 2: %v", p)
	}
	if p := p.Beyond(3); len(p) != 0 || p.Next(3, Promise{}) != 4 {
		t.Errorf("after a map of epoch 3: %v", p)
	}
}

// modelNode is a node of the model: the state on its disk. It may be restarted at any moment.
type modelNode struct {
	have     *version
	promises Promises
	reserved int64 // epoch
}

// version is a map of the model, with the map from which it was planned.
type version struct {
	epoch, rev int64
	maker      int
	base       *version
	members    []int
}

func (v *version) newer(o *version) bool {
	return v.epoch > o.epoch || v.epoch == o.epoch && v.rev > o.rev
}

func (v *version) String() string { return fmt.Sprintf("%d.%d of %d", v.epoch, v.rev, v.maker) }

// after reports whether v was planned from o, directly or indirectly.
func (v *version) after(o *version) bool {
	for ; v != nil; v = v.base {
		if v == o {
			return true
		}
	}
	return false
}

// TestAcceptedMapsAreNotUndone checks that a map that was planned without a map that a node has accepted never replaces
// it, in whatever order nodes are asked, maps arrive or get lost, and nodes die. Of five nodes three always remain:
// halves that fail each other over would be two clusters.
func TestAcceptedMapsAreNotUndone(t *testing.T) {
	made := 0
	for seed := range uint64(15000) {
		w := newWorld(t, seed)
		for range 120 {
			w.step()
		}
		made += w.made
	}
	if made < 5000 {
		t.Errorf("%d failovers were made: the walks show little", made)
	}
}

// world is a model of the nodes, driven by random choices.
type world struct {
	t     *testing.T
	r     *rand.Rand
	seed  uint64
	nodes []*modelNode
	plans map[int]*plan // failovers being planned, by maker; in memory
	sent  []message
	made  int
}

// message is a map on its way; it may arrive again, or never.
type message struct {
	to int
	v  *version
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{t: t, r: rand.New(rand.NewPCG(seed, 1)), seed: seed, plans: map[int]*plan{}}
	first := &version{epoch: 1, rev: 1, members: []int{0, 1, 2, 3, 4}}
	for range first.members {
		w.nodes = append(w.nodes, &modelNode{have: first})
	}
	return w
}

func (w *world) take(i int, v *version) bool {
	n := w.nodes[i]
	if _, promised := n.promises.Against(v.epoch); promised || !v.newer(n.have) {
		return false
	}
	if slices.Contains(v.members, i) && !v.after(n.have) {
		w.t.Fatalf("seed %d: node %d has taken %v, and now %v, which was planned without it", w.seed, i, n.have, v)
	}
	n.have, n.promises = v, n.promises.Beyond(v.epoch)
	return true
}

func (w *world) tell(v *version) {
	for to := range w.nodes {
		w.sent = append(w.sent, message{to, v})
	}
}

func (w *world) step() {
	i := w.r.IntN(len(w.nodes))
	n, p := w.nodes[i], w.plans[i]
	switch w.r.IntN(10) {
	case 0: // a map arrives
		if len(w.sent) > 0 {
			m := w.sent[w.r.IntN(len(w.sent))]
			w.take(m.to, m.v)
		}
	case 1: // a node is restarted
		delete(w.plans, i)
	case 2:
		if p == nil {
			w.settle(i)
		}
	case 3, 4:
		if p == nil {
			w.revise(i)
		}
	default:
		switch {
		case p == nil:
			w.begin(i)
		case p.asked < len(p.members):
			w.ask(i)
		default:
			delete(w.plans, i)
			v := &version{epoch: p.promise.RevEpoch, rev: 1, maker: i, base: p.base, members: p.members}
			n.reserved = v.epoch
			if w.r.IntN(3) > 0 && w.take(p.gone, v) && w.r.IntN(3) == 0 { // its node accepts first, the maker dies
				w.tell(v)
			} else if w.take(i, v) {
				w.made++
				w.tell(v)
			}
		}
	}
}

// revise makes a map at the leader. A node that gives something up by that map accepts it before the leader does.
func (w *world) revise(i int) {
	n := w.nodes[i]
	if _, promised := n.promises.Against(n.have.epoch); promised || n.have.maker != i ||
		!slices.Contains(n.have.members, i) {
		return
	}
	v := &version{epoch: n.have.epoch, rev: n.have.rev + 1, maker: i, base: n.have, members: n.have.members}
	if to := w.r.IntN(len(w.nodes)); to != i && (!slices.Contains(v.members, to) || !w.take(to, v)) {
		return
	}
	if !w.take(i, v) {
		w.t.Fatalf("seed %d: leader %d does not take its own map", w.seed, i)
	}
	w.tell(v)
}

func (w *world) begin(i int) {
	n := w.nodes[i]
	gone := w.r.IntN(len(w.nodes))
	if !slices.Contains(n.have.members, i) || !slices.Contains(n.have.members, gone) || gone == i ||
		len(n.have.members) < 4 {
		return
	}
	p := &plan{base: n.have, gone: gone, members: []int{i}, promise: Promise{Maker: fmt.Sprint(i)}}
	for _, m := range n.have.members {
		if m != gone && m != i {
			p.members = append(p.members, m)
		}
	}
	var unused Promise
	for _, q := range w.unused(i) {
		unused = q
	}
	for _, m := range p.members {
		p.promise.RevEpoch = max(p.promise.RevEpoch, w.nodes[m].promises.Next(w.nodes[m].have.epoch, unused))
	}
	w.plans[i] = p
}

func (w *world) ask(i int) {
	p := w.plans[i]
	m := w.nodes[p.members[p.asked]]
	all, err := m.promises.With(p.promise, m.have.epoch)
	if err == nil {
		m.promises = all
		p.asked++
	}
	if err != nil || m.have.newer(p.base) {
		delete(w.plans, i)
	}
}

func (w *world) unused(i int) Promises {
	return slices.DeleteFunc(slices.Clone(w.nodes[i].promises), func(p Promise) bool {
		return p.Maker != fmt.Sprint(i) ||
			w.nodes[i].reserved >= p.RevEpoch
	})
}

// settle withdraws promises for which no map was made. Some withdrawals may not arrive.
func (w *world) settle(i int) {
	for _, p := range w.unused(i) {
		all := true
		for at, m := range w.nodes {
			if at != i && w.r.IntN(4) > 0 {
				m.promises = m.promises.Without(p)
			} else if at != i {
				all = false
			}
		}
		if all {
			w.nodes[i].promises = w.nodes[i].promises.Without(p)
		}
	}
}

// plan is a failover of the model in progress.
type plan struct {
	base    *version
	promise Promise
	gone    int
	members []int // the remaining members
	asked   int
}
