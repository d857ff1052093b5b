package expression

import (
	"sort"

	"tidemark/collate"
)

// maxDocumentDepth bounds the nesting of a JSON document, as in encoding/json.
const maxDocumentDepth = 10000

// node is a place in a document that a path leads to or through. The slots of a subtree are numbered consecutively,
// its own first, so that they can be cleared together when a later member of the same name replaces it.
type node struct {
	slot     int // -1: the value itself is not used
	from, to int // the slots of the subtree
	members  []memberNode
	byName   map[string]*node // used instead of members if there are many
	elements []elementNode    // counted from the start, ascending
	fromEnd  []elementNode    // counted from the end, ascending: -1 is the last element
}

type memberNode struct {
	name string
	node *node
}

type elementNode struct {
	index int
	node  *node
}

// manyMembers is the number of members from which a map is faster than a linear search.
const manyMembers = 12

// add returns the node of a path below n, creating missing ones.
func (n *node) add(steps []Step) *node {
	for _, s := range steps {
		n = n.child(s)
	}
	return n
}

func (n *node) child(s Step) *node {
	if !s.Element {
		for _, m := range n.members {
			if m.name == s.Name {
				return m.node
			}
		}
		c := &node{slot: -1}
		n.members = append(n.members, memberNode{s.Name, c})
		return c
	}
	list := &n.elements
	if s.Index < 0 {
		list = &n.fromEnd
	}
	for _, e := range *list {
		if e.index == s.Index {
			return e.node
		}
	}
	c := &node{slot: -1}
	*list = append(*list, elementNode{s.Index, c})
	sort.Slice(*list, func(i, j int) bool { return (*list)[i].index < (*list)[j].index })
	return c
}

// number assigns slots, to wanted nodes only, and returns the next free one.
func (n *node) number(next int, wanted map[*node]bool) int {
	n.from = next
	if wanted[n] {
		n.slot = next
		next++
	}
	for _, m := range n.members {
		next = m.node.number(next, wanted)
	}
	for _, e := range n.elements {
		next = e.node.number(next, wanted)
	}
	for _, e := range n.fromEnd {
		next = e.node.number(next, wanted)
	}
	if len(n.members) >= manyMembers {
		n.byName = make(map[string]*node, len(n.members))
		for _, m := range n.members {
			n.byName[m.name] = m.node
		}
	}
	n.to = next
	return next
}

func (n *node) find(name []byte) *node {
	if n.byName != nil {
		return n.byName[string(name)]
	}
	for i := range n.members {
		if m := &n.members[i]; m.name == string(name) {
			return m.node
		}
	}
	return nil
}

// slot is the position of a value in the document: text[start:end]. The zero slot is MISSING.
type slot struct {
	start, end int
	kind       collate.Kind // 0: MISSING
	plain      bool         // a string without escapes
}

// scanner scans a document once, from left to right, validates that it is JSON, and records the slots of nodes. Each
// method returns the index after what it has scanned, or -1 if that is not JSON.
type scanner struct {
	text  []byte
	slots []slot
	name  []byte // an unescaped member name
}

// scan scans the whole document. The slots are undefined if it returns false.
func (s *scanner) scan(text []byte, root *node) bool {
	s.text = text
	clear(s.slots)
	i := s.value(s.space(0), root, 0)
	return i >= 0 && s.space(i) == len(text)
}

func (s *scanner) space(i int) int {
	for i < len(s.text) && (s.text[i] == ' ' || s.text[i] == '\n' || s.text[i] == '\r' || s.text[i] == '\t') {
		i++
	}
	return i
}

// value scans the value at i and records its slot and those below it.
func (s *scanner) value(i int, n *node, depth int) int {
	if i >= len(s.text) {
		return -1
	}
	clear(s.slots[n.from:n.to])
	var end int
	var found slot
	switch c := s.text[i]; c {
	case '{':
		found.kind = collate.Object
		if len(n.members) > 0 {
			end = s.object(i, n, depth)
		} else {
			end = s.skipObject(i, depth)
		}
	case '[':
		found.kind = collate.Array
		if len(n.elements)+len(n.fromEnd) > 0 {
			end = s.array(i, n, depth)
		} else {
			end = s.skipArray(i, depth)
		}
	case '"':
		found.kind = collate.String
		end, found.plain = collate.ScanString(s.text, i+1)
		if end >= 0 {
			end++
		}
	default:
		found.kind, end = s.scalar(i)
	}
	if n.slot >= 0 && end >= 0 {
		found.start, found.end = i, end
		s.slots[n.slot] = found
	}
	return end
}

// scalar scans a literal or a number.
func (s *scanner) scalar(i int) (collate.Kind, int) {
	switch c := s.text[i]; c {
	case 't':
		return collate.True, s.word(i, "true")
	case 'f':
		return collate.False, s.word(i, "false")
	case 'n':
		return collate.Null, s.word(i, "null")
	}
	end, _ := collate.ScanNumber(s.text, i)
	if end == i {
		return 0, -1
	}
	return collate.Number, end
}

func (s *scanner) word(i int, word string) int {
	if len(s.text)-i < len(word) || string(s.text[i:i+len(word)]) != word {
		return -1
	}
	return i + len(word)
}

// object scans an object and looks for the members of n.
func (s *scanner) object(i int, n *node, depth int) int {
	if depth++; depth > maxDocumentDepth {
		return -1
	}
	i = s.space(i + 1)
	if i < len(s.text) && s.text[i] == '}' {
		return i + 1
	}
	for {
		var name []byte
		if name, i = s.memberName(i); i < 0 {
			return -1
		}
		if m := n.find(name); m != nil {
			i = s.value(i, m, depth)
		} else {
			i = s.skip(i, depth)
		}
		if i < 0 {
			return -1
		}
		if i < len(s.text) && s.text[i] == ',' {
			if i++; i < len(s.text) && s.text[i] == '"' {
				continue
			}
			i = s.space(i)
			continue
		}
		var done bool
		if i, done = s.after(i, '}'); done || i < 0 {
			return i
		}
	}
}

// memberName scans a member's name and the colon after it.
func (s *scanner) memberName(i int) (name []byte, next int) {
	if i >= len(s.text) || s.text[i] != '"' {
		return nil, -1
	}
	end, plain := collate.ScanString(s.text, i+1)
	if end < 0 {
		return nil, -1
	}
	name = s.text[i+1 : end]
	if !plain {
		s.name, _ = collate.AppendUnquoted(s.name[:0], name)
		name = s.name
	}
	return name, s.colon(end + 1)
}

// colon scans the colon after a member's name, and the space around it.
func (s *scanner) colon(i int) int {
	if i+1 < len(s.text) && s.text[i] == ':' && s.text[i+1] > ' ' {
		return i + 1
	}
	i = s.space(i)
	if i >= len(s.text) || s.text[i] != ':' {
		return -1
	}
	return s.space(i + 1)
}

// after scans the comma after a value, or the end of the container.
func (s *scanner) after(i int, end byte) (next int, done bool) {
	i = s.space(i)
	if i >= len(s.text) {
		return -1, false
	}
	switch s.text[i] {
	case ',':
		return s.space(i + 1), false
	case end:
		return i + 1, true
	}
	return -1, false
}

// array scans an array and looks for the elements of n. Elements counted from the end require the length first.
func (s *scanner) array(i int, n *node, depth int) int {
	if len(n.fromEnd) > 0 {
		length, end := s.length(i, depth)
		if end < 0 || !s.reaches(n, length) {
			return end
		}
		return s.elements(i, n, length, depth)
	}
	return s.elements(i, n, 0, depth)
}

// reaches reports whether an array of this length has an element that n needs.
func (s *scanner) reaches(n *node, length int) bool {
	return len(n.elements) > 0 || n.fromEnd[len(n.fromEnd)-1].index+length >= 0
}

// length scans an array and counts its elements.
func (s *scanner) length(i, depth int) (count, end int) {
	if depth++; depth > maxDocumentDepth {
		return 0, -1
	}
	i = s.space(i + 1)
	if i < len(s.text) && s.text[i] == ']' {
		return 0, i + 1
	}
	for {
		if i = s.skip(i, depth); i < 0 {
			return 0, -1
		}
		count++
		var done bool
		if i, done = s.after(i, ']'); done || i < 0 {
			return count, i
		}
	}
}

// elements scans an array; length is only used for elements counted from the end.
func (s *scanner) elements(i int, n *node, length, depth int) int {
	if depth++; depth > maxDocumentDepth {
		return -1
	}
	i = s.space(i + 1)
	if i < len(s.text) && s.text[i] == ']' {
		return i + 1
	}
	front, back := n.elements, n.within(length)
	for at := 0; ; at++ {
		begin := i
		i = -1
		if len(front) > 0 && front[0].index == at {
			i = s.value(begin, front[0].node, depth)
			front = front[1:]
			if i < 0 {
				return -1
			}
		}
		if len(back) > 0 && back[0].index+length == at {
			i = s.value(begin, back[0].node, depth)
			back = back[1:]
		} else if i < 0 {
			i = s.skip(begin, depth)
		}
		if i < 0 {
			return -1
		}
		var done bool
		if i, done = s.after(i, ']'); done || i < 0 {
			return i
		}
	}
}

// within returns those elements counted from the end that an array of this length has.
func (n *node) within(length int) []elementNode {
	back := n.fromEnd
	for len(back) > 0 && back[0].index+length < 0 {
		back = back[1:]
	}
	return back
}

// skip scans a value of which nothing is needed.
func (s *scanner) skip(i, depth int) int {
	if i >= len(s.text) {
		return -1
	}
	switch s.text[i] {
	case '"':
		end, _ := collate.ScanString(s.text, i+1)
		if end < 0 {
			return -1
		}
		return end + 1
	case '{':
		return s.skipObject(i, depth)
	case '[':
		return s.skipArray(i, depth)
	}
	_, end := s.scalar(i)
	return end
}

func (s *scanner) skipObject(i, depth int) int {
	if depth++; depth > maxDocumentDepth {
		return -1
	}
	i = s.space(i + 1)
	if i < len(s.text) && s.text[i] == '}' {
		return i + 1
	}
	for {
		if i >= len(s.text) || s.text[i] != '"' {
			return -1
		}
		end, _ := collate.ScanString(s.text, i+1)
		if end < 0 {
			return -1
		}
		if i = s.colon(end + 1); i < 0 {
			return -1
		}
		if i = s.skip(i, depth); i < 0 {
			return -1
		}
		if i+1 < len(s.text) && s.text[i] == ',' && s.text[i+1] == '"' {
			i++
			continue
		}
		var done bool
		if i, done = s.after(i, '}'); done || i < 0 {
			return i
		}
	}
}

func (s *scanner) skipArray(i, depth int) int {
	if depth++; depth > maxDocumentDepth {
		return -1
	}
	i = s.space(i + 1)
	if i < len(s.text) && s.text[i] == ']' {
		return i + 1
	}
	for {
		if i = s.skip(i, depth); i < 0 {
			return -1
		}
		var done bool
		if i, done = s.after(i, ']'); done || i < 0 {
			return i
		}
	}
}
