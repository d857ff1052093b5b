package wire

// Bounds of a FieldsReply.
const (
	MaxFieldPaths = 1000 // fields
	MaxFieldDepth = 4    // of objects in objects
)

// FieldsRequest asks a projector which fields some documents have that its KV node hosts. POST /v1/fields. Of the
// documents nothing else is told, and nothing else is kept, which is for some seconds.
type FieldsRequest struct {
	Bucket string `json:"bucket"`
	// Scope and Collection are empty for the default collection.
	Scope      string `json:"scope,omitempty"`
	Collection string `json:"collection,omitempty"`
}

// FieldsReply is what has been found in the time that there was.
type FieldsReply struct {
	Documents int          `json:"documents"` // JSON objects that were looked at
	Whole     bool         `json:"whole"`     // there are no others
	Fields    []FieldCount `json:"fields"`    // by path
}

// FieldCount is a field: a member of a document, or of an object in it.
type FieldCount struct {
	Path      []string `json:"path"`
	Documents int      `json:"documents"` // that have it
}
