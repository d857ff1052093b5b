package scanport

import (
	"bytes"
	"encoding/base64"
	"fmt"
)

// A client may request places in an answer of lines: each group of lines that is written at once is then followed by
// a line with the place at which another indexer would continue after them.
const (
	HeaderPlaces = "Tidemark-Places" // request header, "true": the client wants lines with places
	HeaderResume = "Tidemark-Resume" // request header: the place at which the answer continues
	// MaxPlace bounds a place in bytes, as it is returned in a header. If the place is longer, the line has an empty
	// one.
	MaxPlace  = 32 << 10
	placeHead = `{"place":"`
	placeTail = `"}`
)

// AppendPlace appends a line with a place, including its newline.
func AppendPlace(dst, place []byte) []byte {
	if len(place) > MaxPlace {
		place = nil
	}
	dst = base64.StdEncoding.AppendEncode(append(dst, placeHead...), place)
	return append(append(dst, placeTail...), '\n')
}

// PlaceLine parses a line with a place, without its newline; ok is false for any other line. The place is in the form
// of HeaderResume. It is "" if the answer cannot be continued there, because the key before it is too long.
func PlaceLine(line []byte) (place string, ok bool) {
	rest, ok := bytes.CutPrefix(line, []byte(placeHead))
	if !ok {
		return "", false
	}
	rest, ok = bytes.CutSuffix(rest, []byte(placeTail))
	return string(rest), ok
}

// ParsePlace parses the value of HeaderResume; nil for "".
func ParsePlace(text string) ([]byte, error) {
	if text == "" {
		return nil, nil
	}
	place, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", HeaderResume, err)
	}
	return place, nil
}
