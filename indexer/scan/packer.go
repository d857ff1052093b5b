package scan

import (
	"encoding/json"
	"fmt"

	"tidemark/errcode"
	"tidemark/indexer/scanport"
	"tidemark/internal/rpc"
	"tidemark/wire"
)

// Packer writes an answer for clients that read keys in the index's own form: messages of package scanport. It
// implements Sink.
type Packer struct {
	projection
	send  func(message []byte) error
	out   []byte
	head  int // bytes of the head
	full  int // bytes, when a message is sent
	begun bool
	token []byte
	seen  scanport.Seen
	at    Resume // where another indexer would go on behind the row that came last
}

const (
	packBuffer = 32 << 10 // when a message is sent
	packGuess  = 64       // bytes of a row, for the first size of the buffer
)

// NewPacker sends messages with the rows of a scan; send is done with one when it returns. room is where they are
// built, Room gives it back.
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
	p.at.Last = r // for now only
	p.token = p.at.appendTo(p.token[:0], &p.seen)
	return p.finish(scanport.More, p.token)
}

// At implements Dated.
func (p *Packer) At(ref wire.StabilityRef, seen scanport.Seen) { p.at.Ref, p.seen = ref, seen }

// Begun reports whether something has been sent.
func (p *Packer) Begun() bool { return p.begun }

// End sends what is left, and that it was all.
func (p *Packer) End(r Result) error { return p.finish(scanport.End, appendEnd(nil, r)) }

// Fail sends what is left, and a problem in REST's form with what a session has seen with the rows before.
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

// Room gives the buffer back, for another Packer.
func (p *Packer) Room() []byte { return p.out[:0] }

func (p *Packer) finish(tail byte, text []byte) error {
	p.begun = true
	p.out = scanport.Finish(p.out, p.head, tail, text)
	err := p.send(p.out)
	p.out = p.out[:p.head]
	return err
}
