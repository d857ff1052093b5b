package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"

	"tidemark/indexer/scanport"
	"tidemark/manager/api/v1"
	"tidemark/timestamp"
	"tidemark/wire"
)

// Session records what a user has seen and written: scans in it never show an earlier state. A Client has one of its
// own, which its scans and counts use unless Options name another; a server whose users must not wait for what other
// users have seen has one for each of them:
//
//	rows, err := session.Scan(ctx, c, client.Ref("world", "by_country"), client.ScanRequest{})
//
// The zero value is a new session. It may be used by several goroutines, and with several clients of one cluster. It
// keeps the state of at most 1,024 buckets (64 KiB as text); a scan of a further one fails with ErrSessionFull.
type Session struct {
	mu   sync.Mutex
	seen map[string]scanport.Seen // by bucket
	size int                      // bytes of the tokens of seen and owed, with separators
	// owed holds, by bucket, the state seen before a possible loss that has not been reported, as the answer that would
	// have reported it was not read to its end. It is sent with every request until an answer was read to its end.
	owed  map[string]scanport.Seen
	wrote map[string]writes // by bucket
}

// ErrSessionFull is wrapped if a session would exceed its limits. It does not drop anything to make room: use another
// Session for other buckets.
var ErrSessionFull = errors.New("the session is full")

// writes holds the newest writes to a bucket, by vbucket and branch, that no answer has shown yet.
type writes map[branch]uint64

// branch is a branch of a vbucket. A write on another branch does not include those before: both have to be shown.
type branch struct {
	vbucket uint16
	vbuuid  uint64
}

// Wrote records writes to a bucket: scans and counts in the session show them from now on, whatever their
// consistency, unless they name a timestamp or tokens of their own. Tokens come from the KV client (its mutation
// tokens). A write that a failover has undone fails the next scan, once, with the code TOKEN_LOST (Error.Lost lists
// it); with consistency session it is ignored. The error wraps ErrSessionFull if no answer has shown
// 4,096 writes to the bucket yet, or writes to 1,024 buckets; writes beyond these limits are not recorded.
func (s *Session) Wrote(bucket string, tokens ...v1.Token) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.wrote[bucket]
	if all == nil {
		if len(s.wrote) >= scanport.MaxSeen {
			return fmt.Errorf("%w: besides bucket %q, it holds writes to %d others that no scan has shown yet",
				ErrSessionFull, bucket, len(s.wrote))
		}
		all = writes{}
	}
	for _, t := range tokens {
		at := branch{t.VBucket, t.VBUUID}
		old, ok := all[at]
		if !ok && len(all) >= scanport.MaxTokens {
			return fmt.Errorf("%w: besides the one to vbucket %d of bucket %q, it holds %d writes that no scan "+
				"has shown yet", ErrSessionFull, t.VBucket, bucket, len(all))
		}
		all[at] = max(old, t.Seqno)
		if s.wrote == nil {
			s.wrote = map[string]writes{}
		}
		s.wrote[bucket] = all
	}
	return nil
}

// Token returns what the session has seen, as text: another session, here or in another process, continues from there
// after Take, and so does a REST request (session in its body, or the header Tidemark-Session). It does not contain
// writes that no answer has shown yet.
func (s *Session) Token() string {
	return scanport.Tokens(s.of(""))
}

// Take adds what another session has seen, given its Token or ScanEnd.Session: scans show no earlier state. If that
// exceeds the limits of a session, the error wraps ErrSessionFull, and nothing is added.
func (s *Session) Take(token string) error {
	all, err := scanport.ParseSession(token)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	number, size := len(s.seen)+len(s.owed), s.size
	for i := range all {
		if _, ok := s.seen[all[i].Bucket]; !ok { // a bucket that occurs twice counts twice
			number, size = number+1, size+tokenSize(&all[i])
		}
	}
	if number > len(s.seen)+len(s.owed) && (number > scanport.MaxSeen || size > scanport.MaxSession) {
		return fmt.Errorf("%w: it holds the states of %d buckets, and the token has others", ErrSessionFull, len(s.seen))
	}
	for i := range all {
		s.note(&all[i])
	}
	return nil
}

// Scan is Client.Scan in this session.
func (s *Session) Scan(ctx context.Context, c *Client, ref string, req v1.ScanRequest) (*Rows, error) {
	if req.Grouped() {
		return nil, fmt.Errorf("%w: the request has GroupBy or Aggregates: use Aggregate", ErrGroups)
	}
	return s.scan(ctx, c, ref, req)
}

// scan begins a scan of rows, or of groups in the form of rows.
func (s *Session) scan(ctx context.Context, c *Client, ref string, req v1.ScanRequest) (*Rows, error) {
	sent, err := s.join(ctx, c, ref, &req)
	if err != nil {
		return nil, err
	}
	rows, err := c.scan(ctx, ref, req)
	if err != nil {
		s.failed(err, sent)
		return nil, err
	}
	rows.session, rows.sent, rows.named = s, sent, named(&req)
	return rows, nil
}

// Count is Client.Count in this session.
func (s *Session) Count(ctx context.Context, c *Client, ref string, req v1.ScanRequest) (v1.CountReply, error) {
	sent, err := s.join(ctx, c, ref, &req)
	if err != nil {
		return v1.CountReply{}, err
	}
	reported := !named(&req)
	reply, err := c.count(ctx, ref, req)
	if err != nil {
		s.failed(err, sent)
		return reply, err
	}
	s.ended(reply.Session, sent, reported)
	return reply, nil
}

// of returns what was seen of the bucket that a ref may belong to; of all buckets if bucket is "".
func (s *Session) of(bucket string) (all []scanport.Seen) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, seen := range s.seen {
		if !names(bucket, name) {
			continue
		}
		if owed, ok := s.owed[name]; ok {
			all = append(all, owed)
		}
		all = append(all, seen)
	}
	return all
}

// names reports whether an index with this keyspace in its name may be on a bucket; "" means that the index is named
// by its id.
func names(keyspace, bucket string) bool {
	return keyspace == "" || keyspace == bucket || strings.HasPrefix(keyspace, bucket) && keyspace[len(bucket)] == '.'
}

// keyspaceOf returns the keyspace part of a ref; "" for an id.
func keyspaceOf(ref string) string {
	keyspace, _, named := strings.Cut(ref, "/")
	text, err := url.PathUnescape(keyspace)
	if !named || err != nil {
		return "" // any bucket
	}
	return text
}

// joined joins two lists of tokens.
func joined(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "," + b
}

// join makes a request show what was seen and written. It returns the writes that the request has to show.
func (s *Session) join(ctx context.Context, c *Client, ref string, req *v1.ScanRequest) (sent map[string]writes,
	err error) {
	if s == nil {
		return nil, nil //nolint:nilnil // no writes
	}
	keyspace := keyspaceOf(ref)
	if keyspace == "" && s.buckets() > 1 { // the state of all buckets may be too large for a request
		if keyspace, err = c.bucketOf(ctx, ref); err != nil {
			return nil, err
		}
	}
	if err := s.room(keyspace); err != nil {
		return nil, err
	}
	req.Session = joined(req.Session, scanport.Tokens(s.of(keyspace)))
	switch {
	case named(req), len(req.Tokens) > 0: // the caller determines what it shows
		return nil, nil //nolint:nilnil // no writes
	case req.Consistency == consistencySession: // everything that KV has
		return s.pending(keyspace), nil
	}
	sent = s.pending(keyspace)
	if len(sent) == 0 {
		return nil, nil //nolint:nilnil // no writes
	}
	req.Consistency = consistencyAtPlus
	vectors := map[string]map[string][]json.RawMessage{}
	maps.Copy(vectors, req.ScanVectors)
	for bucket, tokens := range sent {
		vectors[bucket] = tokens.onto(vectors[bucket])
	}
	req.ScanVectors = vectors
	return sent, nil
}

// named reports whether a request names the timestamp to show: its answer does not report losses.
func named(req *v1.ScanRequest) bool { return req.Timestamp != "" || req.Cursor != "" && !req.Newer }

// buckets returns the number of buckets of which something was seen or written.
func (s *Session) buckets() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.seen)
	for name := range s.wrote {
		if _, ok := s.seen[name]; !ok {
			n++
		}
	}
	return n
}

// room refuses a scan of a bucket whose state the session could not keep. It does not count concurrent scans, whose
// number the caller bounds.
func (s *Session) room(keyspace string) error {
	if keyspace == "" || len(s.of(keyspace)) > 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	bound := scanport.Seen{Bucket: keyspace, Epoch: math.MaxUint64, At: timestamp.Ref{Generation: math.MaxUint64,
		RollbackID: math.MaxUint64, Number: math.MaxUint64}} // an upper bound for the size of its token
	if len(s.seen)+len(s.owed) < scanport.MaxSeen && s.size+tokenSize(&bound) <= scanport.MaxSession {
		return nil
	}
	return fmt.Errorf("%w: it holds the states of %d buckets; scan %s in another Session", ErrSessionFull, len(s.seen),
		keyspace)
}

// The consistencies that a session handles.
const (
	consistencySession = "session"
	consistencyAtPlus  = "at_plus"
)

// onto returns a scan vector with the tokens added.
func (w writes) onto(vector map[string][]json.RawMessage) map[string][]json.RawMessage {
	vector = maps.Clone(vector)
	if vector == nil {
		vector = map[string][]json.RawMessage{}
	}
	for at, seqno := range w {
		name := strconv.Itoa(int(at.vbucket))
		vector[name] = append(slices.Clip(vector[name]), strconv.AppendUint(nil, seqno, 10),
			[]byte(`"`+formatUint(at.vbuuid)+`"`))
	}
	return vector
}

// pending returns a copy of the writes to a bucket that no answer has shown yet.
func (s *Session) pending(keyspace string) map[string]writes {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all map[string]writes
	for bucket, tokens := range s.wrote {
		if names(keyspace, bucket) && len(tokens) > 0 {
			if all == nil {
				all = map[string]writes{}
			}
			all[bucket] = maps.Clone(tokens)
		}
	}
	return all
}

// ended records the token at the end of an answer. The writes sent with the request are part of what was seen now.
// reported: the answer reported what the session has lost.
func (s *Session) ended(token string, sent map[string]writes, reported bool) {
	if s == nil {
		return
	}
	all, err := scanport.ParseSession(token)
	if err != nil {
		return // from a server without sessions
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range all {
		seen := &all[i]
		s.note(seen)
		s.forget(seen.Bucket, sent[seen.Bucket])
		if now := s.seen[seen.Bucket]; reported && !mayLose(&now, seen) {
			s.settle(seen.Bucket)
		}
	}
}

// cut records what was seen of an answer that was not read to its end, where losses would have been reported.
func (s *Session) cut(seen *scanport.Seen) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, ok := s.seen[seen.Bucket]
	if _, owes := s.owed[seen.Bucket]; ok && !owes && mayLose(&old, seen) {
		if len(s.seen)+len(s.owed) >= scanport.MaxSeen || s.size+tokenSize(&old) > scanport.MaxSession {
			return // the next request then sends only the earlier state, and its answer reports the loss
		}
		if s.owed == nil {
			s.owed = map[string]scanport.Seen{}
		}
		s.owed[seen.Bucket] = old
		s.size += tokenSize(&old)
	}
	s.note(seen)
}

// settle removes what is owed of a bucket. The caller holds the lock.
func (s *Session) settle(bucket string) {
	if owed, ok := s.owed[bucket]; ok {
		delete(s.owed, bucket)
		s.size -= tokenSize(&owed)
	}
}

// mayLose reports whether something may have been lost between two states of a bucket: by a rollback, or because the
// bucket or the cluster was created anew.
func mayLose(a, b *scanport.Seen) bool {
	return a.Cluster != b.Cluster || a.Epoch != b.Epoch || a.At.Generation != b.At.Generation ||
		a.At.RollbackID != b.At.RollbackID
}

// note records a state unless it is older than the one known: answers may arrive out of order. The caller holds the
// lock.
func (s *Session) note(seen *scanport.Seen) {
	if s.seen == nil {
		s.seen = map[string]scanport.Seen{}
	}
	old, ok := s.seen[seen.Bucket]
	if !ok || old.Cluster != seen.Cluster || old.Compare(seen) < 0 {
		s.drop(seen.Bucket)
		s.seen[seen.Bucket] = *seen
		s.size += tokenSize(seen)
	}
}

// drop removes the state of a bucket. The caller holds the lock.
func (s *Session) drop(bucket string) {
	if old, ok := s.seen[bucket]; ok {
		delete(s.seen, bucket)
		s.size -= tokenSize(&old)
	}
}

func tokenSize(seen *scanport.Seen) int { return len(seen.Token()) + 1 }

// forget removes writes, unless newer ones have replaced them. The caller holds the lock.
func (s *Session) forget(bucket string, sent writes) {
	for at, seqno := range sent {
		if s.wrote[bucket][at] == seqno {
			delete(s.wrote[bucket], at)
		}
	}
	if len(s.wrote[bucket]) == 0 {
		delete(s.wrote, bucket)
	}
}

// failed removes the writes that an error names as lost, because of a failover or because the bucket no longer has
// their vbuckets: the caller gets that error once. The other writes still have to be shown.
func (s *Session) failed(err error, sent map[string]writes) {
	var p *wire.Problem
	if s == nil || !errors.As(err, &p) || len(p.Lost) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for bucket, all := range sent {
		lost := writes{}
		for _, t := range p.Lost {
			at := branch{t.VBucket, t.VBUUID}
			if seqno, ok := all[at]; ok && seqno == t.Seqno {
				lost[at] = seqno
			}
		}
		s.forget(bucket, lost)
	}
}
