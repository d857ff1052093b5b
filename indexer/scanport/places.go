package scanport

import (
	"bytes"
	"encoding/base64"
	"fmt"
)

// Who reads an answer of lines may ask for places in it: behind the lines that are written at once comes a line with
// the place where another indexer would go on behind them.
const (
	HeaderPlaces = "Tidemark-Places" // of a request, "true": lines with places are wanted
	HeaderResume = "Tidemark-Resume" // of a request: the place behind which the answer goes on
	// MaxPlace bounds a place in bytes, as it comes back in a header; longer than that a line with none is written.
	MaxPlace  = 32 << 10
	placeHead = `{"place":"`
	placeTail = `"}`
)

// AppendPlace appends a line with a place, its end included.
func AppendPlace(dst, place []byte) []byte {
	if len(place) > MaxPlace {
		place = nil
	}
	dst = base64.StdEncoding.AppendEncode(append(dst, placeHead...), place)
	return append(append(dst, placeTail...), '\n')
}

// PlaceLine reads a line with a place, without its end; ok is false of any other line. The place, as HeaderResume takes
// it, is "" where the answer cannot be gone on with, as the key before it is too long.
func PlaceLine(line []byte) (place string, ok bool) {
	rest, ok := bytes.CutPrefix(line, []byte(placeHead))
	if !ok {
		return "", false
	}
	rest, ok = bytes.CutSuffix(rest, []byte(placeTail))
	return string(rest), ok
}

// ParsePlace reads what HeaderResume has; nothing of "".
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
