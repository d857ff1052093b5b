package server

import (
	"encoding/json"
	"errors"
	"strconv"

	"tidemark/kv/mcbp"
	"tidemark/kv/store"
)

// maxNumberBytes is the length of the longest decimal number of 64 bits.
const maxNumberBytes = 20

var (
	errNotStored = errors.New("there is no document to append to")
	errBadDelta  = errors.New("the document is not a number")
	errTooBig    = errors.New("the value would become too large")
)

// splitValue splits a stored value into its encoded section of extended attributes and the document.
func splitValue(d *store.Doc) (attributes, document []byte) {
	if mcbp.Datatype(d.Datatype).Has(mcbp.DatatypeXattr) {
		if _, document, err := mcbp.SplitXattrs(d.Value); err == nil {
			return d.Value[:len(d.Value)-len(document)], document
		}
	}
	return nil, d.Value
}

// joinValue returns a new document after the old one's attributes, and its datatype. JSON is always marked, because
// other clients than this one may have negotiated it.
func joinValue(attributes []byte, parts ...[]byte) (value []byte, datatype byte, err error) {
	size := 0
	for _, p := range parts {
		size += len(p)
	}
	if size > store.MaxValueBytes {
		return nil, 0, errTooBig
	}
	value = append(make([]byte, 0, len(attributes)+size), attributes...)
	for _, p := range parts {
		value = append(value, p...)
	}
	if len(attributes) > 0 {
		datatype = byte(mcbp.DatatypeXattr)
	}
	if json.Valid(value[len(attributes):]) {
		datatype |= byte(mcbp.DatatypeJSON)
	}
	return value, datatype, nil
}

// concat handles APPEND and PREPEND: the document must exist; its flags, expiry and attributes stay.
func (c *conn) concat(f mcbp.Frame, before bool) {
	p, ok := c.document(f)
	if !ok {
		return
	}
	if len(f.Extras) != 0 || f.Datatype&^mcbp.DatatypeJSON != 0 {
		c.refuse(f.Header, mcbp.StatusInvalid, f.Op.String()+" with extras or a compressed value")
		return
	}
	c.change(f, p, store.Change{Kind: store.Edit, Cas: f.CAS, Edit: func(prev *store.Doc) ([]byte, byte, error) {
		if prev == nil {
			return nil, 0, errNotStored
		}
		attributes, document := splitValue(prev)
		if before {
			return joinValue(attributes, f.Value, document)
		}
		return joinValue(attributes, document, f.Value)
	}})
}

// arithmetic handles INCREMENT and DECREMENT of a document that is a decimal number of 64 bits. Adding wraps around,
// subtracting stops at 0. Flags, expiry and attributes of an existing document stay.
func (c *conn) arithmetic(f mcbp.Frame, subtract bool) {
	p, ok := c.document(f)
	if !ok {
		return
	}
	a, err := mcbp.DecodeArithmetic(f.Extras)
	if err != nil || len(f.Value) != 0 {
		c.status(f.Header, mcbp.StatusInvalid, nil)
		return
	}
	change := store.Change{Kind: store.Edit, Cas: f.CAS}
	if a.Expiry != mcbp.NoCreate {
		change.Expiry = c.expiry(a.Expiry)
	}
	number := a.Initial
	change.Edit = func(prev *store.Doc) ([]byte, byte, error) {
		var attributes []byte
		switch {
		case prev == nil && a.Expiry == mcbp.NoCreate:
			return nil, 0, store.ErrNotFound
		case prev != nil:
			var document []byte
			attributes, document = splitValue(prev)
			old, ok := decimal(document)
			if !ok {
				return nil, 0, errBadDelta
			}
			number = count(old, a.Delta, subtract)
		}
		return joinValue(attributes, strconv.AppendUint(nil, number, 10))
	}
	if r, ok := c.apply(f, p, change); ok {
		c.changed(f, r, mcbp.AppendCounter(nil, number))
	}
}

// decimal parses a document that is a number.
func decimal(document []byte) (uint64, bool) {
	if len(document) > maxNumberBytes {
		return 0, false
	}
	n, err := strconv.ParseUint(string(document), 10, 64)
	return n, err == nil
}

func count(n, delta uint64, subtract bool) uint64 {
	switch {
	case !subtract:
		return n + delta
	case delta > n:
		return 0
	}
	return n - delta
}
