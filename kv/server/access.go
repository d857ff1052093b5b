package server

import (
	"tidemark/kv/access"
	"tidemark/kv/mcbp"
)

// rights are what the user of a connection may do in its bucket, as they were judged last.
type rights struct {
	by           *access.Directory
	user, bucket string
	set          access.Set
}

// users are the cluster's users now, beside the configured one.
func (s *Server) users() *access.Directory {
	if s.opts.Users == nil {
		return nil
	}
	return s.opts.Users()
}

// permitted is what a user may do in a bucket.
func (s *Server) permitted(by *access.Directory, user, bucket string) access.Set {
	if s.auth.configured(user) {
		return access.All
	}
	return by.Permitted(user, bucket)
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

// may reports whether the user may do all of that in the bucket, by the users that there are now.
func (c *conn) may(need access.Set) bool {
	by := c.srv.users()
	if r := &c.rights; r.by != by || r.user != c.user || r.bucket != c.bucketName {
		*r = rights{by: by, user: c.user, bucket: c.bucketName, set: c.srv.permitted(by, c.user, c.bucketName)}
	}
	return c.rights.set.HasAll(need)
}

// mayIn is may of a bucket that is not selected.
func (c *conn) mayIn(bucket string, need access.Permission) bool {
	return c.srv.permitted(c.srv.users(), c.user, bucket).Has(need)
}

// denied refuses what the user may not do, and reports whether it did.
func (c *conn) denied(f mcbp.Frame) bool {
	need := needs(f.Op)
	if c.may(need) {
		return false
	}
	c.deny(f.Header, need)
	return true
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

// lost reports whether the user has lost the right to the stream since it was granted.
func (st *stream) lost() bool {
	c := st.p.c
	by := c.srv.users()
	if by == st.by {
		return false
	}
	st.by = by
	return !c.srv.permitted(by, c.user, c.bucketName).HasAll(needsStream)
}
