package api

import (
	_ "embed"
	"net/http"
	"slices"

	"tidemark/errcode"
	"tidemark/indexer/scanport"
	"tidemark/internal/rpc"
)

// openAPI is the OpenAPI 3.1 document. It is generated from the route table and the Go types of bodies and answers
// (their fields, and their comments as descriptions) and never edited by hand:
//
//	go test ./manager/api -run TestDocumentOf -update
//
// Tests check the handlers against it: every request and answer in the tests of package manager, and of
// internal/testing/e2e/... with TIDEMARK_CONTRACT=1, must conform (internal/testing/contract).
//
//go:embed openapi.json
var openAPI []byte

// OpenAPI returns the document served at /openapi.json. The caller must not modify it.
func OpenAPI() []byte { return openAPI }

// operation is the contract of a call, part of its route. Every public route (any role but component) has one. To add
// a call:
//
//  1. Write the handler on the group that it belongs to (ground.go), and a route literal with doc: operation{…} in the
//     group's list (ddlRoutes, readRoutes, or a list of your own that routes() joins).
//  2. List the types of its request and answers (exported types with comments, of package v1; fields that may be absent
//     are omitempty), the headers that it uses, and the codes that it may fail with besides commonCodes. Add new codes
//     to errcode/table.go.
//  3. Run go test ./manager/api -run TestDocumentOf -update, read the difference in openapi.json, commit it. To resolve
//     a merge conflict in it, take either side and run that again.
//  4. Add a line to the table of calls in docs/api.md.
type operation struct {
	id      string   // operationId, a verb and a noun
	tag     string   // its group
	summary string   // what it does, one sentence
	params  []param  // of the query
	headers []string // that it uses, besides those of every call; requestHeaders explains them
	body    any      // a value of the request's type; nil for none
	// optional is set if the body may be left out.
	optional bool
	upload   string // media type of a body that is not JSON, such as mediaBinary; body is nil then
	answers  []answer
	codes    []errcode.Code // of problems, besides commonCodes
}

// param is a parameter of the query.
type param struct {
	name     string
	means    string
	enum     []string // the valid values, any if empty
	number   bool     // an unsigned integer
	required bool
}

// answer is an answer that is not a problem.
type answer struct {
	status  int
	means   string
	body    any      // a value of its type
	headers []string // besides those of every answer
	media   string   // mediaText, mediaLines, mediaEvents …; JSON when empty
	orText  bool     // also as text/plain, with ?format=text
	lines   []any    // with mediaLines and mediaEvents: values of the types of a line (or of an event's data)
}

// Groups of calls.
const (
	tagDDL   = "DDL"
	tagReads = "Reads"
	tagScans = "Scans"
	tagNode  = "Node"
	// tagCluster is for calls about the cluster as a whole.
	tagCluster = "Cluster"
)

// Media types of answers that are not JSON.
const (
	mediaText  = "text/plain"
	mediaLines = "application/x-ndjson"
)

// Standard HTTP headers used in calls and answers.
const (
	headerETag        = "ETag"
	headerIfMatch     = "If-Match"
	headerIfNoneMatch = "If-None-Match"
	headerRetryAfter  = "Retry-After"
)

// header explains a header of requests or answers.
type header struct {
	means   string
	number  bool // an unsigned integer
	pattern string
	most    int // limit in bytes
}

// requestHeaders explains the headers that calls use.
func requestHeaders() map[string]header {
	return map[string]header{
		HeaderKey: {most: maxKeyBytes, means: "The write is executed once, however often it is sent with this key, to " +
			"any manager, within 24 hours; every attempt gets the answer of the first."},
		headerIfMatch: {pattern: `^(\*|"?[0-9]+"?)$`, means: "The ETag that the index must have; else 412 with the " +
			"present modified_cas. * or none: any."},
		headerIfNoneMatch: {means: "ETags that the client has; when the index has one of them, the answer is 304 without " +
			"a body."},
		rpc.HeaderRequestID: {means: "The id of this request in logs: letters, digits and ._:/+=-, at most 64 " +
			"characters; the manager makes another id if it is not valid."},
		HeaderTimeout: {number: true, means: "How many milliseconds the caller waits; the limit is 10 s for a write, " +
			"5 s for a read, 10 min for a scan."},
		HeaderPrefer: {means: "wait=N: how many seconds the call may wait for a leader while none is known, as in the " +
			"moments after one has died; 2 by default, at most 10 and no longer than the call may take; " +
			"with 0 the answer is NO_LEADER at once."},
		scanport.HeaderSession: {most: scanport.MaxSession, means: "Tokens of a session, separated by commas, in addition " +
			"to those of the body's field session: values of this header in earlier answers. The answer shows nothing older."},
	}
}

// everyRequest lists the headers that every call of this kind uses.
func (rt *route) everyRequest() []string {
	all := []string{HeaderTimeout, rpc.HeaderRequestID}
	if rt.waits() && (rt.leader || slices.Contains(rt.doc.codes, errcode.NoLeader)) {
		all = append(all, HeaderPrefer)
	}
	return all
}

// responseHeaders explains the headers of answers.
func responseHeaders() map[string]header {
	return map[string]header{
		headerETag: {pattern: `^"[0-9]+"$`, means: "modified_cas of the index, in quotes."},
		headerRetryAfter: {number: true, means: "Seconds after which the request may be sent again; retry_after_ms of " +
			"the body is finer."},
		HeaderCAS: {number: true, means: "cas of the state that was read."},
		HeaderAge: {number: true, means: "Of a stale read: milliseconds since this manager received a message of the " +
			"leader."},
		scanport.HeaderSession: {means: "The session's token as of the first rows; the field session of " +
			"the last line has it too, with stability none a newer one."},
		rpc.HeaderLeader:    {means: "Base URL of the leader, if one is known."},
		rpc.HeaderRequestID: {most: rpc.MaxRequestID, means: "The id of this request in logs and problems."},
	}
}

// everyAnswer lists the headers of every answer.
func everyAnswer() []string { return []string{rpc.HeaderLeader, rpc.HeaderRequestID} }

// readHeaders lists the headers of answers to reads of the state.
func readHeaders(more ...string) []string { return append(more, HeaderCAS, HeaderAge) }

// commonCodes lists the codes that every call of this kind may fail with.
func (rt *route) commonCodes() []errcode.Code {
	codes := []errcode.Code{errcode.BadRequest, errcode.Internal, errcode.Timeout}
	if rt.role != RoleNone {
		codes = append(codes, errcode.Unauthenticated, errcode.Forbidden, errcode.TooManyFailures,
			errcode.ManagerNotCurrent)
	}
	if rt.leader {
		codes = append(codes, errcode.NoLeader, errcode.Busy)
	}
	if rt.doc.body != nil {
		codes = append(codes, errcode.BodyTooLarge, errcode.BodyTooSlow, errcode.UnsupportedMediaType,
			errcode.UnsupportedFormat)
	}
	if rt.leader && rt.method != http.MethodGet {
		codes = append(codes, errcode.OutcomeUnknown, errcode.BadIdempotencyKey, errcode.RequestMismatch,
			errcode.LedgerFull, errcode.Restoring,
			errcode.NotBootstrapped, errcode.InvalidArgument)
	}
	return codes
}

// ddlCodes lists the codes that changes of indexes may fail with.
func ddlCodes(more ...errcode.Code) []errcode.Code {
	return append(more, errcode.BadDefinition, errcode.PlacementImpossible, errcode.LastCopies, errcode.Unavailable,
		errcode.NoProjector, errcode.NoIndexer, errcode.IndexNotReady, errcode.BucketNotInKV, errcode.TooManyVBuckets,
		errcode.UnknownIndex,
		errcode.UnknownCollection, errcode.CollectionGone,
		errcode.NameExists, errcode.StateMismatch, errcode.IllegalTransition, errcode.SplitRunning, errcode.RebalanceRunning,
		errcode.IndexChanged, errcode.BucketGone,
		errcode.GenerationMismatch, errcode.LimitExceeded, errcode.IndexInRollback)
}
