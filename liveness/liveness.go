// Package liveness decides whether a projector or an indexer is alive, from the signs of life that the leader has
// received, and when a failed attempt there is retried.
//
// Guarantees: a single missed report makes no component suspect. A component that has not reported in the current
// term is judged by the age of the term, and is offline only if an attempt of this leader to reach it has failed too.
// A component whose process has ended is offline at once.
//
// The package never keeps state (except in a Retry of the caller), waits, or reads a clock. All times are
// milliseconds of the caller's clock.
package liveness

// Life is the state of a component according to its signs of life.
type Life uint8

// The lives.
const (
	Active Life = iota + 1
	Suspect
	Offline
)

// String returns the word for users: active, suspect or offline.
func (f Life) String() string {
	switch f {
	case Active:
		return "active"
	case Suspect:
		return "suspect"
	}
	return "offline"
}

// Limits are ages of the last sign of life; SuspectMS is below OfflineMS.
type Limits struct{ SuspectMS, OfflineMS int64 }

// Signs are the signs of life of one component.
type Signs struct {
	// AgeMS is the age of its newest sign of life or, if there is none in this term, of the term.
	AgeMS int64
	// Contacted is set if the component has reported or answered in this term, or an attempt to reach it has failed. An
	// answer in transit, or one that waits for a busy leader, does not count as silence.
	Contacted bool
	// Refused is set if the connection to its address was refused, and it has not reported since.
	Refused bool
}

// Judge returns the state that follows from the signs.
func (l Limits) Judge(s Signs) Life {
	switch {
	case s.Refused, s.AgeMS >= l.OfflineMS && s.Contacted:
		return Offline
	case s.AgeMS >= l.SuspectMS:
		return Suspect
	}
	return Active
}

// Retry spaces attempts with a wait that grows after each failure. The zero value is ready for use.
type Retry struct {
	Tries  int // failures since the last success
	flying bool
	nextMS int64
}

// The waits after a failure, in milliseconds: each is twice the previous one.
const (
	retryFirst = 50
	retryMost  = 1000
)

// Ready reports whether an attempt may begin.
func (r *Retry) Ready(nowMS int64) bool { return !r.flying && nowMS >= r.nextMS }

// Flying reports whether an attempt is in progress.
func (r *Retry) Flying() bool { return r.flying }

// Begin records the start of an attempt: Ready is false until it has failed or succeeded.
func (r *Retry) Begin() { r.flying = true }

// Failed ends an attempt; the next one has to wait.
func (r *Retry) Failed(nowMS int64) {
	r.flying = false
	r.nextMS = nowMS + min(int64(retryFirst)<<min(r.Tries, 10), retryMost)
	r.Tries++
}

// Succeeded ends an attempt; the next one may begin at nextMS.
func (r *Retry) Succeeded(nextMS int64) { *r = Retry{nextMS: nextMS} }
