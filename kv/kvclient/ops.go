package kvclient

import (
	"context"
	"errors"
	"fmt"

	"tidemark/kv/mcbp"
)

// Document is the result of Get.
type Document struct {
	Value    []byte
	Flags    uint32
	CAS      uint64
	Datatype mcbp.Datatype
}

// Mutation is the result of a write: the token for at_plus scans, and the document's new CAS.
type Mutation struct {
	VBucket uint16
	VBUUID  uint64
	Seqno   uint64
	CAS     uint64
}

// StoreOptions are the options of a write.
type StoreOptions struct {
	// Flags are kept with the document and returned by Get.
	Flags uint32
	// Expiry is in seconds from now, or in seconds since 1970 if above 30 days; 0 is never.
	Expiry uint32
	// CAS makes the write fail with ErrKeyExists unless the document has this CAS.
	CAS uint64
	// Xattrs is the section of extended attributes of the new version, as returned by mcbp.AppendXattr. Without it the
	// document has none after the write.
	Xattrs []byte
}

// Get reads a document. The error is ErrKeyNotFound if there is none.
func (c *Client) Get(ctx context.Context, key string) (Document, error) {
	f, _, err := c.keyed(ctx, mcbp.OpGet, key, mcbp.Frame{})
	if err != nil {
		return Document{}, err
	}
	flags, err := mcbp.DecodeGetReply(f.Extras)
	if err != nil {
		return Document{}, err
	}
	return Document{Value: f.Value, Flags: flags, CAS: f.CAS, Datatype: f.Datatype}, nil
}

// Set writes a document whether or not it exists.
func (c *Client) Set(ctx context.Context, key string, value []byte, opt StoreOptions) (Mutation, error) {
	return c.store(ctx, mcbp.OpSet, key, value, opt)
}

// Add writes a document that must not exist (else ErrKeyExists).
func (c *Client) Add(ctx context.Context, key string, value []byte, opt StoreOptions) (Mutation, error) {
	opt.CAS = 0
	return c.store(ctx, mcbp.OpAdd, key, value, opt)
}

// Replace writes a document that must exist (else ErrKeyNotFound).
func (c *Client) Replace(ctx context.Context, key string, value []byte, opt StoreOptions) (Mutation, error) {
	return c.store(ctx, mcbp.OpReplace, key, value, opt)
}

// Delete deletes a document; cas 0 means any version. The error is ErrKeyNotFound if there is none.
func (c *Client) Delete(ctx context.Context, key string, cas uint64) (Mutation, error) {
	f := mcbp.Frame{}
	f.CAS = cas
	return c.write(ctx, mcbp.OpDelete, key, f)
}

// store sends SET, ADD or REPLACE.
func (c *Client) store(ctx context.Context, op mcbp.Opcode, key string, value []byte, opt StoreOptions) (Mutation,
	error) {
	if len(value) > mcbp.MaxValue {
		return Mutation{}, fmt.Errorf("%w: the value of %q has %d bytes, at most %d", ErrTooBig, key, len(value),
			mcbp.MaxValue)
	}
	f := mcbp.Frame{Extras: mcbp.Store{Flags: opt.Flags, Expiry: opt.Expiry}.AppendExtras(nil), Value: value}
	if len(opt.Xattrs) > 0 {
		f.Value = append(mcbp.AppendXattrs(make([]byte, 0, 4+len(opt.Xattrs)+len(value)), opt.Xattrs), value...)
		f.Datatype = mcbp.DatatypeXattr
	}
	f.CAS = opt.CAS
	return c.write(ctx, op, key, f)
}

// write sends a write and decodes its token.
func (c *Client) write(ctx context.Context, op mcbp.Opcode, key string, f mcbp.Frame) (Mutation, error) {
	f, lost, err := c.keyed(ctx, op, key, f)
	if err != nil {
		if lost && (errors.Is(err, ErrKeyExists) || errors.Is(err, ErrKeyNotFound)) {
			err = fmt.Errorf("%w: %w", ErrAmbiguous, err)
		}
		return Mutation{}, err
	}
	return mutation(f, vbucketOf(c.Config(), key))
}

// mutation decodes the answer to a write.
func mutation(f mcbp.Frame, vbucket uint16) (Mutation, error) {
	m := Mutation{VBucket: vbucket, CAS: f.CAS}
	if len(f.Extras) == 0 {
		return m, nil // the node grants no tokens
	}
	token, err := mcbp.DecodeMutationToken(f.Extras)
	m.VBUUID, m.Seqno = token.VBUUID, token.Seqno
	return m, err
}

// vbucketOf returns the vbucket of a key.
func vbucketOf(config *mcbp.ClusterConfig, key string) uint16 {
	return mcbp.VBucket([]byte(key), config.NumVBuckets())
}

// keyed completes a request for a key and sends it.
func (c *Client) keyed(ctx context.Context, op mcbp.Opcode, key string, f mcbp.Frame) (mcbp.Frame, bool, error) {
	if len(key) == 0 || len(key) > mcbp.MaxDocumentKey {
		return mcbp.Frame{}, false, fmt.Errorf("%w: a key has 1 to %d bytes, this one %d", ErrTooBig, mcbp.MaxDocumentKey,
			len(key))
	}
	cas, datatype := f.CAS, f.Datatype
	f.Header = mcbp.Request(op, vbucketOf(c.Config(), key), 0)
	f.CAS, f.Datatype, f.Key = cas, datatype, c.wire(key)
	out, lost, err := c.do(ctx, f)
	if err != nil {
		return out, lost, fmt.Errorf("key %q, vbucket %d: %w", key, f.VBucket(), err)
	}
	return out, lost, nil
}

// VBucketSeqnos asks every node for the high seqnos of its active vbuckets and returns them by vbucket number. It
// retries until every vbucket has an owner that answers, or ctx ends.
func (c *Client) VBucketSeqnos(ctx context.Context) ([]uint64, error) {
	retry := backoff{}
	for {
		out, err := c.vbucketSeqnos(ctx)
		if err == nil || final(err) {
			return out, err
		}
		if werr := c.recover(ctx, nil, err, &retry); werr != nil {
			return nil, fmt.Errorf("%w (%w)", werr, err)
		}
	}
}

// vbucketSeqnos makes one attempt.
func (c *Client) vbucketSeqnos(ctx context.Context) ([]uint64, error) {
	c.mu.Lock()
	config, via, network := c.config, c.via, c.network
	c.mu.Unlock()
	out := make([]uint64, config.NumVBuckets())
	seen := make([]bool, len(out))
	for i := range config.NumNodes() {
		addr, err := config.KVAddrIn(network, i, via, c.opt.TLS != nil)
		if err != nil {
			return nil, err
		}
		conn, err := c.conn(ctx, addr)
		if err != nil {
			return nil, err
		}
		list, err := conn.VBucketSeqnos(ctx)
		if err != nil {
			return nil, err
		}
		for _, e := range list {
			if int(e.VBucket) < len(out) {
				out[e.VBucket], seen[e.VBucket] = max(out[e.VBucket], e.Seqno), true
			}
		}
	}
	for vb, ok := range seen {
		if !ok {
			return nil, fmt.Errorf("vbucket %d: %w", vb, errNoOwner)
		}
	}
	return out, nil
}

// VBucketSeqnos asks the node for the high seqnos of its active vbuckets.
func (c *Conn) VBucketSeqnos(ctx context.Context) ([]mcbp.VBucketSeqno, error) {
	req := mcbp.Frame{Header: mcbp.Request(mcbp.OpGetAllVBSeqnos, 0, 0),
		Extras: mcbp.AppendVBSeqnosRequest(nil, mcbp.VBucketActive)}
	f, err := c.Do(ctx, req)
	if err != nil {
		return nil, err
	}
	if err := NewStatusError(f); err != nil {
		return nil, err
	}
	return mcbp.DecodeVBSeqnos(f.Value)
}
