package server

import (
	"tidemark/kv/access"
	"tidemark/kv/mcbp"
)

// rights are what the user of a connection may do in its bucket, as they were judged last. One goroutine has them.
type rights struct {
	by           *access.Directory
	user, bucket string
	of           *access.Rights // another one only when they may be others
}

// now are the rights by the users that there are now.
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

// users are the cluster's users now, beside the configured one.
func (s *Server) users() *access.Directory {
	if s.opts.Users == nil {
		return nil
	}
	return s.opts.Users()
}

// permitted are what a user may do in a bucket.
func (s *Server) permitted(by *access.Directory, user, bucket string) access.Rights {
	if s.auth.configured(user) {
		return access.Everything()
	}
	return by.Rights(user, bucket)
}

// Rejudge has the streams of all DCP connections looked at again, whose users may have lost their rights; requests are
// judged one by one anyway.
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

// may are the user's rights in the bucket, by the users that there are now.
func (c *conn) may() *access.Rights { return c.rights.now(c.srv, c.user, c.bucketName) }

// mayIn reports whether the user may do something in a bucket that is not selected.
func (c *conn) mayIn(bucket string, need access.Permission) bool {
	return c.srv.auth.configured(c.user) || c.srv.users().Permitted(c.user, bucket).Has(need)
}

// denied refuses what the user may not do, and reports whether it did. Where there are rights in parts of the bucket
// alone, what is about a collection is judged there, and what is about vbuckets needs the right somewhere; a stream is
// judged by what it shows (request.permitted).
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

// deniedIn is denied in a collection, where the user may do that. Who has no right in it does not learn that it is
// there, as engines have it.
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

// collectionOf is the collection that a request is about alone.
func (c *conn) collectionOf(f mcbp.Frame, need access.Set) (id uint32, ok bool) {
	switch {
	case f.Op == mcbp.OpGetAllVBSeqnos:
		_, id, err := mcbp.DecodeVBSeqnosRequest(f.Extras)
		return id, err == nil && c.oneCollection(f)
	case need&needsBoth == 0: // of no document
		return 0, false
	case !c.features.collections:
		return mcbp.DefaultCollection, true
	}
	id, _, err := mcbp.SplitCollectionKey(f.Key)
	return id, err == nil
}

// oneCollection says whether GET_ALL_VB_SEQNOS asks for one collection: without collections that is the default one.
func (c *conn) oneCollection(f mcbp.Frame) bool {
	return len(f.Extras) == mcbp.VBSeqnosOfCollection || !c.features.collections
}

// ofVBuckets says whether a request is about vbuckets, whatever is in them.
func ofVBuckets(op mcbp.Opcode) bool {
	switch op {
	case mcbp.OpGetAllVBSeqnos, mcbp.OpObserveSeqno, mcbp.OpDCPOpen, mcbp.OpDCPFailoverLog, mcbp.OpDCPStreamReq,
		mcbp.OpDCPAddStream:
		return true
	}
	return false
}

// permitted says whether a stream may show what is asked for; otherwise with which status it is refused. Of one that
// has begun what was dropped since is passed over: that ends by itself.
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

// deny says which roles permit what was refused, to clients that have asked for such explanations.
func (c *conn) deny(h mcbp.Header, need access.Set) {
	if !c.features.xerror {
		c.refuse(h, mcbp.StatusNoAccess, "")
		return
	}
	why := "the user " + c.user + " may not do it"
	if roles := access.Granting(need, c.bucketName); roles != "" {
		why += ": it needs a role of " + roles
	}
	c.refuse(h, mcbp.StatusNoAccess, why)
}

// Sets of what requests need.
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

// needs is what a request on the selected bucket needs: both rights for counters and GAT, which show what they write.
// What is answered to everybody, or refused for another reason, needs no more than to see the bucket.
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
		return needsNothing // of a connection that was opened with the right to it
	}
	return needsSee
}

// lost reports whether the user has lost the right to the stream since it was granted. What he may do is judged once
// for all streams of the connection, and the stream by it when it has changed.
func (st *stream) lost() bool {
	c := st.p.c
	may := st.p.rights.now(c.srv, c.user, c.bucketName)
	if may == st.judged {
		return false
	}
	st.judged = may
	return !may.Whole.HasAll(needsStream) && st.asked.permitted(may, true) != mcbp.StatusOK
}
