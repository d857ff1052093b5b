package expression

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"tidemark/collate"
)

// A date as text is 2006-01-02, 15:04:05, or both with a T or a space between. The seconds may be followed by a
// fraction, and everything but a day alone by a zone (Z or ±hh:mm), which defaults to UTC. A time of day alone is on
// January 1 of the year 0. A date as a number is milliseconds since 1970, UTC. A function's result has the form of
// its argument, with as many digits of a fraction of a second as it needs.

// The forms of dates, as layouts of package time.
const (
	formFull  = "2006-01-02T15:04:05.999Z07:00"
	formDay   = "2006-01-02"
	formTime  = "15:04:05.999"
	formZone  = "Z07:00"
	formT     = formDay + "T" + formTime
	formSpace = formDay + " " + formTime
)

var dateFunctions = []*Function{
	{Name: "DATE_ADD_MILLIS", Family: FamilyDate, Params: `millis, n, "part"`, Min: 3, Max: 3,
		newly: checkPart(2, lengths), About: "The date n parts later. Parts: millennium, century, decade, year, quarter, " +
			"month, week, day, hour, minute, second, millisecond. A day beyond the end of its month runs over into the next.",
		Example: Example{`DATE_ADD_MILLIS(0, 1, "day")`, `86400000`},
		eval: onMillis(func(s *Scratch, t time.Time, a []value) value {
			return s.millis(s.later(t, a[1], a[2]))
		})},
	{Name: "DATE_ADD_STR", Family: FamilyDate, Params: `date, n, "part"`, Min: 3, Max: 3, newly: checkPart(2, lengths),
		About:   "Like DATE_ADD_MILLIS, for a date as text.",
		Example: Example{`DATE_ADD_STR("2024-01-31", 1, "month")`, `"2024-03-02"`},
		eval: onDate(func(s *Scratch, t time.Time, form string, a []value) value {
			return s.date(s.later(t, a[1], a[2]))(made(form))
		})},
	{Name: "DATE_DIFF_MILLIS", Family: FamilyDate, Params: `a, b, "part"`, Min: 3, Max: 3, newly: checkPart(2, lengths),
		About: "The number of parts between b and a by the calendar: the parts of the one minus those of the other. A " +
			"week is seven days.",
		Example: Example{`DATE_DIFF_MILLIS(172800000, 0, "day")`, `2`}, eval: onMillis(differenceMillis(false))},
	{Name: "DATE_DIFF_STR", Family: FamilyDate, Params: `a, b, "part"`, Min: 3, Max: 3, newly: checkPart(2, lengths),
		About:   "Like DATE_DIFF_MILLIS, for dates as texts, each in its own zone.",
		Example: Example{`DATE_DIFF_STR("2018-09-11 00:00:01", "2018-09-10 23:59:59", "day")`, `1`},
		eval:    onDate(differenceText(false))},
	{Name: "DATE_DIFF_ABS_MILLIS", Family: FamilyDate, Params: `a, b, "part"`, Min: 3, Max: 3,
		newly: checkPart(2, lengths), About: "Like DATE_DIFF_MILLIS, without a sign.",
		Example: Example{`DATE_DIFF_ABS_MILLIS(0, 172800000, "day")`, `2`}, eval: onMillis(differenceMillis(true))},
	{Name: "DATE_DIFF_ABS_STR", Family: FamilyDate, Params: `a, b, "part"`, Min: 3, Max: 3, newly: checkPart(2, lengths),
		About:   "Like DATE_DIFF_STR, without a sign.",
		Example: Example{`DATE_DIFF_ABS_STR("1998-06-01", "2006-01-01", "year")`, `8`}, eval: onDate(differenceText(true))},
	{Name: "DATE_FORMAT_STR", Family: FamilyDate, Params: "date, example", Min: 2, Max: 2, newly: checkForm,
		About:   "The date in the form of the example.",
		Example: Example{`DATE_FORMAT_STR("2024-02-29T08:07:06Z", "1111-11-11")`, `"2024-02-29"`},
		eval: onDate(func(s *Scratch, t time.Time, _ string, a []value) value {
			return s.like(t, a[1])
		})},
	{Name: "DATE_PART_MILLIS", Family: FamilyDate, Params: `millis, "part" [, zone]`, Min: 2, Max: 3,
		newly: checkPart(1, partsOfDates), lenient: true, About: "A part of the date as a number: those of " +
			"DATE_ADD_MILLIS, and iso_year, iso_week, day_of_year (doy), day_of_week (dow; 0 is Sunday), iso_dow (7 is " +
			"Sunday), timezone (seconds east of UTC), timezone_hour, timezone_minute.",
		Example: Example{`DATE_PART_MILLIS(0, "hour", "Asia/Kolkata")`, `5`},
		eval: typed(onMillis(func(s *Scratch, t time.Time, a []value) value {
			return s.zoned(t, a[2:], func(t time.Time) value { return s.part(t, a[1]) })
		}), kindNumber, kindString)},
	{Name: "DATE_PART_STR", Family: FamilyDate, Params: `date, "part"`, Min: 2, Max: 2, newly: checkPart(1, partsOfDates),
		About:   "Like DATE_PART_MILLIS, for a date as text, in its own zone.",
		Example: Example{`DATE_PART_STR("2024-02-29T23:00:00-05:00", "day")`, `29`},
		eval: onDate(func(s *Scratch, t time.Time, _ string, a []value) value {
			return s.part(t, a[1])
		})},
	{Name: "DATE_RANGE_MILLIS", Family: FamilyDate, Params: `millis, millis, "part" [, n]`, Min: 3, Max: 4,
		newly: checkPart(2, lengths), About: "The dates from the first up to the second, which is excluded, n parts apart " +
			"(default 1).",
		Example: Example{`DATE_RANGE_MILLIS(0, 7200000, "hour")`, `[0,3600000]`},
		eval: onMillis(func(s *Scratch, t time.Time, a []value) value {
			u, ok := s.fromMillis(a[1])
			if !ok {
				return null
			}
			return s.dates(t, u, a[2:], func(t time.Time) value { return s.millis(t, true) })
		})},
	{Name: "DATE_RANGE_STR", Family: FamilyDate, Params: `date, date, "part" [, n]`, Min: 3, Max: 4,
		newly: checkPart(2, lengths), About: "Like DATE_RANGE_MILLIS, for dates as texts, in the form of the first.",
		Example: Example{`DATE_RANGE_STR("2024-01-01", "2024-01-04", "day", 2)`, `["2024-01-01","2024-01-03"]`},
		eval: onDate(func(s *Scratch, t time.Time, form string, a []value) value {
			u, _, ok := parseDate(a[1])
			if !ok {
				return null
			}
			return s.dates(t, u, a[2:], func(t time.Time) value { return s.date(t, true)(made(form)) })
		})},
	{Name: "DATE_TRUNC_MILLIS", Family: FamilyDate, Params: `millis, "part"`, Min: 2, Max: 2,
		newly: checkPart(1, lengths), About: "The beginning of the part that contains the date; a week begins on Monday.",
		Example: Example{`DATE_TRUNC_MILLIS(90000000, "day")`, `86400000`},
		eval: onMillis(func(s *Scratch, t time.Time, a []value) value {
			return s.millis(truncate(t, a[1]))
		})},
	{Name: "DATE_TRUNC_STR", Family: FamilyDate, Params: `date, "part"`, Min: 2, Max: 2, newly: checkPart(1, lengths),
		About:   "Like DATE_TRUNC_MILLIS, for a date as text, in its own zone.",
		Example: Example{`DATE_TRUNC_STR("2024-02-29T08:07:06.123Z", "month")`, `"2024-02-01T00:00:00Z"`},
		eval:    onDate(truncatedText)},
	{Name: "DURATION_TO_STR", Family: FamilyDate, Params: "nanos", Min: 1, Max: 1,
		About:   "A number of nanoseconds as a duration.",
		Example: Example{`DURATION_TO_STR(5430000000000)`, `"1h30m30s"`}, eval: number1(func(s *Scratch, n number) value {
			d, ok := n.truncated()
			if !ok {
				return null
			}
			return s.str([]byte(time.Duration(d).String()))
		})},
	{Name: "MILLIS_TO_STR", Aliases: []string{"MILLIS_TO_UTC", "MILLIS_TO_LOCAL"}, Family: FamilyDate,
		Params: "millis [, example]", Min: 1, Max: 2, newly: checkForm, About: "The date as text in UTC, in the form of " +
			"the example.",
		Example: Example{`MILLIS_TO_STR(1500)`, `"1970-01-01T00:00:01.5Z"`},
		eval: onMillis(func(s *Scratch, t time.Time, a []value) value {
			if len(a) == 1 {
				return s.date(t, true)(formFull)
			}
			return s.like(t, a[1])
		})},
	{Name: "MILLIS_TO_TZ", Aliases: []string{"MILLIS_TO_ZONE_NAME"}, Family: FamilyDate,
		Params: "millis, zone [, example]", Min: 2, Max: 3, newly: checkFormAt(2),
		About:   "Like MILLIS_TO_STR, in a zone of the time zone database.",
		Example: Example{`MILLIS_TO_TZ(0, "America/New_York")`, `"1969-12-31T19:00:00-05:00"`},
		eval: onMillis(func(s *Scratch, t time.Time, a []value) value {
			if len(a) == 3 && a[2].kind != kindString {
				return null
			}
			return s.zoned(t, a[1:2], func(t time.Time) value {
				if len(a) == 2 {
					return s.date(t, true)(formFull)
				}
				return s.like(t, a[2])
			})
		})},
	{Name: "STR_TO_DURATION", Family: FamilyDate, Params: "duration", Min: 1, Max: 1,
		About:   "A duration, such as 1h30m or 1.5s, in nanoseconds.",
		Example: Example{`STR_TO_DURATION("1m1.5s")`, `61500000000`}, eval: text1(func(s *Scratch, t []byte) value {
			d, err := time.ParseDuration(string(t))
			if err != nil {
				return null
			}
			return s.integer(int64(d))
		})},
	{Name: "STR_TO_MILLIS", Aliases: []string{"MILLIS"}, Family: FamilyDate, Params: "date", Min: 1, Max: 1,
		About:   "The date as milliseconds since 1970.",
		Example: Example{`STR_TO_MILLIS("1970-01-02")`, `86400000`},
		eval: onDate(func(s *Scratch, t time.Time, _ string, _ []value) value {
			return s.millis(t, true)
		})},
	{Name: "STR_TO_TZ", Aliases: []string{"STR_TO_ZONE_NAME"}, Family: FamilyDate, Params: "date, zone", Min: 2, Max: 2,
		About:   "The same moment in a zone of the time zone database.",
		Example: Example{`STR_TO_TZ("2024-07-01T00:00:00Z", "Europe/Berlin")`, `"2024-07-01T02:00:00+02:00"`},
		eval: onDate(func(s *Scratch, t time.Time, form string, a []value) value {
			return s.zoned(t, a[1:], func(t time.Time) value { return s.date(t, true)(form) })
		})},
	{Name: "STR_TO_UTC", Family: FamilyDate, Params: "date", Min: 1, Max: 1, About: "The same moment in UTC.",
		Example: Example{`STR_TO_UTC("2024-02-29T23:00:00-05:00")`, `"2024-03-01T04:00:00Z"`},
		eval: onDate(func(s *Scratch, t time.Time, form string, _ []value) value {
			return s.date(t.UTC(), true)(form)
		})},
	{Name: "WEEKDAY_MILLIS", Family: FamilyDate, Params: "millis [, zone]", Min: 1, Max: 2, lenient: true,
		About:   "The English name of the day of the week, in UTC or the zone.",
		Example: Example{`WEEKDAY_MILLIS(0, "America/New_York")`, `"Wednesday"`},
		eval: typed(onMillis(func(s *Scratch, t time.Time, a []value) value {
			return s.zoned(t, a[1:], weekday)
		}), kindNumber)},
	{Name: "WEEKDAY_STR", Family: FamilyDate, Params: "date", Min: 1, Max: 1,
		About:   "The English name of the day of the week.",
		Example: Example{`WEEKDAY_STR("2024-02-29")`, `"Thursday"`},
		eval: onDate(func(_ *Scratch, t time.Time, _ string, _ []value) value {
			return weekday(t)
		})},
}

func weekday(t time.Time) value { return value{kindString, []byte(t.Weekday().String())} }

// typed makes a function whose first arguments must have these kinds before the others are checked: the first
// MISSING, otherwise the first wrong kind, determines the result.
func typed(f evaluation, kinds ...collate.Kind) evaluation {
	return func(s *Scratch, a []value) value {
		n := min(len(kinds), len(a))
		for _, v := range a[:n] {
			if v.kind == kindMissing {
				return missing
			}
		}
		for i, v := range a[:n] {
			if v.kind != kinds[i] {
				return null
			}
		}
		for _, v := range a[n:] {
			if v.kind == kindMissing {
				return missing
			}
		}
		return f(s, a)
	}
}

// maxDateBytes bounds dates as text, and names of zones and parts.
const maxDateBytes = 64

// maxMillis bounds dates to the range of time.Time.
const maxMillis = 1 << 63

// parseDate parses a date as text and returns its form. It is strict, and does not use the local zone: a date means
// the same in every process.
func parseDate(v value) (t time.Time, form string, ok bool) {
	if v.kind != kindString || len(v.data) > maxDateBytes {
		return t, "", false
	}
	r := dateReader{text: string(v.data)}
	year, month, day := 0, 1, 1
	form = formTime
	if !r.atHour() {
		year, month, day = r.digits(4), r.mark("-").digits(2), r.mark("-").digits(2)
		form = r.separator()
	}
	var hour, minute, second, nanoseconds int
	zone := time.UTC
	if form != formDay {
		hour, minute, second, nanoseconds = r.clock()
		if r.text != "" {
			form += formZone
			zone = r.zone()
		}
	}
	t = time.Date(year, time.Month(month), day, hour, minute, second, nanoseconds, zone)
	return t, form, !r.wrong && r.text == "" && t.Day() == day && t.Month() == time.Month(month)
}

// made returns the form of a date computed from one of this form: the full form if it has a zone.
func made(form string) string {
	if strings.HasSuffix(form, formZone) {
		return formFull
	}
	return form
}

// dateReader parses a date from left to right.
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

// atHour reports whether a time of day follows, instead of a date.
func (r *dateReader) atHour() bool {
	return len(r.text) >= 3 && (r.text[2] == ':' || r.text[1] == ':')
}

// separator parses the separator of date and time of day, and returns the form of both; at the end of the text, that
// of the date alone.
func (r *dateReader) separator() (form string) {
	switch {
	case r.wrong || r.text == "":
		return formDay
	case r.text[0] == 'T':
		form = formT
	case r.text[0] == ' ':
		form = formSpace
	default:
		r.wrong = true
		return formDay
	}
	r.text = r.text[1:]
	return form
}

// clock parses a time of day.
func (r *dateReader) clock() (hour, minute, second, nanoseconds int) {
	hour, minute, second = r.hour(), r.mark(":").digits(2), r.mark(":").digits(2)
	if r.text != "" && strings.ContainsRune(".,", rune(r.text[0])) {
		nanoseconds = r.fraction()
	}
	r.wrong = r.wrong || hour > 23 || minute > 59 || second > 59
	return hour, minute, second, nanoseconds
}

// hour parses one or two digits.
func (r *dateReader) hour() int {
	if len(r.text) > 1 && isDigit(r.text[1]) {
		return r.digits(2)
	}
	return r.digits(1)
}

// fraction parses a point or comma and digits; digits beyond nanoseconds are ignored.
func (r *dateReader) fraction() (nanoseconds int) {
	r.text = r.text[1:]
	digits := len(r.text) - len(strings.TrimLeft(r.text, "0123456789"))
	if digits == 0 {
		r.wrong = true
		return 0
	}
	for i, scale := 0, 100_000_000; i < min(digits, 9); i, scale = i+1, scale/10 {
		nanoseconds += int(r.text[i]-'0') * scale
	}
	r.text = r.text[digits:]
	return nanoseconds
}

// zone parses Z or ±hh:mm.
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
	if hours > 24 || minutes > 60 {
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
	if !ok || math.Abs(n.f) > maxMillis {
		return t, false
	}
	if n.isInt && math.Abs(n.f) < 1<<53 {
		return time.UnixMilli(n.i).UTC(), true
	}
	return time.Unix(int64(n.f/1000), int64(math.Mod(n.f, 1000)*1_000_000)).UTC(), true
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

func onDate(f func(s *Scratch, t time.Time, form string, a []value) value) evaluation {
	return func(s *Scratch, a []value) value {
		t, form, ok := parseDate(a[0])
		if !ok {
			return null
		}
		return f(s, t, form, a)
	}
}

// zoned calls f with the time converted to the zone, if one is given.
func (s *Scratch) zoned(t time.Time, zone []value, f func(time.Time) value) value {
	if len(zone) > 0 {
		location, ok := s.zoneNamed(zone[0])
		if !ok {
			return null
		}
		t = t.In(location)
	}
	return f(t)
}

// millis returns a date as a number of milliseconds: whole seconds, and the fraction rounded to milliseconds.
func (s *Scratch) millis(t time.Time, ok bool) value {
	if !ok {
		return null
	}
	return s.float(wholeMillis(t))
}

// wholeMillis returns a date in milliseconds. A fraction that rounds up to a whole second counts as 0, as in
// Couchbase.
func wholeMillis(t time.Time) float64 {
	return float64(t.Unix()*1000) + float64(t.Round(time.Millisecond).Nanosecond()/1_000_000)
}

// date formats a date.
func (s *Scratch) date(t time.Time, ok bool) func(form string) value {
	return func(form string) value {
		if !ok {
			return null
		}
		start := len(s.temp)
		s.temp = t.AppendFormat(s.temp, form)
		return s.fresh(kindString, start)
	}
}

// like formats a date in the form of an example; an example that is not a date means the full form.
func (s *Scratch) like(t time.Time, example value) value {
	if example.kind != kindString {
		return null
	}
	_, form, ok := parseDate(example)
	if !ok {
		form = formFull
	}
	return s.date(t, true)(form)
}

// fixed returns the duration of a part that always has the same one; 0 for others.
func fixed(part string) time.Duration {
	switch part {
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

// calendar returns the years, months and days of the other parts.
func calendar(part string) (years, months, days int) {
	switch part {
	case "millennium":
		return 1000, 0, 0
	case "century":
		return 100, 0, 0
	case "decade":
		return 10, 0, 0
	case "year":
		return 1, 0, 0
	case "quarter":
		return 0, 3, 0
	case "month":
		return 0, 1, 0
	case "week":
		return 0, 0, 7
	case "day":
		return 0, 0, 1
	}
	return 0, 0, 0
}

// partName returns the name of a part; "" if the argument cannot be one.
func partName(v value) string {
	if v.kind != kindString || len(v.data) > maxDateBytes {
		return ""
	}
	return strings.ToLower(string(v.data))
}

// lengths are the parts by which a date can be moved, partsOfDates those that can be extracted.
const (
	lengths      = "millennium, century, decade, year, quarter, month, week, day, hour, minute, second, millisecond"
	partsOfDates = lengths + ", iso_year, iso_week, day_of_year, doy, day_of_week, dow, iso_dow, timezone, " +
		"timezone_hour, timezone_minute"
)

// checkPart returns a check that a literal argument names a known part.
func checkPart(argument int, known string) func(args []Expr) string {
	return func(args []Expr) string {
		l, ok := args[argument].(*Literal)
		if !ok || l.Kind == kindString && slices.Contains(strings.Split(known, ", "), strings.ToLower(l.Text)) {
			return ""
		}
		return fmt.Sprintf("%s is not a part of a date here; known: %s", l, known)
	}
}

// checkForm checks that a literal example is a date.
func checkForm(args []Expr) string { return checkFormAt(1)(args) }

func checkFormAt(argument int) func(args []Expr) string {
	return func(args []Expr) string {
		if len(args) <= argument {
			return ""
		}
		l, ok := args[argument].(*Literal)
		if !ok {
			return ""
		}
		if _, _, fine := parseDate(value{l.Kind, []byte(l.Text)}); fine {
			return ""
		}
		return fmt.Sprintf(
			`%s is not a date; give the form by an example, such as "1111-11-11", "1111-11-11 11:11:11" `+
				`or "1111-11-11T11:11:11.111Z"`, l)
	}
}

// maxYears bounds dates to the range of time.Time.
const maxYears = 100_000_000

// later computes DATE_ADD.
func (s *Scratch) later(t time.Time, count, part value) (time.Time, bool) {
	n, ok := s.whole(count)
	if !ok {
		return t, false
	}
	return move(t, n, partName(part))
}

func move(t time.Time, n int64, part string) (time.Time, bool) {
	if unit := fixed(part); unit != 0 {
		if n > math.MaxInt64/int64(unit) || n < math.MinInt64/int64(unit) {
			return t, false
		}
		return t.Add(time.Duration(n) * unit), true
	}
	years, months, days := calendar(part)
	if years+months+days == 0 || n > maxYears || n < -maxYears || t.Year()+years*int(n) > maxYears ||
		t.Year()+years*int(n) < -maxYears {
		return t, false
	}
	return t.AddDate(years*int(n), months*int(n), days*int(n)), true
}

// dates computes DATE_RANGE; rest is the part, and the step if there is one.
func (s *Scratch) dates(from, to time.Time, rest []value, f func(time.Time) value) value {
	step, ok := int64(1), true
	if len(rest) == 2 {
		step, ok = s.whole(rest[1])
	}
	part := partName(rest[0])
	if !ok || rest[0].kind != kindString {
		return null
	}
	base := len(s.stack)
	defer func() { s.stack = s.stack[:base] }()
	if from.Equal(to) || from.After(to) == (step > 0) || step == 0 {
		return s.list(nil)
	}
	end := wholeMillis(to)
	for at := from; step > 0 && wholeMillis(at) < end || step < 0 && wholeMillis(at) > end; {
		if len(s.stack)-base == DefaultKeys {
			s.fail(tooLarge("DATE_RANGE"))
			return missing
		}
		s.stack = append(s.stack, f(at))
		if at, ok = move(at, step, part); !ok {
			return null
		}
	}
	return s.list(s.stack[base:])
}

func differenceMillis(absolute bool) func(s *Scratch, t time.Time, a []value) value {
	return func(s *Scratch, t time.Time, a []value) value {
		u, ok := s.fromMillis(a[1])
		if !ok {
			return null
		}
		return s.difference(t, u, a[2], absolute)
	}
}

func differenceText(absolute bool) func(s *Scratch, t time.Time, form string, a []value) value {
	return func(s *Scratch, t time.Time, _ string, a []value) value {
		u, _, ok := parseDate(a[1])
		if !ok {
			return null
		}
		return s.difference(t, u, a[2], absolute)
	}
}

// wall returns the local calendar date and clock time of t, as a time in UTC.
func wall(t time.Time) time.Time {
	year, month, day := t.Date()
	return time.Date(year, month, day, t.Hour(), t.Minute(), t.Second(), t.Nanosecond(), time.UTC)
}

// difference computes DATE_DIFF, from the local dates and times of both.
func (s *Scratch) difference(t, u time.Time, part value, absolute bool) value {
	t, u = wall(t), wall(u)
	sign := int64(1)
	if t.Before(u) {
		t, u, sign = u, t, -1
	}
	n, ok := parts(t, u, partName(part))
	if !ok {
		return null
	}
	if n *= sign; absolute && n < 0 {
		n = -n
	}
	return s.integer(n)
}

// parts returns the number of parts between two dates, each truncated to the part that contains it.
func parts(t, u time.Time, part string) (int64, bool) {
	years, days := int64(t.Year()-u.Year()), days(t, u)
	switch part {
	case "millennium":
		return years / 1000, true
	case "century":
		return years / 100, true
	case "decade":
		return years / 10, true
	case "year":
		return years, true
	case "quarter":
		return years*4 + int64(t.Month()+2)/3 - int64(u.Month()+2)/3, true
	case "month":
		return years*12 + int64(t.Month()-u.Month()), true
	case "week":
		return days / 7, true
	case "day":
		return days, true
	}
	n := days*24 + int64(t.Hour()-u.Hour())
	if part == "hour" {
		return n, true
	}
	n = n*60 + int64(t.Minute()-u.Minute())
	if part == "minute" {
		return n, true
	}
	n = n*60 + int64(t.Second()-u.Second())
	if part == "second" {
		return n, true
	}
	return n*1000 + int64(t.Nanosecond()/1_000_000-u.Nanosecond()/1_000_000), part == "millisecond"
}

// days returns the number of days between two dates. Between different years, each year has 365 days plus the leap
// days before it, by a rule in which the year 0 has none.
func days(t, u time.Time) int64 {
	n := int64(t.YearDay() - u.YearDay())
	if t.Year() != u.Year() {
		n += 365*int64(t.Year()-u.Year()) + leapsBefore(t.Year()) - leapsBefore(u.Year())
	}
	return n
}

func leapsBefore(year int) int64 {
	y := int64(year) - 1
	if year <= 0 {
		y = int64(year) + 1
	}
	return y/4 - y/100 + y/400
}

// part computes DATE_PART.
func (s *Scratch) part(t time.Time, part value) value {
	of, known := dateParts[partName(part)]
	if !known {
		return null
	}
	return s.integer(int64(of(t)))
}

// dateParts maps the parts of DATE_PART to their values.
var dateParts = map[string]func(time.Time) int{
	"millennium":      func(t time.Time) int { return t.Year()/1000 + 1 },
	"century":         func(t time.Time) int { return t.Year()/100 + 1 },
	"decade":          func(t time.Time) int { return t.Year() / 10 },
	"year":            time.Time.Year,
	"quarter":         func(t time.Time) int { return (int(t.Month()) + 2) / 3 },
	"month":           func(t time.Time) int { return int(t.Month()) },
	"week":            func(t time.Time) int { return (t.YearDay() + 6) / 7 },
	"day":             time.Time.Day,
	"hour":            time.Time.Hour,
	"minute":          time.Time.Minute,
	"second":          time.Time.Second,
	"millisecond":     func(t time.Time) int { return t.Nanosecond() / int(time.Millisecond) },
	"iso_year":        func(t time.Time) int { year, _ := t.ISOWeek(); return year },
	"iso_week":        func(t time.Time) int { _, week := t.ISOWeek(); return week },
	"iso_dow":         func(t time.Time) int { return (int(t.Weekday())+6)%7 + 1 },
	"day_of_year":     time.Time.YearDay,
	"doy":             time.Time.YearDay,
	"day_of_week":     func(t time.Time) int { return int(t.Weekday()) },
	"dow":             func(t time.Time) int { return int(t.Weekday()) },
	"timezone":        zoneOffset,
	"timezone_hour":   func(t time.Time) int { return zoneOffset(t) / 3600 },
	"timezone_minute": func(t time.Time) int { return zoneOffset(t) % 3600 / 60 },
}

func zoneOffset(t time.Time) int {
	_, offset := t.Zone()
	return offset
}

// truncatedText computes DATE_TRUNC_STR: it truncates the local time, and keeps the text of the zone.
func truncatedText(s *Scratch, t time.Time, form string, a []value) value {
	bare, zoned := strings.CutSuffix(form, formZone)
	cut, ok := truncate(wall(t), a[1])
	if !ok {
		return null
	}
	start := len(s.temp)
	s.temp = cut.AppendFormat(s.temp, bare)
	if zoned {
		text := a[0].data
		s.temp = append(s.temp, text[strings.LastIndexAny(string(text), "Z+-"):]...)
	}
	return s.fresh(kindString, start)
}

// truncate computes DATE_TRUNC.
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
		ns -= ns % int(time.Millisecond)
	default:
		return t, false
	}
	return time.Date(year, month, day, hour, minute, second, ns, t.Location()), true
}
