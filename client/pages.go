package client

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"tidemark/manager/api/v1"
)

// ErrNoCursor is wrapped if more rows follow a page but its last row, larger than 32 KiB, does not fit into a cursor.
// With another Limit, pages end at other rows.
var ErrNoCursor = errors.New("the page ends after a row that no cursor can name")

// Page is one page of an answer.
type Page struct {
	// After is the cursor after which the page begins, "" for the first one.
	After string
	Rows  []v1.Row   // at most Limit
	End   v1.ScanEnd // Cursor is the place after the page; without More it is the last page
}

// Pages returns an answer page by page: each page has Limit rows, which are read before it is returned. All pages
// together are the rows of one scan at the timestamp of the first, whatever is written meanwhile. The last page has
// the remaining rows, possibly none. With Cursor, the iteration continues after a page of the same request, in this
// or another process; with Newer it continues in the newest state.
//
// It ends at the first error, which is returned with a Page without rows whose After is the place after the last page
// returned: with it as Cursor, the request continues there at the same timestamp. The timestamp is kept for a minute
// after each page and for ten minutes in total; after that the error is a *wire.Problem with the code CURSOR_EXPIRED.
// The request can then be continued with Newer, so that the following pages show a newer state than those before, or
// begin anew without a cursor. ctx bounds all pages together.
func (c *Client) Pages(ctx context.Context, ref string, req v1.ScanRequest) iter.Seq2[Page, error] {
	return c.session.Pages(ctx, c, ref, req)
}

// Pages is Client.Pages in this session.
func (s *Session) Pages(ctx context.Context, c *Client, ref string, req v1.ScanRequest) iter.Seq2[Page, error] {
	return func(yield func(Page, error) bool) {
		req := req // a copy for this iteration
		for req.WantCursor = true; ; req.Newer = false {
			page, err := s.page(ctx, c, ref, req)
			if err != nil {
				yield(Page{After: req.Cursor}, err)
				return
			}
			if !yield(page, nil) || !page.End.More {
				return
			}
			if page.End.Cursor == "" {
				yield(Page{After: req.Cursor}, fmt.Errorf("%w: request %s with another limit than %d rows",
					ErrNoCursor, ref, req.Limit))
				return
			}
			req.Cursor = page.End.Cursor
		}
	}
}

// page reads one page.
func (s *Session) page(ctx context.Context, c *Client, ref string, req v1.ScanRequest) (Page, error) {
	page := Page{After: req.Cursor}
	rows, err := s.Scan(ctx, c, ref, req)
	if err != nil {
		return page, err
	}
	defer rows.Close()
	for rows.Next() {
		page.Rows = append(page.Rows, rows.Row()) // rows may be kept: no source reuses a row's memory
	}
	page.End, err = rows.End()
	return page, err
}
