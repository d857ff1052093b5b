package scanport

import (
	"cmp"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"hash/fnv"
	"strings"
	"unicode/utf8"

	"tidemark/timestamp"
)

// Seen is what a session has seen of a bucket: the newest stability timestamp of its answers. Its token is sent to
// the client with the end of an answer. The client sends it with its next request, whose answer then shows nothing
// older.
type Seen struct {
	Cluster uint64 // ClusterKey of the cluster's id
	Epoch   uint64 // of the cluster; changes with a restore, or a recovery without a majority
	Bucket  string
	At      timestamp.Ref
}

const (
	// HeaderSession carries a session's tokens, in requests and answers, like the field session of the body.
	HeaderSession = "Tidemark-Session"
	// MaxSession bounds the text of a session's tokens, in bytes.
	MaxSession = 64 << 10
	// MaxSeen bounds the number of a session's tokens.
	MaxSeen = 1024
	// MaxTokens bounds the writes that a request may name.
	MaxTokens = 4096
	// maxToken bounds one token, in bytes of text.
	maxToken = 2 << 10

	tokenFormat = 1
	tokenHead   = 1 + 8 + 8 // format, cluster, hash; followed by four numbers (uvarint) and the bucket's name
	tokenSum    = 4         // CRC-32C of everything before it
	separator   = ","
)

// ErrSession is wrapped when a text is not a list of session tokens.
var ErrSession = errors.New("bad session token")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ClusterKey returns a hash of a cluster's id for use in tokens.
func ClusterKey(id string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(id)) // it never fails
	return h.Sum64()
}

// Compare orders tokens of one bucket of one cluster: by epoch, then by timestamp.
func (s *Seen) Compare(o *Seen) int { return cmp.Or(cmp.Compare(s.Epoch, o.Epoch), s.At.Compare(o.At)) }

// append appends the token's bytes.
func (s *Seen) append(dst []byte) []byte {
	from := len(dst)
	dst = binary.BigEndian.AppendUint64(append(dst, tokenFormat), s.Cluster)
	dst = binary.BigEndian.AppendUint64(dst, s.At.Hash)
	for _, v := range [...]uint64{s.Epoch, s.At.Generation, s.At.RollbackID, s.At.Number} {
		dst = binary.AppendUvarint(dst, v)
	}
	dst = append(dst, s.Bucket...)
	return binary.BigEndian.AppendUint32(dst, crc32.Checksum(dst[from:], castagnoli))
}

// AppendToken appends the token as text that needs no quoting in headers, URLs or JSON.
func (s *Seen) AppendToken(dst []byte) []byte {
	return base64.RawURLEncoding.AppendEncode(dst, s.append(nil))
}

// Token returns the token as text.
func (s *Seen) Token() string { return string(s.AppendToken(nil)) }

// Tokens returns the text of several tokens, for ParseSession.
func Tokens(all []Seen) string {
	var b []byte
	for i := range all {
		if i > 0 {
			b = append(b, separator...)
		}
		b = all[i].AppendToken(b)
	}
	return string(b)
}

// ParseSession parses a session's tokens, separated by commas; nil for "". Errors wrap ErrSession.
func ParseSession(text string) ([]Seen, error) {
	if text == "" {
		return nil, nil
	}
	if len(text) > MaxSession {
		return nil, fmt.Errorf("%w: %d bytes; the limit is %d: one token per bucket is enough", ErrSession, len(text),
			MaxSession)
	}
	parts := strings.Split(text, separator)
	if len(parts) > MaxSeen {
		return nil, fmt.Errorf("%w: %d tokens; the limit is %d: one per bucket is enough", ErrSession, len(parts),
			MaxSeen)
	}
	all := make([]Seen, 0, len(parts))
	for _, part := range parts {
		s, err := parseSeen(strings.TrimSpace(part))
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, nil
}

func parseSeen(text string) (s Seen, err error) {
	if len(text) > maxToken {
		return s, fmt.Errorf("%w: it has %d bytes; the limit is %d", ErrSession, len(text), maxToken)
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil {
		return s, fmt.Errorf("%w %.60q: %w: send it unchanged as in the last line of an answer", ErrSession, text, err)
	}
	if s, err = readSeen(b); err != nil {
		return s, fmt.Errorf("%w %.60q: %w: send it unchanged as in the last line of an answer, or omit "+
			"it", ErrSession, text, err)
	}
	return s, nil
}

// readSeen decodes a token's bytes.
func readSeen(b []byte) (s Seen, err error) {
	switch {
	case len(b) <= tokenHead+tokenSum:
		return s, errors.New("it is truncated")
	case b[0] != tokenFormat:
		return s, fmt.Errorf("its format is %d, this version supports %d", b[0], tokenFormat)
	}
	sum := b[len(b)-tokenSum:]
	if b = b[:len(b)-tokenSum]; crc32.Checksum(b, castagnoli) != binary.BigEndian.Uint32(sum) {
		return s, errors.New("its checksum does not match")
	}
	s.Cluster, s.At.Hash = binary.BigEndian.Uint64(b[1:]), binary.BigEndian.Uint64(b[9:])
	b = b[tokenHead:]
	for _, v := range [...]*uint64{&s.Epoch, &s.At.Generation, &s.At.RollbackID, &s.At.Number} {
		n := 0
		if *v, n = binary.Uvarint(b); n <= 0 || n > 1 && b[n-1] == 0 { // only the shortest form of a number is valid
			return s, errors.New("a number in it is malformed")
		}
		b = b[n:]
	}
	if len(b) == 0 || !utf8.Valid(b) {
		return s, errors.New("it has no bucket")
	}
	s.Bucket = string(b)
	return s, nil
}

// AppendSeen appends s with its length. It starts the encoded place of an answer: what a client has seen if it reads
// no further.
func (s *Seen) AppendSeen(dst []byte) []byte {
	b := s.append(nil)
	return append(binary.AppendUvarint(dst, uint64(len(b))), b...)
}

// CutSeen cuts off what AppendSeen appended. Errors wrap ErrSession.
func CutSeen(place []byte) (s Seen, rest []byte, err error) {
	size, n := binary.Uvarint(place)
	if n <= 0 || size > uint64(len(place)-n) || size > maxToken {
		return s, nil, fmt.Errorf("%w: %d bytes in %d", ErrSession, size, len(place))
	}
	if s, err = readSeen(place[n : n+int(size)]); err != nil {
		return s, nil, fmt.Errorf("%w: %w", ErrSession, err)
	}
	return s, place[n+int(size):], nil
}
