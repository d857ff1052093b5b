package scan

import (
	"sync/atomic"
	"time"

	"tidemark/wire"
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
	calm  func() // see NewProgress
}

// NewProgress is that of a scan that begins now. calm is called, perhaps more than once, when nothing has to hurry any
// more for its sake: the first rows are there to be read, or it has ended without, or no copy can serve it and what it
// waits for is that one is filled, or the like.
func NewProgress(calm func()) *Progress { return &Progress{began: time.Now(), calm: calm} }

// stuck notes that an attempt has failed and another one is to be made when something has changed.
func (p *Progress) stuck() {
	if p != nil {
		p.calm()
	}
}

// End notes that the scan has ended.
func (p *Progress) End() { p.calm() }

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
		p.calm()
	}
	return before
}

// Times are the phases so far; none of nil.
func (p *Progress) Times() (t wire.ScanTimes) {
	if p == nil {
		return t
	}
	return wire.ScanTimes{OpeningMS: millis(p.Spent(Opening)), WaitingMS: millis(p.Spent(Waiting)),
		ReadingMS: millis(p.Spent(Reading)), SendingMS: millis(p.Spent(Sending))}
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
