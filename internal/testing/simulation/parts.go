package simulation

import "tidemark/keyversion"

// parts splits some of the events about several indexes, as a router splits those that do not fit into a frame.
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

// acknowledged removes n delivered messages of which the router has an acknowledgement; the parts of an event are
// only removed together.
func acknowledged(unacked []message, n int) []message {
	for n > 0 && unacked[n-1].e.More {
		n--
	}
	return unacked[n:]
}
