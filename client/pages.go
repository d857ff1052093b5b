package client

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"tidemark/manager/api/v1"
)

// ErrNoCursor is wrapped when more rows follow a page whose last row, of more than 32 KiB, no cursor names. With
// another Limit pages end at other rows.
var ErrNoCursor = errors.New("the page ends behind a row that no cursor names")

// Page is a part of an answer that comes page by page.
type Page struct {
	// After is the cursor that the page begins behind, "" for the first one.
	After string
	Rows  []v1.Row   // at most Limit
	End   v1.ScanEnd // Cursor names the place behind the page; without More it is the last one
}

// Pages returns an answer page by page: each has Limit rows, which are read before it is given, and all of them
// together are the rows of one scan at the first one's timestamp, whatever is written meanwhile. The last page has all
// that is left, and may be empty. With Cursor it goes on behind a page of the same request, here or in another process;
// with Newer in the newest state then.
//
// It ends at the first error, which comes with a Page without rows whose After is the place behind the last page that
// was given: the request goes on there with it as Cursor, at the same timestamp. That is kept for a minute after each
// page and for ten minutes in all; then the error is a *wire.Problem with the code CURSOR_EXPIRED, and the request
// goes on with Newer, where the pages that follow show a newer state than those before, or begins anew without a
// cursor. ctx bounds all pages together.
func (c *Client) Pages(ctx context.Context, ref string, req v1.ScanRequest) iter.Seq2[Page, error] {
	return c.session.Pages(ctx, c, ref, req)
}

// Pages is Client.Pages in this session.
func (s *Session) Pages(ctx context.Context, c *Client, ref string, req v1.ScanRequest) iter.Seq2[Page, error] {
	return func(yield func(Page, error) bool) {
		req := req // of this iteration
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
				yield(Page{After: req.Cursor}, fmt.Errorf("%w: ask for %s with another limit than %d rows",
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
		page.Rows = append(page.Rows, rows.Row()) // of its own: no source uses a row's memory again
	}
	page.End, err = rows.End()
	return page, err
}
