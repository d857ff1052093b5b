package scan

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"

	"tidemark/collate"
	"tidemark/errcode"
	"tidemark/indexer/scanport"
	"tidemark/timestamp"
	"tidemark/wire"
)

// MediaType is the media type of an answer to a client.
const MediaType = "application/x-ndjson"

const (
	ndjsonBuffer = 32 << 10 // bytes at which lines are written
	rowGuess     = 80       // bytes of a line, for the initial size of the buffer
)

// Encoder writes an answer to a client: one line per row, {"key":[…],"id":"…"}, or per group,
// {"key":[…],"values":[…]}, and a last line with "end" or "error". It implements Sink. A MISSING component is encoded
// as null.
type Encoder struct {
	projection
	w     io.Writer
	flush func()
	whole func(size int)
	out   []byte // complete lines that have not been written yet
	full  int    // size of out at which it is written
	begun bool   // something has been written

	groups bool   // groups instead of rows
	places bool   // the client wants lines with places
	at     Resume // where another indexer would continue behind the last row
	token  []byte
	seen   scanport.Seen
}

// projection selects components from stored keys.
type projection struct {
	desc  []bool // directions of the index's components
	pick  []int  // components that rows have; nil: all
	shown []bool // directions of pick
	key   []byte
	parts [][]byte
}

func newProjection(spec *Spec) projection {
	p := projection{desc: spec.Desc, pick: spec.Project, shown: spec.Desc}
	if g := spec.Groups; g != nil {
		p.desc = g.desc(spec.Desc)[:len(g.By)]
		p.shown = p.desc
	}
	if p.pick != nil {
		p.shown = make([]bool, 0, len(p.pick))
		for _, i := range p.pick {
			p.shown = append(p.shown, p.desc[i])
		}
	}
	return p
}

// NewEncoder returns an Encoder that writes the rows of a scan to w. flush, unless nil, is called when a buffer has
// been written and more follows. whole, unless nil, is called with the size of an answer before it is written, if it
// fits in one buffer including its end.
func NewEncoder(w io.Writer, flush func(), whole func(size int), spec Spec) *Encoder {
	size := ndjsonBuffer
	if spec.Limit > 0 && spec.Limit < ndjsonBuffer/rowGuess {
		size = int(spec.Limit+4) * rowGuess
	}
	e := &Encoder{projection: newProjection(&spec), w: w, flush: flush, whole: whole, out: make([]byte, 0, size),
		full: ndjsonBuffer, groups: spec.Groups != nil, at: Resume{Index: spec.Index}}
	if spec.Resume != nil {
		e.at.Rows = spec.Resume.Rows
	}
	return e
}

// WithPlaces makes the Encoder write lines with places (scanport.PlaceLine).
func (e *Encoder) WithPlaces() { e.places = true }

// At implements Dated.
func (e *Encoder) At(ref wire.StabilityRef, seen scanport.Seen) { e.at.Ref, e.seen = ref, seen }

// project returns a key with the selected components.
func (p *projection) project(key []byte) ([]byte, error) {
	if p.pick == nil {
		return key, nil
	}
	p.parts = p.parts[:0]
	for i := 0; len(key) > 0; i++ {
		part, rest, err := collate.Next(key, i < len(p.desc) && p.desc[i])
		if err != nil {
			return nil, err
		}
		p.parts, key = append(p.parts, part), rest
	}
	p.key = p.key[:0]
	for _, i := range p.pick {
		if i < len(p.parts) {
			p.key = append(p.key, p.parts[i]...)
		}
	}
	return p.key, nil
}

// Row implements Sink.
func (e *Encoder) Row(r Row) error {
	key, err := e.project(r.Key)
	var line []byte
	if err == nil {
		line, err = collate.DecodeComposite(append(e.out, `{"key":`...), key, e.shown)
	}
	if err != nil { // e.out keeps the lines before this one
		return Errorf(errcode.Damaged, "a stored key of document %q: %w", r.DocID, err)
	}
	if e.groups {
		line = append(append(line, `,"values":`...), r.DocID...)
	} else {
		line = append(line, `,"id":`...)
		line = collate.AppendQuoted(line, r.DocID)
	}
	e.out = append(line, '}', '\n')
	e.at.Rows++
	if len(e.out) < e.full {
		return nil
	}
	if e.places {
		e.at.Last = r // valid only during this call
		e.token = e.at.appendTo(e.token[:0], &e.seen)
		e.out = scanport.AppendPlace(e.out, e.token)
	}
	if err := e.write(); err != nil {
		return err
	}
	if e.flush != nil {
		e.flush()
	}
	return nil
}

// write writes the buffered lines to the client.
func (e *Encoder) write() error {
	e.begun = true
	_, err := e.w.Write(e.out)
	e.out = e.out[:0]
	return err
}

// last writes the rest, including the last line.
func (e *Encoder) last() error {
	if !e.begun && e.whole != nil {
		e.whole(len(e.out))
	}
	return e.write()
}

// End writes the last line of a complete answer.
func (e *Encoder) End(r Result) error {
	e.out = append(appendEnd(e.out, r), '\n')
	return e.last()
}

// appendEnd appends {"end":true,"rows":n,"timestamp":{…},"session":"…"}.
func appendEnd(dst []byte, r Result) []byte {
	dst = append(dst, `{"end":true,"rows":`...)
	dst = strconv.AppendInt(dst, r.Rows, 10)
	dst = append(dst, `,"timestamp":`...)
	return append(appendExplain(appendMore(appendSession(appendTimestamp(dst, r), &r), &r), r.Explain), '}')
}

// Fail writes the last line of an answer that ends with an error. It includes what the session has seen with the rows
// before.
func (e *Encoder) Fail(err error) error {
	body, jerr := json.Marshal(struct {
		Error   *Error `json:"error"`
		Session string `json:"session,omitempty"`
	}{AsError(err), tokenOf(&e.seen)})
	if jerr != nil {
		return fmt.Errorf("encode an error: %w", jerr)
	}
	e.out = append(append(e.out, body...), '\n')
	return e.last()
}

// tokenOf returns the token of what was seen, "" if no rows were begun.
func tokenOf(s *scanport.Seen) string {
	if s.Bucket == "" {
		return ""
	}
	return s.Token()
}

// appendSession appends ,"session":"…" and, if something was lost, ,"session_lost":"…". Neither value contains a
// character that needs escaping.
func appendSession(dst []byte, r *Result) []byte {
	dst = append(dst, `,"session":"`...)
	dst = append(r.Seen.AppendToken(dst), '"')
	if r.SessionLost != "" {
		dst = append(dst, `,"session_lost":"`...)
		dst = append(append(dst, r.SessionLost...), '"')
	}
	return dst
}

// appendMore appends ,"more":true,"cursor":"…" to a page that is not the last.
func appendMore(dst []byte, r *Result) []byte {
	if !r.More {
		return dst
	}
	dst = append(dst, `,"more":true`...)
	if r.Cursor != "" {
		dst = append(append(append(dst, `,"cursor":"`...), r.Cursor...), '"')
	}
	return dst
}

// AppendCount appends the answer to a count: {"count":n,"timestamp":{…},"session":"…"}.
func AppendCount(dst []byte, r Result) []byte {
	dst = append(dst, `{"count":`...)
	dst = strconv.AppendInt(dst, r.Rows, 10)
	dst = append(dst, `,"timestamp":`...)
	dst = appendExplain(appendSession(appendTimestamp(dst, r), &r), r.Explain)
	return append(dst, '}', '\n')
}

// appendTimestamp appends {"id":"…","hash":"…","vector":[["vbuuid",seqno],…]}, with the vector only if it was
// requested.
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
