package server

import (
	"tidemark/kv/access"
	"tidemark/kv/mcbp"
)

// rights caches what the user of a connection may do in its bucket. Only one goroutine uses it.
type rights struct {
	by           *access.Directory
	user, bucket string
	of           *access.Rights // replaced only if the rights may have changed
}

// now returns the rights according to the present users.
func (r *rights) now(s *Server, user, bucket string) *access.Rights {
	by := s.users()
	same := r.of != nil && r.user == user && r.bucket == bucket
	if !same || r.by != by && !by.JudgesAs(r.by, user, bucket) {
		of := s.permitted(by, user, bucket)
		r.user, r.bucket, r.of = user, bucket, &of
	}
	r.by = by
	return r.of
}

// users returns the cluster's present users, without the configured one.
func (s *Server) users() *access.Directory {
	if s.opts.Users == nil {
		return nil
	}
	return s.opts.Users()
}

// permitted returns what a user may do in a bucket.
func (s *Server) permitted(by *access.Directory, user, bucket string) access.Rights {
	if s.auth.configured(user) {
		return access.Everything()
	}
	return by.Rights(user, bucket)
}

// Rejudge makes all DCP connections check their streams again, because users may have lost rights. Other requests are
// checked one by one anyway.
func (s *Server) Rejudge() {
	s.mu.Lock()
	var all []*producer
	for _, c := range s.dcp {
		all = append(all, c.dcp)
	}
	s.mu.Unlock()
	for _, p := range all {
		p.mu.Lock()
		streams := make([]*stream, 0, len(p.streams))
		for _, st := range p.streams {
			streams = append(streams, st)
		}
		p.mu.Unlock()
		for _, st := range streams {
			st.Notify()
		}
	}
}

// may returns the user's rights in the bucket according to the present users.
func (c *conn) may() *access.Rights { return c.rights.now(c.srv, c.user, c.bucketName) }

// mayIn reports whether the user may do something in a bucket that is not selected.
func (c *conn) mayIn(bucket string, need access.Permission) bool {
	return c.srv.auth.configured(c.user) || c.srv.users().Permitted(c.user, bucket).Has(need)
}

// denied refuses a request that the user may not make, and reports whether it did. If the user has rights only in
// parts of the bucket, a request about a collection needs the right there, and a request about vbuckets needs the
// right anywhere; a stream is checked by what it shows (request.permitted).
func (c *conn) denied(f mcbp.Frame) bool {
	need, may := needs(f.Op), c.may()
	if may.Whole.HasAll(need) {
		return false
	}
	if id, ok := c.collectionOf(f, need); ok {
		return c.deniedIn(f.Header, need, may.In(id))
	}
	if ofVBuckets(f.Op) && may.Somewhere().HasAll(need) {
		return false
	}
	c.deny(f.Header, need)
	return true
}

// deniedIn is denied for a collection in which the user has the rights may. A user without any right in a collection
// does not learn that it exists, as with real engines.
func (c *conn) deniedIn(h mcbp.Header, need, may access.Set) bool {
	switch {
	case may.HasAll(need):
		return false
	case may.Unseen() && may != 0 && c.features.collections:
		c.unknown(h, mcbp.StatusUnknownCollection)
	default:
		c.deny(h, need)
	}
	return true
}

// collectionOf returns the collection that a request concerns, if it concerns exactly one.
func (c *conn) collectionOf(f mcbp.Frame, need access.Set) (id uint32, ok bool) {
	switch {
	case f.Op == mcbp.OpGetAllVBSeqnos:
		_, id, err := mcbp.DecodeVBSeqnosRequest(f.Extras)
		return id, err == nil && c.oneCollection(f)
	case need&needsBoth == 0: // concerns no document
		return 0, false
	case !c.features.collections:
		return mcbp.DefaultCollection, true
	}
	id, _, err := mcbp.SplitCollectionKey(f.Key)
	return id, err == nil
}

// oneCollection reports whether GET_ALL_VB_SEQNOS is for one collection; without collections that is the default one.
func (c *conn) oneCollection(f mcbp.Frame) bool {
	return len(f.Extras) == mcbp.VBSeqnosOfCollection || !c.features.collections
}

// ofVBuckets reports whether a request concerns vbuckets regardless of their content.
func ofVBuckets(op mcbp.Opcode) bool {
	switch op {
	case mcbp.OpGetAllVBSeqnos, mcbp.OpObserveSeqno, mcbp.OpDCPOpen, mcbp.OpDCPFailoverLog, mcbp.OpDCPStreamReq,
		mcbp.OpDCPAddStream:
		return true
	}
	return false
}

// permitted returns StatusOK if a stream may show what the request selects, otherwise the status of the refusal. For
// a stream that has begun, collections dropped since are ignored: the stream ends by itself.
func (r *request) permitted(may *access.Rights, begun bool) mcbp.Status {
	judge := func(set access.Set, unknown mcbp.Status) mcbp.Status {
		switch {
		case set.HasAll(needsStream):
			return mcbp.StatusOK
		case set.Unseen() && set != 0:
			return unknown
		}
		return mcbp.StatusNoAccess
	}
	switch {
	case r.scope != nil:
		if begun && !may.HasScope(*r.scope) {
			return mcbp.StatusOK
		}
		return judge(may.InScope(*r.scope), mcbp.StatusUnknownScope)
	case len(r.ids) == 0:
		return judge(may.Whole, mcbp.StatusNoAccess)
	}
	for _, id := range r.ids {
		status := judge(may.In(id), mcbp.StatusUnknownCollection)
		if status != mcbp.StatusOK && (!begun || may.HasCollection(id)) {
			return status
		}
	}
	return mcbp.StatusOK
}

// deny refuses a request and, if the client has negotiated error contexts, names the roles that permit it.
func (c *conn) deny(h mcbp.Header, need access.Set) {
	if !c.features.xerror {
		c.refuse(h, mcbp.StatusNoAccess, "")
		return
	}
	why := "the user " + c.user + " lacks the right"
	if roles := access.Granting(need, c.bucketName); roles != "" {
		why += ": it needs a role of " + roles
	}
	c.refuse(h, mcbp.StatusNoAccess, why)
}

// Sets of rights that requests need.
var (
	needsSee     = access.SetOf(access.See)
	needsRead    = access.SetOf(access.Read)
	needsWrite   = access.SetOf(access.Write)
	needsBoth    = access.SetOf(access.Read, access.Write)
	needsMeta    = access.SetOf(access.ReadMeta)
	needsStream  = access.SetOf(access.Stream)
	needsStats   = access.SetOf(access.Stats)
	needsBury    = access.SetOf(access.Write, access.WriteMeta)
	needsNothing = access.Set(0)
)

// needs returns the rights that a request on the selected bucket needs. Counters and GAT need both rights, because
// they return what they write. Requests that every user may make, or that are refused for other reasons, only need
// the right to see the bucket.
func needs(op mcbp.Opcode) access.Set {
	switch op {
	case mcbp.OpGet, mcbp.OpGetQ, mcbp.OpGetK, mcbp.OpGetKQ:
		return needsRead
	case mcbp.OpSet, mcbp.OpSetQ, mcbp.OpAdd, mcbp.OpAddQ, mcbp.OpReplace, mcbp.OpReplaceQ, mcbp.OpDelete, mcbp.OpDeleteQ,
		mcbp.OpTouch, mcbp.OpAppend, mcbp.OpAppendQ, mcbp.OpPrepend, mcbp.OpPrependQ:
		return needsWrite
	case mcbp.OpGAT, mcbp.OpGATQ, mcbp.OpIncrement, mcbp.OpIncrementQ, mcbp.OpDecrement, mcbp.OpDecrementQ:
		return needsBoth
	case mcbp.OpDeleteWithMeta:
		return needsBury
	case mcbp.OpGetAllVBSeqnos, mcbp.OpObserveSeqno:
		return needsMeta
	case mcbp.OpStat:
		return needsStats
	case mcbp.OpDCPOpen, mcbp.OpDCPStreamReq, mcbp.OpDCPFailoverLog, mcbp.OpDCPAddStream:
		return needsStream
	case mcbp.OpDCPControl, mcbp.OpDCPCloseStream, mcbp.OpDCPBufferAck, mcbp.OpDCPNoop:
		return needsNothing // the connection was opened with the right
	}
	return needsSee
}

// lost reports whether the user has lost the right to the stream since it was granted. The rights are computed once
// for all streams of the connection, and the stream is checked only when they have changed.
func (st *stream) lost() bool {
	c := st.p.c
	may := st.p.rights.now(c.srv, c.user, c.bucketName)
	if may == st.judged {
		return false
	}
	st.judged = may
	return !may.Whole.HasAll(needsStream) && st.asked.permitted(may, true) != mcbp.StatusOK
}
