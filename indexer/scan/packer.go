package scan

import (
	"encoding/json"
	"fmt"

	"tidemark/errcode"
	"tidemark/indexer/scanport"
	"tidemark/internal/rpc"
	"tidemark/wire"
)

// Packer writes an answer for clients that read keys in the index's own encoding, as messages of package scanport. It
// implements Sink.
type Packer struct {
	projection
	send  func(message []byte) error
	out   []byte
	head  int // bytes of the head
	full  int // size of out at which a message is sent
	begun bool
	token []byte
	seen  scanport.Seen
	at    Resume // where another indexer would continue behind the last row
}

const (
	packBuffer = 32 << 10 // bytes at which a message is sent
	packGuess  = 64       // bytes of a row, for the initial size of the buffer
)

// NewPacker returns a Packer that sends the rows of a scan. send must not retain a message after it returns. Messages
// are built in room; Room returns it for reuse.
func NewPacker(send func(message []byte) error, room []byte, spec *Spec) *Packer {
	p := &Packer{projection: newProjection(spec), send: send, full: packBuffer,
		at: Resume{Index: spec.Index}}
	if spec.Resume != nil {
		p.at.Rows = spec.Resume.Rows
	}
	size := packBuffer + packGuess
	if spec.Limit > 0 && spec.Limit < packBuffer/packGuess {
		size = int(spec.Limit+4) * packGuess
	}
	if cap(room) < size {
		room = make([]byte, 0, size)
	}
	p.out = scanport.AppendHead(room[:0], p.shown)
	p.head = len(p.out)
	return p
}

// Row implements Sink.
func (p *Packer) Row(r Row) error {
	key, err := p.project(r.Key)
	if err != nil {
		return Errorf(errcode.Damaged, "a stored key of document %q: %w", r.DocID, err)
	}
	p.out = scanport.AppendRow(p.out, key, r.DocID)
	p.at.Rows++
	if len(p.out) < p.full {
		return nil
	}
	p.at.Last = r // valid only during this call
	p.token = p.at.appendTo(p.token[:0], &p.seen)
	return p.finish(scanport.More, p.token)
}

// At implements Dated.
func (p *Packer) At(ref wire.StabilityRef, seen scanport.Seen) { p.at.Ref, p.seen = ref, seen }

// Begun reports whether something has been sent.
func (p *Packer) Begun() bool { return p.begun }

// End sends the rest and the end of a complete answer.
func (p *Packer) End(r Result) error { return p.finish(scanport.End, appendEnd(nil, r)) }

// Fail sends the rest and a REST problem, with what the session has seen with the rows before.
func (p *Packer) Fail(problem *rpc.Problem) error {
	text, err := json.Marshal(struct {
		*rpc.Problem
		Session string `json:"session,omitempty"`
	}{problem, tokenOf(&p.seen)})
	if err != nil {
		return fmt.Errorf("encode an error: %w", err)
	}
	return p.finish(scanport.Failure, text)
}

// Room returns the buffer for reuse by another Packer.
func (p *Packer) Room() []byte { return p.out[:0] }

func (p *Packer) finish(tail byte, text []byte) error {
	p.begun = true
	p.out = scanport.Finish(p.out, p.head, tail, text)
	err := p.send(p.out)
	p.out = p.out[:p.head]
	return err
}
