package scan

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"hash/fnv"

	"tidemark/errcode"
	"tidemark/index"
	"tidemark/indexer/scanport"
)

// Page describes one page of an answer. All pages have the same timestamp, whose snapshots are kept for them.
type Page struct {
	fixed uint64 // digest of what must be equal in all pages
	id    uint64 // of a later page: Pages.ID
	after *Row   // last row of the previous page; nil: the first page
}

const (
	// MaxCursor bounds the text of a cursor, in bytes.
	MaxCursor = 64 << 10
	// maxCursorRow bounds the key and document id in a cursor; a longer row gets no cursor.
	maxCursorRow = 32 << 10
	cursorFormat = 1
	cursorSum    = 4 // CRC-32C of everything before it
)

// digest returns a hash of what must be equal in all pages: the selection of rows, their order and their fields.
func (s *Spec) digest() uint64 {
	h := fnv.New64a()
	number := func(n int) { _, _ = h.Write(binary.AppendVarint(nil, int64(n))) } // it never fails
	ranges := func(all []Range) {
		number(len(all))
		for _, r := range all {
			for _, b := range [][]byte{r.Low, r.High} {
				n := len(b)
				if b == nil {
					n = -1
				}
				number(n)
				_, _ = h.Write(b)
			}
		}
	}
	ranges(s.Ranges)
	number(len(s.Where))
	for _, f := range s.Where {
		number(f.Component)
		ranges(f.Ranges)
	}
	if s.Reverse {
		number(-2)
	}
	number(s.Distinct)
	for _, p := range s.Project {
		number(p)
	}
	if s.Project == nil {
		number(-1)
	}
	if g := s.Groups; g != nil {
		_, _ = fmt.Fprint(h, *g)
	}
	return h.Sum64()
}

// checkPages refuses options that cannot be combined with pages.
func (r *Request) checkPages() error {
	switch {
	case !r.WantCursor && r.Cursor == "" && !r.Newer:
		return nil
	case r.Newer && r.Cursor == "":
		return Errorf(errcode.BadRequest, "newer requires a cursor, after which the scan continues")
	case len(r.Cursor) > MaxCursor:
		return Errorf(errcode.BadRequest, "the cursor has %d bytes; the limit is %d", len(r.Cursor), MaxCursor)
	case r.Limit == 0:
		return Errorf(errcode.BadRequest, "want_cursor and cursor require a limit: the number of rows per page")
	case r.Stability == NoStability || r.Timestamp != "":
		return Errorf(errcode.BadRequest, "want_cursor and cursor cannot be combined with stability none or a timestamp: "+
			"all pages have the timestamp in the cursor")
	}
	r.Stability = QueryStability
	return nil
}

// page sets s.Page if the request is for a page.
func (s *Spec) page(r *Request, def *index.Definition) error {
	if !r.WantCursor && r.Cursor == "" {
		return nil
	}
	s.Page = &Page{fixed: s.digest()}
	if r.Cursor == "" {
		return nil
	}
	seen, after, err := s.readCursor(r.Cursor, def)
	if err != nil {
		return err
	}
	if err := s.checkPlace("the cursor", after.Key); err != nil {
		return err
	}
	s.Page.after, s.Offset = after, 0
	if r.Newer {
		s.Seen = append(s.Seen, seen)
		return nil
	}
	at := wireRef(&seen)
	s.At, s.Consistency, s.Tokens = &at, Any, nil
	return nil
}

// cursor returns the cursor behind a row, at the timestamp in seen; "" if the row is too long.
func (s *Spec) cursor(seen *scanport.Seen, pages uint64, last *Row) string {
	if len(last.Key)+len(last.DocID) > maxCursorRow {
		return ""
	}
	b := seen.AppendSeen([]byte{cursorFormat})
	b = binary.AppendUvarint(b, uint64(s.Index))
	b = binary.BigEndian.AppendUint64(b, s.Page.fixed)
	b = binary.BigEndian.AppendUint64(b, pages)
	b = append(binary.AppendUvarint(b, uint64(len(last.Key))), last.Key...)
	b = append(b, last.DocID...)
	return base64.RawURLEncoding.EncodeToString(appendSum(b))
}

func appendSum(b []byte) []byte {
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// readCursor parses a cursor. It refuses cursors of another index or request.
func (s *Spec) readCursor(text string, def *index.Definition) (seen scanport.Seen, after *Row, err error) {
	bad := func(what string) error {
		return Errorf(errcode.BadRequest, "cursor %.40q: %s: send it unchanged as in the last line of the previous "+
			"page", text, what)
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	switch {
	case err != nil:
		return seen, nil, bad(err.Error())
	case len(b) <= cursorSum:
		return seen, nil, bad("it is truncated")
	case b[0] != cursorFormat:
		return seen, nil, bad("its format is unknown")
	}
	sum := binary.BigEndian.Uint32(b[len(b)-cursorSum:])
	if b = b[:len(b)-cursorSum]; crc32.Checksum(b, castagnoli) != sum {
		return seen, nil, bad("its checksum does not match")
	}
	if seen, b, err = scanport.CutSeen(b[1:]); err != nil {
		return seen, nil, bad(err.Error())
	}
	id, n := binary.Uvarint(b)
	if n <= 0 || len(b) < n+16 {
		return seen, nil, bad("it is truncated")
	}
	fixed := binary.BigEndian.Uint64(b[n:])
	s.Page.id = binary.BigEndian.Uint64(b[n+8:])
	b = b[n+16:]
	key, n := binary.Uvarint(b)
	switch {
	case n <= 0 || key > uint64(len(b)-n):
		return seen, nil, bad("it is truncated")
	case id != uint64(s.Index) || seen.Bucket != def.Bucket:
		return seen, nil, Errorf(errcode.BadRequest, "the cursor belongs to index %d on bucket %q, this is index %s (%s on "+
			"%s): after a split or a drop, start the scan again", id, seen.Bucket, s.Index, def.Name, def.Keyspace())
	case fixed != s.Page.fixed:
		return seen, nil, Errorf(errcode.BadRequest, "the cursor belongs to another request: equal, range, ranges, reverse, "+
			"distinct, where, project, group_by and aggregates must be those of the first page")
	}
	b = b[n:]
	return seen, &Row{Key: bytes.Clone(b[:key]), DocID: bytes.Clone(b[key:])}, nil
}

// later reports whether this is a page after the first.
func (s *Spec) later() bool { return s.Page != nil && s.Page.after != nil }

// expired maps errors about a page's timestamp that is no longer available to an error with advice for the caller.
func (s *Spec) expired(err error) error {
	switch CodeOf(err) {
	case errcode.SnapshotSkipped, errcode.SnapshotTooOld, errcode.IndexInRollback:
		return Errorf(errcode.CursorExpired, "the state of the cursor, timestamp %s, is no longer kept (it is kept for %s "+
			"after its last page, for %s in all): send the cursor with newer to continue after it in the newest state, or "+
			"start again: %w", TimestampID(*s.At), KeepFor, MaxKeep, err)
	}
	return err
}

// beyond determines, at the end of a full page, whether there is another row. With pages all slices are open by then.
func (r *run) beyond(ctx context.Context, m *merger, open *[]*remote) error {
	for r.spec.Page != nil && r.out.last != nil {
		row, src, ok := m.top()
		if r.out.folding != nil { // a cell belongs to the next group, whether it is the current one or follows
			r.result.More = r.out.folding.some || ok
			return nil
		}
		if !ok {
			return nil
		}
		repeated, err := r.out.repeats.seen(row.Key)
		if err != nil {
			return err
		}
		if !repeated {
			r.result.More = true
			return nil
		}
		n := src.(*remote)
		n.given(row)
		if err := m.advance(); err != nil {
			if err := r.replace(ctx, m, n, err, open); err != nil {
				return err
			}
		}
	}
	return nil
}
