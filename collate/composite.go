package collate

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
)

// AppendComposite appends the components of a key, each one JSON value; a nil component is MISSING. Component i is
// descending if desc[i]; a desc that is shorter, or nil, means ascending for the rest. The error wraps ErrJSON or
// ErrDepth and names the component; dst is then unchanged.
func AppendComposite(dst []byte, components [][]byte, desc []bool) ([]byte, error) {
	out := dst
	for i, c := range components {
		start := len(out)
		if c == nil {
			out = AppendMissing(out)
		} else {
			var err error
			if out, err = AppendJSON(out, c); err != nil {
				return dst, fmt.Errorf("key component %d: %w", i, err)
			}
		}
		if i < len(desc) && desc[i] {
			Complement(out[start:])
		}
	}
	return out, nil
}

// Next splits the first component off a key. It returns its bytes as they are in the key (complemented if desc) and
// the rest. The component is fully validated, so that Decode of it (not complemented) cannot fail.
func Next(key []byte, desc bool) (component, rest []byte, err error) {
	if len(key) == 0 {
		return nil, nil, fmt.Errorf("%w: no component left", ErrKey)
	}
	flip := byte(0)
	if desc {
		flip = 0xFF
	}
	// The frequent kinds need no copy of the key without complement.
	switch Kind(key[0] ^ flip) {
	case Missing, Null, False, True:
		return key[:1], key[1:], nil
	case String:
		n, err := stringLen(key[1:], flip)
		if err != nil {
			return nil, nil, err
		}
		return key[:1+n], key[1+n:], nil
	case Number:
		if isShortNumber(key[1:], flip) {
			return key[:1+shortNumber], key[1+shortNumber:], nil
		}
	}
	upright := key
	if desc {
		upright = bytes.Clone(key)
		Complement(upright)
	}
	n, err := valueLen(upright, 0)
	if err != nil {
		return nil, nil, err
	}
	return key[:n], key[n:], nil
}

// kindOf returns the kind of the first component of a key, 0 if the key is empty.
func kindOf(key []byte, desc bool) Kind {
	switch {
	case len(key) == 0:
		return 0
	case desc:
		return Kind(^key[0])
	}
	return Kind(key[0])
}

// DecodeComposite appends a key as a JSON array with one element per component. JSON has no MISSING: such a component
// is null, and MissingComponents returns their positions. On an error, which wraps ErrKey, dst is unchanged.
func DecodeComposite(dst, key []byte, desc []bool) (jsonArray []byte, err error) {
	out := append(dst, '[')
	var room [128]byte
	upright := room[:0]
	for i := 0; len(key) > 0; i++ {
		if i > 0 {
			out = append(out, ',')
		}
		down := i < len(desc) && desc[i]
		var component []byte
		if component, key, err = Next(key, down); err != nil {
			return dst, fmt.Errorf("key component %d: %w", i, err)
		}
		if down {
			upright = append(upright[:0], component...)
			Complement(upright)
			component = upright
		}
		out, _ = appendText(out, component)
	}
	return append(out, ']'), nil
}

// MissingComponents returns the positions of the components of a key that are MISSING, which DecodeComposite returns
// as null.
func MissingComponents(key []byte, desc []bool) (places []int, err error) {
	for i := 0; len(key) > 0; i++ {
		down := i < len(desc) && desc[i]
		if kindOf(key, down) == Missing {
			places = append(places, i)
		}
		if _, key, err = Next(key, down); err != nil {
			return nil, fmt.Errorf("key component %d: %w", i, err)
		}
	}
	return places, nil
}

// DecodeNext appends the first component of a key, an ascending one, like Decode, and returns the rest of the key.
// On an error, which wraps ErrKey, dst is unchanged.
func DecodeNext(dst, key []byte) (text, rest []byte, err error) {
	if len(key) == 0 {
		return dst, nil, fmt.Errorf("%w: no component left", ErrKey)
	}
	if _, err := valueLen(key, 0); err != nil {
		return dst, nil, err
	}
	text, rest = appendText(dst, key)
	return text, rest, nil
}

// Decode appends the JSON text of one ascending component; MISSING is null. On an error, which wraps ErrKey, dst is
// unchanged.
func Decode(dst, component []byte) (text []byte, err error) {
	n, err := valueLen(component, 0)
	if err == nil && n < len(component) {
		err = fmt.Errorf("%w: %d bytes follow the value", ErrKey, len(component)-n)
	}
	if err != nil {
		return dst, err
	}
	text, _ = appendText(dst, component)
	return text, nil
}

// appendText appends the JSON text of a value that valueLen has checked.
func appendText(dst, key []byte) (text, rest []byte) {
	kind, rest := Kind(key[0]), key[1:]
	switch kind {
	case Number:
		text, rest, _ = decodeNumber(dst, rest)
		return text, rest
	case String:
		return appendStringText(dst, rest)
	case Array:
		dst = append(dst, '[')
		for first := true; rest[0] != tagEnd; first = false {
			if !first {
				dst = append(dst, ',')
			}
			dst, rest = appendText(dst, rest)
		}
		return append(dst, ']'), rest[1:]
	case Object:
		dst = append(dst, '{')
		rest = rest[4:]
		for first := true; rest[0] != tagEnd; first = false {
			if !first {
				dst = append(dst, ',')
			}
			dst, rest = appendText(dst, rest)
			dst = append(dst, ':')
			dst, rest = appendText(dst, rest)
		}
		return append(dst, '}'), rest[1:]
	case False:
		return append(dst, "false"...), rest
	case True:
		return append(dst, "true"...), rest
	}
	return append(dst, "null"...), rest
}

func appendStringText(dst, key []byte) (text, rest []byte) {
	n, _ := stringLen(key, 0)
	body, rest := key[:n-2], key[n:]
	if bytes.IndexByte(body, strEscape) >= 0 {
		body = bytes.ReplaceAll(body, []byte{strEscape, strZero}, []byte{0})
	}
	return AppendQuoted(dst, body), rest
}

// stringLen returns how many bytes after the kind belong to a string, including its end. flip is 0xFF for a
// descending one.
func stringLen(key []byte, flip byte) (int, error) {
	for i := 0; ; i += 2 {
		n := bytes.IndexByte(key[i:], strEscape^flip)
		if n < 0 || i+n+1 >= len(key) {
			return 0, fmt.Errorf("%w: a string has no end", ErrKey)
		}
		i += n
		switch key[i+1] ^ flip {
		case strEnd:
			return i + 2, nil
		case strZero:
		default:
			return 0, fmt.Errorf("%w: a string has an invalid escape", ErrKey)
		}
	}
}

var errUnordered = errors.New("members of an object are not in order")

// valueLen returns the size of the value at the beginning of key, and validates all of it.
func valueLen(key []byte, depth int) (int, error) {
	if len(key) == 0 {
		return 0, fmt.Errorf("%w: a value is missing", ErrKey)
	}
	switch Kind(key[0]) {
	case Missing:
		if depth > 0 {
			return 0, fmt.Errorf("%w: MISSING within a value", ErrKey)
		}
		return 1, nil
	case Null, False, True:
		return 1, nil
	case Number:
		n, err := numberLen(key[1:])
		return 1 + n, err
	case String:
		n, err := stringLen(key[1:], 0)
		return 1 + n, err
	case Array, Object:
		if depth >= MaxDepth {
			return 0, fmt.Errorf("%w: %w: more than %d levels", ErrKey, ErrDepth, MaxDepth)
		}
		if Kind(key[0]) == Array {
			return arrayLen(key, depth+1)
		}
		return objectLen(key, depth+1)
	}
	return 0, fmt.Errorf("%w: byte %#x is not a kind of value", ErrKey, key[0])
}

func arrayLen(key []byte, depth int) (int, error) {
	i := 1
	for {
		if i < len(key) && key[i] == tagEnd {
			return i + 1, nil
		}
		n, err := valueLen(key[i:], depth)
		if err != nil {
			return 0, err
		}
		i += n
	}
}

func objectLen(key []byte, depth int) (int, error) {
	if len(key) < 5 {
		return 0, fmt.Errorf("%w: an object ends early", ErrKey)
	}
	i, before := 5, []byte(nil)
	for members := binary.BigEndian.Uint32(key[1:]); members > 0; members-- {
		if i >= len(key) || Kind(key[i]) != String {
			return 0, fmt.Errorf("%w: an object lacks members", ErrKey)
		}
		n, err := stringLen(key[i+1:], 0)
		if err != nil {
			return 0, err
		}
		name := key[i : i+1+n]
		if before != nil && bytes.Compare(before, name) >= 0 {
			return 0, fmt.Errorf("%w: %w", ErrKey, errUnordered)
		}
		before = name
		i += 1 + n
		if n, err = valueLen(key[i:], depth); err != nil {
			return 0, err
		}
		i += n
	}
	if i >= len(key) || key[i] != tagEnd {
		return 0, fmt.Errorf("%w: an object has no end", ErrKey)
	}
	return i + 1, nil
}
