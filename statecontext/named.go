package statecontext

import (
	"tidemark/errcode"
	"tidemark/index"
)

// IndexName is a name by which a request refers to an index.
type IndexName struct {
	Keyspace index.Keyspace
	Name     string
	// Path reports whether Keyspace.Bucket is the text of a path, which may denote a bucket or a collection
	// (IndexByPath).
	Path bool
}

// IsZero reports whether there is no name.
func (n *IndexName) IsZero() bool { return *n == IndexName{} }

// ByName is a user's command about the indexes that have these names when it is applied. The end of a split changes
// which index a name refers to. A proposer that resolved the name beforehand could address the previous index, and
// proposing again could give one request two outcomes. Rejections: UnknownIndex, IndexChanged, and those of the body.
type ByName struct {
	Names []IndexName // 1 to MaxNamed for BuildIndexes, one for anything else
	// Body is BuildIndexes, DropIndex or CancelSplit, without ids; or AlterIndex, SplitIndex or SetAutoSplit with the id
	// of the index for which the command was planned, 0 if no index had the name: then the command is rejected with
	// UnknownIndex or IndexChanged.
	Body Body
}

// MaxNamed is the maximum number of indexes that one command may name.
const MaxNamed = 256

func (*ByName) kind() kind { return kindByName }

func (c *ByName) append(dst []byte) []byte {
	dst = appendUint(dst, uint64(len(c.Names)))
	for i := range c.Names {
		n := &c.Names[i]
		for _, s := range [...]string{n.Keyspace.Bucket, n.Keyspace.Scope, n.Keyspace.Collection, n.Name} {
			dst = appendString(dst, s)
		}
		dst = appendBool(dst, n.Path)
	}
	return c.Body.append(append(dst, byte(c.Body.kind())))
}

func decodeByName(d *decoder) *ByName {
	c := &ByName{}
	for n := d.max(MaxNamed, "names"); n > 0 && d.err == nil; n-- {
		c.Names = append(c.Names, IndexName{Keyspace: index.Keyspace{Bucket: d.string(), Scope: d.string(),
			Collection: d.string()}, Name: d.string(), Path: d.bool()})
	}
	switch k := kind(d.byte()); k {
	case kindBuildIndexes, kindDropIndex, kindAlterIndex, kindSplitIndex, kindCancelSplit,
		kindSetAutoSplit:
		c.Body = decodeIndexBody(k, d)
	default:
		d.fail("command type %d by name", k)
		c.Body = &DropIndex{}
	}
	if _, several := c.Body.(*BuildIndexes); len(c.Names) == 0 || len(c.Names) > 1 && !several {
		d.fail("%d names of %T", len(c.Names), c.Body)
	}
	return c
}

// Named returns the index to which a name refers, or nil if there is none.
func (s *State) Named(n *IndexName) *Index {
	if n.Path {
		return s.IndexByPath(n.Keyspace.Bucket, n.Name)
	}
	return s.IndexIn(n.Keyspace, n.Name)
}

func (c *ByName) apply(t *tx) *Rejection {
	ids := make([]index.ID, len(c.Names))
	for i := range c.Names {
		n := &c.Names[i]
		x := t.s.Named(n)
		if x == nil {
			return reject(errcode.UnknownIndex, "there is no index %q on bucket %q", n.Name, n.Keyspace.String())
		}
		ids[i] = x.Definition.ID
	}
	switch b := c.Body.(type) {
	case *BuildIndexes:
		own := *b
		own.IDs = ids
		t.result.Indexes = ids
		return own.apply(t)
	case *DropIndex:
		own := *b
		own.ID = ids[0]
		return own.apply(t)
	case *CancelSplit:
		return (&CancelSplit{ID: ids[0]}).apply(t)
	case *AlterIndex:
		return c.planned(t, ids[0], b.ID, b)
	case *SplitIndex:
		return c.planned(t, ids[0], b.ID, b)
	case *SetAutoSplit:
		return c.planned(t, ids[0], b.ID, b)
	}
	return reject(errcode.InvalidArgument, "%T is not about names", c.Body)
}

// planned applies a command that was planned for one index, unless the name now refers to another index.
func (c *ByName) planned(t *tx, is, was index.ID, body Body) *Rejection {
	if is != was {
		return reject(errcode.IndexChanged, "the name %q now belongs to index %d, but was looked up as index %d; try "+
			"again", c.Names[0].Name, is, was)
	}
	return body.apply(t)
}

// checkPlanned rejects a command that was planned for another version of a definition.
func checkPlanned(f *index.Definition, planned uint64) *Rejection {
	if planned == 0 || planned == f.ModifiedCAS {
		return nil
	}
	return reject(errcode.IndexChanged, "index %d (%s) was changed meanwhile, at cas %d; try again", f.ID, f.Name,
		f.ModifiedCAS)
}
