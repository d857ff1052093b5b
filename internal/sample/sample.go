// Package sample holds the sample data: 9,359 documents (countries, regions and airports of the world, from the public
// domain OurAirports tables) and the indexes that `tidemark up --sample` creates on them.
package sample

import (
	"bufio"
	"bytes"
	"compress/gzip"
	_ "embed" // the data
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

//go:embed world.jsonl.gz
var world []byte

// Documents is the number of documents in the sample.
const Documents = 9359

// MaxLine is the longest line that a Reader takes, in bytes: the largest document KV takes, with its key and quotes.
const MaxLine = 24 << 20

// Statements create the sample indexes on a bucket, in order.
func Statements(bucket string) []string {
	on := " ON `" + bucket + "`"
	return []string{
		"CREATE PRIMARY INDEX world_ids" + on,
		"CREATE INDEX airports_by_country" + on + `(iso_country, name) WHERE kind = "airport"`,
		"CREATE INDEX places_by_name" + on + "(name)",
		"CREATE INDEX airports_by_elevation" + on + `(elevation_ft DESC) WHERE kind = "airport" AND scheduled_service = true`,
	}
}

// IndexName returns the name of the index that one of the Statements creates.
func IndexName(statement string) string {
	_, after, _ := strings.Cut(statement, "INDEX ")
	name, _, _ := strings.Cut(after, " ")
	return name
}

// Document is one line of a JSON-lines file: a key and a JSON value.
type Document struct {
	Key   string          `json:"key"`
	Value json.RawMessage `json:"value"`
}

// Open reads the embedded sample.
func Open() (*Reader, error) {
	z, err := gzip.NewReader(bytes.NewReader(world))
	if err != nil {
		return nil, fmt.Errorf("embedded sample data: %w", err)
	}
	return NewReader(z), nil
}

// Reader reads documents off lines of the form {"key", "value"}.
type Reader struct {
	lines *bufio.Scanner
	line  int
}

// NewReader reads from r; use Detect first where the input may be gzipped.
func NewReader(r io.Reader) *Reader {
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 0, 64<<10), MaxLine)
	return &Reader{lines: s}
}

// Detect gives r, or the uncompressed stream when r begins like a gzip file.
func Detect(r io.Reader) (io.Reader, error) {
	b := bufio.NewReader(r)
	magic, err := b.Peek(2)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if len(magic) == 2 && magic[0] == 0x1f && magic[1] == 0x8b {
		return gzip.NewReader(b)
	}
	return b, nil
}

// Next returns the next document, io.EOF at the end. Blank lines are passed over. An error names the line.
func (r *Reader) Next() (Document, error) {
	for r.lines.Scan() {
		r.line++
		text := bytes.TrimSpace(r.lines.Bytes())
		if len(text) == 0 {
			continue
		}
		var d Document
		if err := json.Unmarshal(text, &d); err != nil {
			return Document{}, fmt.Errorf(`line %d: %w; want {"key": "…", "value": …}`, r.line, err)
		}
		if d.Key == "" || len(d.Key) > 250 || len(d.Value) == 0 {
			return Document{}, fmt.Errorf(`line %d: want {"key": "…", "value": …} with a key of 1 to 250 bytes`, r.line)
		}
		return d, nil
	}
	if err := r.lines.Err(); err != nil {
		return Document{}, fmt.Errorf("line %d: %w", r.line+1, err)
	}
	return Document{}, io.EOF
}
