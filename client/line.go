package client

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"unicode/utf8"

	"tidemark/manager/api/v1"
)

// The parts of a row's line, as an indexer writes it: {"key":[component,…],"id":"…"}.
const (
	rowBegin = `{"key":[`
	rowID    = `],"id":"`
	rowEnd   = `"}`
)

// parseRow parses a line in exactly the form in which indexers write rows whose components are strings, numbers,
// true, false or null, and whose document id has no escapes. It returns false for any other line, which needs
// json.Unmarshal. The row does not refer to line's memory.
func parseRow(line []byte, row *v1.Row) bool {
	if !bytes.HasPrefix(line, []byte(rowBegin)) || !bytes.HasSuffix(line, []byte(rowEnd)) || !utf8.Valid(line) {
		return false
	}
	line = bytes.Clone(line)
	rest := line[len(rowBegin):]
	key := make([]json.RawMessage, 0, 2)
	for len(rest) > 0 && rest[0] != ']' {
		n := scalar(rest)
		if n == 0 || n == len(rest) {
			return false
		}
		key = append(key, rest[:n:n])
		switch rest = rest[n:]; {
		case rest[0] == ']':
		case rest[0] == ',' && len(rest) > 1 && rest[1] != ']':
			rest = rest[1:]
		default:
			return false
		}
	}
	id, ok := plainID(rest)
	if !ok {
		return false
	}
	row.Key, row.ID = key, string(id)
	return true
}

// plainID parses the document's id, without escapes, up to the end of the line.
func plainID(rest []byte) ([]byte, bool) {
	id, ok := bytes.CutPrefix(rest, []byte(rowID))
	if !ok || len(id) < len(rowEnd) || stringRest(id) != len(id)-1 || bytes.IndexByte(id, '\\') >= 0 {
		return nil, false
	}
	return id[:len(id)-len(rowEnd)], true
}

// The parts of a scan's last line, as an indexer writes it if no vector was requested.
const (
	endBegin     = `{"end":true,"rows":`
	endTimestamp = `,"timestamp":{"id":"`
	endHash      = `","hash":"`
	endSession   = `"},"session":"`
	endEnd       = `"}`
)

// parseEnd parses a last line in exactly the form in which indexers write it without a vector; false for any other
// line.
func parseEnd(text []byte, end *v1.ScanEnd) bool {
	rest, ok := bytes.CutPrefix(text, []byte(endBegin))
	n := among(rest, "0123456789")
	if !ok || n == 0 {
		return false
	}
	rows, err := strconv.ParseUint(string(rest[:n]), 10, 64)
	if err != nil || n > 1 && rest[0] == '0' {
		return false
	}
	if rest, ok = bytes.CutPrefix(rest[n:], []byte(endTimestamp)); !ok {
		return false
	}
	id := rest[:among(rest, "0123456789.")]
	if rest, ok = bytes.CutPrefix(rest[len(id):], []byte(endHash)); !ok {
		return false
	}
	hash := rest[:among(rest, "0123456789")]
	if rest, ok = bytes.CutPrefix(rest[len(hash):], []byte(endSession)); !ok {
		return false
	}
	token := rest[:among(rest, tokenLetters)]
	if string(rest[len(token):]) != endEnd {
		return false
	}
	*end = v1.ScanEnd{End: true, Rows: rows, Timestamp: v1.ScanTimestamp{ID: string(id), Hash: string(hash)},
		ScanSeen: v1.ScanSeen{Session: string(token)}}
	return true
}

// tokenLetters are the characters of a session's token.
const tokenLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"

// among returns the length of the prefix of b that consists of these characters.
func among(b []byte, these string) int {
	for i, c := range b {
		if strings.IndexByte(these, c) < 0 {
			return i
		}
	}
	return len(b)
}

// isOfNumber reports whether a byte may occur in a JSON number.
func isOfNumber(c byte) bool {
	return c == '-' || c == '+' || c == '.' || c|0x20 == 'e' || '0' <= c && c <= '9'
}

// scalar returns the length of the string, number or literal at the beginning of b, 0 if there is none.
func scalar(b []byte) int {
	switch b[0] {
	case '"':
		if n := stringRest(b[1:]); n > 0 {
			return 1 + n
		}
		return 0
	case 't', 'f', 'n':
		for _, l := range []string{"true", "false", "null"} {
			if bytes.HasPrefix(b, []byte(l)) {
				return len(l)
			}
		}
		return 0
	}
	n := 0
	for n < len(b) && isOfNumber(b[n]) {
		n++
	}
	if n == 0 || !json.Valid(b[:n]) {
		return 0
	}
	return n
}

// stringRest returns the length of the rest of a string including its closing quotation mark; 0 if it does not end,
// or has an invalid escape.
func stringRest(b []byte) int {
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case c == '"':
			return i + 1
		case c < 0x20:
			return 0
		case c == '\\':
			n := escape(b[i:])
			if n == 0 {
				return 0
			}
			i += n - 1
		}
	}
	return 0
}

// escape returns the length of the escape at the beginning of b, 0 if there is none.
func escape(b []byte) int {
	if len(b) < 2 {
		return 0
	}
	if bytes.IndexByte([]byte(`"\/bfnrt`), b[1]) >= 0 {
		return 2
	}
	if b[1] != 'u' || len(b) < 6 {
		return 0
	}
	for _, c := range b[2:6] {
		if !('0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'f') {
			return 0
		}
	}
	return 6
}
