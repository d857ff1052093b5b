package wire

// Bounds of a FieldsReply.
const (
	MaxFieldPaths = 1000 // fields
	MaxFieldDepth = 4    // nesting of objects
)

// FieldsRequest asks a projector which fields occur in a sample of the documents that its KV node hosts. POST
// /v1/fields. The projector reveals nothing else of the documents, and caches nothing but the reply, for some
// seconds.
type FieldsRequest struct {
	Bucket string `json:"bucket"`
	// Scope and Collection are empty for the default collection.
	Scope      string `json:"scope,omitempty"`
	Collection string `json:"collection,omitempty"`
}

// FieldsReply has the fields found in the time available.
type FieldsReply struct {
	Documents int          `json:"documents"` // JSON objects examined
	Whole     bool         `json:"whole"`     // all documents were examined
	Fields    []FieldCount `json:"fields"`    // by path
}

// FieldCount counts the documents that have a field: a member of the document, or of an object in it.
type FieldCount struct {
	Path      []string `json:"path"`
	Documents int      `json:"documents"` // that have it
}
