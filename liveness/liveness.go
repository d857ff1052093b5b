// Package liveness decides whether a projector or an indexer lives, from the signs of life that the leader has of it,
// and when what failed there is tried again.
//
// What it promises: a single missed report makes nobody suspect; who was never heard in a term is judged by the age of
// the term, and is offline only when an attempt of this leader to speak to it has failed too; one whose process has
// ended is offline at once.
//
// What it never does: remember, wait, or read a clock. All times are milliseconds of the caller's clock.
package liveness

// Life is what the signs say.
type Life uint8

// The lives.
const (
	Active Life = iota + 1
	Suspect
	Offline
)

// String returns the word that users read: active, suspect or offline.
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

// Signs are what is known of one component.
type Signs struct {
	// AgeMS is the age of its newest sign of life or, without one in this term, of the term.
	AgeMS int64
	// Spoken: it was heard in this term, or an attempt to speak to it has failed. An answer that is still on its way, or
	// waits for a leader that has much to do, is no silence.
	Spoken bool
	// Refused: nobody listened at its address, and nothing was heard since.
	Refused bool
}

// Judge returns the life that the signs show.
func (l Limits) Judge(s Signs) Life {
	switch {
	case s.Refused, s.AgeMS >= l.OfflineMS && s.Spoken:
		return Offline
	case s.AgeMS >= l.SuspectMS:
		return Suspect
	}
	return Active
}

// Retry spaces out attempts, which wait longer after each failure. Its zero value is ready.
type Retry struct {
	Tries  int // that failed since one succeeded
	flying bool
	nextMS int64
}

// The waits after a failure, in milliseconds: each is twice the one before.
const (
	retryFirst = 50
	retryMost  = 1000
)

// Ready reports whether an attempt may begin.
func (r *Retry) Ready(nowMS int64) bool { return !r.flying && nowMS >= r.nextMS }

// Flying reports whether an attempt is under way.
func (r *Retry) Flying() bool { return r.flying }

// Begin notes that an attempt is under way: none is ready until it has failed or succeeded.
func (r *Retry) Begin() { r.flying = true }

// Failed ends an attempt; the next one has to wait.
func (r *Retry) Failed(nowMS int64) {
	r.flying = false
	r.nextMS = nowMS + min(int64(retryFirst)<<min(r.Tries, 10), retryMost)
	r.Tries++
}

// Succeeded ends an attempt; the next one may begin at nextMS.
func (r *Retry) Succeeded(nextMS int64) { *r = Retry{nextMS: nextMS} }
