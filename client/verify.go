package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/wire"
)

// What a verification is asked and answers.
type (
	// VerifyRequest says how an index is compared with the KV data.
	VerifyRequest = wire.VerifyRequest
	// VerifyLine is one line of a verification's answer.
	VerifyLine = wire.VerifyLine
	// VerifyEnd is what a verification has found.
	VerifyEnd = wire.VerifyEnd
	// VerifyProgress says how far a verification is.
	VerifyProgress = wire.VerifyProgress
	// Difference is a document that index and KV data do not agree on.
	Difference = wire.Difference
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
	var problem *Error
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

// Verify compares an index with the KV data, every copy of it, while both are used. each is called with every
// difference and with the progress as they come (docs/scans.md); its error ends the verification. End.Differences is 0
// when they agree. An error says that the comparison did not come to its end, whatever was found before. One that
// cannot begin, as something that it needs is away, is asked for again for a minute: then the error wraps
// ErrUnavailable and names what is. A server that is busy is asked again until ctx ends.
func (c *Client) Verify(ctx context.Context, ref string, req VerifyRequest, each func(VerifyLine) error) (VerifyEnd,
	error) {
	body, err := json.Marshal(req)
	if err != nil {
		return VerifyEnd{}, fmt.Errorf("encoding the request: %w", err)
	}
	rows, err := c.lines(ctx, question{op: "verify", of: ref}, "/v1/indexes/"+ref+":verify", body,
		&patience{limit: c.enough})
	if err != nil {
		return VerifyEnd{}, err
	}
	defer func() { _ = rows.close() }() // of what was only read
	for {
		text, err := rows.readLine()
		if err != nil {
			return VerifyEnd{}, err
		}
		var l VerifyLine
		switch err := json.Unmarshal(text, &l); {
		case err != nil:
			return VerifyEnd{}, fmt.Errorf("%w: a line is no JSON: %w", ErrCut, err)
		case l.End != nil:
			rows.drain()
			return *l.End, nil
		case l.Error != nil:
			return VerifyEnd{}, rpc.Refuse(l.Error.Code, "%s", l.Error.Detail)
		}
		if err := each(l); err != nil {
			return VerifyEnd{}, err
		}
	}
}
