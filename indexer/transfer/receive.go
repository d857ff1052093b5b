package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"tidemark/errcode"
	"tidemark/internal/rpc"
)

const (
	// chunkTimeout bounds the request for one chunk, and any other request.
	chunkTimeout = 20 * time.Second
	// AnswerTime exceeds that: a receiver that disconnects ends its request sooner.
	AnswerTime = 2 * chunkTimeout
	// chunkTries is how often a chunk is requested, with growing pauses.
	chunkTries = 5
	chunkPause = 200 * time.Millisecond
)

// Sink stores what is received.
type Sink interface {
	// Held returns how many bytes of a file are stored.
	Held(name string) int64
	// Append appends to a file; at is its current length.
	Append(name string, at int64, p []byte) error
}

// Peer sends a request to another indexer. It returns the body of a successful answer, or a problem.
type Peer func(ctx context.Context, q *Request) (io.ReadCloser, error)

// Receiver receives exports from one peer.
type Receiver struct {
	Name string // name of the receiving indexer
	Peer Peer
	// Begin prepares the Sink for an offered export.
	Begin func(o *Offer) (Sink, error)
	// Got is called with the number of bytes that have arrived; its error ends the transfer.
	Got func(n int) error

	pause, timeout time.Duration // 0: the constants above; tests use shorter ones
}

// Receive copies an export here. Errors wrap ErrBusy (as a Busy if the peer gave details), are a Problem from the
// peer, or come from Begin, Got or the Sink.
func (r *Receiver) Receive(ctx context.Context, w *Want) (*Offer, Sink, error) {
	body, err := r.call(ctx, r.within(chunkTimeout), maxOffer, &Request{Op: opOpen, Want: w})
	var p *rpc.Problem
	if errors.As(err, &p) && p.Code == errcode.Unavailable {
		return nil, nil, fmt.Errorf("%w: %w", ErrBusy, err)
	}
	if err != nil {
		return nil, nil, err
	}
	o := &Offer{}
	if err := rpc.Unmarshal(body, o); err != nil {
		return nil, nil, fmt.Errorf("offer of files: %w", err)
	}
	if o.Busy != "" {
		return nil, nil, &Busy{Why: o.Busy, Moved: o.Moved}
	}
	defer r.end(ctx, o)
	sink, err := r.Begin(o)
	if err != nil {
		return o, nil, err
	}
	for i := range o.Files {
		if err := r.file(ctx, o, i, sink); err != nil {
			return o, sink, fmt.Errorf("file %s of %d bytes: %w", o.Files[i].Name, o.Files[i].Size, err)
		}
	}
	return o, sink, nil
}

// end releases the export at the peer, even if ctx has ended.
func (r *Receiver) end(ctx context.Context, o *Offer) {
	// without it the peer waits for a while
	_, _ = r.call(context.WithoutCancel(ctx), r.within(chunkTimeout)/4, sumBytes, &Request{Op: opEnd, ID: o.ID})
}

func (r *Receiver) within(d time.Duration) time.Duration {
	if r.timeout > 0 {
		return r.timeout
	}
	return d
}

func (r *Receiver) file(ctx context.Context, o *Offer, i int, sink Sink) error {
	f := &o.Files[i]
	for at := sink.Held(f.Name); at < f.Size; at = sink.Held(f.Name) {
		p, err := r.chunk(ctx, &Request{Op: opRead, ID: o.ID, File: i, At: at, Bytes: int(min(ChunkBytes, f.Size-at))})
		if err != nil {
			return err
		}
		if err := sink.Append(f.Name, at, p); err != nil {
			return err
		}
		if err := r.Got(len(p)); err != nil {
			return err
		}
	}
	return nil
}

// chunk requests a chunk until it arrives intact. It does not retry if the peer has released the export.
func (r *Receiver) chunk(ctx context.Context, q *Request) (p []byte, err error) {
	pause := chunkPause
	if r.pause > 0 {
		pause = r.pause
	}
	for range chunkTries {
		if p, err = r.call(ctx, r.within(chunkTimeout), int64(q.Bytes), q); err == nil && len(p) != q.Bytes {
			err = fmt.Errorf("%w: %d bytes, want %d", errSum, len(p), q.Bytes)
		}
		var refused *rpc.Problem
		if err == nil || ctx.Err() != nil || errors.As(err, &refused) && refused.Code != errcode.Internal {
			return p, err
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil, context.Cause(ctx)
		}
		pause *= 2
	}
	return nil, err
}

// call sends a request and returns the content of the answer, which may have at most most bytes.
func (r *Receiver) call(ctx context.Context, timeout time.Duration, most int64, q *Request) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	q.Format, q.Receiver = Format, r.Name
	body, err := r.Peer(ctx, q)
	if err != nil {
		return nil, err
	}
	all, err := io.ReadAll(io.LimitReader(body, most+sumBytes+1))
	if err = errors.Join(err, body.Close()); err != nil {
		return nil, err
	}
	return unframe(all)
}
