// Package transfer copies the files of a copy from one indexer to another. An indexer that needs a copy requests an
// export from one that has it, reads it chunk by chunk, and reports when it has all of it (IM-18).
//
// It guarantees: a chunk arrives as it was sent or not at all; a lost chunk is requested again from the end of the
// file received so far; each request has a deadline, so that a hung peer is given up, and no request waits for an
// export that takes long to make; an indexer sends one export at a time, only to the receiver that requested it, at a
// bounded rate; an export that is no longer requested or read is released. It neither interprets the files nor
// decides what is done with them.
package transfer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"time"

	"tidemark/index"
)

// Path is the path of this package's requests.
const Path = "/v1/copies:send"

// Format is the version of the messages. An indexer with another version refuses the request.
const Format = 1

const (
	// ChunkBytes is the maximum size of a chunk.
	ChunkBytes = 1 << 20
	// MinRate is the least rate in bytes per second at which an indexer may be set to send: one chunk per second.
	MinRate = ChunkBytes
	// idleAfter is how long an unread export is kept, which is longer than a receiver retries one chunk, and how long
	// an export continues to be made without a request.
	idleAfter = 2 * time.Minute
	// unreadAfter is how long an export of which nothing was read yet keeps other receivers waiting: longer than a
	// receiver gives precedence to other copies. Its receiver may have dropped the copy or been killed without
	// notice.
	unreadAfter = 20 * time.Second
	// stalledAfter is how long an export of which something was read is kept from others while nothing reads it: longer
	// than a receiver takes for two attempts at a chunk. A receiver that was killed, or whose disk hangs, does not read,
	// and one that comes back continues with the tables that it has. It is also how long the source's disk may take for
	// one step of making an export, or for one chunk.
	stalledAfter = 45 * time.Second
	// offerWait is how long a request waits for an export to be made, which may take long because memory is
	// flushed first. The receiver repeats the request after others had their turn.
	offerWait = 2 * time.Second
	// maxOffer bounds an encoded offer, in bytes.
	maxOffer = 64 << 20
)

// ErrBusy is wrapped when an indexer has no export for the receiver now. The receiver may try again later.
var ErrBusy = errors.New("it is not sending this copy")

// Busy is an ErrBusy with details.
type Busy struct {
	Why string
	// Moved is the number of bytes that the indexer has sent to any receiver, plus the steps of making exports, since
	// its process started. While it grows, the indexer makes progress.
	Moved uint64
}

// Error implements error.
func (b *Busy) Error() string { return ErrBusy.Error() + ": " + b.Why }

// Is implements the interface of errors.Is.
func (b *Busy) Is(target error) bool { return target == ErrBusy }

// Values of Request.Op.
const (
	opOpen = "open"
	opRead = "read"
	opEnd  = "end"
)

// Request is a receiver's request.
type Request struct {
	Format int    `json:"format"`
	Op     string `json:"op"`
	// Receiver is the name of the requesting indexer. When it opens again, even after a restart, its previous export
	// is released. Only the receiver that opened an export can read or end it.
	Receiver string `json:"receiver"`
	Want     *Want  `json:"want,omitempty"` // of open
	ID       string `json:"id,omitempty"`   // of read and end: that of the offer
	File     int    `json:"file,omitempty"` // number in the offer
	At       int64  `json:"at,omitempty"`
	Bytes    int    `json:"bytes,omitempty"`
}

// Want identifies the wanted copy; any copy of the slice will do.
type Want struct {
	Index      index.ID      `json:"index"`
	CreatedMS  int64         `json:"created_ms"`
	Slice      index.SliceID `json:"slice"`
	BucketUUID string        `json:"bucket_uuid"`
	// Generation and RollbackID of the bucket: files of another history are not usable.
	Generation uint64 `json:"generation"`
	RollbackID uint64 `json:"rollback_id"`
}

// File is one file of an export.
type File struct {
	Name string `json:"name"`
	Size int64  `json:"size"`
	Sum  uint32 `json:"sum"`
}

// Offer is an export that can be read. About is its owner's description, which this package does not interpret.
type Offer struct {
	ID    string `json:"id"` // random and unique across exports and processes
	Files []File `json:"files"`
	About []byte `json:"about"`
	// Busy is why there is none now; then all other fields but Moved are empty, see Busy.
	Busy  string `json:"busy,omitempty"`
	Moved uint64 `json:"moved,omitempty"`
}

// Bytes returns the total size of the files.
func (o *Offer) Bytes() (sum int64) {
	for _, f := range o.Files {
		sum += f.Size
	}
	return sum
}

// An answer consists of the checksum of its content, followed by the content.
const sumBytes = 4

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// frame writes the checksum of the content into the space before it.
func frame(b []byte) { binary.BigEndian.PutUint32(b, crc32.Checksum(b[sumBytes:], castagnoli)) }

// errSum means that an answer was changed in transit.
var errSum = errors.New("checksum of an answer does not match")

func unframe(b []byte) ([]byte, error) {
	if len(b) < sumBytes {
		return nil, fmt.Errorf("%w: %d bytes", errSum, len(b))
	}
	if want, is := binary.BigEndian.Uint32(b), crc32.Checksum(b[sumBytes:], castagnoli); want != is {
		return nil, fmt.Errorf("%w: %08x, want %08x", errSum, is, want)
	}
	return b[sumBytes:], nil
}
