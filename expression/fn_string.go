package expression

import (
	"bytes"
	"fmt"
	"regexp"
	"regexp/syntax"
	"unicode"
	"unicode/utf8"
)

// text1 makes a function of one string; anything else gives NULL.
func text1(f func(s *Scratch, t []byte) value) evaluation {
	return func(s *Scratch, a []value) value {
		if a[0].kind != kindString {
			return null
		}
		return f(s, a[0].data)
	}
}

// text2 makes a function of two strings.
func text2(f func(s *Scratch, t, u []byte) value) evaluation {
	return func(s *Scratch, a []value) value {
		if a[0].kind != kindString || a[1].kind != kindString {
			return null
		}
		return f(s, a[0].data, a[1].data)
	}
}

var stringFunctions = []*Function{
	{Name: "CONCAT", Family: FamilyString, Params: "text, …", Min: 1, Max: MaxArgs, About: "The texts one after the other, as with ||.",
		Example: Example{`CONCAT(s, "-", "b")`, `"aß c-b"`}, eval: concatTexts},
	{Name: "CONTAINS", Family: FamilyString, Params: "text, part", Min: 2, Max: 2, About: "Whether part stands in text.",
		Example: Example{`CONTAINS(s, "ß")`, `true`}, eval: text2(func(_ *Scratch, t, u []byte) value { return boolean(bytes.Contains(t, u)) })},
	{Name: "INITCAP", Aliases: []string{"TITLE"}, Family: FamilyString, Params: "text", Min: 1, Max: 1,
		About:   "Each word with its first letter in upper case and the others in lower case. What divides words is white space, and all of ASCII but letters, digits and _.",
		Example: Example{`INITCAP("hello WORLD")`, `"Hello World"`}, eval: text1(initcap)},
	{Name: "LENGTH", Family: FamilyString, Params: "text", Min: 1, Max: 1, About: "The length in bytes of UTF-8.",
		Example: Example{`LENGTH(s)`, `5`}, eval: text1(func(s *Scratch, t []byte) value { return s.integer(int64(len(t))) })},
	{Name: "LOWER", Family: FamilyString, Params: "text", Min: 1, Max: 1, About: "All letters in lower case.",
		Example: Example{`LOWER("ÀB")`, `"àb"`}, eval: text1(lower)},
	{Name: "LPAD", Family: FamilyString, Params: "text, length [, with]", Min: 2, Max: 3,
		About:   "Filled up on the left to so many characters, with spaces or the given text; longer ones are cut.",
		Example: Example{`LPAD("7", 3, "0")`, `"007"`}, eval: pad(true)},
	{Name: "LTRIM", Family: FamilyString, Params: "text [, characters]", Min: 1, Max: 2, About: "Without white space, or these characters, on the left.",
		Example: Example{`LTRIM("xxay", "x")`, `"ay"`}, eval: trim(true, false)},
	{Name: "MB_LENGTH", Family: FamilyString, Params: "text", Min: 1, Max: 1, About: "The length in characters.",
		Example: Example{`MB_LENGTH(s)`, `4`}, eval: text1(func(s *Scratch, t []byte) value { return s.integer(int64(utf8.RuneCount(t))) })},
	{Name: "POSITION", Aliases: []string{"POSITION0"}, Family: FamilyString, Params: "text, part", Min: 2, Max: 2,
		About:   "The byte at which part first stands in text, from 0; -1 if it does not.",
		Example: Example{`POSITION("banana", "na")`, `2`}, eval: text2(func(s *Scratch, t, u []byte) value { return s.integer(int64(bytes.Index(t, u))) })},
	{Name: "POSITION1", Family: FamilyString, Params: "text, part", Min: 2, Max: 2, About: "As POSITION, from 1; 0 if it does not stand there.",
		Example: Example{`POSITION1("banana", "na")`, `3`}, eval: text2(func(s *Scratch, t, u []byte) value { return s.integer(int64(bytes.Index(t, u)) + 1) })},
	{Name: "REPEAT", Family: FamilyString, Params: "text, times", Min: 2, Max: 2, About: "The text so many times.",
		Example: Example{`REPEAT("ab", 3)`, `"ababab"`}, eval: repeat},
	{Name: "REPLACE", Family: FamilyString, Params: "text, old, new [, times]", Min: 3, Max: 4, About: "With each old, or the first so many, replaced by new.",
		Example: Example{`REPLACE("banana", "an", "-", 1)`, `"b-ana"`}, eval: replace},
	{Name: "REVERSE", Family: FamilyString, Params: "text", Min: 1, Max: 1, About: "The characters from the last to the first.",
		Example: Example{`REVERSE(s)`, `"c ßa"`}, eval: text1(reverse)},
	{Name: "RPAD", Family: FamilyString, Params: "text, length [, with]", Min: 2, Max: 3, About: "As LPAD, on the right.",
		Example: Example{`RPAD("7", 3, "ab")`, `"7ab"`}, eval: pad(false)},
	{Name: "RTRIM", Family: FamilyString, Params: "text [, characters]", Min: 1, Max: 2, About: "Without white space, or these characters, on the right.",
		Example: Example{`RTRIM("a  ")`, `"a"`}, eval: trim(false, true)},
	{Name: "SPLIT", Family: FamilyString, Params: "text [, at]", Min: 1, Max: 2, About: "The parts between the separators, or between white space.",
		Example: Example{`SPLIT("a,b", ",")`, `["a","b"]`}, eval: split},
	{Name: "SUBSTR", Aliases: []string{"SUBSTR0"}, Family: FamilyString, Params: "text, from [, length]", Min: 2, Max: 3,
		About:   "The bytes from a place on, counted from 0, or from the end if negative. Outside the text: NULL.",
		Example: Example{`SUBSTR("banana", 2, 3)`, `"nan"`}, eval: substr(0)},
	{Name: "SUBSTR1", Family: FamilyString, Params: "text, from [, length]", Min: 2, Max: 3, About: "As SUBSTR, counted from 1.",
		Example: Example{`SUBSTR1("banana", 2, 3)`, `"ana"`}, eval: substr(1)},
	{Name: "SUFFIXES", Family: FamilyString, Params: "text", Min: 1, Max: 1, About: "The text from each of its characters on.",
		Example: Example{`SUFFIXES("abc")`, `["abc","bc","c"]`}, eval: text1(suffixes)},
	{Name: "TOKENS", Family: FamilyString, Params: "value [, options]", Min: 1, Max: 2, verify: checkTokens,
		About: `The different words (letters and digits), numbers and truth values in a value of any depth, in collation order. {"case": "lower"} or "upper" changes the words, ` +
			`{"names": true} takes the names of members too, {"specials": true} divides at white space alone, without what is no letter or digit at both ends of a word.`,
		Example: Example{`TOKENS(["Nice, côte d'Azur", 7], {"case": "lower"})`, `[7,"azur","côte","d","nice"]`}, eval: tokens},
	{Name: "TRIM", Family: FamilyString, Params: "text [, characters]", Min: 1, Max: 2, About: "Without white space, or these characters, on both sides.",
		Example: Example{`TRIM("  a ")`, `"a"`}, eval: trim(true, true)},
	{Name: "UPPER", Family: FamilyString, Params: "text", Min: 1, Max: 1, About: "All letters in upper case.",
		Example: Example{`UPPER("àb")`, `"ÀB"`}, eval: text1(upper)},
}

var patternFunctions = []*Function{
	{Name: "REGEXP_CONTAINS", Family: FamilyString, Params: `text, "pattern"`, Min: 2, Max: 2,
		About:   "Whether a part of the text fits the pattern (RE2 syntax). The pattern stands in the expression.",
		Example: Example{`REGEXP_CONTAINS("banana", "n.n")`, `true`}, constant: []int{1}, prepare: pattern(func(r *regexp.Regexp) evaluation {
			return text1(func(_ *Scratch, t []byte) value { return boolean(r.Match(t)) })
		})},
	{Name: "REGEXP_LIKE", Family: FamilyString, Params: `text, "pattern"`, Min: 2, Max: 2, About: "Whether the whole text fits the pattern.",
		Example: Example{`REGEXP_LIKE("banana", "b.*a")`, `true`}, constant: []int{1}, prepare: wholePattern},
	{Name: "REGEXP_POSITION", Family: FamilyString, Params: `text, "pattern"`, Min: 2, Max: 2, About: "The byte at which the pattern first fits, from 0; else -1.",
		Example: Example{`REGEXP_POSITION("banana", "n.n")`, `2`}, constant: []int{1}, prepare: pattern(func(r *regexp.Regexp) evaluation {
			return text1(func(s *Scratch, t []byte) value {
				at := r.FindIndex(t)
				if at == nil {
					return s.integer(-1)
				}
				return s.integer(int64(at[0]))
			})
		})},
	{Name: "REGEXP_REPLACE", Family: FamilyString, Params: `text, "pattern", new [, times]`, Min: 3, Max: 4, About: "With what fits the pattern, or the first so many of it, replaced; ${1} is the first group.",
		Example: Example{`REGEXP_REPLACE("banana", "(n)a", "${1}o")`, `"banono"`}, constant: []int{1}, prepare: pattern(func(r *regexp.Regexp) evaluation {
			return func(s *Scratch, a []value) value {
				if a[0].kind != kindString || a[2].kind != kindString {
					return null
				}
				if len(a[0].data)*(len(a[2].data)+1) > maxTemp {
					s.fail(tooLarge("REGEXP_REPLACE"))
					return missing
				}
				if len(a) == 4 {
					times, ok := s.whole(a[3])
					if !ok {
						return null
					}
					return s.replaceFirst(r, a[0].data, a[2].data, times)
				}
				return s.owned(r.ReplaceAll(a[0].data, a[2].data))
			}
		})},
}

// replaceFirst replaces the first so many fits of a pattern; all if the number is negative.
func (s *Scratch) replaceFirst(r *regexp.Regexp, text, with []byte, times int64) value {
	start, at := len(s.temp), 0
	for _, fit := range r.FindAllSubmatchIndex(text, int(max(-1, min(times, int64(len(text)+1))))) {
		s.temp = r.Expand(append(s.temp, text[at:fit[0]]...), with, text, fit)
		at = fit[1]
	}
	s.temp = append(s.temp, text[at:]...)
	return s.fresh(kindString, start)
}

func tooLarge(name string) error {
	return fmt.Errorf("%w: the result of %s is too large", ErrWork, name)
}

// maxPattern limits the text of a regular expression.
const maxPattern = 1000

// pattern makes an evaluation with the regular expression that stands in the expression. A match looks at each byte once for
// each instruction of the pattern at worst.
func pattern(with func(*regexp.Regexp) evaluation) func([]string) (evaluation, error) {
	return func(constants []string) (evaluation, error) {
		if len(constants[0]) > maxPattern {
			return nil, fmt.Errorf("the pattern has %d bytes, at most %d", len(constants[0]), maxPattern)
		}
		r, err := regexp.Compile(constants[0])
		if err != nil {
			return nil, fmt.Errorf("the pattern is wrong: %w", err)
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

// programSize is how many instructions a pattern, which is right, has.
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
	})([]string{`^(?:` + constants[0] + `)$`})
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

// letters changes the case of the letters from first to last; with others than ASCII by all.
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
			s.temp = utf8.AppendRune(s.temp, unicode.ToUpper(r))
		} else {
			s.temp = utf8.AppendRune(s.temp, unicode.ToLower(r))
		}
		first = betweenWords(r)
	}
	return s.fresh(kindString, start)
}

// betweenWords tells whether a character divides words, as for N1QL: of ASCII all but letters, digits and _, of others white space.
func betweenWords(r rune) bool {
	if r < utf8.RuneSelf {
		return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r)
	}
	return unicode.IsSpace(r)
}

func reverse(s *Scratch, t []byte) value {
	start := len(s.temp)
	for len(t) > 0 {
		_, n := utf8.DecodeLastRune(t)
		s.temp = append(s.temp, t[len(t)-n:]...)
		t = t[:len(t)-n]
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

// runesEnd is where the first n characters end.
func runesEnd(t []byte, n int) int {
	i := 0
	for ; n > 0 && i < len(t); n-- {
		i += runeLen(t[i:])
	}
	return i
}

func trim(left, right bool) evaluation {
	return func(s *Scratch, a []value) value {
		characters := " \t\n\v\f\r"
		if len(a) == 2 {
			if a[1].kind != kindString {
				return null
			}
			characters = string(a[1].data)
			if !isASCII(a[1].data) && !s.spend(len(a[0].data)*len(a[1].data)/stepBytes) { // each is looked up among them
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

func replace(s *Scratch, a []value) value {
	times := int64(-1)
	if len(a) == 4 {
		var ok bool
		if times, ok = s.whole(a[3]); !ok {
			return null
		}
	}
	for _, v := range a[:3] {
		if v.kind != kindString {
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

// substr counts bytes; a character that is cut in two is replaced by U+FFFD.
func substr(first int64) evaluation {
	return func(s *Scratch, a []value) value {
		from, ok := s.whole(a[1])
		if !ok || a[0].kind != kindString {
			return null
		}
		t := a[0].data
		if from > 0 {
			from -= first
		} else if from < 0 {
			from += int64(len(t))
		}
		length := int64(len(t))
		if len(a) == 3 {
			if length, ok = s.whole(a[2]); !ok {
				return null
			}
		}
		if from < 0 || from >= int64(len(t)) || length < 0 {
			return null
		}
		part := t[from:min(int64(len(t)), from+min(length, int64(len(t))))]
		if !utf8.Valid(part) {
			return s.owned(bytes.ToValidUTF8(part, []byte("\ufffd")))
		}
		return value{kindString, part}
	}
}
