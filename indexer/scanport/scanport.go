// Package scanport is what a client and an indexer say to each other when the client scans without a manager between:
// the form of requests, of answers, and of the rows in them.
//
// A connection is a WebSocket of the subprotocol Protocol on an indexer's scan port. It begins with a ticket that a
// manager has issued, and serves one request after the other: a message with a request, then messages with rows, the
// last of which has an end or a failure. Who gives an answer up closes the connection.
//
// It promises that an answer that was cut is never taken for a whole one, that a message is read without trust in its
// lengths, and that a row costs no allocation that others share. It never reads or writes itself.
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

// Where and how a connection begins.
const (
	// Path of the WebSocket.
	Path = "/v1/scans"
	// Protocol is its subprotocol; another form of messages is another one.
	Protocol = "tidemark-scan.v2"
	// HeaderTicket carries the ticket of the client.
	HeaderTicket = "Tidemark-Ticket"
	// CheckPath is where an indexer asks the manager that has issued a ticket whether it is good.
	CheckPath = "/v1/tickets:check"
	// MaxTicket bounds a ticket, in bytes.
	MaxTicket = 1024
	// MaxResume bounds what says where a scan goes on, in bytes.
	MaxResume = 96 << 10
)

// Check asks a manager about a ticket that it has issued.
type Check struct {
	Ticket string `json:"ticket"`
}

// Checked says whose ticket it is. A ticket that is not good is refused instead.
type Checked struct {
	Principal string `json:"principal"`
}

// Ops of a request.
const (
	Scan  = "scan"
	Count = "count"
)

// Request asks for the rows of an index, or for their number.
type Request struct {
	Op        string
	Index     string // its id, in decimal digits
	RequestID string // "" for none
	Parent    string // W3C traceparent, "" for none
	Resume    []byte // of the last message of an answer that was cut: only what follows it is wanted; none: all
	Body      []byte // what :scan and :count take, in JSON
}

// none stands for a field of the first line that is empty.
const none = "-"

// ErrMessage is wrapped when a message is not of this protocol.
var ErrMessage = errors.New("bad message on a scan connection")

// AppendRequest appends a request's message: a line with its fields and the length of Resume, Resume, and the body.
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

// ParseRequest reads a request's message; Resume and Body are parts of it.
func ParseRequest(message []byte) (Request, error) {
	line, body, ok := bytes.Cut(message, []byte{'\n'})
	fields := strings.Split(string(line[:min(len(line), maxLine)]), " ")
	if !ok || len(line) > maxLine || len(fields) != 5 {
		return Request{}, fmt.Errorf("%w: want a line with op, index, request id, traceparent and a length, then JSON",
			ErrMessage)
	}
	resume, err := strconv.ParseUint(fields[4], 10, 32)
	if err != nil || resume > MaxResume || resume > uint64(len(body)) {
		return Request{}, fmt.Errorf("%w: %.20q bytes of where it is to go on: want at most %d", ErrMessage, fields[4],
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
		return r, fmt.Errorf("%w: op %q: want %s or %s, which is of all rows", ErrMessage, r.Op, Scan, Count)
	}
	return r, nil
}

// maxLine bounds the first line of a request.
const maxLine = 1024

// What stands behind the rows of a message.
const (
	More    = 0 // where the answer goes on, should it be cut here, or nothing; another message follows
	End     = 1 // the last line of a scan, as :scan has it, or the answer of :count
	Failure = 2 // a problem, as REST has it, and beside its fields session, a token of what was seen with the rows
)

// An answer's message: number of components that rows have (uvarint), one byte for each (1: descending), length of
// the rows (4 bytes, big-endian), the rows, one of More, End, Failure (1 byte), and its text: JSON, but for More.

// AppendHead begins a message whose rows have components of these directions.
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

// Finish ends a message whose head takes so many bytes.
func Finish(message []byte, head int, tail byte, text []byte) []byte {
	binary.BigEndian.PutUint32(message[head-4:], uint32(len(message)-head))
	return append(append(message, tail), text...)
}

// Answer is a message that is being read.
type Answer struct {
	Tail byte
	Text []byte // of the tail

	desc []bool
	rows []byte // that are left

	ids   strings.Builder   // room for ids that are given away
	text  []byte            // and for keys
	parts []json.RawMessage // and for their components
	plain []byte            // a component that stands upright
}

// Read begins to read a message. The rows are parts of it.
func (a *Answer) Read(message []byte) error {
	n, size := binary.Uvarint(message)
	if size <= 0 || n > maxComponents || uint64(len(message)-size) < n+5 {
		return fmt.Errorf("%w: its head is cut", ErrMessage)
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

// Next returns the next row of the message: its key as JSON, component by component, and its document's id, both
// copies; false when there is none.
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
		a.ids = strings.Builder{} // the old one belongs to those who have its texts
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

// Sizes of the rooms from which keys are given away: a caller that keeps one key keeps no more than that.
const (
	textRoom  = 2 << 10
	partsRoom = 64
)

// decode writes a key as JSON into the rooms.
func (a *Answer) decode(key []byte) ([]json.RawMessage, error) {
	if most := min(len(a.desc), len(key)); cap(a.parts)-len(a.parts) < most { // a component takes a byte at least
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

// descending writes the first component of a key, which is upside down, and returns the rest of the key.
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

// Empty tells that no rows are left in the message.
func (a *Answer) Empty() bool { return len(a.rows) == 0 }
