package history

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/wire"
)

// Query encodes a query for history as the query string of a URL.
func Query(q wire.HistoryQuery) string {
	text := fmt.Sprintf("?from=%d&each=%d&points=%d", q.From, q.Each, q.Points)
	if q.Bucket != "" {
		text += "&bucket=" + url.QueryEscape(q.Bucket)
	}
	return text
}

// ParseQuery parses the result of Query.
func ParseQuery(r *http.Request) (q wire.HistoryQuery, err error) {
	number := func(name string, most int64) int64 {
		n, bad := strconv.ParseInt(r.URL.Query().Get(name), 10, 64)
		if bad != nil || n < 1 || n > most {
			err = rpc.Refuse(errcode.BadRequest, "%s is %.40q: want 1 to %d", name, r.URL.Query().Get(name), most)
		}
		return n
	}
	q = wire.HistoryQuery{From: number("from", 1<<40), Each: int(number("each", wire.HistorySlots)),
		Points: int(number("points", wire.HistorySlots)), Bucket: r.URL.Query().Get("bucket")}
	if err == nil && q.Each*q.Points > wire.HistorySlots {
		err = rpc.Refuse(errcode.BadRequest, "%d points of %d slots: %d slots are kept", q.Points, q.Each, wire.HistorySlots)
	}
	return q, err
}
