package core

import (
	"errors"

	"tidemark/errcode"
	"tidemark/wire"
)

// pushSpacing is the least time between two lists for one component: what many DDL requests change in a row travels
// together.
const pushSpacing = 50 // ms

// repush is how long a component may work with an older revision than it was handed before it is handed over again.
const repush = 1000 // ms

// pushDefinitions hands the newest revision to everybody who does not work with it yet.
func (l *membership) pushDefinitions() {
	for _, p := range l.components.projectors {
		if l.pushDue(&p.component) {
			l.pushTo(&p.component)
		}
	}
	for _, n := range l.components.indexers {
		if l.pushDue(&n.component) {
			l.pushTo(&n.component)
		}
	}
}

// pushDue reports whether a component is to be told now. Its hello comes first: it may have the newest list already,
// from the leader before.
func (l *membership) pushDue(c *component) bool {
	if !c.hello || c.acked >= l.now.revision || c.push.Flying() || l.nowMS-c.pushMS < pushSpacing && l.nowMS >= c.pushMS {
		return false
	}
	return c.pushed < l.now.revision && c.push.Tries == 0 || c.push.Ready(l.nowMS)
}

// pushTo has the newest definitions handed over.
func (l *membership) pushTo(c *component) {
	c.push.Begin()
	c.pushMS = l.nowMS
	l.tell(c, Control, "definitions", Push{Base: max(c.pushed, c.acked)})
}

// handed takes a component's answer.
func (l *membership) handed(a *Handed) {
	c := l.opened(a.From)
	if a.Err != nil {
		if l.log.Debug("definitions", "to", a.Addr, "error", a.Err); c != nil {
			c.push.Failed(l.nowMS)
			l.heldBack(c, a)
		}
		return
	}
	if c != nil { // it has not registered anew meanwhile
		c.seenMS = l.nowMS
		c.pushed, c.acked = max(c.pushed, a.Handed), max(c.acked, a.Acked)
		c.push.Succeeded(l.nowMS + repush)
		c.refusal = ""
		l.reached(c)
	}
	l.indexesDue = true
	l.pushDefinitions()
}

// heldBack takes why definitions were not taken: nobody answered, or the component refuses them.
func (l *membership) heldBack(c *component, a *Handed) {
	var p *wire.Problem
	switch {
	case a.Unasked:
	case !errors.As(a.Err, &p):
		l.unreached(c, a.Err)
	default:
		l.reached(c)
		if !p.Temporary() && p.Status < 500 && p.Code != errcode.Fenced {
			l.refused(c, a)
		}
	}
}

// refused tells the log that a component refuses the definitions for what they are, once for as long as it says the
// same: nothing that is decided from now on reaches it, and what it works with is ever older.
func (l *membership) refused(c *component, a *Handed) {
	if a.Err.Error() == c.refusal {
		return
	}
	c.refusal = a.Err.Error()
	l.log.Warn("a component refuses the definitions, and goes on with those that it has; it is tried again", "to", a.Addr,
		"has_revision", c.acked, "newest", l.now.revision, "error", a.Err)
}
