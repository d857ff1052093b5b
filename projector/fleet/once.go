package fleet

import (
	"strings"
	"time"
)

// sayAgain is after how long a trouble that has not changed is logged again.
const sayAgain = 10 * time.Minute

// troubleLog tells which of the same trouble, met again and again, is worth a line: the first, another one, and one now
// and then. The zero value has said nothing yet.
type troubleLog struct {
	shape string
	at    time.Time
}

// news reports whether a trouble is to be logged now. Numbers do not make another one of it: they are ports, and times.
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

// over notes that there is no trouble, and reports whether one was logged.
func (l *troubleLog) over() bool {
	was := l.shape != ""
	*l = troubleLog{}
	return was
}
