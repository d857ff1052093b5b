package expression

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// A date as text is 2006-01-02, with a time of day behind a T or a space, seconds and their fraction if there are any,
// and a zone (Z or ±hh:mm), which is UTC if it is not given. A date as a number is milliseconds since 1970, UTC.
// What a function gives has the form of what it was given. Zones by name do not exist here: their rules change.

var dateFunctions = []*Function{
	{Name: "DATE_ADD_MILLIS", Family: FamilyDate, Params: `millis, n, "part"`, Min: 3, Max: 3, newly: checkPart(2, lengths), About: "The date n parts later. Parts: millennium, century, decade, year, quarter, month, week, day, hour, minute, second, millisecond.",
		Example: Example{`DATE_ADD_MILLIS(0, 1, "day")`, `86400000`}, eval: onMillis(func(s *Scratch, t time.Time, a []value) value { return s.millis(s.later(t, a[1], a[2])) })},
	{Name: "DATE_ADD_STR", Family: FamilyDate, Params: `date, n, "part"`, Min: 3, Max: 3, newly: checkPart(2, lengths), About: "As DATE_ADD_MILLIS, of a text. A day that the month does not have is its last.",
		Example: Example{`DATE_ADD_STR("2024-01-31", 1, "month")`, `"2024-02-29"`}, eval: onDate(func(s *Scratch, t time.Time, layout string, a []value) value {
			return s.date(s.later(t, a[1], a[2]))(layout)
		})},
	{Name: "DATE_DIFF_MILLIS", Family: FamilyDate, Params: `a, b, "part"`, Min: 3, Max: 3, newly: checkPart(2, lengths), About: "How many whole parts lie between b and a; months, quarters and years by the calendar.",
		Example: Example{`DATE_DIFF_MILLIS(172800000, 0, "day")`, `2`}, eval: onMillis(func(s *Scratch, t time.Time, a []value) value {
			u, ok := s.fromMillis(a[1])
			if !ok {
				return null
			}
			return s.difference(t, u, a[2])
		})},
	{Name: "DATE_DIFF_STR", Family: FamilyDate, Params: `a, b, "part"`, Min: 3, Max: 3, newly: checkPart(2, lengths), About: "As DATE_DIFF_MILLIS, of texts.",
		Example: Example{`DATE_DIFF_STR("2024-03-01", "2024-02-01", "day")`, `29`}, eval: onDate(func(s *Scratch, t time.Time, _ string, a []value) value {
			u, _, ok := parseDate(a[1])
			if !ok {
				return null
			}
			return s.difference(t, u, a[2])
		})},
	{Name: "DATE_FORMAT_STR", Family: FamilyDate, Params: "date, example", Min: 2, Max: 2, newly: checkForm, About: "The date in the form of the example.",
		Example: Example{`DATE_FORMAT_STR("2024-02-29T08:07:06Z", "1111-11-11")`, `"2024-02-29"`}, eval: onDate(func(s *Scratch, t time.Time, _ string, a []value) value {
			_, layout, ok := parseDate(a[1])
			if !ok {
				return null
			}
			return s.date(t, true)(layout)
		})},
	{Name: "DATE_PART_MILLIS", Family: FamilyDate, Params: `millis, "part"`, Min: 2, Max: 2, newly: checkPart(1, partsOfDates), About: "A part of the date as a number: those of DATE_ADD_MILLIS, and iso_year, iso_week, day_of_year (doy), day_of_week (dow; 0 is Sunday), iso_dow (7 is Sunday), timezone (seconds east of UTC), timezone_hour, timezone_minute.",
		Example: Example{`DATE_PART_MILLIS(0, "year")`, `1970`}, eval: onMillis(func(s *Scratch, t time.Time, a []value) value { return s.part(t, a[1]) })},
	{Name: "DATE_PART_STR", Family: FamilyDate, Params: `date, "part"`, Min: 2, Max: 2, newly: checkPart(1, partsOfDates), About: "As DATE_PART_MILLIS, of a text, in its own zone.",
		Example: Example{`DATE_PART_STR("2024-02-29T23:00:00-05:00", "day")`, `29`}, eval: onDate(func(s *Scratch, t time.Time, _ string, a []value) value { return s.part(t, a[1]) })},
	{Name: "DATE_TRUNC_MILLIS", Family: FamilyDate, Params: `millis, "part"`, Min: 2, Max: 2, newly: checkPart(1, lengths), About: "The begin of the part that the date lies in; a week begins on Monday.",
		Example: Example{`DATE_TRUNC_MILLIS(90000000, "day")`, `86400000`}, eval: onMillis(func(s *Scratch, t time.Time, a []value) value { return s.millis(truncate(t, a[1])) })},
	{Name: "DATE_TRUNC_STR", Family: FamilyDate, Params: `date, "part"`, Min: 2, Max: 2, newly: checkPart(1, lengths), About: "As DATE_TRUNC_MILLIS, of a text, in its own zone.",
		Example: Example{`DATE_TRUNC_STR("2024-02-29T08:07:06Z", "month")`, `"2024-02-01T00:00:00Z"`}, eval: onDate(func(s *Scratch, t time.Time, layout string, a []value) value {
			return s.date(truncate(t, a[1]))(layout)
		})},
	{Name: "MILLIS_TO_STR", Aliases: []string{"MILLIS_TO_UTC"}, Family: FamilyDate, Params: "millis [, example]", Min: 1, Max: 2, newly: checkForm, About: "The date as text in UTC, in the form of the example.",
		Example: Example{`MILLIS_TO_STR(0)`, `"1970-01-01T00:00:00Z"`}, eval: onMillis(func(s *Scratch, t time.Time, a []value) value {
			layout := time.RFC3339
			if t.Nanosecond() != 0 {
				layout = "2006-01-02T15:04:05.000Z07:00"
			}
			if len(a) == 2 {
				var ok bool
				if _, layout, ok = parseDate(a[1]); !ok {
					return null
				}
			}
			return s.date(t, true)(layout)
		})},
	{Name: "STR_TO_MILLIS", Aliases: []string{"MILLIS"}, Family: FamilyDate, Params: "date", Min: 1, Max: 1, About: "The date as milliseconds since 1970.",
		Example: Example{`STR_TO_MILLIS("1970-01-02")`, `86400000`}, eval: onDate(func(s *Scratch, t time.Time, _ string, _ []value) value { return s.integer(t.UnixMilli()) })},
	{Name: "STR_TO_UTC", Family: FamilyDate, Params: "date", Min: 1, Max: 1, About: "The same moment in UTC.",
		Example: Example{`STR_TO_UTC("2024-02-29T23:00:00-05:00")`, `"2024-03-01T04:00:00Z"`}, eval: onDate(func(s *Scratch, t time.Time, layout string, _ []value) value {
			return s.date(t.UTC(), true)(layout)
		})},
	{Name: "WEEKDAY_MILLIS", Family: FamilyDate, Params: "millis", Min: 1, Max: 1, About: "The English name of the day of the week, in UTC.",
		Example: Example{`WEEKDAY_MILLIS(0)`, `"Thursday"`}, eval: onMillis(func(_ *Scratch, t time.Time, _ []value) value { return value{kindString, []byte(t.Weekday().String())} })},
	{Name: "WEEKDAY_STR", Family: FamilyDate, Params: "date", Min: 1, Max: 1, About: "The English name of the day of the week.",
		Example: Example{`WEEKDAY_STR("2024-02-29")`, `"Thursday"`}, eval: onDate(func(_ *Scratch, t time.Time, _ string, _ []value) value {
			return value{kindString, []byte(t.Weekday().String())}
		})},
}

// Dates have years of four digits.
const (
	maxDateBytes = 40
	minMillis    = -62167219200000 // 0000-01-01
	maxMillis    = 253402300799999 // 9999-12-31
)

// parseDate reads a date as text and tells its form, as a layout of package time. It is strict, and knows no local zone: a
// date means the same in every process, and with every version of package time.
func parseDate(v value) (t time.Time, layout string, ok bool) {
	if v.kind != kindString || len(v.data) > maxDateBytes {
		return t, "", false
	}
	r := dateReader{text: string(v.data)}
	year, month, day := r.digits(4), r.mark("-").digits(2), r.mark("-").digits(2)
	layout = time.DateOnly
	hour, minute, second, nanoseconds, zone := 0, 0, 0, 0, time.UTC
	if r.text != "" {
		if layout += "T15:04"; r.text[0] == ' ' {
			layout = time.DateOnly + " 15:04"
		}
		r.text = strings.TrimLeft(r.text[:1], "T ") + r.text[1:]
		hour, minute = r.digits(2), r.mark(":").digits(2)
		if strings.HasPrefix(r.text, ":") {
			layout += ":05"
			second = r.mark(":").digits(2)
			if strings.HasPrefix(r.text, ".") {
				layout += ".000"
				nanoseconds = r.fraction()
			}
		}
		if r.text != "" {
			layout += "Z07:00"
			zone = r.zone()
		}
	}
	t = time.Date(year, time.Month(month), day, hour, minute, second, nanoseconds, zone)
	ok = !r.wrong && r.text == "" && hour < 24 && minute < 60 && second < 60 && t.Day() == day && t.Month() == time.Month(month)
	return t, layout, ok
}

// dateReader reads a date from left to right.
type dateReader struct {
	text  string
	wrong bool
}

func (r *dateReader) mark(m string) *dateReader {
	rest, ok := strings.CutPrefix(r.text, m)
	r.text, r.wrong = rest, r.wrong || !ok
	return r
}

func (r *dateReader) digits(n int) (value int) {
	for range n {
		if r.text == "" || !isDigit(r.text[0]) {
			r.wrong = true
			return 0
		}
		value, r.text = value*10+int(r.text[0]-'0'), r.text[1:]
	}
	return value
}

// fraction reads a point and digits, of which those of milliseconds count.
func (r *dateReader) fraction() (nanoseconds int) {
	r.mark(".")
	digits := len(r.text) - len(strings.TrimLeft(r.text, "0123456789"))
	if digits == 0 {
		r.wrong = true
		return 0
	}
	for i, scale := 0, 100; i < min(digits, 3); i, scale = i+1, scale/10 {
		nanoseconds += int(r.text[i]-'0') * scale * int(time.Millisecond)
	}
	r.text = r.text[digits:]
	return nanoseconds
}

// zone reads Z or ±hh:mm.
func (r *dateReader) zone() *time.Location {
	sign := 1
	switch r.text[0] {
	case 'Z':
		r.text = r.text[1:]
		return time.UTC
	case '-':
		sign = -1
	case '+':
	default:
		r.wrong = true
		return time.UTC
	}
	r.text = r.text[1:]
	hours, minutes := r.digits(2), r.mark(":").digits(2)
	if hours > 23 || minutes > 59 {
		r.wrong = true
	}
	if hours == 0 && minutes == 0 {
		return time.UTC
	}
	return time.FixedZone("", sign*(hours*3600+minutes*60))
}

func (s *Scratch) fromMillis(v value) (t time.Time, ok bool) {
	if v.kind != kindNumber {
		return t, false
	}
	n, ok := s.parseNumber(v)
	ms := n.i
	if ok && !n.isInt && n.f > minMillis-1 && n.f < maxMillis+1 {
		ms = int64(n.f)
		n.isInt = true
	}
	if !ok || !n.isInt || ms < minMillis || ms > maxMillis {
		return t, false
	}
	return time.UnixMilli(ms).UTC(), true
}

func onMillis(f func(s *Scratch, t time.Time, a []value) value) evaluation {
	return func(s *Scratch, a []value) value {
		t, ok := s.fromMillis(a[0])
		if !ok {
			return null
		}
		return f(s, t, a)
	}
}

func onDate(f func(s *Scratch, t time.Time, layout string, a []value) value) evaluation {
	return func(s *Scratch, a []value) value {
		t, layout, ok := parseDate(a[0])
		if !ok {
			return null
		}
		return f(s, t, layout, a)
	}
}

func (s *Scratch) millis(t time.Time, ok bool) value {
	if ms := t.UnixMilli(); ok && ms >= minMillis && ms <= maxMillis {
		return s.integer(ms)
	}
	return null
}

// date writes a date in a form.
func (s *Scratch) date(t time.Time, ok bool) func(layout string) value {
	return func(layout string) value {
		if !ok || t.Year() < 0 || t.Year() > 9999 {
			return null
		}
		start := len(s.temp)
		s.temp = t.AppendFormat(s.temp, layout)
		return s.fresh(kindString, start)
	}
}

// maxParts keeps dates within what time.Time computes with.
const maxParts = 1 << 40

// fixed gives the length of the parts that always have one.
func fixed(part string) time.Duration {
	switch part {
	case "week":
		return 7 * 24 * time.Hour
	case "day":
		return 24 * time.Hour
	case "hour":
		return time.Hour
	case "minute":
		return time.Minute
	case "second":
		return time.Second
	case "millisecond":
		return time.Millisecond
	}
	return 0
}

// months gives the months of the parts that have no fixed length.
func months(part string) int {
	switch part {
	case "millennium":
		return 12_000
	case "century":
		return 1200
	case "decade":
		return 120
	case "year":
		return 12
	case "quarter":
		return 3
	case "month":
		return 1
	}
	return 0
}

// partName reads the argument that names a part.
func partName(v value) string {
	if v.kind != kindString || len(v.data) > maxDateBytes {
		return ""
	}
	return strings.ToLower(string(v.data))
}

// lengths are the parts that a date can be moved by, and partsOfDates those that it has.
const (
	lengths      = "millennium, century, decade, year, quarter, month, week, day, hour, minute, second, millisecond"
	partsOfDates = lengths + ", iso_year, iso_week, day_of_year, doy, day_of_week, dow, iso_dow, timezone, timezone_hour, timezone_minute"
)

// checkPart makes what says that a part that is written down as an argument is none of those that are known.
func checkPart(argument int, known string) func(args []Expr) string {
	return func(args []Expr) string {
		l, ok := args[argument].(*Literal)
		if !ok || l.Kind == kindString && slices.Contains(strings.Split(known, ", "), strings.ToLower(l.Text)) {
			return ""
		}
		return fmt.Sprintf("%s is no part of a date here; known: %s", l, known)
	}
}

// checkForm says that an example that is written down is no date, or nothing.
func checkForm(args []Expr) string {
	if len(args) < 2 {
		return ""
	}
	l, ok := args[1].(*Literal)
	if !ok {
		return ""
	}
	if _, _, fine := parseDate(value{l.Kind, []byte(l.Text)}); fine {
		return ""
	}
	return fmt.Sprintf(`%s is no date; the form is said by an example, such as "1111-11-11", "1111-11-11 11:11:11" or "1111-11-11T11:11:11.111Z"`, l)
}

// later is DATE_ADD.
func (s *Scratch) later(t time.Time, count, part value) (time.Time, bool) {
	n, ok := s.whole(count)
	name := partName(part)
	if !ok || n < -maxParts || n > maxParts {
		return t, false
	}
	if m := months(name); m != 0 {
		if n < -200_000 || n > 200_000 {
			return t, false
		}
		return addMonths(t, int(n)*m), true
	}
	unit := fixed(name)
	ms := t.UnixMilli() + n*unit.Milliseconds()
	if unit == 0 || n*unit.Milliseconds()/unit.Milliseconds() != n || ms < minMillis || ms > maxMillis {
		return t, false
	}
	return time.UnixMilli(ms).In(t.Location()), true
}

// addMonths keeps the day, or takes the last one of a shorter month.
func addMonths(t time.Time, n int) time.Time {
	first := time.Date(t.Year(), t.Month(), 1, t.Hour(), t.Minute(), t.Second(), t.Nanosecond(), t.Location()).AddDate(0, n, 0)
	last := first.AddDate(0, 1, -1).Day()
	return first.AddDate(0, 0, min(t.Day(), last)-1)
}

// difference is DATE_DIFF.
func (s *Scratch) difference(t, u time.Time, part value) value {
	name := partName(part)
	if m := months(name); m != 0 {
		t, u = t.UTC(), u.UTC()
		between := (t.Year()-u.Year())*12 + int(t.Month()) - int(u.Month())
		for between > 0 && addMonths(u, between).After(t) {
			between--
		}
		for between < 0 && addMonths(u, between).Before(t) {
			between++
		}
		return s.integer(int64(between / m))
	}
	if unit := fixed(name); unit != 0 {
		return s.integer((t.UnixMilli() - u.UnixMilli()) / unit.Milliseconds())
	}
	return null
}

// part is DATE_PART.
func (s *Scratch) part(t time.Time, part value) value {
	year, week := t.ISOWeek()
	_, offset := t.Zone()
	n := 0
	switch partName(part) {
	case "millennium":
		n = t.Year()/1000 + 1
	case "century":
		n = t.Year()/100 + 1
	case "decade":
		n = t.Year() / 10
	case "timezone":
		n = offset
	case "timezone_hour":
		n = offset / 3600
	case "timezone_minute":
		n = offset % 3600 / 60
	case "year":
		n = t.Year()
	case "quarter":
		n = (int(t.Month()) + 2) / 3
	case "month":
		n = int(t.Month())
	case "week":
		n = (t.YearDay() + 6) / 7
	case "day":
		n = t.Day()
	case "hour":
		n = t.Hour()
	case "minute":
		n = t.Minute()
	case "second":
		n = t.Second()
	case "millisecond":
		n = t.Nanosecond() / int(time.Millisecond)
	case "iso_year":
		n = year
	case "iso_week":
		n = week
	case "day_of_year", "doy":
		n = t.YearDay()
	case "day_of_week", "dow":
		n = int(t.Weekday())
	case "iso_dow":
		n = (int(t.Weekday())+6)%7 + 1
	default:
		return null
	}
	return s.integer(int64(n))
}

// truncate is DATE_TRUNC.
func truncate(t time.Time, part value) (time.Time, bool) {
	year, month, day := t.Date()
	hour, minute, second, ns := t.Hour(), t.Minute(), t.Second(), t.Nanosecond()
	switch partName(part) {
	case "millennium":
		year, month, day, hour, minute, second, ns = year-year%1000, 1, 1, 0, 0, 0, 0
	case "century":
		year, month, day, hour, minute, second, ns = year-year%100, 1, 1, 0, 0, 0, 0
	case "decade":
		year, month, day, hour, minute, second, ns = year-year%10, 1, 1, 0, 0, 0, 0
	case "year":
		month, day, hour, minute, second, ns = 1, 1, 0, 0, 0, 0
	case "quarter":
		month, day, hour, minute, second, ns = (month-1)/3*3+1, 1, 0, 0, 0, 0
	case "month":
		day, hour, minute, second, ns = 1, 0, 0, 0, 0
	case "week":
		day -= (int(t.Weekday()) + 6) % 7
		hour, minute, second, ns = 0, 0, 0, 0
	case "day":
		hour, minute, second, ns = 0, 0, 0, 0
	case "hour":
		minute, second, ns = 0, 0, 0
	case "minute":
		second, ns = 0, 0
	case "second":
		ns = 0
	case "millisecond":
	default:
		return t, false
	}
	return time.Date(year, month, day, hour, minute, second, ns, t.Location()), true
}
