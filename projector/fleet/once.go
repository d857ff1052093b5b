package fleet

import (
	"strings"
	"time"
)

// sayAgain is the time after which an unchanged error is logged again.
const sayAgain = 10 * time.Minute

// troubleLog limits the log lines about a recurring error: the first occurrence is logged, a different error, and a
// repetition now and then. The zero value has logged nothing yet.
type troubleLog struct {
	shape string
	at    time.Time
}

// news reports whether to log an error now. Digits are ignored in comparisons: they are ports and times.
func (l *troubleLog) news(now time.Time, text string) bool {
	shape := strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return -1
		}
		return r
	}, text)
	if shape == l.shape && now.Sub(l.at) < sayAgain {
		return false
	}
	l.shape, l.at = shape, now
	return true
}

// over records that there is no error, and reports whether one was logged.
func (l *troubleLog) over() bool {
	was := l.shape != ""
	*l = troubleLog{}
	return was
}
