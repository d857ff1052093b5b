package scan

import (
	"sync/atomic"
	"time"
)

// Phase is what a scan does at the moment.
type Phase int32

// The phases.
const (
	Opening Phase = iota // copies: until one of each slice has the timestamp, and its first rows
	Waiting              // for a stability timestamp that is new enough
	Reading              // rows
	Sending              // rows, to whoever asked for them
	phases  = iota
)

// String names the phase, for people and programs.
func (p Phase) String() string {
	return [phases]string{"opening", "waiting", "reading", "sending"}[p]
}

// Progress is what others may see of a scan while it runs. The scan's own goroutine writes it; a nil one takes nothing.
type Progress struct {
	began time.Time
	rows  atomic.Int64
	phase atomic.Int32
	since atomic.Int64 // nanoseconds after began
	spent [phases]atomic.Int64
	// there is called when rows are there, or the scan has ended without; perhaps more than once
	there func()
}

// NewProgress is that of a scan that begins now. there is called when the first rows are there to be read, or the scan
// has ended without.
func NewProgress(there func()) *Progress { return &Progress{began: time.Now(), there: there} }

// End notes that the scan has ended.
func (p *Progress) End() { p.there() }

// Enter notes that another phase begins, and returns the one before.
func (p *Progress) Enter(next Phase) (before Phase) {
	if p == nil {
		return next
	}
	before = Phase(p.phase.Load())
	if before == next {
		return before
	}
	now := int64(time.Since(p.began))
	p.spent[before].Add(now - p.since.Load())
	p.since.Store(now)
	p.phase.Store(int32(next))
	if next == Reading || next == Sending {
		p.there()
	}
	return before
}

// given notes how many rows the answer has by now.
func (p *Progress) given(rows int64) {
	if p != nil {
		p.rows.Store(rows)
	}
}

// Rows is how many rows the answer has by now, those that another indexer gave before included.
func (p *Progress) Rows() int64 { return p.rows.Load() }

// Phase is the present one.
func (p *Progress) Phase() Phase { return Phase(p.phase.Load()) }

// Spent is the time in a phase so far.
func (p *Progress) Spent(phase Phase) time.Duration {
	spent := p.spent[phase].Load()
	if p.Phase() == phase {
		spent += max(int64(time.Since(p.began))-p.since.Load(), 0)
	}
	return time.Duration(spent)
}
