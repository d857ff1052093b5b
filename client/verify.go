package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/manager/api/v1"
	"tidemark/wire"
)

// errRetryLimit is wrapped to stop retrying, although a later attempt might succeed.
var errRetryLimit = errors.New("the limit of attempts is reached")

// refusalLimit bounds the retries of a request that is refused each time. It is for one call.
type refusalLimit struct {
	limit time.Duration
	since time.Time // of the first of consecutive retryLimit
}

// check returns the error of an attempt, or, if the requests have been refused for too long, one that ends the
// retries. A busy server does not count as a refusal.
func (p *refusalLimit) check(q operation, server string, err error) error {
	var problem *wire.Problem
	switch {
	case p == nil || errors.As(err, &problem) && !problem.Temporary():
		return err
	case problem != nil && problem.Code == errcode.Busy:
		p.since = time.Time{}
		return err
	case p.since.IsZero():
		p.since = time.Now()
	}
	if time.Since(p.since) < p.limit {
		return err
	}
	return fmt.Errorf("%w: %w for %s %s in %s; the last attempt was at %s: %w", ErrUnavailable, errRetryLimit, q.op,
		q.of, p.limit, server, err)
}

// verifyTries bounds the attempts of a verification that is cut off before it has found a difference.
const verifyTries = 3

// Verify compares every copy of an index with the KV data, while both are in use. It calls each with every difference
// and with the progress as they arrive (docs/scans.md); an error of each ends the verification. End.Differences is 0
// if they agree. An error means that the verification did not finish, whatever was found before. If it cannot begin,
// because something that it needs is unavailable, it is retried for a minute; after that the error wraps
// ErrUnavailable and names the cause. If it is cut off, because a server hangs, and has not reported a
// difference, it is started anew, progress included, up to three attempts in total. A busy server is retried until
// ctx ends.
func (c *Client) Verify(ctx context.Context, ref string, req v1.VerifyRequest,
	each func(v1.VerifyLine) error) (v1.VerifyEnd, error) {
	body, err := json.Marshal(req)
	if err != nil {
		return v1.VerifyEnd{}, fmt.Errorf("encoding the request: %w", err)
	}
	for tries := 1; ; tries++ {
		v := verifying{each: each}
		end, err := c.verify(ctx, ref, body, &v)
		if err == nil || !v.cut || v.found || tries == verifyTries || ctx.Err() != nil {
			return end, err
		}
		if c.Waiting != nil {
			c.Waiting(err)
		}
	}
}

// verifying is one attempt of a verification.
type verifying struct {
	each  func(v1.VerifyLine) error
	found bool // a difference was reported
	cut   bool // it ended early, and another attempt may not
}

// verify makes one attempt.
func (c *Client) verify(ctx context.Context, ref string, body []byte, v *verifying) (v1.VerifyEnd, error) {
	rows, err := c.lines(ctx, operation{op: "verify", of: ref}, "/v1/indexes/"+ref+":verify", http.Header{}, body,
		&refusalLimit{limit: c.verifyRetryFor})
	if err != nil {
		return v1.VerifyEnd{}, err
	}
	defer func() { _ = rows.close() }() // it was only read
	for text := []byte(nil); ; {
		var cut error
		if text, cut = rows.appendLine(text[:0]); cut != nil && (!errors.Is(cut, io.EOF) || len(text) == 0) {
			v.cut = true
			return v1.VerifyEnd{}, fmt.Errorf("%w: %w", ErrCut, cut)
		}
		var l v1.VerifyLine
		switch err := json.Unmarshal(text, &l); {
		case err != nil:
			v.cut = cut != nil
			return v1.VerifyEnd{}, fmt.Errorf("%w: a line is not JSON: %w", ErrCut, err)
		case l.End != nil:
			rows.drain()
			return *l.End, nil
		case l.Error != nil:
			p := rpc.Refuse(l.Error.Code, "%s", l.Error.Detail)
			v.cut = p.Code == errcode.Unavailable
			return v1.VerifyEnd{}, p
		}
		v.found = v.found || l.Difference != nil
		if err := v.each(l); err != nil {
			return v1.VerifyEnd{}, err
		}
	}
}
