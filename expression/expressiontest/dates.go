package expressiontest

import (
	"encoding/json"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"
)

// date is a moment and the form it was written in, as a layout of package time.
type date struct {
	t      time.Time
	layout string
}

// layouts are the forms of dates. A fraction is printed with up to millisecond digits, if there is one.
var layouts = []string{
	"2006-01-02T15:04:05.999Z07:00", "2006-01-02T15:04:05.999", "2006-01-02 15:04:05.999Z07:00", "2006-01-02 15:04:05.999",
	"2006-01-02",
	"15:04:05.999Z07:00", "15:04:05.999",
}

// readDate parses a date in one of the forms; a comma may replace the point, as in package time.
func readDate(v any) (d date, ok bool) {
	text, ok := v.(string)
	if !ok || len(text) > 64 {
		return d, false
	}
	for _, layout := range layouts {
		if t, err := time.ParseInLocation(layout, text, time.UTC); err == nil {
			return date{t, layout}, true
		}
	}
	return d, false
}

func fromMillis(v any) (t time.Time, ok bool) {
	n, ok := v.(json.Number)
	if !ok {
		return t, false
	}
	x, ok := new(interpreter).numeric(n)
	if !ok || math.Abs(x.f) > 1<<63 {
		return t, false
	}
	if x.integer && math.Abs(x.f) < 1<<53 {
		return time.UnixMilli(x.i).UTC(), true
	}
	whole := math.Trunc(x.f / 1000)
	return time.Unix(int64(whole), int64(math.Mod(x.f, 1000)*1e6)).UTC(), true
}

func millis(t time.Time, ok bool) any {
	if !ok {
		return nil
	}
	return new(interpreter).float(float64(t.Unix())*1000 + float64(t.Round(time.Millisecond).Nanosecond()/1_000_000))
}

func written(t time.Time, layout string, ok bool) any {
	if !ok {
		return nil
	}
	return t.Format(layout)
}

// afterwards returns the layout of a date computed from another: the full one if that has a zone.
func afterwards(layout string) string {
	if strings.Contains(layout, "Z") {
		return layouts[0]
	}
	return layout
}

// example returns the layout of an example date, if one is given; the full one if the example is not a date.
func example(rest []any) (string, bool) {
	if len(rest) == 0 {
		return layouts[0], true
	}
	if d, ok := readDate(rest[0]); ok {
		return d.layout, true
	}
	_, ok := rest[0].(string)
	return layouts[0], ok
}

// inZone converts a moment to a zone, if one is given.
func inZone(t time.Time, rest []any) (time.Time, bool) {
	if len(rest) == 0 {
		return t, true
	}
	name, ok := rest[0].(string)
	if !ok || name == "Local" || len(name) > 64 {
		return t, false
	}
	zone, err := time.LoadLocation(name)
	if err != nil {
		return t, false
	}
	return t.In(zone), true
}

func onText(f func(d date, a []any) any) function {
	return func(_ *interpreter, a []any) any {
		if d, ok := readDate(a[0]); ok {
			return f(d, a)
		}
		return nil
	}
}

func onMillis(f func(t time.Time, a []any) any) function {
	return func(_ *interpreter, a []any) any {
		if t, ok := fromMillis(a[0]); ok {
			return f(t, a)
		}
		return nil
	}
}

// inZones makes a function of a moment whose last argument may be a zone to convert it to. The first arguments, a
// number and a text, are checked before the zone.
func inZones(firsts int, f func(t time.Time, a []any) any) function {
	moved := onMillis(func(t time.Time, a []any) any {
		if t, ok := inZone(t, a[firsts:]); ok {
			return f(t, a)
		}
		return nil
	})
	return func(m *interpreter, a []any) any {
		if slices.Contains(a[:firsts], any(Missing)) {
			return Missing
		}
		for i, v := range a[:firsts] {
			if nameOf(v) != []string{"number", "string"}[i] {
				return nil
			}
		}
		if slices.Contains(a[firsts:], any(Missing)) {
			return Missing
		}
		return moved(m, a)
	}
}

func dateFunctions() map[string]function {
	differences := func(absolute bool) (function, function) {
		return onMillis(func(t time.Time, a []any) any {
				if u, ok := fromMillis(a[1]); ok {
					return difference(t, u, a[2], absolute)
				}
				return nil
			}), onText(func(d date, a []any) any {
				if e, ok := readDate(a[1]); ok {
					return difference(d.t, e.t, a[2], absolute)
				}
				return nil
			})
	}
	diffMillis, diffText := differences(false)
	absMillis, absText := differences(true)
	return map[string]function{
		"DATE_ADD_MILLIS": onMillis(func(t time.Time, a []any) any { return millis(later(t, a[1], a[2])) }),
		"DATE_ADD_STR": onText(func(d date, a []any) any {
			t, ok := later(d.t, a[1], a[2])
			return written(t, afterwards(d.layout), ok)
		}),
		"DATE_DIFF_MILLIS": diffMillis, "DATE_DIFF_STR": diffText, "DATE_DIFF_ABS_MILLIS": absMillis,
		"DATE_DIFF_ABS_STR": absText,
		"DATE_FORMAT_STR": onText(func(d date, a []any) any {
			layout, ok := example(a[1:])
			return written(d.t, layout, ok)
		}),
		"DATE_PART_MILLIS": inZones(2, func(t time.Time, a []any) any { return datePart(t, a[1]) }),
		"DATE_PART_STR":    onText(func(d date, a []any) any { return datePart(d.t, a[1]) }),
		"DATE_RANGE_MILLIS": func(m *interpreter, a []any) any {
			t, ok := fromMillis(a[0])
			u, fine := fromMillis(a[1])
			if !ok || !fine {
				return nil
			}
			return m.dates(t, u, a[2:], func(t time.Time) any { return millis(t, true) })
		},
		"DATE_RANGE_STR": func(m *interpreter, a []any) any {
			d, ok := readDate(a[0])
			e, fine := readDate(a[1])
			if !ok || !fine {
				return nil
			}
			return m.dates(d.t, e.t, a[2:], func(t time.Time) any { return written(t, afterwards(d.layout), true) })
		},
		"DATE_TRUNC_MILLIS": onMillis(func(t time.Time, a []any) any { return millis(truncated(t, a[1])) }),
		"DATE_TRUNC_STR": onText(func(d date, a []any) any {
			t, ok := truncated(d.t, a[1])
			bare, zoned := strings.CutSuffix(d.layout, "Z07:00")
			text, zone := written(t, bare, ok), ""
			if zoned {
				zone = regexp.MustCompile(`(Z|[+-][0-9:]+)\z`).FindString(a[0].(string))
			}
			if !ok {
				return nil
			}
			return text.(string) + zone
		}),
		"DURATION_TO_STR": func(m *interpreter, a []any) any {
			if n, ok := a[0].(json.Number); ok {
				m.numeric(n) // fails beyond float64
			}
			n, ok := cut(a[0])
			if !ok {
				return nil
			}
			return time.Duration(n).String()
		},
		"STR_TO_DURATION": ofTexts(func(s []string) any {
			d, err := time.ParseDuration(s[0])
			if err != nil {
				return nil
			}
			return integer(d.Nanoseconds())
		}),
		"MILLIS_TO_STR": onMillis(func(t time.Time, a []any) any {
			layout, ok := example(a[1:])
			return written(t, layout, ok)
		}),
		"MILLIS_TO_TZ": onMillis(func(t time.Time, a []any) any {
			layout, ok := example(a[2:])
			t, fine := inZone(t, a[1:2])
			return written(t, layout, ok && fine)
		}),
		"STR_TO_MILLIS": onText(func(d date, _ []any) any { return millis(d.t, true) }),
		"STR_TO_TZ": onText(func(d date, a []any) any {
			t, ok := inZone(d.t, a[1:])
			return written(t, d.layout, ok)
		}),
		"STR_TO_UTC":     onText(func(d date, _ []any) any { return written(d.t.UTC(), d.layout, true) }),
		"WEEKDAY_MILLIS": inZones(1, func(t time.Time, _ []any) any { return t.Weekday().String() }),
		"WEEKDAY_STR":    onText(func(d date, _ []any) any { return d.t.Weekday().String() }),
	}
}

func partNamed(part any) string {
	name, _ := part.(string)
	return strings.ToLower(name)
}

// steps is the length of each part: years, months, days or time.
var steps = map[string]struct {
	years, months, days int
	time                time.Duration
}{
	"millennium": {years: 1000}, "century": {years: 100}, "decade": {years: 10}, "year": {years: 1},
	"quarter": {months: 3}, "month": {months: 1},
	"week": {days: 7}, "day": {days: 1}, "hour": {time: time.Hour}, "minute": {time: time.Minute},
	"second": {time: time.Second}, "millisecond": {time: time.Millisecond},
}

func later(t time.Time, count, part any) (time.Time, bool) {
	n, ok := whole(count)
	p, known := steps[partNamed(part)]
	if !ok || !known {
		return t, false
	}
	if p.time > 0 {
		return t.Add(time.Duration(n) * p.time), math.Abs(float64(n)) <= float64(math.MaxInt64/p.time)
	}
	if years := int64(t.Year()) + n*int64(p.years); n > 1e8 || n < -1e8 || years > 1e8 || years < -1e8 {
		return t, false
	}
	return t.AddDate(int(n)*p.years, int(n)*p.months, int(n)*p.days), true
}

func (m *interpreter) dates(from, to time.Time, rest []any, f func(time.Time) any) any {
	step := any(json.Number("1"))
	if len(rest) == 2 {
		step = rest[1]
	}
	n, ok := whole(step)
	if _, isText := rest[0].(string); !ok || !isText {
		return nil
	}
	list := []any{}
	if n > 0 != from.Before(to) { // the rounded results may still be in order
		return list
	}
	number := func(t time.Time) float64 {
		return float64(t.Unix()*1000 + int64(t.Round(time.Millisecond).Nanosecond()/1e6))
	}
	for at := from; n > 0 && number(at) < number(to) || n < 0 && number(at) > number(to); {
		if len(list) == 10_000 {
			return m.fail("DATE_RANGE")
		}
		list = append(list, f(at))
		if at, ok = later(at, step, rest[0]); !ok {
			return nil
		}
	}
	return list
}

// difference counts the parts of the later date less those of the earlier one, from their local dates and times.
func difference(t, u time.Time, part any, absolute bool) any {
	shown := func(t time.Time) string { return t.Format("2006-01-02 15:04:05.000000000") }
	sign := int64(1)
	if shown(t) < shown(u) {
		t, u, sign = u, t, -1
	}
	year := func(t time.Time, n int) int64 { return int64(t.Year()) * int64(n) }
	day := func(t time.Time) int64 { // by a calendar whose year 0 has 365 days
		n := year(t, 365) + int64(t.YearDay())
		for y := 1; y < t.Year(); y++ {
			if y%4 == 0 && y%100 != 0 || y%400 == 0 {
				n++
			}
		}
		return n
	}
	days := day(t) - day(u)
	hours := days*24 + int64(t.Hour()-u.Hour())
	minutes := hours*60 + int64(t.Minute()-u.Minute())
	seconds := minutes*60 + int64(t.Second()-u.Second())
	years := year(t, 1) - year(u, 1)
	n, ok := map[string]int64{
		"millennium": years / 1000, "century": years / 100, "decade": years / 10, "year": years,
		"quarter": year(t, 4) - year(u, 4) + int64((t.Month()-1)/3) - int64((u.Month()-1)/3),
		"month":   year(t, 12) - year(u, 12) + int64(t.Month()) - int64(u.Month()),
		"week":    days / 7, "day": days, "hour": hours, "minute": minutes, "second": seconds,
		"millisecond": seconds*1000 + int64(t.Nanosecond()/1e6) - int64(u.Nanosecond()/1e6),
	}[partNamed(part)]
	if !ok {
		return nil
	}
	if absolute {
		return integer(max(n, -n))
	}
	return integer(sign * n)
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
		"millennium": 1 + t.Year()/1000, "century": 1 + t.Year()/100, "decade": t.Year() / 10, "timezone": offset,
		"timezone_hour":   offset / 3600,
		"timezone_minute": offset / 60 % 60,
		"year":            t.Year(), "quarter": (int(t.Month())-1)/3 + 1, "month": int(t.Month()), "week": (t.YearDay()-1)/7 +
			1, "day": t.Day(), "hour": t.Hour(),
		"minute": t.Minute(), "second": t.Second(), "millisecond": t.Nanosecond() / 1_000_000, "iso_year": isoYear,
		"iso_week":    isoWeek,
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
	keep, ok := map[string]int{"millennium": 1, "century": 1, "decade": 1, "year": 1, "quarter": 2, "month": 2, "week": 3,
		"day": 3, "hour": 4, "minute": 5, "second": 6, "millisecond": 6}[name]
	if !ok {
		return t, false
	}
	for i := keep; i < len(fields); i++ {
		fields[i] = 0
		if i < 3 {
			fields[i] = 1
		}
	}
	if name == "millisecond" {
		fields[6] = t.Nanosecond() / 1_000_000 * 1_000_000
	}
	if name == "quarter" {
		fields[1] -= (fields[1] - 1) % 3
	}
	if years := map[string]int{"millennium": 1000, "century": 100, "decade": 10}[name]; years > 0 {
		fields[0] = fields[0] / years * years
	}
	u := time.Date(fields[0], time.Month(fields[1]), fields[2], fields[3], fields[4], fields[5], fields[6],
		time.FixedZone("", offset))
	for name == "week" && u.Weekday() != time.Monday {
		u = u.AddDate(0, 0, -1)
	}
	return u, true
}
