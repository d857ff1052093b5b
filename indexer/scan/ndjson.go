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

// MediaType of an answer to a client.
const MediaType = "application/x-ndjson"

const (
	ndjsonBuffer = 32 << 10 // what is written at once
	rowGuess     = 80       // bytes of a line, for the first size of the buffer
)

// Encoder writes an answer for clients: a line {"key":[…],"id":"…"} per row, or {"key":[…],"values":[…]} per group, and
// a last line with "end" or "error". It implements Sink. A component that is MISSING is shown as null.
type Encoder struct {
	projection
	w     io.Writer
	flush func()
	whole func(size int)
	out   []byte // whole lines that have not been written yet
	full  int    // bytes, when they are written
	begun bool   // something has been written

	groups bool   // and not rows
	places bool   // lines with them are wanted
	at     Resume // where another indexer would go on behind the row that came last
	token  []byte
	seen   scanport.Seen
}

// projection makes of stored keys those that rows have.
type projection struct {
	desc  []bool // of the components of the index
	pick  []int  // components that rows have; nil: all
	shown []bool // desc of those
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

// NewEncoder writes the rows of a scan to w; flush, if not nil, is called when a buffer has been written that others
// follow; whole, if not nil, is called with its size before an answer is written that is in one buffer with its end.
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

// WithPlaces has lines with places written (scanport.PlaceLine).
func (e *Encoder) WithPlaces() { e.places = true }

// At implements Dated.
func (e *Encoder) At(ref wire.StabilityRef, seen scanport.Seen) { e.at.Ref, e.seen = ref, seen }

// project puts the components that rows have together.
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
	if err != nil { // what was there before the line stays
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
		e.at.Last = r // for now only
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

// write returns the lines to the client.
func (e *Encoder) write() error {
	e.begun = true
	_, err := e.w.Write(e.out)
	e.out = e.out[:0]
	return err
}

// last writes what is left, with the last line in it.
func (e *Encoder) last() error {
	if !e.begun && e.whole != nil {
		e.whole(len(e.out))
	}
	return e.write()
}

// End writes the last line of a whole answer.
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

// Fail writes the last line of an answer that ends with an error. It tells what a session has seen with the rows
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

// tokenOf is the token of what was seen; "" where no rows were begun.
func tokenOf(s *scanport.Seen) string {
	if s.Bucket == "" {
		return ""
	}
	return s.Token()
}

// appendSession appends ,"session":"…" and, where it is so, ,"session_lost":"…". Neither has a character that needs
// escaping.
func appendSession(dst []byte, r *Result) []byte {
	dst = append(dst, `,"session":"`...)
	dst = append(r.Seen.AppendToken(dst), '"')
	if r.SessionLost != "" {
		dst = append(dst, `,"session_lost":"`...)
		dst = append(append(dst, r.SessionLost...), '"')
	}
	return dst
}

// appendMore appends ,"more":true,"cursor":"…" of a page that others follow.
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
