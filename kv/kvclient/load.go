package kvclient

import (
	"context"
	"errors"
	"fmt"

	"tidemark/kv/mcbp"
)

// loadWindow bounds the documents of one Load that wait for their answers.
const loadWindow = 1024

// Source returns the next document of a Load; ok is false at the end. Load retains key and value until the document
// is stored, so that each call must return new memory.
type Source func() (key string, value []byte, ok bool, err error)

// LoadStats is the progress of a Load.
type LoadStats struct {
	Documents uint64 // acknowledged by the nodes
	Bytes     uint64 // of keys and values
	Retried   uint64 // documents that needed more than one attempt
}

// Load writes many documents, pipelined. Documents with the same key are written in their order. It ends with the
// source, at the first permanent failure (with the key in the error), or with ctx. All documents in the stats are
// stored. progress (may be nil) is called by Load's goroutine now and then, and at the end.
func (c *Client) Load(ctx context.Context, next Source, progress func(LoadStats)) (LoadStats, error) {
	l := &loader{client: c, ctx: ctx, progress: progress, results: make(chan loaded, loadWindow),
		inFlight: map[string]bool{}}
	err := l.run(next)
	// Receive the answers of what is still in flight: no other goroutine does.
	for len(l.inFlight) > 0 {
		if werr := l.settle(); err == nil {
			err = werr
		}
	}
	l.report(true)
	return l.stats, err
}

// progressEvery is the number of documents between two calls of progress.
const progressEvery = 512

// loader is the state of one Load, owned by its goroutine.
type loader struct {
	client   *Client
	ctx      context.Context
	progress func(LoadStats)
	results  chan loaded // has capacity for everything in flight
	inFlight map[string]bool
	stats    LoadStats
	reported uint64
}

// loaded is the outcome of one attempt.
type loaded struct {
	key   string
	value []byte
	conn  *Conn
	err   error
}

// run sends the documents of the source until it ends.
func (l *loader) run(next Source) error {
	for {
		key, value, ok, err := next()
		if err != nil || !ok {
			return err
		}
		for len(l.inFlight) >= loadWindow || l.inFlight[key] {
			if err := l.settle(); err != nil {
				return err
			}
		}
		if err := l.send(key, value); err != nil {
			return err
		}
		if err := l.drain(); err != nil {
			return err
		}
		l.report(false)
	}
}

// send starts the first attempt of a document.
func (l *loader) send(key string, value []byte) error {
	if len(key) == 0 || len(key) > mcbp.MaxDocumentKey || len(value) > mcbp.MaxValue {
		return fmt.Errorf("%w: key %.40q has %d bytes (1 to %d), its value %d (at most %d)", ErrTooBig, key, len(key),
			mcbp.MaxDocumentKey, len(value), mcbp.MaxValue)
	}
	vb := vbucketOf(l.client.Config(), key)
	conn, err := l.client.route(l.ctx, vb)
	if err != nil {
		return l.again(loaded{key, value, conn, err})
	}
	var extras [8]byte
	req := mcbp.Frame{Header: mcbp.Request(mcbp.OpSet, vb, 0), Extras: extras[:], Key: l.client.wire(key),
		Value: value}
	results := l.results
	err = conn.Start(l.ctx, req, func(f mcbp.Frame, err error) {
		if err == nil {
			err = NewStatusError(f)
		}
		results <- loaded{key, value, conn, err} // never blocks: the capacity is the window
	})
	if err != nil {
		return l.again(loaded{key, value, conn, err})
	}
	l.inFlight[key] = true
	return nil
}

// settle waits for one answer.
func (l *loader) settle() error { return l.done(<-l.results) }

// drain processes the available answers.
func (l *loader) drain() error {
	for {
		select {
		case r := <-l.results:
			if err := l.done(r); err != nil {
				return err
			}
		default:
			return nil
		}
	}
}

// done counts a document, or retries it.
func (l *loader) done(r loaded) error {
	delete(l.inFlight, r.key)
	if r.err != nil {
		return l.again(r)
	}
	l.count(r.key, r.value)
	return nil
}

// again writes a document whose pipelined attempt failed, with retries and back-off. Later documents wait.
func (l *loader) again(r loaded) error {
	if final(r.err) || l.ctx.Err() != nil {
		return fmt.Errorf("key %q: %w", r.key, r.err)
	}
	var se *StatusError
	if errors.As(r.err, &se) && se.Config != nil && r.conn != nil {
		l.client.adopt(se.Config, r.conn.Addr())
	}
	l.stats.Retried++
	if _, err := l.client.Set(l.ctx, r.key, r.value, StoreOptions{}); err != nil {
		return err
	}
	l.count(r.key, r.value)
	return nil
}

// count adds a stored document to the stats.
func (l *loader) count(key string, value []byte) {
	l.stats.Documents++
	l.stats.Bytes += uint64(len(key) + len(value))
}

// report calls progress if it is due.
func (l *loader) report(end bool) {
	if l.progress == nil || !end && l.stats.Documents-l.reported < progressEvery {
		return
	}
	l.reported = l.stats.Documents
	l.progress(l.stats)
}
