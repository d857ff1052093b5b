package seglog

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
)

const (
	segmentSuffix = ".seg"
	// segmentHeaderBytes: magic 8, number 8, identity digest 16, reserved 4, CRC-32C of these 4.
	segmentHeaderBytes = 40
	segmentMagic       = "TMKVSEG1"
	readBufferBytes    = 1 << 20
)

func segmentHeader(number uint64, identity string) []byte {
	h := make([]byte, 0, segmentHeaderBytes)
	h = append(h, segmentMagic...)
	h = binary.BigEndian.AppendUint64(h, number)
	digest := sha256.Sum256([]byte(identity))
	h = append(h, digest[:16]...)
	h = append(h, 0, 0, 0, 0)
	return binary.BigEndian.AppendUint32(h, crc32.Checksum(h, castagnoli))
}

// scanSegment reads a segment and returns the offset behind its last whole record. In the last segment an unfinished
// record at the end is not an error; everywhere else, and for any other damage, ErrCorrupt names the place.
func scanSegment(path string, number uint64, identity string, last bool, each func(Record) error) (int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, fmt.Errorf("open segment: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0, fmt.Errorf("open segment: %w", err)
	}
	s := scanner{path: path, r: bufio.NewReaderSize(f, readBufferBytes), size: info.Size(), last: last}
	if done, err := s.header(number, identity); err != nil || done {
		return 0, err
	}
	for {
		start := s.offset
		payload, err := s.next()
		if errors.Is(err, io.EOF) {
			return start, nil
		}
		if err != nil {
			return 0, err
		}
		if err := each(Record{Segment: number, Offset: start, Payload: payload}); err != nil {
			return 0, fmt.Errorf("%s at offset %d: %w", path, start, err)
		}
	}
}

type scanner struct {
	path   string
	r      *bufio.Reader
	size   int64 // of the file
	offset int64
	last   bool
	buf    []byte
}

func (s *scanner) damage(what string) error {
	advice := "restore the file from a copy, or move the bucket's folder away to start it empty"
	if s.last {
		advice = fmt.Sprintf("restore the file from a copy, or discard all data after the offset with: truncate -s %d %s",
			s.offset, s.path)
	}
	return fmt.Errorf("%w: %s at offset %d: %s; %s", ErrCorrupt, s.path, s.offset, what, advice)
}

// header checks the segment header; done is true when the last segment ends inside it.
func (s *scanner) header(number uint64, identity string) (done bool, err error) {
	got := make([]byte, segmentHeaderBytes)
	if _, err := io.ReadFull(s.r, got); err != nil {
		if s.last && (errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)) {
			return true, nil
		}
		return false, s.damage("the segment header is truncated")
	}
	if string(got) != string(segmentHeader(number, identity)) {
		return false, s.damage(fmt.Sprintf("the segment header does not belong to segment %d of this bucket", number))
	}
	s.offset = segmentHeaderBytes
	return false, nil
}

// next returns the next payload, or io.EOF at the end or at a torn tail.
func (s *scanner) next() ([]byte, error) {
	var header [FrameOverhead]byte
	n, err := io.ReadFull(s.r, header[:])
	if err != nil {
		if n == 0 && errors.Is(err, io.EOF) {
			return nil, io.EOF
		}
		return nil, s.torn(err)
	}
	length, crc, ok := frameHeader(header[:])
	if !ok {
		if s.last && s.onlyZeros(header[:]) {
			return nil, io.EOF
		}
		return nil, s.damage("the length of a record does not match its checksum")
	}
	if length == 0 || length > MaxPayload {
		return nil, s.damage(fmt.Sprintf("a record of %d bytes; the limit is %d", length, MaxPayload))
	}
	if int64(length) > s.size-s.offset-FrameOverhead { // do not allocate for a payload that is not there
		return nil, s.torn(io.ErrUnexpectedEOF)
	}
	if uint32(cap(s.buf)) < length {
		s.buf = make([]byte, length)
	}
	payload := s.buf[:length]
	if _, err := io.ReadFull(s.r, payload); err != nil {
		return nil, s.torn(err)
	}
	if !payloadOK(payload, crc) {
		return nil, s.damage("a record does not match its checksum")
	}
	s.offset += FrameOverhead + int64(length)
	return payload, nil
}

func (s *scanner) torn(err error) error {
	if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("read %s at offset %d: %w", s.path, s.offset, err)
	}
	if s.last {
		return io.EOF
	}
	return s.damage("a record is truncated although a later segment exists")
}

// onlyZeros reports whether the rest of the file is zeros: space that was allocated to it before the machine crashed.
func (s *scanner) onlyZeros(seen []byte) bool {
	for _, b := range seen {
		if b != 0 {
			return false
		}
	}
	for {
		b, err := s.r.ReadByte()
		if err != nil {
			return errors.Is(err, io.EOF)
		}
		if b != 0 {
			return false
		}
	}
}
