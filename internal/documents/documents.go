// Package documents reads documents and their keys from files in common formats: lines of JSON, a JSON array, or a
// table (CSV, TSV), optionally compressed by gzip. Errors name the line.
package documents

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

// MaxSize is the maximum size of a document in a file, in bytes: the largest that KV accepts, with its key and
// quotes.
const MaxSize = 24 << 20

// maxKey is the maximum length of a key in bytes, as in KV.
const maxKey = 250

// Document is a key and a JSON value.
type Document struct {
	Key   string          `json:"key"`
	Value json.RawMessage `json:"value"`
}

// Format is the format of a file.
type Format string

// The formats.
const (
	Auto  Format = "auto"  // by the first character: list for [, lines for {, otherwise csv
	Lines Format = "lines" // a JSON object on each line
	List  Format = "list"  // a JSON array of objects
	CSV   Format = "csv"   // field names in the first line, then one document per line
	TSV   Format = "tsv"   // the same with tabs
)

// Formats lists all formats.
var Formats = []string{string(Auto), string(Lines), string(List), string(CSV), string(TSV)}

// Options set how a file is read.
type Options struct {
	Format Format // "" means Auto
	// KeyField is the field with a document's key; dots separate the names of nested fields. Without it, each object
	// is {"key", "value"}.
	KeyField  string
	KeyPrefix string // prepended to each key
	// InferTypes converts the cells of a table that look like numbers, true or false, and omits empty cells;
	// otherwise each cell is a string.
	InferTypes bool
}

// Reader reads the documents of a file.
type Reader struct {
	o    Options
	next func() (where string, value []byte, err error) // returns one object and its place
}

// New returns a Reader of r, which may be compressed by gzip.
func New(r io.Reader, o Options) (*Reader, error) {
	in, err := plain(r)
	if err != nil {
		return nil, err
	}
	d := &Reader{o: o}
	format := o.Format
	if format == "" || format == Auto {
		if format, err = detect(in); err != nil {
			return nil, err
		}
	}
	switch format {
	case Lines:
		d.next = lines(in)
	case List:
		d.next = list(in)
	case CSV, TSV:
		if o.KeyField == "" {
			return nil, errors.New("a table has no column for keys of its own: name the one with the key (--key-field)")
		}
		d.next = table(in, format == TSV, o.InferTypes)
	default:
		return nil, fmt.Errorf("format %q: want one of %s", format, strings.Join(Formats, ", "))
	}
	return d, nil
}

// Next returns the next document; io.EOF at the end. Errors name the line.
func (r *Reader) Next() (Document, error) {
	where, value, err := r.next()
	if err != nil {
		return Document{}, err
	}
	d := Document{Value: value}
	if r.o.KeyField == "" {
		d.Value = nil
		if err := json.Unmarshal(value, &d); err != nil {
			return Document{}, fmt.Errorf(`%s: %w; want {"key": "…", "value": …}`, where, err)
		}
		if d.Key == "" {
			return Document{}, fmt.Errorf(`%s: want {"key": "…", "value": …}; for documents as they are, name the field `+
				"with the key (--key-field)", where)
		}
		if len(d.Value) == 0 {
			return Document{}, fmt.Errorf(`%s: key %q has no "value"`, where, d.Key)
		}
	} else if d.Key, err = keyOf(value, r.o.KeyField); err != nil {
		return Document{}, fmt.Errorf("%s: %w", where, err)
	}
	d.Key = r.o.KeyPrefix + d.Key
	if len(d.Key) > maxKey {
		return Document{}, fmt.Errorf("%s: the key %q… has %d bytes, KV takes %d", where, short(d.Key), len(d.Key), maxKey)
	}
	return d, nil
}

// short returns the beginning of a text, cut at a character boundary.
func short(s string) string {
	const most = 40
	for i := range s {
		if i >= most {
			return s[:i]
		}
	}
	return s
}

// keyOf returns the key in a field: a non-empty string, or the digits of a number as they are written.
func keyOf(value []byte, field string) (string, error) {
	rest := json.RawMessage(value)
	for _, name := range strings.Split(field, ".") {
		var object map[string]json.RawMessage
		if err := json.Unmarshal(rest, &object); err != nil {
			return "", fmt.Errorf("looking for the key in %q: %w", field, err)
		}
		var ok bool
		if rest, ok = object[name]; !ok {
			return "", fmt.Errorf("the document has no field %q for its key", field)
		}
	}
	switch c := rest[0]; {
	case c == '"':
		var s string
		if err := json.Unmarshal(rest, &s); err != nil {
			return "", err
		}
		if s == "" {
			return "", fmt.Errorf("the field %q for the key is empty", field)
		}
		return s, nil
	case c == '-' || c >= '0' && c <= '9':
		return string(rest), nil
	}
	return "", fmt.Errorf("the field %q for the key is %s: want a string or a number", field, short(string(rest)))
}

// plain returns the contents of r, decompressed and without a byte order mark.
func plain(r io.Reader) (*bufio.Reader, error) {
	in := bufio.NewReaderSize(r, 64<<10)
	if magic, _ := in.Peek(2); bytes.Equal(magic, []byte{0x1f, 0x8b}) { // the first read returns the error again
		z, err := gzip.NewReader(in)
		if err != nil {
			return nil, fmt.Errorf("gzip: %w", err)
		}
		in = bufio.NewReaderSize(z, 64<<10)
	}
	if mark, _ := in.Peek(3); string(mark) == "\ufeff" {
		if _, err := in.Discard(3); err != nil {
			return nil, err
		}
	}
	return in, nil
}

// detect returns the format by the first non-space character; lines for a file that has none.
func detect(in *bufio.Reader) (Format, error) {
	for n := 1; ; n++ {
		head, err := in.Peek(n)
		if errors.Is(err, io.EOF) || errors.Is(err, bufio.ErrBufferFull) {
			return Lines, nil
		}
		if err != nil {
			return "", err
		}
		switch head[n-1] {
		case ' ', '\t', '\r', '\n':
		case '[':
			return List, nil
		case '{':
			return Lines, nil
		default:
			return CSV, nil
		}
	}
}

// lines returns a function that reads one object per line and skips blank lines.
func lines(in io.Reader) func() (string, []byte, error) {
	s := bufio.NewScanner(in)
	s.Buffer(make([]byte, 0, 64<<10), MaxSize)
	line := 0
	return func() (string, []byte, error) {
		for s.Scan() {
			line++
			text := bytes.TrimSpace(s.Bytes())
			if len(text) == 0 {
				continue
			}
			where := fmt.Sprintf("line %d", line)
			if err := object(text); err != nil {
				return "", nil, fmt.Errorf("%s: %w", where, err)
			}
			return where, slices.Clone(text), nil
		}
		err := s.Err()
		if errors.Is(err, bufio.ErrTooLong) {
			err = fmt.Errorf("longer than %d bytes", MaxSize)
		}
		if err != nil {
			return "", nil, fmt.Errorf("line %d: %w", line+1, err)
		}
		return "", nil, io.EOF
	}
}

// object returns an error unless a text is one JSON object.
func object(text []byte) error {
	if text[0] != '{' {
		return fmt.Errorf("want a JSON object, found %s", short(string(text)))
	}
	var v json.RawMessage
	return json.Unmarshal(text, &v)
}

// list returns a function that reads the elements of a JSON array.
func list(in io.Reader) func() (string, []byte, error) {
	at := &lineReader{bounded: bounded{in: in}}
	dec := json.NewDecoder(at)
	begun := false
	fail := func(err error) error {
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			return fmt.Errorf("line %d: %w", at.line(syntax.Offset), err)
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return fmt.Errorf("line %d: the file ends before the list does", at.line(at.read))
		}
		return fmt.Errorf("line %d: %w", at.line(dec.InputOffset()), err)
	}
	return func() (string, []byte, error) {
		at.most = dec.InputOffset() + MaxSize
		if !begun {
			if t, err := dec.Token(); err != nil {
				return "", nil, fail(err)
			} else if t != json.Delim('[') {
				return "", nil, fail(fmt.Errorf("want a JSON array, found %v", t))
			}
			begun = true
		}
		if !dec.More() {
			if _, err := dec.Token(); err != nil {
				return "", nil, fail(err)
			}
			if _, err := dec.Token(); !errors.Is(err, io.EOF) {
				return "", nil, fail(errors.New("something follows the list"))
			}
			return "", nil, io.EOF
		}
		var v json.RawMessage
		if err := dec.Decode(&v); err != nil {
			return "", nil, fail(err)
		}
		where := fmt.Sprintf("line %d", at.line(dec.InputOffset()-int64(len(v))))
		if err := object(v); err != nil {
			return "", nil, fmt.Errorf("%s: %w", where, err)
		}
		return where, v, nil
	}
}

// bounded is a reader that fails once it has read more than most bytes.
type bounded struct {
	in   io.Reader
	read int64 // bytes read
	most int64 // bytes that may be read so far
}

// Read implements io.Reader.
func (b *bounded) Read(p []byte) (int, error) {
	if b.read > b.most {
		return 0, fmt.Errorf("a document is longer than %d bytes", MaxSize)
	}
	n, err := b.in.Read(p)
	b.read += int64(n)
	return n, err
}

// lineReader tracks the line ends in what a decoder has read ahead.
type lineReader struct {
	bounded
	ends   []int64 // offsets of line ends at or after the last requested offset
	before int     // number of line ends before those
}

// Read implements io.Reader.
func (l *lineReader) Read(p []byte) (int, error) {
	from := l.read
	n, err := l.bounded.Read(p)
	for i, c := range p[:n] {
		if c == '\n' {
			l.ends = append(l.ends, from+int64(i))
		}
	}
	return n, err
}

// line returns the line number of a byte. Offsets must not decrease between calls.
func (l *lineReader) line(offset int64) int {
	n, _ := slices.BinarySearch(l.ends, offset)
	l.before, l.ends = l.before+n, l.ends[n:]
	return l.before + 1
}

// table returns a function that reads one object per line of a table.
func table(in io.Reader, tabs, infer bool) func() (string, []byte, error) {
	at := &bounded{in: in}
	r := csv.NewReader(at)
	r.ReuseRecord = true
	if tabs {
		r.Comma = '\t'
		r.LazyQuotes = true
	}
	var names []string // JSON strings
	return func() (string, []byte, error) {
		at.most = r.InputOffset() + MaxSize
		if names == nil {
			head, err := r.Read()
			if errors.Is(err, io.EOF) {
				return "", nil, io.EOF
			}
			if err != nil {
				return "", nil, tableError(err)
			}
			if names, err = header(head); err != nil {
				return "", nil, err
			}
		}
		cells, err := r.Read()
		if err != nil {
			return "", nil, tableError(err)
		}
		line, _ := r.FieldPos(0)
		where := fmt.Sprintf("line %d", line)
		var b []byte
		for i, cell := range cells {
			if infer && cell == "" {
				continue
			}
			if !utf8.ValidString(cell) {
				return "", nil, fmt.Errorf("%s: field %s is not UTF-8", where, names[i])
			}
			b = append(append(append(b, ','), names[i]...), ':')
			if infer && scalar(cell) {
				b = append(b, cell...)
			} else {
				b = append(b, quoted(cell)...)
			}
		}
		if len(b) == 0 {
			return where, []byte("{}"), nil
		}
		b[0] = '{'
		return where, append(b, '}'), nil
	}
}

// tableError returns an error that names the line only once; io.EOF is returned unchanged.
func tableError(err error) error {
	var p *csv.ParseError
	if errors.As(err, &p) {
		return fmt.Errorf("line %d: %w", p.Line, p.Err)
	}
	return err
}

// header returns the names of a table's columns, as JSON strings.
func header(names []string) ([]string, error) {
	all := make([]string, len(names))
	for i, n := range names {
		switch {
		case n == "":
			return nil, fmt.Errorf("line 1: column %d has no name", i+1)
		case !utf8.ValidString(n):
			return nil, fmt.Errorf("line 1: the name of column %d is not UTF-8", i+1)
		}
		all[i] = string(quoted(n))
		if slices.Contains(all[:i], all[i]) {
			return nil, fmt.Errorf("line 1: two columns are called %s", all[i])
		}
	}
	return all, nil
}

// scalar reports whether a cell is a valid JSON number, true or false.
func scalar(cell string) bool {
	if cell == "true" || cell == "false" {
		return true
	}
	c := cell[0]
	return (c == '-' || c >= '0' && c <= '9') && json.Valid([]byte(cell))
}

func quoted(s string) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(s) // encoding a string never fails
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}
