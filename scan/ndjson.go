package scan

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strconv"

	"tidemark/collate"
	"tidemark/timestamp"
)

// MediaType of an answer to a client.
const MediaType = "application/x-ndjson"

const ndjsonBuffer = 32 << 10

// Encoder writes an answer for clients: a line {"key":[…],"id":"…"} per row and a last line with "end" or "error". It
// implements Sink. A component that is MISSING is shown as null.
type Encoder struct {
	w     *bufio.Writer
	flush func()
	desc  []bool // of the components of the index
	pick  []int  // components that rows have; nil: all
	shown []bool // desc of those
	key   []byte
	parts [][]byte
	line  []byte
	since int
}

// NewEncoder writes the rows of a scan to w; flush, if not nil, is called when a buffer has been written, and after the
// last line.
func NewEncoder(w io.Writer, flush func(), spec Spec) *Encoder {
	e := &Encoder{w: bufio.NewWriterSize(w, ndjsonBuffer), flush: flush, desc: spec.Desc, pick: spec.Project, shown: spec.Desc}
	if e.pick != nil {
		e.shown = make([]bool, 0, len(e.pick))
		for _, p := range e.pick {
			e.shown = append(e.shown, e.desc[p])
		}
	}
	return e
}

// project puts the components that rows have together.
func (e *Encoder) project(key []byte) ([]byte, error) {
	if e.pick == nil {
		return key, nil
	}
	e.parts = e.parts[:0]
	for i := 0; len(key) > 0; i++ {
		part, rest, err := collate.Next(key, i < len(e.desc) && e.desc[i])
		if err != nil {
			return nil, err
		}
		e.parts, key = append(e.parts, part), rest
	}
	e.key = e.key[:0]
	for _, p := range e.pick {
		if p < len(e.parts) {
			e.key = append(e.key, e.parts[p]...)
		}
	}
	return e.key, nil
}

// Row implements Sink.
func (e *Encoder) Row(r Row) error {
	line := append(e.line[:0], `{"key":`...)
	key, err := e.project(r.Key)
	if err == nil {
		line, err = collate.DecodeComposite(line, key, e.shown)
	}
	if err != nil {
		return Errorf(Damaged, "a stored key of document %q: %w", r.DocID, err)
	}
	line = append(line, `,"id":`...)
	line = collate.AppendQuoted(line, r.DocID)
	e.line = append(line, '}', '\n')
	if e.since += len(e.line); e.since >= ndjsonBuffer {
		return e.write(true)
	}
	return e.write(false)
}

func (e *Encoder) write(flush bool) error {
	if _, err := e.w.Write(e.line); err != nil {
		return err
	}
	if !flush {
		return nil
	}
	e.since = 0
	if err := e.w.Flush(); err != nil {
		return err
	}
	if e.flush != nil {
		e.flush()
	}
	return nil
}

// End writes the last line of a whole answer.
func (e *Encoder) End(r Result) error {
	line := append(e.line[:0], `{"end":true,"rows":`...)
	line = strconv.AppendInt(line, r.Rows, 10)
	line = append(line, `,"timestamp":`...)
	line = appendTimestamp(line, r)
	e.line = append(line, '}', '\n')
	return e.write(true)
}

// Fail writes the last line of an answer that ends with an error.
func (e *Encoder) Fail(err error) error {
	body, jerr := json.Marshal(struct {
		Error *Error `json:"error"`
	}{AsError(err)})
	if jerr != nil {
		return fmt.Errorf("encode an error: %w", jerr)
	}
	e.line = append(append(e.line[:0], body...), '\n')
	return e.write(true)
}

// AppendCount appends the answer to a count: {"count":n,"timestamp":{…}}.
func AppendCount(dst []byte, r Result) []byte {
	dst = append(dst, `{"count":`...)
	dst = strconv.AppendInt(dst, r.Rows, 10)
	dst = append(dst, `,"timestamp":`...)
	dst = appendTimestamp(dst, r)
	return append(dst, '}', '\n')
}

// appendTimestamp appends {"id":"…","hash":"…","vector":[["vbuuid",seqno],…]}, the vector when it was asked for.
func appendTimestamp(dst []byte, r Result) []byte {
	dst = append(dst, `{"id":"`...)
	dst = append(dst, TimestampID(r.Ref)...)
	dst = append(dst, `","hash":"`...)
	dst = strconv.AppendUint(dst, r.Ref.Hash, 10)
	dst = append(dst, '"')
	if r.Vector.Len() > 0 {
		dst = append(dst, `,"vector":`...)
		dst = appendVector(dst, r.Vector)
	}
	return append(dst, '}')
}

func appendVector(dst []byte, v timestamp.Vector) []byte {
	dst = append(dst, '[')
	for i := range v.Seqnos {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `["`...)
		dst = strconv.AppendUint(dst, v.VBUUIDs[i], 10)
		dst = append(dst, `",`...)
		dst = strconv.AppendUint(dst, v.Seqnos[i], 10)
		dst = append(dst, ']')
	}
	return append(dst, ']')
}
