package collate

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"
)

const (
	lowBits  = 0x0101010101010101
	highBits = 0x8080808080808080
)

// ScanString finds the end of a JSON string whose opening quote is before text[i]. It returns the index of the
// closing quote, or -1 if there is none, or a control character or an invalid escape precedes it. plain reports
// whether the body is ASCII without escapes, so that it needs no decoding by AppendUnquoted.
func ScanString(text []byte, i int) (end int, plain bool) {
	plain = true
	for {
		for i+8 <= len(text) {
			x := binary.LittleEndian.Uint64(text[i:])
			quote, slash := x^(lowBits*'"'), x^(lowBits*'\\')
			stop := ((quote - lowBits) &^ quote) | ((slash - lowBits) &^ slash) | ((x - lowBits*0x20) &^ x)
			if stop = (stop | x) & highBits; stop != 0 {
				i += bits.TrailingZeros64(stop) / 8
				break
			}
			i += 8
		}
		if i >= len(text) {
			return -1, false
		}
		switch c := text[i]; {
		case c == '"':
			return i, plain
		case c == '\\':
			plain = false
			_, n := unescape(text[i:])
			if n == 0 {
				return -1, false
			}
			i += n
		case c < 0x20:
			return -1, false
		case c >= utf8.RuneSelf:
			plain = false
			for i++; i < len(text) && text[i] >= utf8.RuneSelf; i++ {
			}
		default:
			i++
		}
	}
}

// AppendUnquoted appends the decoded body of a JSON string (without its quotes). Like encoding/json it decodes half a
// surrogate pair, and each byte that is not UTF-8, as U+FFFD. The error wraps ErrJSON; dst is unchanged then.
func AppendUnquoted(dst, body []byte) ([]byte, error) {
	start := len(dst)
	for i := 0; i < len(body); {
		c := body[i]
		switch {
		case c == '\\':
			r, n := unescape(body[i:])
			if n == 0 {
				return dst[:start], fmt.Errorf("%w: invalid escape in the string %q", ErrJSON, clip(body))
			}
			dst = utf8.AppendRune(dst, r)
			i += n
		case c < 0x20 || c == '"':
			return dst[:start], fmt.Errorf("%w: %q within the string %q", ErrJSON, c, clip(body))
		case c < utf8.RuneSelf:
			dst = append(dst, c)
			i++
		default:
			r, n := utf8.DecodeRune(body[i:])
			dst = utf8.AppendRune(dst, r)
			i += n
		}
	}
	return dst, nil
}

// unescape decodes the escape at the beginning of b: the character and the escape's length, 0 if it is invalid.
func unescape(b []byte) (r rune, n int) {
	if len(b) < 2 {
		return 0, 0
	}
	switch b[1] {
	case '"', '\\', '/':
		return rune(b[1]), 2
	case 'b':
		return '\b', 2
	case 'f':
		return '\f', 2
	case 'n':
		return '\n', 2
	case 'r':
		return '\r', 2
	case 't':
		return '\t', 2
	case 'u':
		r = hex4(b[2:])
		if r < 0 {
			return 0, 0
		}
		if utf16.IsSurrogate(r) {
			if len(b) >= 8 && b[6] == '\\' && b[7] == 'u' {
				if pair := utf16.DecodeRune(r, hex4(b[8:])); pair != utf8.RuneError {
					return pair, 12
				}
			}
			return utf8.RuneError, 6
		}
		return r, 6
	}
	return 0, 0
}

// hex4 decodes four hexadecimal digits. It returns -1 if they are invalid.
func hex4(b []byte) (r rune) {
	if len(b) < 4 {
		return -1
	}
	for _, c := range b[:4] {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			c = c | 0x20 - 'a' + 10
		default:
			return -1
		}
		r = r<<4 | rune(c)
	}
	return r
}

// ScanNumber returns the index after the number that begins at text[i], and whether it has neither fraction nor
// exponent. It returns i if there is no number.
func ScanNumber(text []byte, i int) (end int, integer bool) { //nolint:gocyclo // a hot path, read in one piece
	start := i
	if i < len(text) && text[i] == '-' {
		i++
	}
	first := i
	i = digits(text, i)
	if i == first || text[first] == '0' && i > first+1 {
		return start, false
	}
	if i == len(text) || text[i] != '.' && text[i]|0x20 != 'e' {
		return i, true
	}
	if text[i] == '.' {
		first = i + 1
		if i = digits(text, first); i == first {
			return start, false
		}
	}
	if i < len(text) && text[i]|0x20 == 'e' {
		if first = i + 1; first < len(text) && (text[first] == '+' || text[first] == '-') {
			first++
		}
		if i = digits(text, first); i == first {
			return start, false
		}
	}
	return i, false
}

// digits returns the index after the decimal digits that begin at text[i].
func digits(text []byte, i int) int {
	for i < len(text) && text[i]-'0' <= 9 {
		i++
	}
	return i
}

// skipSpace returns the index of the first byte from i on that is not white space.
func skipSpace(text []byte, i int) int {
	for i < len(text) && (text[i] == ' ' || text[i] == '\n' || text[i] == '\r' || text[i] == '\t') {
		i++
	}
	return i
}

// AppendQuoted appends s as a JSON string; bytes that are not UTF-8 become U+FFFD each.
func AppendQuoted(dst, s []byte) []byte {
	dst = append(dst, '"')
	done := 0 // s[:done] has been written
	for i := plain(s); i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			r, n := utf8.DecodeRune(s[i:])
			if r == utf8.RuneError && n == 1 {
				dst = append(append(dst, s[done:i]...), "\uFFFD"...)
				done = i + 1
			}
			i += n
			continue
		}
		if c < 0x20 || c == '"' || c == '\\' {
			dst = appendEscape(append(dst, s[done:i]...), c)
			done = i + 1
		}
		i++
	}
	return append(append(dst, s[done:]...), '"')
}

// plain returns how many bytes at the beginning of s need no escape, eight at a time.
func plain(s []byte) (n int) {
	for ; n+8 <= len(s); n += 8 {
		w := binary.LittleEndian.Uint64(s[n:])
		quote, slash := w^(lowBits*'"'), w^(lowBits*'\\')
		// set by a byte that needs one, or by its neighbour
		if (w|(w-lowBits*0x20)|(quote-lowBits)|(slash-lowBits))&highBits != 0 {
			break
		}
	}
	return n
}

func appendEscape(dst []byte, c byte) []byte {
	const digits = "0123456789abcdef"
	switch c {
	case '"', '\\':
		return append(dst, '\\', c)
	case '\n':
		return append(dst, '\\', 'n')
	case '\r':
		return append(dst, '\\', 'r')
	case '\t':
		return append(dst, '\\', 't')
	}
	return append(dst, '\\', 'u', '0', '0', digits[c>>4], digits[c&15])
}

// maxShown bounds the part of a text that an error message repeats.
const maxShown = 60

func clip(b []byte) []byte {
	if len(b) > maxShown {
		return append(b[:maxShown:maxShown], "…"...)
	}
	return b
}
