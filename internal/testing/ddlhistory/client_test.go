package ddlhistory

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// verdict is what the client knows after an attempt.
type verdict uint8

const (
	known   verdict = iota // the answer is final
	refused                // this attempt did nothing
	lost                   // it may have been carried out
)

// answer is the answer to one attempt.
type answer struct {
	verdict verdict
	out     outcome
}

// request is a write in the form in which every attempt sends it.
type request struct {
	in           input
	key          string
	method, path string
	body         []byte
	statement    bool // through /v1/statements
}

// newRequest chooses one of the two forms of a write.
func newRequest(in input, bucket, key string, statement bool) request {
	r := request{in: in, key: key, method: http.MethodPost, path: "/v1/statements", statement: statement}
	var body any
	switch {
	case statement || parts(in.name) && in.kind != drop:
		r.statement = true
		body = map[string]any{"statement": text(in, bucket)}
	case in.kind == drop:
		r.method, r.path = http.MethodDelete, "/v1/indexes/"+bucket+"/"+in.name
		return r
	default:
		r.path = "/v1/indexes"
		body = map[string]any{"name": in.name, "bucket": bucket, "is_primary": true, "defer_build": true,
			"if_not_exists": in.kind == ensure}
	}
	r.body, _ = json.Marshal(body) // cannot fail: strings and booleans
	return r
}

// parts reports whether the index of a name is built in slices by ranges, so that it can be split.
func parts(name string) bool { return strings.HasPrefix(name, "n0_") }

// text returns the statement of a write.
func text(in input, bucket string) string {
	how := `WITH {"defer_build":true}`
	if parts(in.name) {
		how = `PARTITION BY RANGE(META().id) VALUES ("m")`
	}
	alter := func(with string) string { return fmt.Sprintf(`ALTER INDEX %s ON %s WITH {%s}`, in.name, bucket, with) }
	switch in.kind {
	case ensure:
		return fmt.Sprintf(`CREATE PRIMARY INDEX IF NOT EXISTS %s ON %s %s`, in.name, bucket, how)
	case drop:
		return fmt.Sprintf(`DROP INDEX %s ON %s`, in.name, bucket)
	case split, merge:
		return alter(fmt.Sprintf(`"action":"%s","at":["%s"]`, in.kind, in.at))
	case cancel:
		return alter(`"action":"cancel_split"`)
	}
	return fmt.Sprintf(`CREATE PRIMARY INDEX %s ON %s %s`, in.name, bucket, how)
}

// refusals maps the error codes of requests that did nothing to the reason.
var refusals = map[kind]map[string]outcome{
	create: {"NAME_EXISTS": {found: true}},
	drop:   {"UNKNOWN_INDEX": {}},
	split:  {"UNKNOWN_INDEX": {why: absent}, "STATE_MISMATCH": {why: unready}, "SPLIT_RUNNING": {why: busy}},
	merge: {"UNKNOWN_INDEX": {why: absent}, "STATE_MISMATCH": {why: unready}, "SPLIT_RUNNING": {why: busy},
		"INVALID_ARGUMENT": {why: unfit}},
	cancel: {"UNKNOWN_INDEX": {why: absent}, "STATE_MISMATCH": {why: unsplit}},
}

var errUnexpected = errors.New("an answer that should not be")

// send makes one attempt at one manager. The error wraps errUnexpected.
func (r *request) send(ctx context.Context, c *http.Client, server string, patience time.Duration) (answer, error) {
	status, body, err := call(ctx, c, r.method, server+r.path, r.key, r.body, patience)
	if err != nil {
		return answer{verdict: lost}, nil //nolint:nilerr // a broken connection does not reveal the outcome of the write
	}
	out, no := refusals[r.in.kind][problemCode(body)]
	switch {
	case status == http.StatusOK || status == http.StatusAccepted:
		return r.done(status, body)
	case no:
		return answer{out: out}, nil
	case status == http.StatusGatewayTimeout: // OUTCOME_UNKNOWN, TIMEOUT
		return answer{verdict: lost}, nil
	case status == http.StatusServiceUnavailable:
		return answer{verdict: refused}, nil
	}
	return answer{}, fmt.Errorf("%w: %s %s %s at %s: %d %s", errUnexpected, r.in.kind, r.path, r.body, server, status,
		body)
}

// done decodes the outcome of a successful write.
func (r *request) done(status int, body []byte) (answer, error) {
	type result struct {
		ID      string
		Existed bool
	}
	var one result
	var err error
	if r.statement {
		var many struct{ Results []result }
		err = json.Unmarshal(body, &many)
		if err == nil && len(many.Results) != 1 {
			err = fmt.Errorf("%d results", len(many.Results))
		}
		if err == nil {
			one = many.Results[0]
		}
	} else {
		err = json.Unmarshal(body, &one)
		one.Existed = status == http.StatusOK
	}
	id, idErr := strconv.ParseUint(one.ID, 10, 64)
	if err = errors.Join(err, idErr); err != nil {
		return answer{}, fmt.Errorf("%w: %s: %w in %s", errUnexpected, r.in.kind, err, body)
	}
	return answer{out: outcome{id: id, found: one.Existed || r.in.kind == drop || r.in.kind == cancel}}, nil
}

// list returns the ids of the bucket's indexes by name. An index that is being dropped no longer has its name.
func list(ctx context.Context, c *http.Client, server, bucket, query string, patience time.Duration) (map[string]uint64,
	bool, error) {
	status, body, err := call(ctx, c, http.MethodGet, server+"/v1/indexes?bucket="+bucket+query, "", nil, patience)
	if err != nil || status == http.StatusServiceUnavailable || status == http.StatusGatewayTimeout {
		return nil, false, nil //nolint:nilerr // no answer, nothing learnt
	}
	var l struct {
		Indexes []struct{ ID, Name, State, Replaces string }
	}
	if err := json.Unmarshal(body, &l); err != nil || status != http.StatusOK {
		return nil, false, fmt.Errorf("%w: listing at %s: %d %s", errUnexpected, server, status, body)
	}
	ids := map[string]uint64{}
	for _, i := range l.Indexes {
		id, err := strconv.ParseUint(i.ID, 10, 64)
		switch {
		case err != nil:
			return nil, false, fmt.Errorf("%w: listing at %s: id %q", errUnexpected, server, i.ID)
		case i.State == "dropping", i.Replaces != "": // has no name
		case ids[i.Name] != 0:
			return nil, false, fmt.Errorf("%w: listing at %s: %d and %d are both called %s", errUnexpected, server, ids[i.Name],
				id, i.Name)
		default:
			ids[i.Name] = id
		}
	}
	return ids, true, nil
}

// get returns the id of one index.
func get(ctx context.Context, c *http.Client, server, bucket, name string, patience time.Duration) (out outcome,
	ok bool, err error) {
	status, body, err := call(ctx, c, http.MethodGet, server+"/v1/indexes/"+bucket+"/"+name, "", nil, patience)
	switch {
	case err != nil || status == http.StatusServiceUnavailable || status == http.StatusGatewayTimeout:
		return out, false, nil //nolint:nilerr // no answer, nothing learnt
	case status == http.StatusNotFound && problemCode(body) == "UNKNOWN_INDEX":
		return out, true, nil
	}
	var i struct{ ID string }
	if err := json.Unmarshal(body, &i); err == nil && status == http.StatusOK {
		if id, err := strconv.ParseUint(i.ID, 10, 64); err == nil {
			return outcome{found: true, id: id}, true, nil
		}
	}
	return out, false, fmt.Errorf("%w: %s at %s: %d %s", errUnexpected, name, server, status, body)
}

func problemCode(body []byte) string {
	var p struct{ Code string }
	_ = json.Unmarshal(body, &p) // no problem document: no code
	return p.Code
}

// call sends one request. It returns an error if no complete answer arrived.
func call(ctx context.Context, c *http.Client, method, url, key string, body []byte,
	patience time.Duration) (status int, answer []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	if len(body) > 0 {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	answer, err = io.ReadAll(resp.Body)
	return resp.StatusCode, answer, err
}
