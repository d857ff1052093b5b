package router

import (
	"cmp"
	"errors"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"tidemark/index"
	"tidemark/indexer/transport"
	"tidemark/wire"
)

const (
	// unreachedAfter is how long attempts to reach an endpoint must have failed before it is listed: a process that was
	// restarted answers before.
	unreachedAfter = 5 * time.Second
	// refusedAfter is how long an endpoint must have refused a side stream: an indexer that has just started, or ends a
	// verification, refuses some for up to a minute, on a port that works.
	refusedAfter = 2 * time.Minute
	// triesKept is how long a failure counts if no other one follows. A lane tries again at least every 3 s (dialTimeout
	// and backoffMax); a side stream that does not arrive is requested again, and has no lane for a moment.
	triesKept = 10 * time.Second
	maxTries  = 4096
	maxTry    = 300 // bytes of the error
)

// Unreached is an endpoint to which no connection works, or which refuses them.
type Unreached struct {
	Node    index.NodeID
	Address string
	Error   string // of the last attempt, without what differs between attempts
	Refused bool   // the endpoint answers, and refuses; Error is its reason
	Since   time.Time
}

// tries holds the failures to connect that no success has followed. They are not part of a lane, because each request
// for a side stream has lanes of its own, and is repeated before one of these has failed for long.
type tries struct {
	mu  sync.Mutex // leaf
	all map[tryKey]*try
}

type tryKey struct {
	node       index.NodeID
	addr       string
	bucket     string
	connection int
}

type try struct {
	err         string
	refused     bool          // err is the endpoint's answer
	after       time.Duration // how long attempts must have failed before the endpoint is listed
	since, last time.Time     // of the failures
	up          time.Time     // when a connection was made after the last one; zero: there was none
}

// over reports whether the failures no longer count: a connection has stood for a while since, or there was no other
// attempt.
func (x *try) over(now time.Time) bool {
	return !x.up.IsZero() && now.Sub(x.up) > backoffMax || now.Sub(x.last) > triesKept
}

// failed records a failed attempt, or the end of a connection that was of no use. The endpoint is listed if that goes
// on for after.
func (t *tries) failed(key tryKey, err error, now time.Time, after time.Duration) {
	text, refused := steady(err.Error(), key.addr), errors.Is(err, transport.ErrRefused)
	text = wire.Cut(strings.TrimPrefix(text, transport.ErrRefused.Error()+": "), maxTry)
	t.mu.Lock()
	defer t.mu.Unlock()
	x := t.all[key]
	if x == nil || x.over(now) {
		if len(t.all) >= maxTries {
			t.prune(now)
		}
		if len(t.all) >= maxTries {
			return
		}
		if t.all == nil {
			t.all = map[tryKey]*try{}
		}
		x = &try{since: now}
		t.all[key] = x
	}
	x.err, x.refused, x.after, x.last, x.up = text, refused, after, now, time.Time{}
}

// connected records a connection that has not been of use yet.
func (t *tries) connected(key tryKey, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if x := t.all[key]; x != nil {
		x.up = now
	}
}

// drop removes the failures of an endpoint that has answered, or is not needed any more.
func (t *tries) drop(key tryKey) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.all, key)
}

func (t *tries) prune(now time.Time) {
	maps.DeleteFunc(t.all, func(_ tryKey, x *try) bool { return x.over(now) })
}

// list returns the endpoints that attempts have failed to reach for long enough, ascending by node and address. Of
// several connections to one, the first that failed counts.
func (t *tries) list(now time.Time) []Unreached {
	all := t.oldest(now)
	slices.SortFunc(all, func(a, b Unreached) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), strings.Compare(a.Address, b.Address))
	})
	return all
}

// oldest returns the endpoints in any order.
func (t *tries) oldest(now time.Time) (all []Unreached) {
	type endpoint struct {
		node index.NodeID
		addr string
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.prune(now)
	at := make(map[endpoint]tryKey, len(t.all))
	for k, x := range t.all {
		to := endpoint{k.node, k.addr}
		if now.Sub(x.since) < x.after {
			continue
		}
		if before, ok := at[to]; !ok || cmp.Or(x.since.Compare(t.all[before].since), strings.Compare(k.bucket, before.bucket),
			cmp.Compare(k.connection, before.connection)) < 0 {
			at[to] = k
		}
	}
	for to, k := range at {
		x := t.all[k]
		all = append(all, Unreached{Node: to.node, Address: to.addr, Error: x.err, Refused: x.refused, Since: x.since})
	}
	return all
}

// Unreached returns the endpoints to which no connection has worked for 5 seconds, or which have refused side streams
// for two minutes, ascending by node and address. It does not block. It lists no endpoint that was never tried, or that
// the newest view does not contain.
func (r *Router) Unreached() []Unreached { return r.tries.list(time.Now()) }

var (
	// quoted matches the text that gRPC wraps, in quotes, into an error of its own.
	quoted = regexp.MustCompile(`connection error: desc = ("(?:[^"\\]|\\.)*")`)
	// wrapping matches what gRPC adds to an error, and the local address of a connection, another one for each attempt.
	wrapping = regexp.MustCompile(`rpc error: code = \w+ desc = |transport: |Error while dialing: |[][%.:\w]+:\d+->`)
)

// steady returns the text of an error without what differs between two attempts that fail for the same reason, and
// without the address, which is listed beside it.
func steady(text, addr string) string {
	text = quoted.ReplaceAllStringFunc(text, func(all string) string {
		if inner, err := strconv.Unquote(quoted.FindStringSubmatch(all)[1]); err == nil {
			return inner
		}
		return all
	})
	return strings.TrimPrefix(wrapping.ReplaceAllString(text, ""), "connect to "+addr+": ")
}
