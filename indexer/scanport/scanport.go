// Package scanport is the protocol between a client and an indexer when the client scans without going through a
// manager: the encoding of requests, of answers, and of the rows in them.
//
// A connection is a WebSocket with the subprotocol Protocol on an indexer's scan port. It is opened with a ticket
// that a manager has issued, and serves one request after the other: a message with the request, followed by messages
// with rows, the last of which ends with an end or a failure. A client that abandons an answer closes the connection.
//
// It guarantees that a cut answer is never taken for a complete one, that lengths in a message are checked before
// use, and that rows do not share memory with messages. It does no I/O itself.
package scanport

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"tidemark/collate"
)

// Location and setup of a connection.
const (
	// Path is the path of the WebSocket.
	Path = "/v1/scans"
	// Protocol is its subprotocol. A change of the message format gets another name.
	Protocol = "tidemark-scan.v2"
	// HeaderTicket carries the client's ticket.
	HeaderTicket = "Tidemark-Ticket"
	// CheckPath is the path at which an indexer has a ticket checked by the manager that issued it.
	CheckPath = "/v1/tickets:check"
	// MaxTicket bounds a ticket, in bytes.
	MaxTicket = 1024
	// MaxResume bounds the place at which a scan continues, in bytes.
	MaxResume = 96 << 10
)

// Check requests the check of a ticket from the manager that issued it.
type Check struct {
	Ticket string `json:"ticket"`
}

// Checked names the owner of a valid ticket. An invalid ticket is refused instead.
type Checked struct {
	Principal string `json:"principal"`
}

// Values of Request.Op.
const (
	Scan  = "scan"
	Count = "count"
)

// Request is a request for the rows of an index, or for their number.
type Request struct {
	Op        string
	Index     string // index id in decimal digits
	RequestID string // "" for none
	Parent    string // W3C traceparent, "" for none
	Resume    []byte // from the last message of a cut answer: only what follows it is wanted; empty: everything
	Body      []byte // JSON body, as for :scan and :count
}

// none stands for an empty field in the first line.
const none = "-"

// ErrMessage is wrapped when a message does not follow this protocol.
var ErrMessage = errors.New("bad message on a scan connection")

// AppendRequest appends the message of a request: a line with its fields and the length of Resume, then Resume, then
// the body.
func AppendRequest(dst []byte, r Request) []byte {
	for _, field := range [...]string{r.Op, r.Index, r.RequestID, r.Parent} {
		if field == "" {
			field = none
		}
		dst = append(append(dst, field...), ' ')
	}
	dst = append(strconv.AppendInt(dst, int64(len(r.Resume)), 10), '\n')
	return append(append(dst, r.Resume...), r.Body...)
}

// ParseRequest parses the message of a request. Resume and Body alias it.
func ParseRequest(message []byte) (Request, error) {
	line, body, ok := bytes.Cut(message, []byte{'\n'})
	fields := strings.Split(string(line[:min(len(line), maxLine)]), " ")
	if !ok || len(line) > maxLine || len(fields) != 5 {
		return Request{}, fmt.Errorf("%w: want a line with op, index, request id, traceparent and a length, then JSON",
			ErrMessage)
	}
	resume, err := strconv.ParseUint(fields[4], 10, 32)
	if err != nil || resume > MaxResume || resume > uint64(len(body)) {
		return Request{}, fmt.Errorf("%w: %.20q bytes of a position to continue at; the limit is %d", ErrMessage, fields[4],
			MaxResume)
	}
	for i := range fields {
		if fields[i] == none {
			fields[i] = ""
		}
	}
	r := Request{Op: fields[0], Index: fields[1], RequestID: fields[2], Parent: fields[3], Resume: body[:resume],
		Body: body[resume:]}
	if r.Op != Scan && (r.Op != Count || resume > 0) {
		return r, fmt.Errorf("%w: op %q: want %s or %s, which covers all rows", ErrMessage, r.Op, Scan, Count)
	}
	return r, nil
}

// maxLine bounds the first line of a request, in bytes.
const maxLine = 1024

// Kinds of tail, which follows the rows of a message.
const (
	More    = 0 // the place at which the answer continues if it is cut here, or nothing; another message follows
	End     = 1 // the last line of a scan, in the form of :scan, or the answer of :count
	Failure = 2 // a REST problem, with the additional field session: a token of what was seen with the rows
)

// Message of an answer: number of components of the rows (uvarint), one byte for each (1: descending), length of the
// rows (4 bytes, big-endian), the rows, one of More, End and Failure (1 byte), and its text, which is JSON except for
// More.

// AppendHead starts a message. desc has the directions of the rows' components.
func AppendHead(dst []byte, desc []bool) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(desc)))
	for _, d := range desc {
		b := byte(0)
		if d {
			b = 1
		}
		dst = append(dst, b)
	}
	return append(dst, 0, 0, 0, 0)
}

// AppendRow appends a row to a message: length and bytes of its collated key, then of its document's id.
func AppendRow(dst, key, id []byte) []byte {
	dst = append(binary.AppendUvarint(dst, uint64(len(key))), key...)
	return append(binary.AppendUvarint(dst, uint64(len(id))), id...)
}

// Finish completes a message; head is the length of its head.
func Finish(message []byte, head int, tail byte, text []byte) []byte {
	binary.BigEndian.PutUint32(message[head-4:], uint32(len(message)-head))
	return append(append(message, tail), text...)
}

// Answer is a message that is being read.
type Answer struct {
	Tail byte
	Text []byte // of the tail

	desc []bool
	rows []byte // rows not yet read

	ids   strings.Builder   // buffer for ids that are returned
	text  []byte            // buffer for keys
	parts []json.RawMessage // buffer for their components
	plain []byte            // a component in ascending encoding
}

// Read starts reading a message, which the rows alias.
func (a *Answer) Read(message []byte) error {
	n, size := binary.Uvarint(message)
	if size <= 0 || n > maxComponents || uint64(len(message)-size) < n+5 {
		return fmt.Errorf("%w: its head is truncated", ErrMessage)
	}
	message = message[size:]
	a.desc = a.desc[:0]
	for _, b := range message[:n] {
		a.desc = append(a.desc, b == 1)
	}
	length := binary.BigEndian.Uint32(message[n:])
	message = message[n+4:]
	if uint64(length) >= uint64(len(message)) {
		return fmt.Errorf("%w: %d bytes of rows in %d", ErrMessage, length, len(message))
	}
	a.rows, a.Tail, a.Text = message[:length], message[length], message[length+1:]
	if a.Tail > Failure {
		return fmt.Errorf("%w: tail %d", ErrMessage, a.Tail)
	}
	return nil
}

// maxComponents bounds the components of a key.
const maxComponents = 1024

// Next returns the next row of the message: its key as JSON, component by component, and its document's id, both as
// copies. ok is false if there is none.
func (a *Answer) Next() (key []json.RawMessage, id string, ok bool, err error) {
	if len(a.rows) == 0 {
		return nil, "", false, nil
	}
	k, ok1 := a.field()
	d, ok2 := a.field()
	if !ok1 || !ok2 {
		return nil, "", false, fmt.Errorf("%w: a row does not parse", ErrMessage)
	}
	key, err = a.decode(k)
	return key, a.id(d), err == nil, err
}

// id returns a copy of an id.
func (a *Answer) id(d []byte) string {
	if a.ids.Cap()-a.ids.Len() < len(d) {
		a.ids = strings.Builder{} // the old buffer belongs to the ids that were returned
		a.ids.Grow(max(textRoom, len(d)))
	}
	at := a.ids.Len()
	a.ids.Write(d)
	return a.ids.String()[at:]
}

func (a *Answer) field() ([]byte, bool) {
	size, n := binary.Uvarint(a.rows)
	if n <= 0 || size > uint64(len(a.rows)-n) {
		return nil, false
	}
	b := a.rows[n : n+int(size)]
	a.rows = a.rows[n+int(size):]
	return b, true
}

// Sizes of the buffers that returned keys are part of: a caller that keeps one key retains at most one buffer.
const (
	textRoom  = 2 << 10
	partsRoom = 64
)

// decode appends a key as JSON to the buffers.
func (a *Answer) decode(key []byte) ([]json.RawMessage, error) {
	if most := min(len(a.desc), len(key)); cap(a.parts)-len(a.parts) < most { // a component has at least one byte
		a.parts = make([]json.RawMessage, 0, max(partsRoom, most))
	}
	from := len(a.parts)
	for i := 0; len(key) > 0; i++ {
		if cap(a.text)-len(a.text) < len(key)+32 {
			a.text = make([]byte, 0, max(textRoom, 2*len(key)+32))
		}
		at := len(a.text)
		var err error
		if i < len(a.desc) && a.desc[i] {
			key, err = a.descending(key)
		} else {
			a.text, key, err = collate.DecodeNext(a.text, key)
		}
		if err != nil {
			return nil, fmt.Errorf("%w: component %d of a key: %w", ErrMessage, i, err)
		}
		a.parts = append(a.parts, json.RawMessage(a.text[at:len(a.text):len(a.text)]))
	}
	return a.parts[from:len(a.parts):len(a.parts)], nil
}

// descending decodes the first component of a key, which is in descending encoding, and returns the rest of the key.
func (a *Answer) descending(key []byte) (rest []byte, err error) {
	component, rest, err := collate.Next(key, true)
	if err != nil {
		return nil, err
	}
	a.plain = append(a.plain[:0], component...)
	collate.Complement(a.plain)
	a.text, err = collate.Decode(a.text, a.plain)
	return rest, err
}

// Empty reports whether all rows of the message have been read.
func (a *Answer) Empty() bool { return len(a.rows) == 0 }
