package scan

import (
	"sync/atomic"
	"time"

	"tidemark/wire"
)

// Phase is what a scan is doing.
type Phase int32

// Phases of a scan.
const (
	Opening Phase = iota // copies: until a copy of each slice has the timestamp and returns its first rows
	Waiting              // for a stability timestamp that is new enough
	Reading              // rows
	Sending              // rows to the client
	phases  = iota
)

// String returns the name of the phase.
func (p Phase) String() string {
	return [phases]string{"opening", "waiting", "reading", "sending"}[p]
}

// Progress is the observable state of a running scan. The scan's goroutine writes it. The methods that record
// progress accept a nil Progress.
type Progress struct {
	began time.Time
	rows  atomic.Int64
	phase atomic.Int32
	since atomic.Int64 // nanoseconds after began
	spent [phases]atomic.Int64
	calm  func() // see NewProgress
}

// NewProgress returns the Progress of a scan that starts now. calm is called, perhaps more than once, when background
// work need not yield to the scan any more: its first rows can be read, it has ended without rows, or no copy can
// serve it, so that it waits for a copy to be filled or the like.
func NewProgress(calm func()) *Progress { return &Progress{began: time.Now(), calm: calm} }

// stuck records that an attempt has failed and the scan waits for a change.
func (p *Progress) stuck() {
	if p != nil {
		p.calm()
	}
}

// End records that the scan has ended.
func (p *Progress) End() { p.calm() }

// Enter records that another phase begins, and returns the previous one.
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

// Times returns the time spent in each phase; zero for a nil Progress.
func (p *Progress) Times() (t wire.ScanTimes) {
	if p == nil {
		return t
	}
	return wire.ScanTimes{OpeningMS: millis(p.Spent(Opening)), WaitingMS: millis(p.Spent(Waiting)),
		ReadingMS: millis(p.Spent(Reading)), SendingMS: millis(p.Spent(Sending))}
}

// given records the number of rows in the answer.
func (p *Progress) given(rows int64) {
	if p != nil {
		p.rows.Store(rows)
	}
}

// Rows returns the number of rows in the answer, including those that another indexer returned before.
func (p *Progress) Rows() int64 { return p.rows.Load() }

// Phase returns the current phase.
func (p *Progress) Phase() Phase { return Phase(p.phase.Load()) }

// Spent returns the time spent in a phase so far.
func (p *Progress) Spent(phase Phase) time.Duration {
	spent := p.spent[phase].Load()
	if p.Phase() == phase {
		spent += max(int64(time.Since(p.began))-p.since.Load(), 0)
	}
	return time.Duration(spent)
}
