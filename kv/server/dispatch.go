package server

import (
	"context"
	"fmt"

	"tidemark/kv/mcbp"
	"tidemark/kv/store"
)

// dispatch handles one request. An error closes the connection.
func (c *conn) dispatch(ctx context.Context, f mcbp.Frame) error {
	if f.Magic.IsResponse() {
		if c.dcp != nil && f.Op == mcbp.OpDCPNoop {
			c.dcp.noopAnswered()
		}
		return nil
	}
	c.srv.counters.Requests.Add(1)
	if len(f.FrameExtras) > 0 {
		if status, why := checkFrameExtras(f.FrameExtras); status != mcbp.StatusOK {
			c.refuse(f.Header, status, why)
			return nil
		}
	}
	if done, err := c.dispatchUnauthenticated(f); done {
		return err
	}
	if !c.authed {
		c.status(f.Header, mcbp.StatusAuthError, nil)
		return nil
	}
	if f.Op == mcbp.OpSelectBucket {
		return c.selectBucket(f)
	}
	if c.bucket == nil {
		c.status(f.Header, mcbp.StatusNoBucket, nil)
		return nil
	}
	return c.dispatchBucket(ctx, f)
}

// dispatchUnauthenticated handles requests that need no authentication; it returns false for others.
func (c *conn) dispatchUnauthenticated(f mcbp.Frame) (done bool, err error) {
	switch f.Op {
	case mcbp.OpQuit:
		c.status(f.Header, mcbp.StatusOK, nil)
		return true, errQuit
	case mcbp.OpQuitQ:
		return true, errQuit
	case mcbp.OpNoop:
		c.status(f.Header, mcbp.StatusOK, nil)
	case mcbp.OpVersion:
		c.value(f.Header, []byte(c.srv.opts.Version))
	case mcbp.OpHello:
		c.hello(f)
	case mcbp.OpGetErrorMap:
		c.errorMap(f)
	case mcbp.OpSASLList:
		c.value(f.Header, []byte(c.srv.auth.mechanisms(c.plainAllowed())))
	case mcbp.OpSASLAuth:
		return true, c.saslAuth(f)
	case mcbp.OpSASLStep:
		return true, c.saslStep(f)
	default:
		return false, nil
	}
	return true, nil
}

// dispatchBucket handles a request on the selected bucket.
func (c *conn) dispatchBucket(ctx context.Context, f mcbp.Frame) error {
	if c.bucket.gone.Load() {
		return errGone
	}
	if c.denied(f) || c.unable(f) || c.dispatchDocument(f) || c.dispatchBucketQuery(f) {
		return nil
	}
	switch f.Op {
	case mcbp.OpDCPOpen:
		return c.dcpOpen(ctx, f)
	case mcbp.OpDCPControl, mcbp.OpDCPStreamReq, mcbp.OpDCPCloseStream, mcbp.OpDCPBufferAck, mcbp.OpDCPFailoverLog,
		mcbp.OpDCPNoop, mcbp.OpDCPAddStream:
		if c.dcp == nil {
			return fmt.Errorf("%w: %v on a connection without DCP_OPEN", mcbp.ErrMalformed, f.Op)
		}
		return c.dcpRequest(f)
	}
	if why := refusal(f.Op); why != "" {
		c.refuse(f.Header, mcbp.StatusNotSupported, why)
		return nil
	}
	c.status(f.Header, mcbp.StatusUnknownCommand, nil)
	return nil
}

// unable refuses a request that cannot be served at the moment, and reports whether it did.
func (c *conn) unable(f mcbp.Frame) bool {
	status, why := mcbp.StatusTemporary, "the node is warming up"
	warming := c.srv.warmingRefuses(f.Op) || c.srv.onlyReads(f.Op) || f.Op != mcbp.OpGetClusterConfig && !c.bucket.Ready()
	if !warming {
		var fails bool
		if status, fails = c.lacksMemory(f.Op); !fails {
			return false
		}
		why = "the node has no memory for the request now"
	}
	c.srv.counters.TemporaryFailures.Add(1)
	c.refuse(f.Header, status, why)
	return true
}

// dispatchBucketQuery handles requests about a bucket as a whole; it returns false for others.
func (c *conn) dispatchBucketQuery(f mcbp.Frame) bool {
	switch f.Op {
	case mcbp.OpGetClusterConfig:
		c.clusterConfig(f)
	case mcbp.OpStat:
		c.stat(f)
	case mcbp.OpGetAllVBSeqnos:
		c.allSeqnos(f)
	case mcbp.OpObserveSeqno:
		c.observeSeqno(f)
	case mcbp.OpGetCollectionsManifest:
		c.manifest(f)
	case mcbp.OpGetCollectionID:
		c.collectionID(f)
	case mcbp.OpGetScopeID:
		c.scopeID(f)
	case mcbp.OpVerbosity: // nothing to set; plain memcached clients send it anyway
		c.status(f.Header, mcbp.StatusOK, nil)
	default:
		return false
	}
	return true
}

// dispatchDocument handles requests for one document; it returns false for others.
func (c *conn) dispatchDocument(f mcbp.Frame) bool {
	switch f.Op {
	case mcbp.OpGet, mcbp.OpGetQ, mcbp.OpGetK, mcbp.OpGetKQ:
		c.get(f)
	case mcbp.OpSet, mcbp.OpSetQ:
		c.store(f, store.Set)
	case mcbp.OpAdd, mcbp.OpAddQ:
		c.store(f, store.Add)
	case mcbp.OpReplace, mcbp.OpReplaceQ:
		c.store(f, store.Replace)
	case mcbp.OpDelete, mcbp.OpDeleteQ:
		c.remove(f)
	case mcbp.OpDeleteWithMeta:
		c.bury(f)
	case mcbp.OpTouch, mcbp.OpGAT, mcbp.OpGATQ:
		c.touch(f)
	case mcbp.OpAppend, mcbp.OpAppendQ:
		c.concat(f, false)
	case mcbp.OpPrepend, mcbp.OpPrependQ:
		c.concat(f, true)
	case mcbp.OpIncrement, mcbp.OpIncrementQ:
		c.arithmetic(f, false)
	case mcbp.OpDecrement, mcbp.OpDecrementQ:
		c.arithmetic(f, true)
	default:
		return false
	}
	return true
}

// refusal returns why a known command is not supported; empty for an unknown command.
func refusal(op mcbp.Opcode) string {
	switch op {
	case mcbp.OpGetLocked, mcbp.OpUnlockKey:
		return "locks of documents are not supported: use CAS"
	case mcbp.OpFlush, mcbp.OpFlushQ:
		return "a bucket cannot be emptied by a client: delete its documents"
	case mcbp.OpGetReplica:
		return "reads of replicas are not supported"
	case mcbp.OpObserve:
		return "use OBSERVE_SEQNO with a mutation token"
	case mcbp.OpGetMeta, mcbp.OpSetWithMeta, mcbp.OpAddWithMeta:
		return "replication between clusters is not supported"
	case mcbp.OpGetRandomKey:
		return "range scans are not supported: read documents by key or use an index"
	case mcbp.OpSubdocGet, mcbp.OpSubdocMultiLookup, mcbp.OpSubdocMultiMutation:
		return "sub-document operations are not supported: read and write the whole document with CAS"
	}
	return ""
}

// checkFrameExtras verifies the frame extras of a request: well formed, known, and without a durability requirement
// beyond what every write gets.
func checkFrameExtras(b []byte) (mcbp.Status, string) {
	for len(b) > 0 {
		id, content, rest, err := mcbp.NextFrameInfo(b)
		if err != nil {
			return mcbp.StatusInvalid, "the frame extras are malformed"
		}
		b = rest
		switch id {
		case mcbp.FrameBarrier, mcbp.FrameTracing: // answers are always in order; nothing is traced
		case mcbp.FrameDurability:
			return durability(content)
		case mcbp.FrameStreamID, mcbp.FrameImpersonate, mcbp.FramePreserveExpiry:
			return mcbp.StatusNotSupported, "the frame extra \"" + id.String() + "\" is not supported"
		default:
			return mcbp.StatusUnknownFrameInfo, "a frame extra is unknown"
		}
	}
	return mcbp.StatusOK, ""
}

// durability refuses a durability requirement: when a write is answered it is in the log of one node, never more.
func durability(content []byte) (mcbp.Status, string) {
	const highestLevel = 3 // persist to a majority
	switch {
	case len(content) != 1 && len(content) != 3:
		return mcbp.StatusInvalid, "a durability requirement must have one or three bytes"
	case content[0] == 0 || content[0] > highestLevel:
		return mcbp.StatusDurabilityInvalid, "there is no such durability level"
	}
	return mcbp.StatusDurabilityImpossible, "durability levels are not supported: a write is only in the log of one " +
		"node when it is answered"
}
