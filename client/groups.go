package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"tidemark/manager/api/v1"
)

// ErrGroups is wrapped if a request for groups is passed to a method that returns rows, or the other way round.
var ErrGroups = errors.New("the request and the method do not match")

// Groups is a running scan whose rows are aggregated into groups. Use: for groups.Next() { groups.Group() }; then
// groups.Err(); always Close.
type Groups struct {
	rows  *Rows
	group v1.Group
	err   error
}

// Aggregate scans an index and returns groups of its rows with their aggregates, as GroupBy and Aggregates of the
// request define them. The indexers compute them, so that no row travels over the network. Otherwise it behaves like
// Scan.
func (c *Client) Aggregate(ctx context.Context, ref string, req v1.ScanRequest) (*Groups, error) {
	return c.session.Aggregate(ctx, c, ref, req)
}

// Aggregate is Client.Aggregate in this session.
func (s *Session) Aggregate(ctx context.Context, c *Client, ref string, req v1.ScanRequest) (*Groups, error) {
	if !req.Grouped() {
		return nil, fmt.Errorf("%w: the request has neither GroupBy nor Aggregates: use Scan", ErrGroups)
	}
	rows, err := s.scan(ctx, c, ref, req)
	if err != nil {
		return nil, err
	}
	return &Groups{rows: rows}, nil
}

// Next advances to the next group; it returns false at the end or on an error.
func (g *Groups) Next() bool {
	if g.err != nil || !g.rows.Next() {
		return false
	}
	// The wire format has an array of the values where a row has its document's id.
	row := g.rows.Row()
	g.group = v1.Group{Key: row.Key}
	if err := json.Unmarshal([]byte(row.ID), &g.group.Values); err != nil {
		g.err = fmt.Errorf("%w: the values of a group: %w", ErrAnswer, err)
	}
	return g.err == nil
}

// Group returns the present group.
func (g *Groups) Group() v1.Group { return g.group }

// End returns the last line, once Next has returned false without an error. Its Rows counts groups.
func (g *Groups) End() (v1.ScanEnd, error) {
	if g.err != nil {
		return v1.ScanEnd{}, g.err
	}
	return g.rows.End()
}

// Err returns what ended the scan early, nil if it is complete.
func (g *Groups) Err() error { return errors.Join(g.err, g.rows.Err()) }

// Close ends the scan.
func (g *Groups) Close() error { return g.rows.Close() }
