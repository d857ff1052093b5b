package api

import (
	"tidemark/internal/rpc"
	"tidemark/scan"
	"tidemark/statecontext"
)

// The contract of a call stands beside it in the route table, as an operation. A public route (any role but component)
// has one; the names and types of fields come from the Go types of bodies and answers, and what they mean from the
// comments of those types. To add a call:
//
//  1. Write the handler, and a route literal with doc: operation{…} in the list of its file (ddlRoutes, readRoutes, or
//     a list of your own that routes() joins).
//  2. Say which types go in and out (exported types with comments, best in package client), and which codes it may be
//     refused with beside those of every call (commonCodes).
//  3. docs/api.md gets a line in its table of calls.
type operation struct {
	id      string   // operationId, a verb and a noun
	tag     string   // its group
	summary string   // what it does, one sentence
	params  []param  // of the query
	headers []string // that it heeds, beside those of every call; headerMeanings explains them
	body    any      // a value of the request's type; nil for none
	// optional: the body may be left out.
	optional bool
	answers  []answer
	codes    []string // of problems, beside commonCodes
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
)

// Media types of answers that are no JSON.
const (
	mediaText  = "text/plain"
	mediaLines = "application/x-ndjson"
)

// Headers of HTTP that calls heed.
const (
	headerETag    = "ETag"
	headerIfMatch = "If-Match"
)

// readHeaders are those of the answer of a read of the state.
func readHeaders(more ...string) []string { return append(more, HeaderCAS, HeaderAge) }

// ddlCodes are what a change of indexes may be refused with.
func ddlCodes(more ...string) []string {
	return append(more, CodeDefinition, CodePlacement, CodeNoProjector, CodeNotReady, rpc.CodeBucket, string(statecontext.UnknownIndex),
		string(statecontext.NameExists), string(statecontext.StateMismatch), string(statecontext.IllegalTransition), string(statecontext.BucketIsGone),
		string(statecontext.GenerationMismatch), string(statecontext.LimitExceeded), string(statecontext.InvalidArgument), string(scan.IndexInRollback))
}
