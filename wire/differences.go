package wire

// DifferenceKind says in which way an index differs from the KV data.
type DifferenceKind string

// The kinds. The first three are what a scan would show. The last two are of the way that documents take: the copy may
// agree with what came over it, and lack what did not.
const (
	MissingRow DifferenceKind = "missing_row" // the document has a key that has no row
	ExtraRow   DifferenceKind = "extra_row"   // there is a row that the document does not call for
	WrongKey   DifferenceKind = "wrong_key"   // both: the row stands under another key
	// the rows are right, but the document's own list of them is not: its next change goes wrong
	BackEntry  DifferenceKind = "back_entry"
	RefusedKey DifferenceKind = "refused_key" // the document has a key that no index can store: it has no row
	// a projector evaluated other keys of a vbucket than came here; of no one document
	LostOnWay DifferenceKind = "lost_on_way"
)
