package simulation

import (
	"math/rand"
	"slices"

	"tidemark/keyversion"
)

// wholeParts is the rule of ingest that an event which comes in parts counts with the last of them.
const wholeParts = "wholeParts"

// cutter says which events travel in parts: nil in runs that show what another rule is for, so that their seeds stay what
// they are.
func (o *Options) cutter() *rand.Rand {
	if len(o.Without) > 0 && !slices.Contains(o.Without, wholeParts) {
		return nil
	}
	return rand.New(rand.NewSource(o.Seed * 31))
}

// parts cuts some of the events that are about several indexes, as a router cuts those that no frame can hold.
func (s *Sim) parts(e keyversion.Event) []keyversion.Event {
	at := 0
	for at < len(e.Statements) && e.Statements[at].Index == e.Statements[0].Index {
		at++
	}
	if s.cut == nil || at == len(e.Statements) || s.cut.Intn(2) == 0 {
		return []keyversion.Event{e}
	}
	head, tail := e, e
	head.Statements, head.More = e.Statements[:at], true
	tail.Statements, tail.Part = e.Statements[at:], 1
	return []keyversion.Event{head, tail}
}

// acknowledged takes messages off that the router knows to have arrived: parts of an event only all together.
func acknowledged(unacked []message, n int) []message {
	for n > 0 && unacked[n-1].e.More {
		n--
	}
	return unacked[n:]
}
