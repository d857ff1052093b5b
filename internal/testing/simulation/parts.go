package simulation

import "tidemark/keyversion"

// parts cuts some of the events that are about several indexes, as a router cuts those that no frame can hold.
func (s *Sim) parts(e keyversion.Event) []keyversion.Event {
	at := 0
	for at < len(e.Statements) && e.Statements[at].Index == e.Statements[0].Index {
		at++
	}
	if at == len(e.Statements) || s.opt.OneSequence || s.dice.net.Intn(2) == 0 {
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
