package api

import (
	_ "embed"
	"net/http"
	"slices"

	"tidemark/errcode"
	"tidemark/indexer/scanport"
	"tidemark/internal/rpc"
)

// openapi.json is the OpenAPI 3.1 document. It is made from the route table and the Go types of bodies and answers
// (their fields, and their comments as descriptions) and is never written by hand:
//
//	go test ./manager/api -run TestDocumentOf -update
//
// Tests hold it to the handlers: every request and answer of the tests of package manager, and of
// internal/testing/e2e/... with TIDEMARK_CONTRACT=1, must be as it says (internal/testing/contract).
//
//go:embed openapi.json
var openAPI []byte

// OpenAPI returns the document that /openapi.json serves; not to be changed.
func OpenAPI() []byte { return openAPI }

// operation is the contract of a call; it stands beside it in the route table. Public routes (any role but component)
// have one. To add a call:
//
//  1. Write the handler on the group that it belongs to (ground.go), and a route literal with doc: operation{…} in the
//     group's list (ddlRoutes, readRoutes, or a list of your own that routes() joins).
//  2. Say which types go in and out (exported types with comments, of package v1; fields that may be absent are
//     omitempty), which headers it heeds, and which codes it may be refused with beside commonCodes. New codes get
//     a line in errcode/table.go.
//  3. Run go test ./manager/api -run TestDocumentOf -update, read the difference in openapi.json, commit it. When a
//     merge conflicts in it, take either side and run that again.
//  4. docs/api.md gets a line in its table of calls.
type operation struct {
	id      string   // operationId, a verb and a noun
	tag     string   // its group
	summary string   // what it does, one sentence
	params  []param  // of the query
	headers []string // that it heeds, beside those of every call; requestHeaders explains them
	body    any      // a value of the request's type; nil for none
	// optional: the body may be left out.
	optional bool
	upload   string // media type of a body that is no JSON, as mediaBinary; body is nil then
	answers  []answer
	codes    []errcode.Code // of problems, beside commonCodes
}

// param is a parameter of the query.
type param struct {
	name     string
	means    string
	enum     []string // the values it takes, all when empty
	number   bool     // an unsigned integer
	required bool
}

// answer is one that is not a problem.
type answer struct {
	status  int
	means   string
	body    any      // a value of its type
	headers []string // beside those of every answer
	media   string   // mediaText, mediaLines, mediaEvents …; JSON when empty
	orText  bool     // text/plain as well, as ?format=text asks
	lines   []any    // with mediaLines and mediaEvents: values of the types that a line (or data of an event) may be of
}

// Groups of calls.
const (
	tagDDL   = "DDL"
	tagReads = "Reads"
	tagScans = "Scans"
	tagNode  = "Node"
	// tagCluster is about the cluster as a whole.
	tagCluster = "Cluster"
)

// Media types of answers that are no JSON.
const (
	mediaText  = "text/plain"
	mediaLines = "application/x-ndjson"
)

// Headers of HTTP that calls heed or answer with.
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
	most    int // bytes
}

// requestHeaders explains what calls heed.
func requestHeaders() map[string]header {
	return map[string]header{
		HeaderKey: {most: maxKeyBytes, means: "The write is done once however often it is sent with this key, to " +
			"whichever manager, for 24 hours; each time the answer is the first one."},
		headerIfMatch: {pattern: `^(\*|"?[0-9]+"?)$`, means: "The ETag that the index must have; else 412 with the " +
			"present modified_cas. * or none: any."},
		headerIfNoneMatch: {means: "ETags that the client has; when the index has one of them, the answer is 304 without " +
			"a body."},
		rpc.HeaderRequestID: {means: "The id under which logs have this request: letters, digits and ._:/+=-. At most 64 " +
			"of them; another one is made when it cannot be one."},
		HeaderTimeout: {number: true, means: "How many milliseconds the caller waits; the most is 10 s for a write, " +
			"5 s for a read, 10 min for a scan."},
		HeaderPrefer: {means: "wait=N: for how many seconds the call may wait for a leader where none is known, as in the " +
			"moments after one has died; 2 if nothing is said, at most 10 and no longer than the call may take; " +
			"with 0 the answer is NO_LEADER at once."},
		scanport.HeaderSession: {most: scanport.MaxSession, means: "Tokens of a session, separated by commas, beside those " +
			"of the body's field session: what earlier answers had in this header. Nothing older is shown."},
	}
}

// everyRequest lists the headers that calls like this one heed whatever they do.
func (rt *route) everyRequest() []string {
	all := []string{HeaderTimeout, rpc.HeaderRequestID}
	if rt.waits() && (rt.leader || slices.Contains(rt.doc.codes, errcode.NoLeader)) {
		all = append(all, HeaderPrefer)
	}
	return all
}

// responseHeaders explains what answers carry.
func responseHeaders() map[string]header {
	return map[string]header{
		headerETag: {pattern: `^"[0-9]+"$`, means: "modified_cas of the index, in quotes."},
		headerRetryAfter: {number: true, means: "Seconds after which the request may be sent again; retry_after_ms of " +
			"the body says it finer."},
		HeaderCAS: {number: true, means: "cas of the state that was read."},
		HeaderAge: {number: true, means: "Of a stale read: milliseconds since this manager heard of the leader."},
		scanport.HeaderSession: {means: "The token of what the session has seen with the first rows; the field session of " +
			"the end has it too, and with stability none a newer one."},
		rpc.HeaderLeader:    {means: "Base URL of the leader, when one is known."},
		rpc.HeaderRequestID: {most: rpc.MaxRequestID, means: "The id of this request, as logs and problems have it."},
	}
}

// everyAnswer lists the headers of every answer.
func everyAnswer() []string { return []string{rpc.HeaderLeader, rpc.HeaderRequestID} }

// readHeaders are those of the answer of a read of the state.
func readHeaders(more ...string) []string { return append(more, HeaderCAS, HeaderAge) }

// commonCodes are what calls like this one may be refused with whatever they do.
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

// ddlCodes are what a change of indexes may be refused with.
func ddlCodes(more ...errcode.Code) []errcode.Code {
	return append(more, errcode.BadDefinition, errcode.PlacementImpossible, errcode.LastCopies, errcode.Unavailable,
		errcode.NoProjector, errcode.NoIndexer, errcode.IndexNotReady, errcode.BucketNotInKV, errcode.TooManyVBuckets,
		errcode.UnknownIndex,
		errcode.UnknownCollection, errcode.CollectionGone,
		errcode.NameExists, errcode.StateMismatch, errcode.IllegalTransition, errcode.SplitRunning, errcode.RebalanceRunning,
		errcode.IndexChanged, errcode.BucketGone,
		errcode.GenerationMismatch, errcode.LimitExceeded, errcode.IndexInRollback)
}
