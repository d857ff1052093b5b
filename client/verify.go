package client

import (
	"context"
	"encoding/json"
	"fmt"

	"tidemark/internal/rpc"
	"tidemark/wire"
)

// What a verification is asked and answers.
type (
	VerifyRequest  = wire.VerifyRequest
	VerifyLine     = wire.VerifyLine
	VerifyEnd      = wire.VerifyEnd
	VerifyProgress = wire.VerifyProgress
	Difference     = wire.Difference
)

// Verify compares an index with the KV data, every copy of it, while both are used. each is called with every
// difference and with the progress as they come (docs/scans.md); its error ends the verification. End.Differences is 0
// when they agree. An error says that the comparison did not come to its end, whatever was found before.
func (c *Client) Verify(ctx context.Context, ref string, req VerifyRequest, each func(VerifyLine) error) (VerifyEnd,
	error) {
	body, err := json.Marshal(req)
	if err != nil {
		return VerifyEnd{}, fmt.Errorf("encoding the request: %w", err)
	}
	rows, err := c.lines(ctx, question{op: "verify", of: ref}, "/v1/indexes/"+ref+":verify", body)
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
