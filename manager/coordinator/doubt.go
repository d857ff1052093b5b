package coordinator

import (
	"context"
	"errors"
	"syscall"

	"tidemark/index"
	"tidemark/internal/rpc"
	"tidemark/streams"
	"tidemark/wire"
)

// probeAgain is after how long a projector is asked again whether it lives when no outcome has come.
const probeAgain = 5_000 // ms

// refusesStream reports whether an indexer has stopped accepting the stream that its owner is thought to say: its
// connection has closed, or something of it was dropped.
func refusesStream(e streams.Entry, a *streams.Acceptance) bool {
	return !a.Open && e.State == streams.Begun && e.Owner == a.Projector && e.Incarnation == a.Incarnation
}

// doubt asks a projector whether it lives, because an indexer has lost its streams. A process that has ended is known
// by that nobody listens at its address; an answer, and silence too, prove nothing: one link may be broken, a machine
// may be slow.
func (l *leader) doubt(bucket string, id index.ProjectorID) {
	p := l.components.projectors[id]
	if p == nil || p.refused || l.nowMS < p.probeMS {
		return
	}
	p.probeMS = l.nowMS + probeAgain
	p.questions.put(task{key: "probe", do: func(ctx context.Context) {
		err := l.probe(ctx, p, bucket)
		if errors.Is(err, errLost) { // of a connection from before: a new one tells
			err = l.probe(ctx, p, bucket)
		}
		_ = l.post(ctx, answer(func(l *leader) { l.probed(p, err) }))
	}})
}

// errLost is given for a question that came to no end and no answer, though not because of a deadline.
var errLost = errors.New("no answer")

func (l *leader) probe(ctx context.Context, p *projector, bucket string) error {
	_, err := l.cfg.Projectors.Sync(ctx, p.addr, &wire.SyncRequest{Fence: p.fences.present(), Bucket: bucket})
	var refusal *rpc.Problem
	switch {
	case err == nil, errors.As(err, &refusal), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled),
		errors.Is(err, syscall.ECONNREFUSED):
		return err
	}
	return errors.Join(errLost, err)
}

// probed takes the outcome: nobody listens there any more.
func (l *leader) probed(p *projector, err error) {
	if l.components.projectors[p.id] != p {
		return // it has registered anew meanwhile
	}
	p.probeMS = l.nowMS + l.cfg.Settings.ProbeRest.Milliseconds()
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return
	}
	l.log.Warn("an indexer has lost a projector's streams, and nobody listens at its address", "projector", p.id,
		"address", p.addr)
	p.refused = true
	if l.active {
		l.watchProjectors()
	}
}
