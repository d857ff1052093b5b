package scan

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"sync"

	"tidemark/errcode"
	"tidemark/timestamp"
)

// A node's answer is a sequence of frames: length of the payload (4 bytes, big-endian), type (1), payload, CRC-32C of
// type and payload (4). It starts with a header, followed by rows, then exactly one end or error. A sequence that
// stops before that is not an answer.
const (
	// format (1), flags (1), count (uvarint, used by a counting answer), and if flagged, the vector as a delta
	// against zero
	frameHeader = 1
	frameRows   = 2 // rows: key length, key, docid length, docid (lengths as uvarints)
	frameEnd    = 3 // number of rows sent (uvarint)
	frameError  = 4 // an Error as JSON
	// Entries read so far, and entries filtered out (uvarints). If requested, it precedes rows and the end, and
	// follows the header of a counting answer.
	frameLooked = 5

	frameFormat = 1
	flagVector  = 1
	flagCount   = 2

	// MaxFrame bounds the payload of a frame, in bytes.
	MaxFrame = 4 << 20
	// firstChunk and chunk are the sizes at which a frame of rows is sent. The first one is small, so that the merge
	// can begin.
	firstChunk = 4 << 10
	chunk      = 64 << 10

	readBuffer = 32 << 10
	maxDrain   = 64 << 10
)

// ErrCut is wrapped when a stream of frames ends early.
var ErrCut = errors.New("the stream of rows was cut off")

// ErrFrame is wrapped when bytes are not a frame, or not one that is allowed at that place.
var ErrFrame = errors.New("bad frame in a stream of rows")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// FrameWriter writes a node's answer.
type FrameWriter struct {
	w     io.Writer
	flush func()
	buf   []byte // frame under construction: 5 bytes of head, then payload
	rows  int64
	sent  bool // a frame of rows has been sent
	err   error
	// looked, unless nil, returns the counts that are sent with the rows.
	looked func() Looked
}

// NewFrameWriter returns a FrameWriter. flush, unless nil, is called after each full frame of rows. The other frames
// are soon followed by another frame, or by the end of the answer.
func NewFrameWriter(w io.Writer, flush func()) *FrameWriter {
	return &FrameWriter{w: w, flush: flush, buf: make([]byte, 5, firstChunk+4096)}
}

// Header writes the header: the timestamp's vector (empty: not requested), and the count of a counting answer
// (negative: rows follow).
func (f *FrameWriter) Header(vector timestamp.Vector, count int64) error {
	var flags byte
	if vector.Len() > 0 {
		flags |= flagVector
	}
	if count >= 0 {
		flags |= flagCount
	}
	f.buf = append(f.buf[:5], frameFormat, flags)
	f.buf = binary.AppendUvarint(f.buf, uint64(max(count, 0)))
	if vector.Len() > 0 {
		f.buf = vector.AppendVector(f.buf)
	}
	return f.send(frameHeader)
}

// Row adds a row and sends the frame when it is full.
func (f *FrameWriter) Row(r Row) error {
	if n := len(r.Key) + len(r.DocID) + 2*binary.MaxVarintLen64; n > MaxFrame {
		return Errorf(errcode.Internal, "a row has %d bytes; the limit of a frame is %d", n, MaxFrame)
	} else if len(f.buf)-5+n > MaxFrame {
		if err := f.sendRows(); err != nil {
			return err
		}
	}
	f.buf = binary.AppendUvarint(f.buf, uint64(len(r.Key)))
	f.buf = append(f.buf, r.Key...)
	f.buf = binary.AppendUvarint(f.buf, uint64(len(r.DocID)))
	f.buf = append(f.buf, r.DocID...)
	f.rows++
	if n := len(f.buf); n >= chunk || !f.sent && n >= firstChunk {
		f.sent = true
		err := f.sendRows()
		if err == nil && f.flush != nil {
			f.flush()
		}
		return err
	}
	return f.err
}

// End writes the end frame.
func (f *FrameWriter) End() error {
	if err := f.pending(); err != nil {
		return err
	}
	if err := f.sendLooked(); err != nil {
		return err
	}
	f.buf = binary.AppendUvarint(f.buf[:5], uint64(f.rows))
	return f.send(frameEnd)
}

// Fail writes an error frame instead of the end.
func (f *FrameWriter) Fail(err error) error {
	if err := f.pending(); err != nil {
		return err
	}
	body, jerr := json.Marshal(AsError(err))
	if jerr != nil {
		return jerr
	}
	f.buf = append(f.buf[:5], body...)
	return f.send(frameError)
}

func (f *FrameWriter) pending() error {
	if len(f.buf) > 5 {
		return f.sendRows()
	}
	return f.err
}

// sendRows sends the buffered rows, preceded by the counts in looked.
func (f *FrameWriter) sendRows() error {
	if f.looked == nil {
		return f.send(frameRows)
	}
	rows := f.buf
	f.buf = make([]byte, 5, 32)
	err := f.sendLooked()
	f.buf = rows
	if err != nil {
		return err
	}
	return f.send(frameRows)
}

// sendLooked sends the counts so far, if requested.
func (f *FrameWriter) sendLooked() error {
	if f.looked == nil {
		return f.err
	}
	l := f.looked()
	f.buf = binary.AppendUvarint(binary.AppendUvarint(f.buf[:5], uint64(l.Read)), uint64(l.Filtered))
	return f.send(frameLooked)
}

func (f *FrameWriter) send(kind byte) error {
	if f.err != nil {
		return f.err
	}
	binary.BigEndian.PutUint32(f.buf, uint32(len(f.buf)-5))
	f.buf[4] = kind
	f.buf = binary.BigEndian.AppendUint32(f.buf, crc32.Checksum(f.buf[4:], castagnoli))
	_, f.err = f.w.Write(f.buf)
	f.buf = f.buf[:5]
	return f.err
}

// FrameReader reads a node's answer. It implements RowStream.
type FrameReader struct {
	body   io.Closer
	r      *bufio.Reader // of readers; nil once closed
	buf    []byte        // payload of the current frame
	rest   []byte        // unread part of it
	rows   int64
	count  int64 // of a counting answer, else -1
	vector timestamp.Vector
	looked Looked
	err    error // sticky
}

// readers has the buffers of answers that were closed: they were half of what a small scan allocated.
var readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, readBuffer) }}

// errClosed is returned for rows of an answer that was closed.
var errClosed = errors.New("the stream of rows is closed")

// ReadFrames starts reading an answer and waits for its header. If the node sent an error instead, that *Error is
// returned. The reader closes body.
func ReadFrames(body io.ReadCloser) (*FrameReader, error) {
	f := &FrameReader{body: body, r: readers.Get().(*bufio.Reader)}
	f.r.Reset(body)
	kind, err := f.frame()
	if err == nil {
		switch kind {
		case frameHeader:
			err = f.header()
		case frameError:
			err = f.failure()
		default:
			err = fmt.Errorf("%w: the first frame has type %d", ErrFrame, kind)
		}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// frame reads the next frame into rest.
func (f *FrameReader) frame() (kind byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(f.r, head[:]); err != nil {
		return 0, cut(err)
	}
	size := binary.BigEndian.Uint32(head[:])
	if size > MaxFrame {
		return 0, fmt.Errorf("%w: %d bytes, want at most %d", ErrFrame, size, MaxFrame)
	}
	if need := int(size) + 4; cap(f.buf) < need {
		if f.buf, err = readGrowing(f.r, f.buf[:0], need); err != nil {
			return 0, cut(err)
		}
	} else {
		f.buf = f.buf[:need]
		if _, err := io.ReadFull(f.r, f.buf); err != nil {
			return 0, cut(err)
		}
	}
	sum := crc32.Update(crc32.Checksum(head[4:], castagnoli), castagnoli, f.buf[:size])
	if want := binary.BigEndian.Uint32(f.buf[size:]); sum != want {
		return 0, fmt.Errorf("%w: checksum %08x, want %08x", ErrFrame, sum, want)
	}
	f.rest = f.buf[:size]
	return head[4], nil
}

// readGrowing reads need bytes, but does not allocate that much before the data has arrived.
func readGrowing(r io.Reader, buf []byte, need int) ([]byte, error) {
	for len(buf) < need {
		step := min(need-len(buf), max(len(buf), chunk))
		at := len(buf)
		buf = append(buf, make([]byte, step)...)
		if _, err := io.ReadFull(r, buf[at:]); err != nil {
			return buf, err
		}
	}
	return buf, nil
}

func cut(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: %w", ErrCut, io.ErrUnexpectedEOF)
	}
	return fmt.Errorf("%w: %w", ErrCut, err)
}

func (f *FrameReader) header() error {
	if len(f.rest) < 2 || f.rest[0] != frameFormat {
		return fmt.Errorf("%w: header of another format", ErrFrame)
	}
	flags := f.rest[1]
	count, n := binary.Uvarint(f.rest[2:])
	if n <= 0 || count > 1<<62 {
		return fmt.Errorf("%w: header", ErrFrame)
	}
	rest := f.rest[2+n:]
	if f.count = -1; flags&flagCount != 0 {
		f.count = int64(count)
	}
	if flags&flagVector != 0 {
		var err error
		if f.vector, rest, err = timestamp.DecodeVector(rest); err != nil {
			return fmt.Errorf("%w: vector of the header: %w", ErrFrame, err)
		}
	}
	if len(rest) > 0 {
		return fmt.Errorf("%w: %d bytes follow the header", ErrFrame, len(rest))
	}
	f.rest = nil
	return nil
}

func (f *FrameReader) failure() error {
	e := &Error{}
	if err := json.Unmarshal(f.rest, e); err != nil || e.Code == "" {
		return fmt.Errorf("%w: unreadable error frame", ErrFrame)
	}
	return e
}

// Next implements RowStream.
func (f *FrameReader) Next() (Row, error) {
	for f.err == nil && len(f.rest) == 0 {
		f.err = f.advance()
	}
	if f.err != nil {
		return Row{}, f.err
	}
	var r Row
	var ok1, ok2 bool
	r.Key, ok1 = f.bytes()
	r.DocID, ok2 = f.bytes()
	if !ok1 || !ok2 {
		f.err = fmt.Errorf("%w: a row does not parse", ErrFrame)
		return Row{}, f.err
	}
	f.rows++
	return r, nil
}

// advance reads the next frame of rows. The end of the answer is returned as an error: io.EOF, or the node's.
func (f *FrameReader) advance() error {
	kind, err := f.frame()
	if err != nil {
		return err
	}
	switch kind {
	case frameRows:
		if f.count >= 0 {
			return fmt.Errorf("%w: rows in a counting answer", ErrFrame)
		}
		return nil
	case frameLooked:
		return f.takeLooked()
	case frameError:
		return f.failure()
	case frameEnd:
		n, size := binary.Uvarint(f.rest)
		if size != len(f.rest) || n != uint64(f.rows) {
			return fmt.Errorf("%w: the end reports %d rows, %d were received", ErrFrame, n, f.rows)
		}
		f.rest = nil
		return io.EOF
	}
	return fmt.Errorf("%w: type %d in the middle", ErrFrame, kind)
}

func (f *FrameReader) takeLooked() error {
	read, n := binary.Uvarint(f.rest)
	if n <= 0 {
		return fmt.Errorf("%w: unreadable counts of examined entries", ErrFrame)
	}
	filtered, m := binary.Uvarint(f.rest[n:])
	if m <= 0 || n+m != len(f.rest) || read > 1<<62 || filtered > read {
		return fmt.Errorf("%w: unreadable counts of examined entries", ErrFrame)
	}
	f.looked, f.rest = Looked{int64(read), int64(filtered)}, nil
	return nil
}

// Looked implements RowStream.
func (f *FrameReader) Looked() Looked { return f.looked }

func (f *FrameReader) bytes() ([]byte, bool) {
	size, n := binary.Uvarint(f.rest)
	if n <= 0 || size > uint64(len(f.rest)-n) {
		return nil, false
	}
	b := f.rest[n : n+int(size)]
	f.rest = f.rest[n+int(size):]
	return b, true
}

// Count implements RowStream.
func (f *FrameReader) Count() int64 {
	if f.count >= 0 {
		return f.count
	}
	return f.rows
}

// Vector implements RowStream.
func (f *FrameReader) Vector() timestamp.Vector { return f.vector }

// drain reads the rest of an answer, at most maxDrain bytes, because a connection that was read to the end can be
// reused.
func (f *FrameReader) drain() { _, _ = io.CopyN(io.Discard, f.r, maxDrain) }

// Close implements RowStream. A further call does nothing.
func (f *FrameReader) Close() error {
	if f.r == nil {
		return nil
	}
	err := f.body.Close()
	f.r.Reset(nil) // the pool keeps no connection
	readers.Put(f.r)
	f.r, f.rest, f.err = nil, nil, cmp.Or(f.err, errClosed)
	return err
}
