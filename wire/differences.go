package wire

// DifferenceKind is the way in which an index differs from the KV data.
type DifferenceKind string

// The kinds. The first three are visible to scans. RefusedKey and LostOnWay concern the path of documents to the
// copy: the copy may agree with everything that arrived, and lack what did not.
const (
	MissingRow DifferenceKind = "missing_row" // the document has a key for which there is no row
	ExtraRow   DifferenceKind = "extra_row"   // there is a row for which the document has no key
	WrongKey   DifferenceKind = "wrong_key"   // both: the row has another key
	// the rows are right, but the back entry of the document is not: its next change goes wrong
	BackEntry  DifferenceKind = "back_entry"
	RefusedKey DifferenceKind = "refused_key" // the document has a key that no index can store, and therefore no row
	// a projector evaluated other keys of a vbucket than arrived; not attributed to a document
	LostOnWay DifferenceKind = "lost_on_way"
)
