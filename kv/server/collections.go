package server

import (
	"encoding/json"
	"errors"
	"strconv"

	"tidemark/kv/mcbp"
	"tidemark/kv/store"
)

// manifest answers with the bucket's manifest of collections.
func (c *conn) manifest(f mcbp.Frame) {
	body, err := json.Marshal(c.shownManifest())
	if err != nil {
		c.status(f.Header, mcbp.StatusInternal, nil)
		return
	}
	c.reply(f.Header, mcbp.Frame{Header: mcbp.Header{Datatype: c.jsonType()}, Value: body}, nil)
}

// shownManifest returns the part of the bucket's manifest that the user may see.
func (c *conn) shownManifest() *mcbp.Manifest { return c.may().Shown(c.bucket.Manifest()) }

// collectionID answers GET_COLLECTION_ID: the id of "scope.collection".
func (c *conn) collectionID(f mcbp.Frame) {
	scope, collection, ok := mcbp.SplitPath(pathOf(f))
	if !ok {
		c.refuse(f.Header, mcbp.StatusInvalid, "want: scope.collection")
		return
	}
	m := c.shownManifest()
	s := m.Scope(scope)
	if s == nil {
		c.unknown(f.Header, mcbp.StatusUnknownScope)
		return
	}
	x := s.Collection(collection)
	if x == nil {
		c.unknown(f.Header, mcbp.StatusUnknownCollection)
		return
	}
	c.reply(f.Header, mcbp.Frame{Extras: mcbp.AppendCollectionID(nil, m.UID, x.ID)}, nil)
}

// scopeID answers GET_SCOPE_ID: the id of a scope, by its name or by the path of a collection in it.
func (c *conn) scopeID(f mcbp.Frame) {
	path := pathOf(f)
	if scope, _, ok := mcbp.SplitPath(path); ok {
		path = scope
	}
	m := c.shownManifest()
	s := m.Scope(path)
	if s == nil {
		c.unknown(f.Header, mcbp.StatusUnknownScope)
		return
	}
	c.reply(f.Header, mcbp.Frame{Extras: mcbp.AppendCollectionID(nil, m.UID, s.ID)}, nil)
}

// pathOf returns the path in a request: it is in the value, with older clients in the key.
func pathOf(f mcbp.Frame) string {
	if len(f.Value) > 0 {
		return string(f.Value)
	}
	return string(f.Key)
}

// unknown answers that there is no such scope or collection, with the uid of the manifest.
func (c *conn) unknown(h mcbp.Header, status mcbp.Status) {
	body := []byte(`{"manifest_uid":"` + strconv.FormatUint(c.bucket.Manifest().UID, 16) + `"}`)
	c.reply(h, mcbp.Frame{Header: mcbp.Header{VBucketOrStatus: uint16(status), Datatype: c.jsonType()}, Value: body}, nil)
}

// noCollection answers a request for a collection that the vbucket does not have, or does not have yet.
func (c *conn) noCollection(h mcbp.Header, id uint32) {
	if _, ok := c.bucket.Manifest().ScopeOf(id); ok {
		c.srv.counters.TemporaryFailures.Add(1)
		c.refuse(h, mcbp.StatusTemporary, "the vbucket does not have the bucket's manifest yet")
		return
	}
	c.unknown(h, mcbp.StatusUnknownCollection)
}

// streamFilter is the JSON value of a stream request. Numbers travel as strings, ids in hexadecimal.
type streamFilter struct {
	Collections []string `json:"collections"`
	Scope       *string  `json:"scope"`
	UID         string   `json:"uid"`
	StreamID    *int     `json:"sid"`
	PurgeSeqno  string   `json:"purge_seqno"`
}

// filter determines which versions of a vbucket a stream shows; nil shows everything.
type filter struct {
	// legacy is set for a consumer without collections: it sees only documents of the default collection.
	legacy bool
	ids    map[uint32]bool
	// scoped is set if the filter selects a scope and its collections.
	scoped bool
	scope  uint32
	// over is set once nothing more can pass, because what was selected has been dropped.
	over bool
}

// request is the parsed value of a stream request.
type request struct {
	clientPurge uint64
	ids         []uint32
	scope       *uint32
}

// readFilter parses the JSON value of a stream request.
func (c *conn) readFilter(value []byte) (request, mcbp.Status) {
	if len(value) == 0 {
		return request{}, mcbp.StatusOK
	}
	var f streamFilter
	if len(value) > mcbp.MaxStreamRequestFilter || json.Unmarshal(value, &f) != nil || !f.allowed(c.features.collections) {
		return request{}, mcbp.StatusInvalid
	}
	r, uid, err := f.request()
	switch {
	case err != nil:
		return r, mcbp.StatusInvalid
	case uid > c.bucket.Manifest().UID:
		return r, mcbp.StatusManifestAhead
	}
	return r, mcbp.StatusOK
}

// allowed reports whether the combination of members is valid on a connection with or without collections.
func (f *streamFilter) allowed(collections bool) bool {
	if f.StreamID != nil || f.Scope != nil && f.Collections != nil {
		return false
	}
	return collections || f.Scope == nil && f.Collections == nil && f.UID == ""
}

// request returns what the members select, and the uid of the manifest that the consumer has.
func (f *streamFilter) request() (r request, uid uint64, err error) {
	var errs []error
	number := func(text string, base, bits int) uint64 {
		n, err := strconv.ParseUint(text, base, bits)
		errs = append(errs, err)
		return n
	}
	for _, id := range f.Collections {
		r.ids = append(r.ids, uint32(number(id, 16, 32)))
	}
	if f.Scope != nil {
		id := uint32(number(*f.Scope, 16, 32))
		r.scope = &id
	}
	if f.UID != "" {
		uid = number(f.UID, 16, 64)
	}
	if f.PurgeSeqno != "" {
		r.clientPurge = number(f.PurgeSeqno, 10, 64)
	}
	return r, uid, errors.Join(errs...)
}

// filterOf returns the filter of a stream; a status other than OK refuses the stream.
func (c *conn) filterOf(r request, v *store.VBucket) (*filter, mcbp.Status) {
	m := c.bucket.Manifest()
	switch {
	case !c.features.collections:
		return &filter{legacy: true}, mcbp.StatusOK
	case r.scope != nil:
		ids, ok := v.CollectionsOf(*r.scope)
		if !ok {
			return nil, late(m.HasScope(*r.scope), mcbp.StatusUnknownScope)
		}
		f := &filter{scoped: true, scope: *r.scope, ids: map[uint32]bool{}}
		if *r.scope == mcbp.DefaultCollection {
			f.ids[mcbp.DefaultCollection] = true
		}
		for _, id := range ids {
			f.ids[id] = true
		}
		return f, mcbp.StatusOK
	case len(r.ids) > 0:
		f := &filter{ids: map[uint32]bool{}}
		for _, id := range r.ids {
			if _, ok := v.HasCollection(id); !ok {
				_, there := m.ScopeOf(id)
				return nil, late(there, mcbp.StatusUnknownCollection)
			}
			f.ids[id] = true
		}
		return f, mcbp.StatusOK
	}
	return nil, mcbp.StatusOK
}

// ended reports whether nothing more can pass.
func (f *filter) ended() bool { return f != nil && f.over }

// late returns the status for a scope or collection that the vbucket lacks: temporary if the manifest has it, else
// unknown.
func late(there bool, unknown mcbp.Status) mcbp.Status {
	if there {
		return mcbp.StatusTemporary
	}
	return unknown
}

// shows reports whether a version passes the filter, and updates the filter at events.
func (f *filter) shows(d *store.Doc) bool {
	if f == nil {
		return true
	}
	if f.legacy {
		return d.Collection == mcbp.DefaultCollection
	}
	if d.Collection != store.SystemCollection {
		return f.ids[d.Collection]
	}
	return f.showsEvent(d)
}

// showsEvent is shows for a change of collections, which may also change the filter's collections.
func (f *filter) showsEvent(d *store.Doc) bool {
	event, what, _, err := d.EventOf()
	if err != nil {
		return false
	}
	if mcbp.AboutScope(event) {
		if !f.scoped || what.Scope != f.scope {
			return false
		}
		f.over = event == mcbp.EventScopeEnds
		return true
	}
	if f.scoped && what.Scope == f.scope && event == mcbp.EventCollectionBegins {
		f.ids[what.Collection] = true
	}
	if !f.ids[what.Collection] {
		return f.scoped && what.Scope == f.scope
	}
	if event == mcbp.EventCollectionEnds {
		delete(f.ids, what.Collection)
		f.over = !f.scoped && len(f.ids) == 0
	}
	return true
}

// appendEvent appends a version of the SystemCollection as SYSTEM_EVENT.
func (st *stream) appendEvent(buf []byte, d *store.Doc) []byte {
	event, what, name, err := d.EventOf()
	if err != nil {
		return buf
	}
	st.p.extras = mcbp.SystemEvent{Seqno: d.Seqno, Event: event}.AppendExtras(st.p.extras[:0])
	f := mcbp.Frame{Header: mcbp.Request(mcbp.OpDCPSystemEvent, st.id, st.opaque), Extras: st.p.extras, Key: name,
		Value: what.AppendValue(nil, event)}
	f.CAS = d.Cas
	return st.appendMessage(buf, f)
}

// statCollections emits the statistics of collections and scopes.
func (c *conn) statCollections(scopes bool, emit func(key, value string)) {
	sums := map[uint32]int{}
	for i := range c.bucket.Store.VBuckets() {
		if v := c.bucket.Store.VBucket(uint16(i)); v.Info().State == store.Active {
			v.CollectionItems(sums)
		}
	}
	m := c.bucket.Manifest()
	hex := func(n uint64) string { return "0x" + strconv.FormatUint(n, 16) }
	emit("manifest_uid", hex(m.UID))
	for _, s := range m.Scopes {
		items, scope := 0, hex(uint64(s.ID))
		for _, x := range s.Collections {
			items += sums[x.ID]
			if !scopes {
				at := scope + ":" + hex(uint64(x.ID))
				emit(at+":name", x.Name)
				emit(at+":scope_name", s.Name)
				emit(at+":items", strconv.Itoa(sums[x.ID]))
			}
		}
		if scopes {
			emit(scope+":name", s.Name)
			emit(scope+":collections", strconv.Itoa(len(s.Collections)))
			emit(scope+":items", strconv.Itoa(items))
		}
	}
}
