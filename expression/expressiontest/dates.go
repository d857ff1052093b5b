package expressiontest

import (
	"encoding/json"
	"math"
	"regexp"
	"strings"
	"time"
)

// date is a moment and the form it was written in, as a layout of package time.
type date struct {
	t      time.Time
	layout string
}

const (
	firstMilli = -62167219200000 // 0000-01-01
	lastMilli  = 253402300799999 // 9999-12-31
)

// readDate reads 2006-01-02[(T| )15:04[:05[.999]][zone]].
func readDate(v any) (d date, ok bool) {
	text, ok := v.(string)
	if !ok || len(text) > 40 {
		return d, false
	}
	shape := regexp.MustCompile(`\A[0-9]{4}-[0-9]{2}-[0-9]{2}(?:([T ])[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]+)?)?(Z|[+-]([0-9]{2}):[0-9]{2})?)?\z`)
	part := shape.FindStringSubmatch(text)
	if part == nil || part[5] > "23" {
		return d, false
	}
	read := "2006-01-02"
	if part[1] != "" {
		read += part[1] + "15:04"
	}
	if part[2] != "" {
		read += ":05"
	}
	d.layout = read
	if part[3] != "" {
		d.layout += ".000"
	}
	if part[4] != "" {
		read, d.layout = read+"Z07:00", d.layout+"Z07:00"
	}
	t, err := time.ParseInLocation(read, text, time.UTC)
	d.t = t.Truncate(time.Millisecond)
	return d, err == nil
}

func fromMillis(v any) (t time.Time, ok bool) {
	n, ok := v.(json.Number)
	if !ok {
		return t, false
	}
	x, ok := new(interpreter).numeric(n)
	ms := x.i
	if !x.integer {
		if x.f = math.Trunc(x.f); math.Abs(x.f) > 1e15 {
			return t, false
		}
		ms = int64(x.f)
	}
	return time.UnixMilli(ms).UTC(), ok && ms >= firstMilli && ms <= lastMilli
}

func millis(t time.Time, ok bool) any {
	if ms := t.UnixMilli(); ok && ms >= firstMilli && ms <= lastMilli {
		return integer(ms)
	}
	return nil
}

func written(t time.Time, layout string, ok bool) any {
	if !ok || t.Year() < 0 || t.Year() > 9999 {
		return nil
	}
	return t.Format(layout)
}

func dateFunctions() map[string]function {
	onText := func(f func(d date, a []any) any) function {
		return func(_ *interpreter, a []any) any {
			if d, ok := readDate(a[0]); ok {
				return f(d, a)
			}
			return nil
		}
	}
	onMillis := func(f func(t time.Time, a []any) any) function {
		return func(_ *interpreter, a []any) any {
			if t, ok := fromMillis(a[0]); ok {
				return f(t, a)
			}
			return nil
		}
	}
	return map[string]function{
		"DATE_ADD_MILLIS": onMillis(func(t time.Time, a []any) any { return millis(later(t, a[1], a[2])) }),
		"DATE_ADD_STR": onText(func(d date, a []any) any {
			t, ok := later(d.t, a[1], a[2])
			return written(t, d.layout, ok)
		}),
		"DATE_DIFF_MILLIS": onMillis(func(t time.Time, a []any) any {
			if u, ok := fromMillis(a[1]); ok {
				return difference(t, u, a[2])
			}
			return nil
		}),
		"DATE_DIFF_STR": onText(func(d date, a []any) any {
			if e, ok := readDate(a[1]); ok {
				return difference(d.t, e.t, a[2])
			}
			return nil
		}),
		"DATE_FORMAT_STR": onText(func(d date, a []any) any {
			e, ok := readDate(a[1])
			return written(d.t, e.layout, ok)
		}),
		"DATE_PART_MILLIS":  onMillis(func(t time.Time, a []any) any { return datePart(t, a[1]) }),
		"DATE_PART_STR":     onText(func(d date, a []any) any { return datePart(d.t, a[1]) }),
		"DATE_TRUNC_MILLIS": onMillis(func(t time.Time, a []any) any { return millis(truncated(t, a[1])) }),
		"DATE_TRUNC_STR": onText(func(d date, a []any) any {
			t, ok := truncated(d.t, a[1])
			return written(t, d.layout, ok)
		}),
		"MILLIS_TO_STR": onMillis(func(t time.Time, a []any) any {
			layout := "2006-01-02T15:04:05Z07:00"
			if t.UnixMilli()%1000 != 0 {
				layout = "2006-01-02T15:04:05.000Z07:00"
			}
			if len(a) == 2 {
				e, ok := readDate(a[1])
				if !ok {
					return nil
				}
				layout = e.layout
			}
			return written(t, layout, true)
		}),
		"STR_TO_MILLIS":  onText(func(d date, _ []any) any { return integer(d.t.UnixMilli()) }),
		"STR_TO_UTC":     onText(func(d date, _ []any) any { return written(d.t.UTC(), d.layout, true) }),
		"WEEKDAY_MILLIS": onMillis(func(t time.Time, _ []any) any { return t.Weekday().String() }),
		"WEEKDAY_STR":    onText(func(d date, _ []any) any { return d.t.Weekday().String() }),
	}
}

// parts are those of a fixed length in milliseconds, and those of a number of months.
var parts = map[string]struct{ ms, months int64 }{
	"millisecond": {ms: 1}, "second": {ms: 1000}, "minute": {ms: 60_000}, "hour": {ms: 3_600_000}, "day": {ms: 86_400_000}, "week": {ms: 604_800_000},
	"month": {months: 1}, "quarter": {months: 3}, "year": {months: 12}, "decade": {months: 120},
	"century": {months: 1200}, "millennium": {months: 12_000},
}

func partNamed(v any) string {
	name, _ := v.(string)
	return strings.ToLower(name)
}

func later(t time.Time, count, part any) (time.Time, bool) {
	n, ok := whole(count)
	p := parts[partNamed(part)]
	switch {
	case !ok || p.ms == 0 && p.months == 0:
		return t, false
	case p.months > 0:
		if n < -200_000 || n > 200_000 {
			return t, false
		}
		return monthsLater(t, n*p.months), true
	case n > lastMilli-firstMilli || n < firstMilli-lastMilli || math.Abs(float64(n)*float64(p.ms)) > 1e15:
		return t, false
	}
	ms := t.UnixMilli() + n*p.ms
	return time.UnixMilli(ms).In(t.Location()), ms >= firstMilli && ms <= lastMilli
}

// monthsLater keeps the day, or takes the last one of a shorter month.
func monthsLater(t time.Time, n int64) time.Time {
	month := int64(t.Year())*12 + int64(t.Month()) - 1 + n
	year := month / 12
	if month %= 12; month < 0 {
		year, month = year-1, month+12
	}
	day := t.Day()
	for { // a day that the month does not have would be one of the next month
		u := time.Date(int(year), time.Month(month+1), day, t.Hour(), t.Minute(), t.Second(), t.Nanosecond(), t.Location())
		if u.Day() == day {
			return u
		}
		day--
	}
}

func difference(t, u time.Time, part any) any {
	p := parts[partNamed(part)]
	switch {
	case p.ms > 0:
		return integer((t.UnixMilli() - u.UnixMilli()) / p.ms)
	case p.months == 0:
		return nil
	}
	t, u = t.UTC(), u.UTC()
	sign := int64(1)
	if t.Before(u) {
		sign = -1
	}
	n := max(0, int64(math.Abs(float64(t.Year()-u.Year())))*12-24)
	for fits := true; fits; { // how many months may be added without passing t
		next := monthsLater(u, sign*(n+1))
		if fits = !next.After(t) && sign > 0 || !next.Before(t) && sign < 0; fits {
			n++
		}
	}
	return integer(sign * (n / p.months))
}

func datePart(t time.Time, part any) any {
	isoYear, isoWeek := t.ISOWeek()
	day := int(t.Weekday())
	iso := day
	if day == 0 {
		iso = 7
	}
	_, offset := t.Zone()
	n, ok := map[string]int{
		"millennium": 1 + t.Year()/1000, "century": 1 + t.Year()/100, "decade": t.Year() / 10, "timezone": offset, "timezone_hour": offset / 3600,
		"timezone_minute": offset / 60 % 60,
		"year":            t.Year(), "quarter": (int(t.Month())-1)/3 + 1, "month": int(t.Month()), "week": (t.YearDay()-1)/7 + 1, "day": t.Day(), "hour": t.Hour(),
		"minute": t.Minute(), "second": t.Second(), "millisecond": t.Nanosecond() / 1_000_000, "iso_year": isoYear, "iso_week": isoWeek,
		"day_of_year": t.YearDay(), "doy": t.YearDay(), "day_of_week": day, "dow": day, "iso_dow": iso,
	}[partNamed(part)]
	if !ok {
		return nil
	}
	return integer(int64(n))
}

func truncated(t time.Time, part any) (time.Time, bool) {
	_, offset := t.Zone()
	fields := []int{t.Year(), int(t.Month()), t.Day(), t.Hour(), t.Minute(), t.Second(), t.Nanosecond()}
	name := partNamed(part)
	keep, ok := map[string]int{"millennium": 1, "century": 1, "decade": 1, "year": 1, "quarter": 2, "month": 2, "week": 3, "day": 3, "hour": 4, "minute": 5, "second": 6, "millisecond": 7}[name]
	if !ok {
		return t, false
	}
	for i := keep; i < len(fields); i++ {
		fields[i] = 0
		if i < 3 {
			fields[i] = 1
		}
	}
	if name == "quarter" {
		fields[1] -= (fields[1] - 1) % 3
	}
	if years := map[string]int{"millennium": 1000, "century": 100, "decade": 10}[name]; years > 0 {
		fields[0] = fields[0] / years * years
	}
	u := time.Date(fields[0], time.Month(fields[1]), fields[2], fields[3], fields[4], fields[5], fields[6], time.FixedZone("", offset))
	for name == "week" && u.Weekday() != time.Monday {
		u = u.AddDate(0, 0, -1)
	}
	return u, true
}
