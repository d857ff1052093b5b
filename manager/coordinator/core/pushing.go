package core

import (
	"errors"

	"tidemark/errcode"
	"tidemark/wire"
)

// pushSpacing is the least time between two pushes to one component, so that the changes of many DDL requests in a
// row travel together.
const pushSpacing = 50 // ms

// repush is the time after which definitions are pushed again to a component that still works with an older revision
// than it was sent.
const repush = 1000 // ms

// pushDefinitions pushes the newest definitions to all components that do not work with them yet.
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

// pushDue reports whether to push to a component now. Its hello must come first: it may have the newest definitions
// already, from the previous leader.
func (l *membership) pushDue(c *component) bool {
	if !c.hello || c.acked >= l.now.revision || c.push.Flying() || l.nowMS-c.pushMS < pushSpacing && l.nowMS >= c.pushMS {
		return false
	}
	return c.pushed < l.now.revision && c.push.Tries == 0 || c.push.Ready(l.nowMS)
}

// pushTo pushes the newest definitions to a component.
func (l *membership) pushTo(c *component) {
	c.push.Begin()
	c.pushMS = l.nowMS
	l.send(c, Control, "definitions", Push{Base: max(c.pushed, c.acked)})
}

// handed takes a component's answer.
func (l *membership) handed(a *Handed) {
	c := l.opened(a.From)
	if c != nil && !c.hello {
		return // another process at its address may have answered; its hello, which follows, begins anew
	}
	if a.Err != nil {
		if l.log.Debug("definitions", "to", a.Addr, "error", a.Err); c != nil {
			c.push.Failed(l.nowMS)
			l.pushFailed(c, a)
		}
		return
	}
	if c != nil { // nil if it has registered again meanwhile
		c.seenMS = l.nowMS
		c.pushed, c.acked = max(c.pushed, a.Handed), max(c.acked, a.Acked)
		c.push.Succeeded(l.nowMS + repush)
		c.refusal = ""
		l.reached(c)
	}
	l.indexesDue = true
	l.pushDefinitions()
}

// pushFailed records why a push failed: the component did not answer, or refuses the definitions.
func (l *membership) pushFailed(c *component, a *Handed) {
	var p *wire.Problem
	switch {
	case a.Unasked:
	case isAnothers(a.Err):
		l.unreached(c, errAnother)
	case !errors.As(a.Err, &p):
		l.unreached(c, a.Err)
	default:
		l.reached(c)
		if !p.Temporary() && p.Status < 500 && p.Code != errcode.Fenced {
			l.refused(c, a)
		}
	}
}

// refused logs that a component rejects the definitions themselves, once per reason: later decisions do not reach it,
// and what it works with gets ever older.
func (l *membership) refused(c *component, a *Handed) {
	if a.Err.Error() == c.refusal {
		return
	}
	c.refusal = a.Err.Error()
	l.log.Warn("component rejects the definitions and keeps its present ones; trying again", "to", a.Addr,
		"has_revision", c.acked, "newest", l.now.revision, "error", a.Err)
}
