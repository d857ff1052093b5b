package expression

import (
	"bytes"
	"fmt"
	"regexp"
	"regexp/syntax"
	"unicode"
	"unicode/utf8"
)

// text1 makes a function of one string; NULL for anything else.
func text1(f func(s *Scratch, t []byte) value) evaluation {
	return func(s *Scratch, a []value) value {
		if a[0].kind != kindString {
			return null
		}
		return f(s, a[0].data)
	}
}

// text2 makes a function of two strings; NULL for anything else.
func text2(f func(s *Scratch, t, u []byte) value) evaluation {
	return func(s *Scratch, a []value) value {
		if a[0].kind != kindString || a[1].kind != kindString {
			return null
		}
		return f(s, a[0].data, a[1].data)
	}
}

var stringFunctions = []*Function{
	{Name: "CONCAT", Family: FamilyString, Params: "text, text, …", Min: 2, Max: MaxArgs,
		About:   "The concatenated texts, as with ||.",
		Example: Example{`CONCAT(s, "-", "b")`, `"aß c-b"`}, eval: concatTexts},
	{Name: "CONCAT2", Family: FamilyString, Params: "text, value, …", Min: 2, Max: MaxArgs, lenient: true,
		About:   "The concatenated texts, including texts in arrays, separated by the first argument.",
		Example: Example{`CONCAT2("-", "a", ["b", "c"])`, `"a-b-c"`}, eval: concatWith},
	{Name: "CONTAINS", Family: FamilyString, Params: "text, text", Min: 2, Max: 2, About: "Whether the first text " +
		"contains the second.",
		Example: Example{`CONTAINS(s, "ß")`, `true`}, eval: text2(func(_ *Scratch, t, u []byte) value {
			return boolean(bytes.Contains(t, u))
		})},
	{Name: "CONTAINS_TOKEN", Aliases: []string{"HAS_TOKEN"}, Family: FamilyString, Params: "value, text [, options]",
		Min: 2, Max: 3, newly: checkTokens(2), lenient: true, About: "Whether the value is among the TOKENS of another, " +
			"with the same options.",
		Example: Example{`CONTAINS_TOKEN(s, "c")`, `true`},
		eval: containsToken(func(s *Scratch, a []value, token value) bool {
			return s.equal(a[1], token).kind == kindTrue
		}, 0)},
	{Name: "CONTAINS_TOKEN_LIKE", Family: FamilyString, Params: "value, like [, options]", Min: 2, Max: 3,
		newly: checkTokens(2), lenient: true, About: "Whether one of the TOKENS that are strings is LIKE a pattern.",
		Example: Example{`CONTAINS_TOKEN_LIKE(s, "a_")`, `true`},
		eval: containsToken(func(s *Scratch, a []value, token value) bool {
			if token.kind != kindString {
				return false
			}
			fits, work := matchLike(token.data, a[1].data, []byte{'\\'}, s.steps*stepBytes)
			return s.spend(1+work/stepBytes) && fits
		}, kindString)},
	{Name: "INITCAP", Aliases: []string{"TITLE"}, Family: FamilyString, Params: "text", Min: 1, Max: 1,
		About: "Each word with its first letter in upper case and the others in lower case. Words are separated by white " +
			"space, and by all ASCII characters except letters, digits and _.",
		Example: Example{`INITCAP("hello WORLD")`, `"Hello World"`}, eval: text1(initcap)},
	{Name: "LENGTH", Family: FamilyString, Params: "text", Min: 1, Max: 1, About: "The length in bytes of UTF-8.",
		Example: Example{`LENGTH(s)`, `5`}, eval: text1(func(s *Scratch, t []byte) value {
			return s.integer(int64(len(t)))
		})},
	{Name: "LOWER", Family: FamilyString, Params: "text", Min: 1, Max: 1, About: "All letters in lower case.",
		Example: Example{`LOWER("ÀB")`, `"àb"`}, eval: text1(lower)},
	{Name: "LPAD", Aliases: []string{"MB_LPAD"}, Family: FamilyString, Params: "text, length [, with]", Min: 2, Max: 3,
		About: "The text padded on the left to this number of characters, with spaces or the given text; a longer text " +
			"is cut.",
		Example: Example{`LPAD("7", 3, "0")`, `"007"`}, eval: pad(true)},
	{Name: "LTRIM", Family: FamilyString, Params: "text [, characters]", Min: 1, Max: 2,
		About:   "The text without white space, or these characters, on the left.",
		Example: Example{`LTRIM("xxay", "x")`, `"ay"`}, eval: trim(true, false)},
	{Name: "MB_LENGTH", Family: FamilyString, Params: "text", Min: 1, Max: 1, About: "The length in characters.",
		Example: Example{`MB_LENGTH(s)`, `4`}, eval: text1(func(s *Scratch, t []byte) value {
			return s.integer(int64(utf8.RuneCount(t)))
		})},
	{Name: "MB_POSITION", Aliases: []string{"MB_POSITION0", "MB_POS", "MB_POS0"}, Family: FamilyString,
		Params: "text, text", Min: 2, Max: 2, About: "Like POSITION, in characters.",
		Example: Example{`MB_POSITION(s, "c")`, `3`}, eval: text2(func(s *Scratch, t, u []byte) value {
			return s.integer(characters(t, bytes.Index(t, u)))
		})},
	{Name: "MB_POSITION1", Aliases: []string{"MB_POS1"}, Family: FamilyString, Params: "text, text", Min: 2, Max: 2,
		About:   "Like POSITION1, in characters.",
		Example: Example{`MB_POSITION1(s, "c")`, `4`}, eval: text2(func(s *Scratch, t, u []byte) value {
			return s.integer(characters(t, bytes.Index(t, u)) + 1)
		})},
	{Name: "MB_SUBSTR", Aliases: []string{"MB_SUBSTR0"}, Family: FamilyString, Params: "text, from [, length]", Min: 2,
		Max: 3, About: "Like SUBSTR, in characters.",
		Example: Example{`MB_SUBSTR(s, 1, 2)`, `"ß "`}, eval: substr(0, true)},
	{Name: "MB_SUBSTR1", Family: FamilyString, Params: "text, from [, length]", Min: 2, Max: 3,
		About:   "Like SUBSTR1, in characters.",
		Example: Example{`MB_SUBSTR1(s, 2, 2)`, `"ß "`}, eval: substr(1, true)},
	{Name: "POSITION", Aliases: []string{"POSITION0", "POS", "POS0"}, Family: FamilyString, Params: "text, text", Min: 2,
		Max:     2,
		About:   "The position in bytes of the second text in the first, from 0; -1 if it does not occur there.",
		Example: Example{`POSITION("banana", "na")`, `2`}, eval: text2(func(s *Scratch, t, u []byte) value {
			return s.integer(int64(bytes.Index(t, u)))
		})},
	{Name: "POSITION1", Aliases: []string{"POS1"}, Family: FamilyString, Params: "text, text", Min: 2, Max: 2,
		About:   "Like POSITION, from 1; 0 if there is none.",
		Example: Example{`POSITION1("banana", "na")`, `3`}, eval: text2(func(s *Scratch, t, u []byte) value {
			return s.integer(int64(bytes.Index(t, u)) + 1)
		})},
	{Name: "REPEAT", Family: FamilyString, Params: "text, times", Min: 2, Max: 2, About: "The text repeated this " +
		"number of times.",
		Example: Example{`REPEAT("ab", 3)`, `"ababab"`}, eval: repeat},
	{Name: "REPLACE", Family: FamilyString, Params: "text, old, new [, times]", Min: 3, Max: 4, lenient: true,
		About:   "The text with all occurrences of old, or the first ones, as many as times says, replaced by new.",
		Example: Example{`REPLACE("banana", "an", "-", 1)`, `"b-ana"`}, eval: counted(replace)},
	{Name: "REVERSE", Family: FamilyString, Params: "text", Min: 1, Max: 1,
		About:   "The characters in reverse order.",
		Example: Example{`REVERSE(s)`, `"c ßa"`}, eval: text1(reverse)},
	{Name: "RPAD", Aliases: []string{"MB_RPAD"}, Family: FamilyString, Params: "text, length [, with]", Min: 2, Max: 3,
		About:   "Like LPAD, on the right.",
		Example: Example{`RPAD("7", 3, "ab")`, `"7ab"`}, eval: pad(false)},
	{Name: "RTRIM", Family: FamilyString, Params: "text [, characters]", Min: 1, Max: 2,
		About:   "The text without white space, or these characters, on the right.",
		Example: Example{`RTRIM("a  ")`, `"a"`}, eval: trim(false, true)},
	{Name: "SPLIT", Family: FamilyString, Params: "text [, at]", Min: 1, Max: 2,
		About:   "The parts between the separators, or between white space.",
		Example: Example{`SPLIT("a,b", ",")`, `["a","b"]`}, eval: split},
	{Name: "SUBSTR", Aliases: []string{"SUBSTR0"}, Family: FamilyString, Params: "text, from [, length]", Min: 2, Max: 3,
		About: "The bytes from a position on, counted from 0, or from the end if negative. NULL for a position outside " +
			"the text.",
		Example: Example{`SUBSTR("banana", 2, 3)`, `"nan"`}, eval: substr(0, false)},
	{Name: "SUBSTR1", Family: FamilyString, Params: "text, from [, length]", Min: 2, Max: 3,
		About:   "Like SUBSTR, counted from 1.",
		Example: Example{`SUBSTR1("banana", 2, 3)`, `"ana"`}, eval: substr(1, false)},
	{Name: "SUFFIXES", Family: FamilyString, Params: "text", Min: 1, Max: 1,
		About:   "All suffixes of the text: from each of its characters to the end.",
		Example: Example{`SUFFIXES("abc")`, `["abc","bc","c"]`}, eval: text1(suffixes)},
	{Name: "TOKENS", Family: FamilyString, Params: "value [, options]", Min: 1, Max: 2, newly: checkTokens(1), nulls: true,
		About: `The distinct words (letters and digits) in a value at any depth, its numbers, booleans and NULL, ` +
			`and the names of its members, in collation order. {"case": "lower"} or "upper" changes the words, ` +
			`{"names": false} omits the names, {"specials": true} adds the pieces between blanks and brackets, such ` +
			`as e-mail addresses, {"split": false} makes each text one token, without the blanks around it unless ` +
			`{"trim": false}.`,
		Example: Example{`TOKENS(["Nice, côte d'Azur", 7], {"case": "lower"})`, `[7,"azur","côte","d","nice"]`},
		eval:    tokens},
	{Name: "TRIM", Family: FamilyString, Params: "text [, characters]", Min: 1, Max: 2,
		About:   "The text without white space, or these characters, on both sides.",
		Example: Example{`TRIM("  a ")`, `"a"`}, eval: trim(true, true)},
	{Name: "UPPER", Family: FamilyString, Params: "text", Min: 1, Max: 1, About: "All letters in upper case.",
		Example: Example{`UPPER("àb")`, `"ÀB"`}, eval: text1(upper)},
}

var patternFunctions = []*Function{
	{Name: "REGEXP_CONTAINS", Aliases: []string{"REGEX_CONTAINS", "CONTAINS_REGEX", "CONTAINS_REGEXP"},
		Family: FamilyString, Params: `text, "pattern"`, Min: 2, Max: 2,
		About:   "Whether a part of the text matches the pattern (RE2 syntax). The pattern must be a literal.",
		Example: Example{`REGEXP_CONTAINS("banana", "n.n")`, `true`}, constant: []int{1},
		prepare: pattern(func(r *regexp.Regexp) evaluation {
			return text1(func(_ *Scratch, t []byte) value { return boolean(r.Match(t)) })
		})},
	{Name: "REGEXP_LIKE", Aliases: []string{"REGEX_LIKE"}, Family: FamilyString, Params: `text, "pattern"`, Min: 2,
		Max: 2, About: "Whether the whole text matches the pattern.",
		Example: Example{`REGEXP_LIKE("banana", "b.*a")`, `true`}, constant: []int{1}, prepare: wholePattern},
	{Name: "CONTAINS_TOKEN_REGEXP", Aliases: []string{"CONTAINS_TOKEN_REGEX"}, Family: FamilyString,
		Params: `value, "pattern" [, options]`, Min: 2, Max: 3, newly: checkTokens(2), lenient: true,
		About:   "Whether one of the TOKENS that are strings matches a pattern as a whole.",
		Example: Example{`CONTAINS_TOKEN_REGEXP(s, "[a-d]")`, `true`}, constant: []int{1}, prepare: tokenPattern},
	{Name: "REGEXP_MATCHES", Family: FamilyString, Params: `text, "pattern"`, Min: 2, Max: 2,
		About:   "The parts of the text that match the pattern.",
		Example: Example{`REGEXP_MATCHES("banana", "[an]{2}")`, `["an","an"]`}, constant: []int{1},
		prepare: pattern(func(r *regexp.Regexp) evaluation {
			return text1(func(s *Scratch, t []byte) value {
				fits, ok := s.fits("REGEXP_MATCHES", r, t, -1)
				if !ok {
					return missing
				}
				return s.cut(t, fits)
			})
		})},
	{Name: "REGEXP_POSITION", Aliases: []string{"REGEXP_POSITION0", "REGEXP_POS", "REGEXP_POS0", "REGEX_POSITION",
		"REGEX_POSITION0", "REGEX_POS", "REGEX_POS0"}, Family: FamilyString, Params: `text, "pattern"`, Min: 2, Max: 2,
		About:   "The position in bytes of the first match of the pattern, from 0; else -1.",
		Example: Example{`REGEXP_POSITION("banana", "n.n")`, `2`}, constant: []int{1}, prepare: patternPosition(0)},
	{Name: "REGEXP_POSITION1", Aliases: []string{"REGEXP_POS1", "REGEX_POSITION1", "REGEX_POS1"}, Family: FamilyString,
		Params: `text, "pattern"`, Min: 2, Max: 2, About: "Like REGEXP_POSITION, from 1; also -1 if there is no match.",
		Example: Example{`REGEXP_POSITION1("banana", "n.n")`, `3`}, constant: []int{1}, prepare: patternPosition(1)},
	{Name: "REGEXP_REPLACE", Aliases: []string{"REGEX_REPLACE"}, Family: FamilyString,
		Params: `text, "pattern", new [, times]`, Min: 3, Max: 4, lenient: true,
		About: "The text with all matches of the pattern, or the first ones, as many as times says, replaced by " +
			"new, which is used literally.",
		Example: Example{`REGEXP_REPLACE("banana", "a.", "$1", 1)`, `"b$1ana"`}, constant: []int{1},
		prepare: pattern(func(r *regexp.Regexp) evaluation {
			return counted(func(s *Scratch, a []value) value {
				if len(a[0].data)*(len(a[2].data)+1) > maxTemp {
					s.fail(tooLarge("REGEXP_REPLACE"))
					return missing
				}
				times := int64(-1)
				if len(a) == 4 {
					n, ok := s.whole(a[3])
					if !ok {
						return null
					}
					times = max(0, n)
				}
				return s.replaceFits(r, a[0].data, a[2].data, times)
			})
		})},
	{Name: "REGEXP_SPLIT", Family: FamilyString, Params: `text, "pattern"`, Min: 2, Max: 2,
		About:   "The parts of the text between the matches of the pattern.",
		Example: Example{`REGEXP_SPLIT("a1b22c", "[0-9]+")`, `["a","b","c"]`}, constant: []int{1},
		prepare: pattern(func(r *regexp.Regexp) evaluation {
			return text1(func(s *Scratch, t []byte) value {
				fits, ok := s.fits("REGEXP_SPLIT", r, t, -1)
				if !ok {
					return missing
				}
				between := [][]int(nil)
				at := 0
				for _, fit := range fits {
					between, at = append(between, []int{at, fit[0]}), fit[1]
				}
				if len(between) > 0 && at < len(t) {
					between = append(between, []int{at, len(t)})
				}
				return s.cut(t, between)
			})
		})},
}

// cut returns an array of parts of a text.
func (s *Scratch) cut(t []byte, parts [][]int) value {
	base := len(s.stack)
	for _, part := range parts {
		if !s.spend(1) {
			break
		}
		s.stack = append(s.stack, value{kindString, t[part[0]:part[1]]})
	}
	v := s.list(s.stack[base:])
	s.stack = s.stack[:base]
	return v
}

func patternPosition(first int64) func([]string) (evaluation, error) {
	return pattern(func(r *regexp.Regexp) evaluation {
		return text1(func(s *Scratch, t []byte) value {
			at := r.FindIndex(t)
			if at == nil {
				return s.integer(-1)
			}
			return s.integer(int64(at[0]) + first)
		})
	})
}

// tokenPattern prepares CONTAINS_TOKEN_REGEXP.
func tokenPattern(constants []string) (evaluation, error) {
	whole, err := wholePattern(constants)
	if err != nil {
		return nil, err
	}
	return containsToken(func(s *Scratch, _ []value, token value) bool {
		return token.kind == kindString && whole(s, []value{token}).kind == kindTrue
	}, 0), nil
}

// Upper bounds of the memory of one match of a pattern, and of each group of the pattern: FindAllIndex also keeps the
// positions of the groups of all matches.
const (
	fitBytes   = 64
	groupBytes = 16
)

// fits returns the positions of at most times matches of a pattern; of all if times is negative. ok is false if there
// are more than the budget allows.
func (s *Scratch) fits(name string, r *regexp.Regexp, text []byte, times int64) ([][]int, bool) {
	most := int64(max(0, min(s.steps, maxTemp/(fitBytes+groupBytes*r.NumSubexp()))))
	if times < 0 || times > most {
		times = most + 1
	}
	all := r.FindAllIndex(text, int(times))
	if int64(len(all)) > most {
		s.fail(tooLarge(name))
		return nil, false
	}
	return all, s.spend(len(all))
}

// replaceFits replaces at most times matches of a pattern; all if times is negative.
func (s *Scratch) replaceFits(r *regexp.Regexp, text, with []byte, times int64) value {
	fits, ok := s.fits("REGEXP_REPLACE", r, text, times)
	if !ok {
		return missing
	}
	start, at := len(s.temp), 0
	for _, fit := range fits {
		s.temp = append(append(s.temp, text[at:fit[0]]...), with...)
		at = fit[1]
	}
	s.temp = append(s.temp, text[at:]...)
	return s.fresh(kindString, start)
}

func tooLarge(name string) error {
	return fmt.Errorf("%w: the result of %s is too large", ErrWork, name)
}

// maxPattern bounds the length of a regular expression.
const maxPattern = 1000

// pattern makes an evaluation with a literal regular expression. In the worst case, matching processes each byte once
// for each instruction of the compiled pattern.
func pattern(with func(*regexp.Regexp) evaluation) func([]string) (evaluation, error) {
	return func(constants []string) (evaluation, error) {
		if len(constants[0]) > maxPattern {
			return nil, fmt.Errorf("the pattern has %d bytes, at most %d", len(constants[0]), maxPattern)
		}
		r, err := regexp.Compile(constants[0])
		if err != nil {
			return nil, fmt.Errorf("the pattern is invalid: %w", err)
		}
		instructions, f := programSize(constants[0]), with(r)
		return func(s *Scratch, a []value) value {
			if !s.spend(len(a[0].data) * instructions / stepBytes) {
				return missing
			}
			return f(s, a)
		}, nil
	}
}

// programSize returns the number of instructions of a valid pattern.
func programSize(text string) int {
	tree, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return maxPattern
	}
	program, err := syntax.Compile(tree.Simplify())
	if err != nil {
		return maxPattern
	}
	return len(program.Inst)
}

func wholePattern(constants []string) (evaluation, error) {
	if _, err := pattern(func(*regexp.Regexp) evaluation { return nil })(constants); err != nil {
		return nil, err
	}
	return pattern(func(r *regexp.Regexp) evaluation {
		return text1(func(_ *Scratch, t []byte) value { return boolean(r.Match(t)) })
	})([]string{`^` + constants[0] + `$`})
}

func concatTexts(s *Scratch, a []value) value {
	start := len(s.temp)
	for _, v := range a {
		if v.kind != kindString {
			return null
		}
	}
	for _, v := range a {
		if !s.room(len(v.data)) {
			return missing
		}
		s.temp = append(s.temp, v.data...)
	}
	return s.fresh(kindString, start)
}

func isASCII(t []byte) bool {
	for _, c := range t {
		if c >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

func lower(s *Scratch, t []byte) value { return s.letters(t, 'A', 'Z', bytes.ToLower) }
func upper(s *Scratch, t []byte) value { return s.letters(t, 'a', 'z', bytes.ToUpper) }

// letters changes the case of the letters from first to last; a text that is not ASCII is converted by all.
func (s *Scratch) letters(t []byte, first, last byte, all func([]byte) []byte) value {
	if !isASCII(t) {
		return s.owned(all(t))
	}
	v := s.str(t)
	for i, c := range v.data {
		if c >= first && c <= last {
			v.data[i] = c ^ 0x20
		}
	}
	return v
}

func initcap(s *Scratch, t []byte) value {
	start, first := len(s.temp), true
	for _, r := range string(t) {
		if first {
			s.temp = utf8.AppendRune(s.temp, unicode.ToTitle(unicode.ToLower(r)))
		} else {
			s.temp = utf8.AppendRune(s.temp, unicode.ToLower(r))
		}
		first = betweenWords(r)
	}
	return s.fresh(kindString, start)
}

// betweenWords reports whether a character separates words, as in N1QL: in ASCII all but letters, digits and _;
// elsewhere white space.
func betweenWords(r rune) bool {
	if r < utf8.RuneSelf {
		return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r)
	}
	return unicode.IsSpace(r)
}

// reverse reverses a text, keeps combining marks after their character, and leaves out invalid UTF-8.
func reverse(s *Scratch, t []byte) value {
	start := len(s.temp)
	for end := len(t); end > 0; {
		r, n := utf8.DecodeLastRune(t[:end])
		begin := end - n
		for begin > 0 && unicode.Is(unicode.M, r) {
			before, n := utf8.DecodeLastRune(t[:begin])
			if before == utf8.RuneError { // the marks behind it stand alone
				break
			}
			r, begin = before, begin-n
		}
		if r != utf8.RuneError {
			s.temp = append(s.temp, t[begin:end]...)
		}
		end = begin
	}
	return s.fresh(kindString, start)
}

func suffixes(s *Scratch, t []byte) value {
	if utf8.RuneCount(t)*len(t)/2 > maxValue {
		s.fail(tooLarge("SUFFIXES"))
		return missing
	}
	base := len(s.stack)
	for i := 0; i < len(t); i += runeLen(t[i:]) {
		s.stack = append(s.stack, value{kindString, t[i:]})
	}
	v := s.list(s.stack[base:])
	s.stack = s.stack[:base]
	return v
}

func pad(left bool) evaluation {
	return func(s *Scratch, a []value) value {
		length, ok := s.whole(a[1])
		with := []byte(" ")
		if len(a) == 3 {
			if a[2].kind != kindString || len(a[2].data) == 0 {
				return null
			}
			with = a[2].data
		}
		if !ok || a[0].kind != kindString || length < 0 {
			return null
		}
		if length > maxValue/utf8.UTFMax {
			s.fail(tooLarge("LPAD or RPAD"))
			return missing
		}
		text := a[0].data
		missingRunes := int(length) - utf8.RuneCount(text)
		if missingRunes < 0 {
			return value{kindString, text[:runesEnd(text, int(length))]}
		}
		start := len(s.temp)
		if !left {
			s.temp = append(s.temp, text...)
		}
		for rest := with; missingRunes > 0; missingRunes-- {
			if len(rest) == 0 {
				rest = with
			}
			n := runeLen(rest)
			s.temp = append(s.temp, rest[:n]...)
			rest = rest[n:]
		}
		if left {
			s.temp = append(s.temp, text...)
		}
		return s.fresh(kindString, start)
	}
}

// runesEnd returns the end of the first n characters.
func runesEnd(t []byte, n int) int {
	i := 0
	for ; n > 0 && i < len(t); n-- {
		i += runeLen(t[i:])
	}
	return i
}

func trim(left, right bool) evaluation {
	return func(s *Scratch, a []value) value {
		characters := " \t\n\f\r"
		if len(a) == 2 {
			if a[1].kind != kindString {
				return null
			}
			characters = string(a[1].data)
			if !isASCII(a[1].data) && !s.spend(len(a[0].data)*len(a[1].data)/stepBytes) { // each one is looked up there
				return missing
			}
		}
		if a[0].kind != kindString {
			return null
		}
		t := a[0].data
		if left {
			t = bytes.TrimLeft(t, characters)
		}
		if right {
			t = bytes.TrimRight(t, characters)
		}
		return value{kindString, t}
	}
}

func repeat(s *Scratch, a []value) value {
	n, ok := s.whole(a[1])
	if !ok || a[0].kind != kindString || n < 0 {
		return null
	}
	if len(a[0].data) > 0 && n > int64(maxValue/len(a[0].data)) {
		s.fail(tooLarge("REPEAT"))
		return missing
	}
	start := len(s.temp)
	if len(a[0].data) > 0 {
		for range n {
			s.temp = append(s.temp, a[0].data...)
		}
	}
	return s.fresh(kindString, start)
}

// counted makes a function of three texts and an optional number.
func counted(f evaluation) evaluation {
	return func(s *Scratch, a []value) value {
		worst := kindTrue
		for _, v := range a[:3] {
			if v.kind != kindString {
				worst = min(worst, v.kind, kindNull)
			}
		}
		switch {
		case worst <= kindNull:
			return value{kind: worst}
		case len(a) == 4 && a[3].kind != kindNumber:
			return null
		}
		return f(s, a)
	}
}

func replace(s *Scratch, a []value) value {
	times := int64(-1)
	if len(a) == 4 {
		var ok bool
		if times, ok = s.whole(a[3]); !ok {
			return null
		}
	}
	t, old, with := a[0].data, a[1].data, a[2].data
	if grows := bytes.Count(t, old) * max(0, len(with)-len(old)); grows > maxTemp {
		s.fail(tooLarge("REPLACE"))
		return missing
	}
	return s.owned(bytes.Replace(t, old, with, int(max(-1, min(times, int64(len(t)+1))))))
}

func split(s *Scratch, a []value) value {
	if a[0].kind != kindString || len(a) == 2 && a[1].kind != kindString {
		return null
	}
	parts := bytes.FieldsSeq(a[0].data)
	if len(a) == 2 {
		parts = bytes.SplitSeq(a[0].data, a[1].data)
	}
	base := len(s.stack)
	for p := range parts {
		if !s.spend(1) {
			break
		}
		s.stack = append(s.stack, value{kindString, p})
	}
	v := s.list(s.stack[base:])
	s.stack = s.stack[:base]
	return v
}

// substr counts characters, or bytes; each byte of a character that is cut is replaced by U+FFFD.
func substr(first int64, characters bool) evaluation {
	return func(s *Scratch, a []value) value {
		from, ok := s.whole(a[1])
		if !ok || a[0].kind != kindString {
			return null
		}
		t := a[0].data
		size := int64(len(t))
		if characters {
			size = int64(utf8.RuneCount(t))
		}
		if from > 0 {
			from -= first
		} else if from < 0 {
			from += size
		}
		length := size
		if len(a) == 3 {
			if length, ok = s.whole(a[2]); !ok {
				return null
			}
		}
		if from < 0 || from >= size || length < 0 {
			return null
		}
		to := from + min(length, size-from)
		if characters {
			from, to = int64(runesEnd(t, int(from))), int64(runesEnd(t, int(to)))
		}
		part := t[from:to]
		if !utf8.Valid(part) {
			return s.owned([]byte(string([]rune(string(part)))))
		}
		return value{kindString, part}
	}
}

// characters returns the number of characters before a byte position; -1 stays.
func characters(t []byte, at int) int64 {
	if at < 0 {
		return -1
	}
	return int64(utf8.RuneCount(t[:at]))
}

// concatWith computes CONCAT2: MISSING anywhere takes precedence over a value that is not a string.
func concatWith(s *Scratch, a []value) value {
	base := len(s.stack)
	defer func() { s.stack = s.stack[:base] }()
	for _, v := range a[1:] {
		if v.kind != kindArray {
			s.stack = append(s.stack, v)
		} else if _, ok := s.push(v); !ok {
			return missing
		}
	}
	worst := kindTrue
	for _, v := range append(s.stack[base:len(s.stack):len(s.stack)], a[0]) {
		if v.kind != kindString {
			worst = min(worst, v.kind, kindNull)
		}
	}
	if worst <= kindNull {
		return value{kind: worst}
	}
	start := len(s.temp)
	for i, v := range s.stack[base:] {
		if !s.room(len(v.data) + len(a[0].data)) {
			return missing
		}
		if i > 0 {
			s.temp = append(s.temp, a[0].data...)
		}
		s.temp = append(s.temp, v.data...)
	}
	return s.fresh(kindString, start)
}
