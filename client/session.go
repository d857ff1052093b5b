package client

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/url"
	"strconv"
	"strings"
	"sync"

	"tidemark/errcode"
	"tidemark/indexer/scanport"
)

// Session is what somebody has seen and written: what is scanned in it never shows the past of that. A Client has
// one of its own, which its scans and counts are in unless Options say otherwise; a server whose users must not
// wait for what other users have seen has one for each of them:
//
//	rows, err := session.Scan(ctx, c, client.Ref("world", "by_country"), client.ScanRequest{})
//
// Its zero value is a new one. It may be used by several goroutines, and with several clients of one cluster. It
// keeps a token for each of at most 1,024 buckets.
type Session struct {
	mu    sync.Mutex
	seen  map[string]scanport.Seen // by bucket
	size  int                      // bytes of seen's tokens, with what separates them
	wrote map[string]vbucketTokens // by bucket
}

// vbucketTokens are the newest writes of a bucket, by vbucket, that no answer has shown yet.
type vbucketTokens map[uint16]Token

// Wrote notes writes to a bucket: scans and counts in the session show them from now on, whatever consistency they
// have, unless they name a timestamp or tokens of their own. Tokens come from the KV client (its mutation tokens).
// One that a failover has undone fails the next scan, once, with the code TOKEN_LOST; with consistency session it
// is passed over.
func (s *Session) Wrote(bucket string, tokens ...Token) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.wrote == nil {
		s.wrote = map[string]vbucketTokens{}
	}
	all := s.wrote[bucket]
	if all == nil {
		all = vbucketTokens{}
		s.wrote[bucket] = all
	}
	for _, t := range tokens {
		if old, ok := all[t.VBucket]; !ok || old.VBUUID != t.VBUUID || old.Seqno < t.Seqno {
			all[t.VBucket] = t
		}
	}
}

// Token is what the session has seen, as text: another one, here or in another process, goes on from there when it is
// given it (Take), and so does a request by REST (session in its body, or the header Tidemark-Session). Writes that no
// answer has shown yet are not in it.
func (s *Session) Token() string {
	return scanport.Tokens(s.of(""))
}

// Take has the session see no past of what another one has seen, whose Token, or ScanEnd.Session, it is.
func (s *Session) Take(token string) error {
	all, err := scanport.ParseSession(token)
	for i := range all {
		s.saw(&all[i], nil)
	}
	return err
}

// Scan is Client.Scan in this session.
func (s *Session) Scan(ctx context.Context, c *Client, ref string, req ScanRequest) (*Rows, error) {
	plain := req
	sent := s.join(ref, &req)
	rows, err := c.scan(ctx, ref, req)
	if err != nil {
		s.refused(ctx, c, ref, plain, err, sent)
		return nil, err
	}
	rows.session, rows.sent = s, sent
	return rows, nil
}

// Count is Client.Count in this session.
func (s *Session) Count(ctx context.Context, c *Client, ref string, req ScanRequest) (CountReply, error) {
	plain := req
	sent := s.join(ref, &req)
	reply, err := c.count(ctx, ref, req)
	if err != nil {
		s.refused(ctx, c, ref, plain, err, sent)
		return reply, err
	}
	s.ended(reply.Session, sent)
	return reply, nil
}

// of returns what was seen of the bucket that a ref may be of; of all when it does not say.
func (s *Session) of(bucket string) (all []scanport.Seen) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, seen := range s.seen {
		if names(bucket, name) {
			all = append(all, seen)
		}
	}
	return all
}

// names reports whether an index that is named with a keyspace may be on a bucket; "": it is named by its id.
func names(keyspace, bucket string) bool {
	return keyspace == "" || keyspace == bucket || strings.HasPrefix(keyspace, bucket) && keyspace[len(bucket)] == '.'
}

// keyspaceOf is what a ref names beside the index; "" of an id.
func keyspaceOf(ref string) string {
	keyspace, _, named := strings.Cut(ref, "/")
	text, err := url.PathUnescape(keyspace)
	if !named || err != nil {
		return "" // any
	}
	return text
}

// join has a request show what was seen and written. It returns the writes that it has to show.
func (s *Session) join(ref string, req *ScanRequest) (sent map[string]vbucketTokens) {
	if s == nil {
		return nil
	}
	keyspace := keyspaceOf(ref)
	if tokens := scanport.Tokens(s.of(keyspace)); req.Session == "" {
		req.Session = tokens
	} else if tokens != "" {
		req.Session += "," + tokens
	}
	switch {
	case req.Timestamp != "", req.Cursor != "" && !req.Newer, len(req.Tokens) > 0: // what it shows the caller says
		return nil
	case req.Consistency == consistencySession: // all that KV has
		return s.pending(keyspace)
	}
	sent = s.pending(keyspace)
	if len(sent) == 0 {
		return nil
	}
	req.Consistency = consistencyAtPlus
	vectors := maps.Clone(req.ScanVectors)
	if vectors == nil {
		vectors = map[string]map[string][]json.RawMessage{}
	}
	for bucket, tokens := range sent {
		vectors[bucket] = tokens.onto(vectors[bucket])
	}
	req.ScanVectors = vectors
	return sent
}

// The consistencies that a session looks at.
const (
	consistencySession = "session"
	consistencyAtPlus  = "at_plus"
)

// onto adds tokens to a scan vector.
func (v vbucketTokens) onto(vector map[string][]json.RawMessage) map[string][]json.RawMessage {
	vector = maps.Clone(vector)
	if vector == nil {
		vector = map[string][]json.RawMessage{}
	}
	for vb, t := range v {
		name := strconv.Itoa(int(vb))
		if old := vector[name]; len(old) == 2 { // the later one of one branch has the other in it
			if seqno, err := strconv.ParseUint(string(old[0]), 10, 64); err == nil && seqno >= t.Seqno {
				continue
			}
		}
		vector[name] = []json.RawMessage{strconv.AppendUint(nil, t.Seqno, 10), []byte(`"` + formatUint(t.VBUUID) + `"`)}
	}
	return vector
}

// pending copies the writes to a bucket that no answer has shown yet.
func (s *Session) pending(keyspace string) map[string]vbucketTokens {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all map[string]vbucketTokens
	for bucket, tokens := range s.wrote {
		if names(keyspace, bucket) && len(tokens) > 0 {
			if all == nil {
				all = map[string]vbucketTokens{}
			}
			all[bucket] = maps.Clone(tokens)
		}
	}
	return all
}

// ended takes over the token of an answer's end. What it had to show of its bucket is in what was seen now.
func (s *Session) ended(token string, sent map[string]vbucketTokens) {
	if s == nil {
		return
	}
	all, err := scanport.ParseSession(token)
	if err != nil {
		return // of a server that knows no sessions
	}
	for i := range all {
		s.saw(&all[i], sent)
	}
}

// saw takes over what was seen. Answers may come in another order than they were made in.
func (s *Session) saw(seen *scanport.Seen, sent map[string]vbucketTokens) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seen == nil {
		s.seen = map[string]scanport.Seen{}
	}
	old, ok := s.seen[seen.Bucket]
	if !ok || old.Cluster != seen.Cluster || old.Compare(seen) < 0 {
		s.drop(seen.Bucket)
		for name := range s.seen { // any: of all buckets together a request takes no more
			if len(s.seen) < scanport.MaxSeen && s.size+tokenSize(seen) <= scanport.MaxSession {
				break
			}
			s.drop(name)
		}
		s.seen[seen.Bucket] = *seen
		s.size += tokenSize(seen)
	}
	s.forget(seen.Bucket, sent)
}

// drop lets go of what was seen of a bucket. The lock is held.
func (s *Session) drop(bucket string) {
	if old, ok := s.seen[bucket]; ok {
		delete(s.seen, bucket)
		s.size -= tokenSize(&old)
	}
}

func tokenSize(seen *scanport.Seen) int { return len(seen.Token()) + 1 }

// forget lets go of writes that were sent. The lock is held.
func (s *Session) forget(bucket string, sent map[string]vbucketTokens) {
	for vb, t := range sent[bucket] {
		if s.wrote[bucket][vb] == t {
			delete(s.wrote[bucket], vb)
		}
	}
	if len(s.wrote[bucket]) == 0 {
		delete(s.wrote, bucket)
	}
}

// failed lets go of writes that were lost: the caller is told, once.
func (s *Session) failed(err error, sent map[string]vbucketTokens) {
	var p *Error
	if s != nil && errors.As(err, &p) && p.Code == errcode.TokenLost {
		s.letGo(sent)
	}
}

// refused is failed for a request that was answered at once. One that means nothing may do so of itself, or by writes
// to vbuckets that the bucket does not have any more, since it was made anew: so a row is asked for without them.
func (s *Session) refused(ctx context.Context, c *Client, ref string, plain ScanRequest, err error,
	sent map[string]vbucketTokens) {
	s.failed(err, sent)
	var p *Error
	if s == nil || len(sent) == 0 || !errors.As(err, &p) || p.Code != errcode.BadRequest {
		return
	}
	plain.Limit = 1
	if rows, err := c.scan(ctx, ref, plain); err == nil {
		_ = rows.Close() // what it gives is not asked for
		s.letGo(sent)
	}
}

func (s *Session) letGo(sent map[string]vbucketTokens) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for bucket := range sent {
		s.forget(bucket, sent)
	}
}
