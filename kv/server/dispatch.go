package server

import (
	"context"
	"fmt"

	"tidemark/kv/store"
	"tidemark/mcbp"
)

// Quiet and key-returning variants of the data opcodes, for plain clients.
const (
	opGetQ     mcbp.Opcode = 0x09
	opGetK     mcbp.Opcode = 0x0c
	opGetKQ    mcbp.Opcode = 0x0d
	opSetQ     mcbp.Opcode = 0x11
	opAddQ     mcbp.Opcode = 0x12
	opReplaceQ mcbp.Opcode = 0x13
	opDeleteQ  mcbp.Opcode = 0x14
	opQuitQ    mcbp.Opcode = 0x17
	opGAT      mcbp.Opcode = 0x1d
	opGATQ     mcbp.Opcode = 0x1e
)

// dispatch answers one request. An error closes the connection.
func (c *conn) dispatch(ctx context.Context, f mcbp.Frame) error {
	if f.Magic.IsResponse() {
		if c.dcp != nil && f.Op == mcbp.OpDCPNoop {
			c.dcp.noopAnswered()
		}
		return nil
	}
	c.srv.counters.Requests.Add(1)
	if len(f.FrameExtras) > 0 && !frameExtrasOK(f.FrameExtras) {
		c.status(f.Header, mcbp.StatusNotSupported, nil)
		return nil
	}
	switch f.Op {
	case mcbp.OpQuit:
		c.status(f.Header, mcbp.StatusOK, nil)
		return errQuit
	case opQuitQ:
		return errQuit
	case mcbp.OpNoop:
		c.status(f.Header, mcbp.StatusOK, nil)
		return nil
	case mcbp.OpVersion:
		c.value(f.Header, []byte(c.srv.opts.Version))
		return nil
	case mcbp.OpHello:
		c.hello(f)
		return nil
	case mcbp.OpGetErrorMap:
		c.errorMap(f)
		return nil
	case mcbp.OpSASLList:
		c.value(f.Header, []byte(c.srv.auth.mechanisms()))
		return nil
	case mcbp.OpSASLAuth:
		return c.saslAuth(f)
	case mcbp.OpSASLStep:
		return c.saslStep(f)
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

// dispatchBucket answers a request on the selected bucket.
func (c *conn) dispatchBucket(ctx context.Context, f mcbp.Frame) error {
	switch f.Op {
	case mcbp.OpGet, opGetQ, opGetK, opGetKQ:
		c.get(f)
	case mcbp.OpSet, opSetQ:
		c.store(f, store.Set)
	case mcbp.OpAdd, opAddQ:
		c.store(f, store.Add)
	case mcbp.OpReplace, opReplaceQ:
		c.store(f, store.Replace)
	case mcbp.OpDelete, opDeleteQ:
		c.remove(f)
	case mcbp.OpTouch, opGAT, opGATQ:
		c.touch(f)
	case mcbp.OpGetClusterConfig:
		c.clusterConfig(f)
	case mcbp.OpStat:
		c.stat(f)
	case mcbp.OpGetAllVBSeqnos:
		c.allSeqnos(f)
	case mcbp.OpObserveSeqno:
		c.observeSeqno(f)
	case mcbp.OpGetCollectionsManifest:
		c.value(f.Header, []byte(collectionsManifest))
	case mcbp.OpGetCollectionID:
		c.collectionID(f)
	case mcbp.OpDCPOpen:
		return c.dcpOpen(ctx, f)
	case mcbp.OpDCPControl, mcbp.OpDCPStreamReq, mcbp.OpDCPCloseStream, mcbp.OpDCPBufferAck, mcbp.OpDCPFailoverLog, mcbp.OpDCPNoop,
		mcbp.OpDCPAddStream:
		if c.dcp == nil {
			return fmt.Errorf("%w: %v on a connection without DCP_OPEN", mcbp.ErrMalformed, f.Op)
		}
		return c.dcpRequest(f)
	default:
		c.status(f.Header, mcbp.StatusUnknownCommand, nil)
	}
	return nil
}

// frameExtrasOK says whether the frame extras of a request can be honoured: well formed, and no demand for durability
// beyond what every write gets (the one copy, in the log).
func frameExtrasOK(b []byte) bool {
	const durability = 1
	for len(b) > 0 {
		id, n := int(b[0]>>4), int(b[0]&0x0f)
		b = b[1:]
		for _, p := range []*int{&id, &n} {
			if *p == 0x0f { // escaped: the next byte is added
				if len(b) == 0 {
					return false
				}
				*p += int(b[0])
				b = b[1:]
			}
		}
		if n > len(b) || id == durability {
			return false
		}
		b = b[n:]
	}
	return true
}
