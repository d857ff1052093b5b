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

// errEnough is wrapped when nobody has to be asked again, though the answer may be another one later.
var errEnough = errors.New("asked often enough")

// patience ends the asking again for what is refused all the time. It is used by one call.
type patience struct {
	limit time.Duration
	since time.Time // of the first refusal in a row
}

// judge returns the error of an attempt, or after too many the one that ends the asking. That a server is busy says
// nothing of what is asked for.
func (p *patience) judge(q question, server string, err error) error {
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
	return fmt.Errorf("%w: %w for %s %s in %s; %s was asked last: %w", ErrUnavailable, errEnough, q.op, q.of, p.limit,
		server, err)
}

// verifyTries is how often a comparison that was cut off is made again, as long as it has found nothing.
const verifyTries = 3

// Verify compares an index with the KV data, every copy of it, while both are used. each is called with every
// difference and with the progress as they come (docs/scans.md); its error ends the verification. End.Differences is 0
// when they agree. An error says that the comparison did not come to its end, whatever was found before. One that
// cannot begin, as something that it needs is away, is asked for again for a minute: then the error wraps
// ErrUnavailable and names what is. One that is cut off, as a server falls silent, is begun anew up to three times
// unless it has told a difference; its progress begins anew, too. A server that is busy is asked again until ctx ends.
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

// verifying is one try of a verification.
type verifying struct {
	each  func(v1.VerifyLine) error
	found bool // a difference was told
	cut   bool // it ended early, and another try may not
}

// verify tries it once.
func (c *Client) verify(ctx context.Context, ref string, body []byte, v *verifying) (v1.VerifyEnd, error) {
	rows, err := c.lines(ctx, question{op: "verify", of: ref}, "/v1/indexes/"+ref+":verify", http.Header{}, body,
		&patience{limit: c.enough})
	if err != nil {
		return v1.VerifyEnd{}, err
	}
	defer func() { _ = rows.close() }() // of what was only read
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
			return v1.VerifyEnd{}, fmt.Errorf("%w: a line is no JSON: %w", ErrCut, err)
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
