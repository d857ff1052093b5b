package simulation

import (
	sequence "math/rand"
	"math/rand/v2"
)

// dice draw a seed's choices of one kind. They start again at every step, so the number of choices in a step affects
// neither later steps nor choices of another kind. A seed thus keeps its schedule of faults, writes and deliveries
// when a part of the system begins to make more or fewer choices.
type dice struct {
	pcg rand.PCG
	one *sequence.Rand // with Options.OneSequence, else nil
}

// Intn returns a number below n.
func (d *dice) Intn(n int) int {
	if d.one != nil {
		return d.one.Intn(n)
	}
	return rand.New(&d.pcg).IntN(n)
}

// choices are the dice of a seed, one per kind.
type choices struct {
	plan      dice // the actions of a step, their places, and the faults that are events
	load      dice // documents and the definitions of indexes
	net       dice // which messages are lost, delayed or reordered
	kv        dice // ends of DCP snapshots, losses of failovers
	projector dice
	node      dice
	leader    dice
	look      dice // which scans run
}

func (c *choices) all() []*dice {
	return []*dice{&c.plan, &c.load, &c.net, &c.kv, &c.projector, &c.node, &c.leader, &c.look}
}

// oneSequence makes all dice draw from one sequence, which continues across steps.
func (c *choices) oneSequence(seed int64) {
	r := sequence.New(sequence.NewSource(seed))
	for _, d := range c.all() {
		d.one = r
	}
}

// begin starts a step.
func (c *choices) begin(seed int64, step int) {
	for kind, d := range c.all() {
		d.pcg.Seed(mixed(uint64(seed)), mixed(uint64(step)<<8|uint64(kind)))
	}
}

// mixed spreads neighbouring numbers over the whole range (splitmix64).
func mixed(x uint64) uint64 {
	x += 0x9E3779B97F4A7C15
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}
