package server

import (
	"encoding/json"
	"errors"

	"github.com/golang/snappy"

	"tidemark/kv/mcbp"
	"tidemark/kv/store"
)

// quiet reports whether a request gets no answer in the usual case.
func quiet(op mcbp.Opcode) bool {
	switch op {
	case mcbp.OpGetQ, mcbp.OpGetKQ, mcbp.OpSetQ, mcbp.OpAddQ, mcbp.OpReplaceQ, mcbp.OpDeleteQ, mcbp.OpGATQ,
		mcbp.OpAppendQ, mcbp.OpPrependQ, mcbp.OpIncrementQ, mcbp.OpDecrementQ:
		return true
	}
	return false
}

// place identifies a request's document.
type place struct {
	v          *store.VBucket
	collection uint32
	key        []byte
}

// document returns the vbucket, collection and plain key of a request; if it returns false, it has answered the
// request.
func (c *conn) document(f mcbp.Frame) (p place, ok bool) {
	p.key = f.Key
	longest := store.MaxKeyBytes
	if c.features.collections {
		var err error
		if p.collection, p.key, err = mcbp.SplitCollectionKey(f.Key); err != nil {
			c.status(f.Header, mcbp.StatusInvalid, nil)
			return p, false
		}
		if p.collection != mcbp.DefaultCollection {
			longest = store.MaxMemberKeyBytes
		}
	}
	if len(p.key) == 0 || len(p.key) > longest {
		c.status(f.Header, mcbp.StatusInvalid, nil)
		return p, false
	}
	if p.v = c.bucket.Store.VBucket(f.VBucket()); p.v == nil {
		c.notMyVBucket(f.Header)
		return p, false
	}
	return p, true
}

// failed answers a request that the store has refused.
func (c *conn) failed(h mcbp.Header, err error, ticket *store.Ticket, collection uint32) {
	switch {
	case errors.Is(err, store.ErrNoCollection):
		c.noCollection(h, collection)
	case errors.Is(err, store.ErrNotFound):
		c.status(h, mcbp.StatusKeyNotFound, ticket)
	case errors.Is(err, store.ErrExists):
		c.status(h, mcbp.StatusKeyExists, ticket)
	case errors.Is(err, errNotStored):
		c.status(h, mcbp.StatusNotStored, ticket)
	case errors.Is(err, errBadDelta):
		c.status(h, mcbp.StatusBadDelta, ticket)
	case errors.Is(err, errTooBig):
		c.status(h, mcbp.StatusTooBig, ticket)
	case errors.Is(err, store.ErrNotMyVBucket):
		c.notMyVBucket(h)
	case errors.Is(err, store.ErrNoMemory):
		c.srv.counters.NoMemory.Add(1)
		c.status(h, mcbp.StatusNoMemory, nil)
	case errors.Is(err, store.ErrTemporary):
		c.srv.counters.TemporaryFailures.Add(1)
		c.status(h, mcbp.StatusTemporary, nil)
	default:
		c.srv.opts.Logger.Error("request failed", "opcode", h.Op, "error", err)
		c.status(h, mcbp.StatusInternal, nil)
	}
}

func (c *conn) get(f mcbp.Frame) {
	p, ok := c.document(f)
	if !ok || c.excess(f, 0) {
		return
	}
	c.srv.counters.Gets.Add(1)
	r, err := p.v.Lookup(p.collection, p.key)
	if err != nil {
		c.srv.counters.GetMisses.Add(1)
		switch missing := errors.Is(err, store.ErrNotFound); {
		case missing && quiet(f.Op):
			c.after(f.Header, r.Ticket, len(c.out))
		case missing && f.Op == mcbp.OpGetK: // GetK returns the key even if there is no document
			c.reply(f.Header, mcbp.Frame{Header: mcbp.Header{VBucketOrStatus: uint16(mcbp.StatusKeyNotFound)}, Key: f.Key},
				r.Ticket)
		default:
			c.failed(f.Header, err, r.Ticket, p.collection)
		}
		return
	}
	c.answerDocument(f, r)
}

// excess refuses a request whose extras have the wrong length, or that has a value although none is allowed.
func (c *conn) excess(f mcbp.Frame, extras int) bool {
	if len(f.Extras) == extras && len(f.Value) == 0 {
		return false
	}
	c.refuse(f.Header, mcbp.StatusInvalid, f.Op.String()+" with unexpected extras or a value")
	return true
}

// answerDocument answers with a document.
func (c *conn) answerDocument(f mcbp.Frame, r store.Result) {
	value, datatype := c.shown(r.Doc, false)
	answer := mcbp.Frame{
		Header: mcbp.Header{CAS: r.Doc.Cas, Datatype: datatype},
		Extras: mcbp.AppendGetReply(nil, r.Doc.Flags), Value: value,
	}
	if f.Op == mcbp.OpGetK || f.Op == mcbp.OpGetKQ {
		answer.Key = f.Key
	}
	if len(value) >= directBytes {
		c.replyDirect(f.Header, answer, r.Ticket)
		return
	}
	c.reply(f.Header, answer, r.Ticket)
}

// shown returns a document's value and datatype as this client understands them: without extended attributes unless
// requested, and JSON marked only if negotiated.
func (c *conn) shown(d *store.Doc, xattrs bool) ([]byte, mcbp.Datatype) {
	value, datatype := d.Value, mcbp.Datatype(d.Datatype)
	if datatype.Has(mcbp.DatatypeXattr) && !xattrs {
		if _, document, err := mcbp.SplitXattrs(value); err == nil {
			value = document
		}
		datatype &^= mcbp.DatatypeXattr
	}
	if !c.features.json || c.moods().Has(RawJSON) {
		datatype &^= mcbp.DatatypeJSON
	}
	return value, datatype
}

func (c *conn) store(f mcbp.Frame, kind store.Kind) {
	p, ok := c.document(f)
	if !ok {
		return
	}
	extras, err := mcbp.DecodeStore(f.Extras)
	value, datatype, known := c.datatype(f)
	switch {
	case err != nil || !known || kind == store.Add && f.CAS != 0:
		c.status(f.Header, mcbp.StatusInvalid, nil)
		return
	case len(value) > maxValue(datatype):
		c.status(f.Header, mcbp.StatusTooBig, nil)
		return
	}
	c.change(f, p, store.Change{
		Kind: kind, Value: value, Flags: extras.Flags, Expiry: c.expiry(extras.Expiry), Datatype: byte(datatype),
		Cas: f.CAS,
	})
}

func maxValue(d mcbp.Datatype) int {
	if d.Has(mcbp.DatatypeXattr) {
		return store.MaxValueBytes + 1<<20
	}
	return store.MaxValueBytes
}

// datatype returns a value uncompressed, as it is stored, and its datatype; ok is false if the client uses a datatype
// wrongly or without having negotiated it.
func (c *conn) datatype(f mcbp.Frame) (value []byte, d mcbp.Datatype, ok bool) {
	value, d = f.Value, f.Datatype
	if d.Has(mcbp.DatatypeSnappy) && !c.features.snappy || d.Has(mcbp.DatatypeXattr) && !c.features.xattr {
		return nil, 0, false
	}
	if d.Has(mcbp.DatatypeSnappy) {
		n, err := snappy.DecodedLen(value)
		if err != nil || n > mcbp.MaxBody || n > mcbp.MaxSnappyRatio*len(value) {
			return nil, 0, false
		}
		if value, err = snappy.Decode(nil, value); err != nil {
			return nil, 0, false
		}
	}
	document := value
	d &= mcbp.DatatypeXattr
	if d != 0 {
		_, rest, err := mcbp.SplitXattrs(value)
		if err != nil {
			return nil, 0, false
		}
		document = rest
	}
	if c.features.json && json.Valid(document) {
		d |= mcbp.DatatypeJSON
	}
	return value, d, true
}

// bury handles DELETE_WITH_META: a tombstone with the revision and CAS of another cluster, possibly with extended
// attributes and a body. The higher revision wins, then the higher CAS, unless the client forces its version.
func (c *conn) bury(f mcbp.Frame) {
	p, ok := c.document(f)
	if !ok {
		return
	}
	m, err := mcbp.DecodeWithMeta(f.Extras)
	value, datatype, known := c.datatype(f)
	switch {
	case err != nil || !known || m.CAS == 0 || m.Rev == 0 ||
		m.Options&^(mcbp.MetaSkipConflict|mcbp.MetaForceAccept) != 0 ||
		m.MetaLen != 0:
		c.refuse(f.Header, mcbp.StatusInvalid, "DELETE_WITH_META needs revision and CAS, and accepts no metadata after the "+
			"value")
		return
	case len(value) > maxValue(datatype):
		c.status(f.Header, mcbp.StatusTooBig, nil)
		return
	}
	c.change(f, p, store.Change{Kind: store.Bury, Value: value, Flags: m.Flags, Expiry: m.Time,
		Datatype: byte(datatype), Cas: f.CAS,
		Rev: m.Rev, NewCas: m.CAS, Always: m.Options&mcbp.MetaSkipConflict != 0})
}

func (c *conn) expiry(e uint32) uint32 {
	return store.AbsoluteExpiry(e, uint32(c.srv.opts.Now().Unix()))
}

func (c *conn) remove(f mcbp.Frame) {
	if p, ok := c.document(f); ok && !c.excess(f, 0) {
		c.change(f, p, store.Change{Kind: store.Delete, Cas: f.CAS})
	}
}

func (c *conn) touch(f mcbp.Frame) {
	p, ok := c.document(f)
	if !ok {
		return
	}
	expiry, err := mcbp.DecodeTouch(f.Extras)
	if err != nil || len(f.Value) != 0 {
		c.status(f.Header, mcbp.StatusInvalid, nil)
		return
	}
	c.change(f, p, store.Change{Kind: store.Touch, Expiry: c.expiry(expiry), Cas: f.CAS})
}

// change applies a change and adds its answer, which waits for the log.
func (c *conn) change(f mcbp.Frame, p place, change store.Change) {
	if r, ok := c.apply(f, p, change); ok {
		if f.Op == mcbp.OpGAT || f.Op == mcbp.OpGATQ {
			c.answerDocument(f, r)
		} else {
			c.changed(f, r, nil)
		}
	}
}

// apply applies a change; if the change fails, it adds the answer.
func (c *conn) apply(f mcbp.Frame, p place, change store.Change) (store.Result, bool) {
	change.Collection, change.Key = p.collection, p.key
	r, err := p.v.Apply(change)
	if err == nil {
		c.srv.counters.Mutations.Add(1)
		return c.sideEffects(p.v, r), true
	}
	if f.Op == mcbp.OpGATQ && errors.Is(err, store.ErrNotFound) {
		c.after(f.Header, r.Ticket, len(c.out))
	} else {
		c.failed(f.Header, err, r.Ticket, p.collection)
	}
	return r, false
}

// changed answers a successful change with its CAS, its mutation token if negotiated, and a value.
func (c *conn) changed(f mcbp.Frame, r store.Result, value []byte) {
	if quiet(f.Op) {
		c.after(f.Header, r.Ticket, len(c.out))
		return
	}
	answer := mcbp.Frame{Header: mcbp.Header{CAS: r.Doc.Cas}, Value: value}
	if c.features.tokens {
		var token [16]byte
		answer.Extras = mcbp.MutationToken{VBUUID: r.VBUUID, Seqno: r.Doc.Seqno}.AppendExtras(token[:0])
	}
	c.reply(f.Header, answer, r.Ticket)
}

// allSeqnos answers with the high seqnos of the vbuckets: with collections those of the whole vbucket or of one
// collection, without them those of the default collection.
func (c *conn) allSeqnos(f mcbp.Frame) {
	want, collection, err := mcbp.DecodeVBSeqnosRequest(f.Extras)
	one := err == nil && c.oneCollection(f)
	if err != nil || want > mcbp.VBucketDead || !c.features.collections && collection != mcbp.DefaultCollection {
		c.status(f.Header, mcbp.StatusInvalid, nil)
		return
	}
	if _, ok := c.bucket.Manifest().ScopeOf(collection); one && !ok {
		c.unknown(f.Header, mcbp.StatusUnknownCollection)
		return
	}
	var out []byte
	for i := range c.bucket.Store.VBuckets() {
		v := c.bucket.Store.VBucket(uint16(i))
		state, high := v.Status()
		if want == mcbp.VBucketAlive && state != store.Dead || byte(want) == byte(state) {
			if one {
				high = v.HighOf(collection)
			}
			out = mcbp.AppendVBSeqno(out, mcbp.VBucketSeqno{VBucket: uint16(i), Seqno: high})
		}
	}
	c.value(f.Header, out)
}

// observeSeqno answers how far a branch is durable and, after a failover, where the requested branch ended.
func (c *conn) observeSeqno(f mcbp.Frame) {
	v := c.bucket.Store.VBucket(f.VBucket())
	if v == nil {
		c.notMyVBucket(f.Header)
		return
	}
	uuid, err := mcbp.DecodeRollback(f.Value) // the same eight bytes
	if err != nil {
		c.status(f.Header, mcbp.StatusInvalid, nil)
		return
	}
	state, h := v.History()
	if state != store.Active {
		c.notMyVBucket(f.Header)
		return
	}
	answer := mcbp.ObserveSeqno{VBucket: f.VBucket(), VBUUID: h.Failover[0].VBUUID, Persisted: h.High, Current: h.High}
	for i, e := range h.Failover {
		if e.VBUUID != uuid {
			continue
		}
		if i > 0 {
			answer.Failover, answer.OldVBUUID, answer.OldSeqno = true, uuid, h.Failover[i-1].Seqno
		}
		c.value(f.Header, answer.AppendValue(nil))
		return
	}
	c.status(f.Header, mcbp.StatusKeyNotFound, nil)
}
