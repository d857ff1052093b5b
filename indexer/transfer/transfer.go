// Package transfer brings the files of a copy from one indexer to another: who needs a copy asks one that has it for an
// export, reads it chunk by chunk, and says when it has all (IM-18).
//
// It promises: a chunk arrives as it was sent or not at all; one that is lost is asked for again where the files that
// are here end; each question has a deadline, so that a peer which hangs is given up, and none waits for an export that
// takes long to be made; an indexer sends one export at a time, to the one who asked for it and nobody else, at no more
// than so many bytes a second; an export that nobody asks for or reads any more is let go. It never looks into the
// files, and does not decide what becomes of them.
package transfer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"time"

	"tidemark/index"
)

// Path is where an indexer takes the questions of this package.
const Path = "/v1/copies:send"

// Format is the version of the messages. Who does not know it refuses.
const Format = 1

const (
	// ChunkBytes is the most that one question brings.
	ChunkBytes = 1 << 20
	// MinRate is the fewest bytes a second that an indexer sends: a chunk takes a second.
	MinRate = ChunkBytes
	// idleAfter is how long an export is kept that nobody reads, longer than a receiver tries for one chunk; and how long
	// one goes on being made that nobody asks for.
	idleAfter = 2 * time.Minute
	// unreadAfter is how long one is kept from others of which nothing was read yet: longer than a receiver lets other
	// copies go first. Who wanted it may have let the copy go, or have been killed, and says nothing then.
	unreadAfter = 20 * time.Second
	// stalledAfter is how long one is kept from others of which something was read: longer than a receiver takes for two
	// tries for a chunk. One that was killed, or whose disk hangs, does not ask, and one that comes back goes on with the
	// tables that it has.
	stalledAfter = 45 * time.Second
	// offerPatience is how long who asks is kept waiting while an export is being made, for as long as it takes: what is
	// in memory is written before. Then he asks again, when others had their turn.
	offerPatience = 2 * time.Second
	// maxOffer bounds what an offer takes.
	maxOffer = 64 << 20
)

// ErrBusy is wrapped when an indexer has no export for who asks now: it may be asked again later.
var ErrBusy = errors.New("it sends no such copy now")

// Busy is an ErrBusy that says what the indexer is at.
type Busy struct {
	Why string
	// Moved is how many bytes the indexer has sent to anybody, and steps it has done to make exports, since its process
	// began: it moves while that grows.
	Moved uint64
}

// Error implements error.
func (b *Busy) Error() string { return ErrBusy.Error() + ": " + b.Why }

// Is implements the interface of errors.Is.
func (b *Busy) Is(target error) bool { return target == ErrBusy }

// The operations of a Question.
const (
	opOpen = "open"
	opRead = "read"
	opEnd  = "end"
)

// Question is what a receiver asks.
type Question struct {
	Format int    `json:"format"`
	Op     string `json:"op"`
	// Receiver is who asks, an indexer: when it opens again, also after a restart, what it read before is not wanted any
	// more. Nobody else reads or ends what it has opened.
	Receiver string `json:"receiver"`
	Want     *Want  `json:"want,omitempty"` // of open
	ID       string `json:"id,omitempty"`   // of the offer, of read and end
	File     int    `json:"file,omitempty"` // number in the offer
	At       int64  `json:"at,omitempty"`
	Bytes    int    `json:"bytes,omitempty"`
}

// Want names the copy that is wanted: any of the slice.
type Want struct {
	Index      index.ID      `json:"index"`
	CreatedMS  int64         `json:"created_ms"`
	Slice      index.SliceID `json:"slice"`
	BucketUUID string        `json:"bucket_uuid"`
	// Generation and RollbackID of the bucket: files of another history are not wanted.
	Generation uint64 `json:"generation"`
	RollbackID uint64 `json:"rollback_id"`
}

// File is one file of an export.
type File struct {
	Name string `json:"name"`
	Size int64  `json:"size"`
	Sum  uint32 `json:"sum"`
}

// Offer is an export that may be read. About is what its owner says of it, in a form that this package does not know.
type Offer struct {
	ID    string `json:"id"` // random: no other export, of this process or another one, has it
	Files []File `json:"files"`
	About []byte `json:"about"`
	// Busy says why there is none now, and all else is empty but Moved, see Busy.
	Busy  string `json:"busy,omitempty"`
	Moved uint64 `json:"moved,omitempty"`
}

// Bytes is the size of all files.
func (o *Offer) Bytes() (sum int64) {
	for _, f := range o.Files {
		sum += f.Size
	}
	return sum
}

// Answers are framed: the checksum of the rest, then the rest.
const sumBytes = 4

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// frame puts the checksum in front of what follows its place.
func frame(b []byte) { binary.BigEndian.PutUint32(b, crc32.Checksum(b[sumBytes:], castagnoli)) }

// errSum says that an answer is not what was sent.
var errSum = errors.New("an answer's checksum is wrong")

func unframe(b []byte) ([]byte, error) {
	if len(b) < sumBytes {
		return nil, fmt.Errorf("%w: %d bytes", errSum, len(b))
	}
	if want, is := binary.BigEndian.Uint32(b), crc32.Checksum(b[sumBytes:], castagnoli); want != is {
		return nil, fmt.Errorf("%w: %08x, want %08x", errSum, is, want)
	}
	return b[sumBytes:], nil
}
