package wire

import (
	"encoding/binary"
	"errors"
	"fmt"

	"tidemark/timestamp"
)

// ErrPoll is wrapped when bytes are no packed answer to a poll.
var ErrPoll = errors.New("packed answer to a poll")

const pollFormat = 1

// What the positions of a run have in common.
const (
	pollParticipant = 1 << iota
	pollSome        // each has a seqno or a log; else all have none
	pollRevision    // the map's revision follows; else it is that of the run before
	pollKinds       = pollParticipant | pollSome | pollRevision
)

// Answer makes the answer with these positions: about 14 bytes for each participant whose failover log has one entry,
// and a few for all that are none. The positions are those of the vbuckets that are asked for, in that order, some of
// which may be left out; else its error wraps ErrPoll.
func (q *PollRequest) Answer(all []PollPosition) (*PollReply, error) {
	packed, err := packPoll(q.VBuckets, all)
	return &PollReply{Packed: packed}, err
}

// Take returns the positions of an answer to this very request. Their logs may share memory and must not be changed.
// Errors wrap ErrPoll.
func (q *PollRequest) Take(a *PollReply) ([]PollPosition, error) {
	return unpackPoll(q.VBuckets, a.Packed)
}

// pollRun is a run of positions that follow each other in the request and are of one kind.
type pollRun struct {
	skipped, length int
	kind            byte
	revision        timestamp.MapRevision
}

// packPoll packs the positions, which have to be those of asked, in that order.
func packPoll(asked []uint16, all []PollPosition) ([]byte, error) {
	runs, err := pollRuns(asked, all)
	if err != nil {
		return nil, err
	}
	dst := binary.AppendUvarint([]byte{pollFormat}, uint64(len(runs)))
	w := pollLogs{numbers: map[string]uint64{}}
	hw := uint64(0)
	for _, r := range runs {
		dst = binary.AppendUvarint(dst, uint64(r.skipped))
		dst = append(binary.AppendUvarint(dst, uint64(r.length)), r.kind)
		if r.kind&pollRevision != 0 {
			dst = binary.AppendUvarint(binary.AppendUvarint(dst, r.revision.Epoch), r.revision.Rev)
		}
		for i := range all[:r.length] {
			if p := &all[i]; r.kind&pollSome != 0 {
				dst = binary.AppendVarint(dst, int64(p.HW-hw))
				hw = p.HW
				dst = binary.AppendUvarint(dst, p.Reach-p.HW)
				dst = w.append(dst, p.Log)
			}
		}
		all = all[r.length:]
	}
	return dst, nil
}

// pollRuns joins neighbours that are alike.
func pollRuns(asked []uint16, all []PollPosition) (runs []pollRun, err error) {
	place, last := 0, timestamp.MapRevision{}
	for i := range all {
		p := &all[i]
		skipped := 0
		for ; place < len(asked) && asked[place] != p.VBucket; place++ {
			skipped++
		}
		if place == len(asked) {
			return nil, fmt.Errorf("%w: vbucket %d was not asked for, or not after those before it", ErrPoll, p.VBucket)
		}
		place++
		kind := p.runKind()
		if n := len(runs); n > 0 && skipped == 0 && p.Revision == last && kind == runs[n-1].kind&^pollRevision {
			runs[n-1].length++
			continue
		}
		if p.Revision != last {
			kind, last = kind|pollRevision, p.Revision
		}
		runs = append(runs, pollRun{skipped: skipped, length: 1, kind: kind, revision: last})
	}
	return runs, nil
}

// runKind is what positions of one run have in common, but for the revision.
func (p *PollPosition) runKind() (kind byte) {
	if p.Participant {
		kind |= pollParticipant
	}
	if p.HW != 0 || p.Reach != 0 || len(p.Log) > 0 {
		kind |= pollSome
	}
	return kind
}

// pollLogs numbers the distinct failover logs of an answer.
type pollLogs struct {
	numbers map[string]uint64
	scratch []byte
}

// append writes the number of a log that was written before, or 0 and the log.
func (w *pollLogs) append(dst []byte, l timestamp.FailoverLog) []byte {
	w.scratch = timestamp.AppendLog(w.scratch[:0], l)
	if n, known := w.numbers[string(w.scratch)]; known {
		return binary.AppendUvarint(dst, n)
	}
	w.numbers[string(w.scratch)] = uint64(len(w.numbers)) + 1
	return append(append(dst, 0), w.scratch...)
}

// unpackPoll reads what packPoll wrote. It takes no more memory than the positions that were asked for, and the logs
// that are there, need.
func unpackPoll(asked []uint16, src []byte) ([]PollPosition, error) { //nolint:gocyclo // one check after the other
	r := pollReader{unpacker: unpacker{b: src}}
	if f := r.byte(); f != pollFormat {
		return nil, fmt.Errorf("%w: format %d, want %d", ErrPoll, f, pollFormat)
	}
	runs := r.uvarint()
	if runs > uint64(len(asked)) || runs > uint64(len(r.b)) {
		return nil, fmt.Errorf("%w: %d runs in %d bytes for %d vbuckets", ErrPoll, runs, len(r.b), len(asked))
	}
	var all []PollPosition
	if runs > 0 {
		all = make([]PollPosition, 0, len(asked))
	}
	for range runs {
		skipped, length, kind := r.uvarint(), r.uvarint(), r.byte()
		left := uint64(len(asked))
		if r.bad || kind&^pollKinds != 0 || length == 0 || skipped > left || length > left-skipped {
			return nil, fmt.Errorf("%w: a run of %d, kind %d, after %d others, with %d vbuckets left", ErrPoll, length, kind,
				skipped, left)
		}
		if kind&pollRevision != 0 {
			r.revision = timestamp.MapRevision{Epoch: r.uvarint(), Rev: r.uvarint()}
		}
		for _, v := range asked[skipped : skipped+length] {
			p, err := r.position(v, kind)
			if err != nil {
				return nil, fmt.Errorf("%w: vbucket %d: %w", ErrPoll, v, err)
			}
			all = append(all, p)
		}
		asked = asked[skipped+length:]
	}
	if r.bad || len(r.b) > 0 {
		return nil, fmt.Errorf("%w: cut short or too long", ErrPoll)
	}
	return all, nil
}

// pollReader is where the reading of positions is: what the next one may leave out.
type pollReader struct {
	unpacker
	revision timestamp.MapRevision
	hw       uint64
	logs     []timestamp.FailoverLog // those read so far: later ones may refer to them
}

// position reads that of one vbucket of a run of that kind.
func (r *pollReader) position(v uint16, kind byte) (p PollPosition, err error) {
	p = PollPosition{VBucket: v, Participant: kind&pollParticipant != 0, Revision: r.revision}
	if kind&pollSome != 0 {
		r.hw += uint64(r.varint())
		p.HW, p.Reach = r.hw, r.hw+r.uvarint()
		p.Log, err = r.pollLog(&r.logs)
	}
	return p, err
}

// pollLog takes a log or the number of one that came before.
func (r *unpacker) pollLog(logs *[]timestamp.FailoverLog) (timestamp.FailoverLog, error) {
	n := r.uvarint()
	if r.bad || n > uint64(len(*logs)) {
		return nil, fmt.Errorf("failover log %d of %d", n, len(*logs))
	}
	if n > 0 {
		return (*logs)[n-1], nil
	}
	l, rest, err := timestamp.DecodeLog(r.b)
	if err != nil {
		return nil, err
	}
	r.b = rest
	*logs = append(*logs, l)
	return l, nil
}
