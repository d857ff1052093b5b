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

// Session is what somebody has seen and written: what is scanned in it never shows the past of that. A Client has
// one of its own, which its scans and counts are in unless Options say otherwise; a server whose users must not
// wait for what other users have seen has one for each of them:
//
//	rows, err := session.Scan(ctx, c, client.Ref("world", "by_country"), client.ScanRequest{})
//
// Its zero value is a new one. It may be used by several goroutines, and with several clients of one cluster. It
// keeps what was seen of at most 1,024 buckets (64 KiB as text); a scan of a further one fails with ErrSessionFull.
type Session struct {
	mu   sync.Mutex
	seen map[string]scanport.Seen // by bucket
	size int                      // bytes of seen's and owed's tokens, with what separates them
	// owed is what was seen before something of it may have been lost, by bucket: who was told of the state after that
	// was not told so, as the answer was not read to its end. It goes with every question until one is.
	owed  map[string]scanport.Seen
	wrote map[string]writes // by bucket
}

// ErrSessionFull is wrapped when a session would have to keep more in mind than it can. It forgets nothing for that:
// another Session takes what is of other buckets.
var ErrSessionFull = errors.New("the session keeps as much in mind as it can")

// writes are the newest ones of a bucket, by vbucket and branch, that no answer has shown yet.
type writes map[branch]uint64

// branch is one of a vbucket's. A write on another branch says nothing of those before: both have to be shown.
type branch struct {
	vbucket uint16
	vbuuid  uint64
}

// Wrote notes writes to a bucket: scans and counts in the session show them from now on, whatever consistency they
// have, unless they name a timestamp or tokens of their own. Tokens come from the KV client (its mutation tokens).
// One that a failover has undone fails the next scan, once, with the code TOKEN_LOST (Error.Lost has it); with
// consistency session it is passed over. The error wraps ErrSessionFull: of 4,096 writes to a bucket, or to 1,024
// buckets, none has been shown yet, and those beyond are not noted.
func (s *Session) Wrote(bucket string, tokens ...v1.Token) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.wrote[bucket]
	if all == nil {
		if len(s.wrote) >= scanport.MaxSeen {
			return fmt.Errorf("%w: writes to bucket %q, and to %d others that no scan has shown yet", ErrSessionFull,
				bucket, len(s.wrote))
		}
		all = writes{}
	}
	for _, t := range tokens {
		at := branch{t.VBucket, t.VBUUID}
		old, ok := all[at]
		if !ok && len(all) >= scanport.MaxTokens {
			return fmt.Errorf("%w: a write to vbucket %d of bucket %q, and %d others that no scan has shown yet",
				ErrSessionFull, t.VBucket, bucket, len(all))
		}
		all[at] = max(old, t.Seqno)
		if s.wrote == nil {
			s.wrote = map[string]writes{}
		}
		s.wrote[bucket] = all
	}
	return nil
}

// Token is what the session has seen, as text: another one, here or in another process, goes on from there when it is
// given it (Take), and so does a request by REST (session in its body, or the header Tidemark-Session). Writes that no
// answer has shown yet are not in it.
func (s *Session) Token() string {
	return scanport.Tokens(s.of(""))
}

// Take has the session see no past of what another one has seen, whose Token, or ScanEnd.Session, it is. Where that is
// of more buckets than a session keeps in mind the error wraps ErrSessionFull, and nothing was taken.
func (s *Session) Take(token string) error {
	all, err := scanport.ParseSession(token)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	number, size := len(s.seen)+len(s.owed), s.size
	for i := range all {
		if _, ok := s.seen[all[i].Bucket]; !ok { // one that stands there twice counts twice
			number, size = number+1, size+tokenSize(&all[i])
		}
	}
	if number > len(s.seen)+len(s.owed) && (number > scanport.MaxSeen || size > scanport.MaxSession) {
		return fmt.Errorf("%w: what it has seen of %d buckets, and the token of others", ErrSessionFull, len(s.seen))
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

// scan begins a scan of rows, or of groups in their form.
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
	told := !named(&req)
	reply, err := c.count(ctx, ref, req)
	if err != nil {
		s.failed(err, sent)
		return reply, err
	}
	s.ended(reply.Session, sent, told)
	return reply, nil
}

// of returns what was seen of the bucket that a ref may be of; of all when it does not say.
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

// joined is one list of tokens of two.
func joined(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "," + b
}

// join has a request show what was seen and written. It returns the writes that it has to show.
func (s *Session) join(ctx context.Context, c *Client, ref string, req *v1.ScanRequest) (sent map[string]writes,
	err error) {
	if s == nil {
		return nil, nil //nolint:nilnil // no writes
	}
	keyspace := keyspaceOf(ref)
	if keyspace == "" && s.buckets() > 1 { // what is of other buckets may be more than a request takes
		if keyspace, err = c.bucketOf(ctx, ref); err != nil {
			return nil, err
		}
	}
	if err := s.room(keyspace); err != nil {
		return nil, err
	}
	req.Session = joined(req.Session, scanport.Tokens(s.of(keyspace)))
	switch {
	case named(req), len(req.Tokens) > 0: // what it shows the caller says
		return nil, nil //nolint:nilnil // no writes
	case req.Consistency == consistencySession: // all that KV has
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

// named reports whether a request names the timestamp that it wants to see: its answer says nothing of what is lost.
func named(req *v1.ScanRequest) bool { return req.Timestamp != "" || req.Cursor != "" && !req.Newer }

// buckets is of how many buckets something was seen, or written.
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

// room refuses a scan of a bucket that the session could not keep in mind. Those that are under way at the same time
// are all let in: they are no more than the caller has.
func (s *Session) room(keyspace string) error {
	if keyspace == "" || len(s.of(keyspace)) > 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	bound := scanport.Seen{Bucket: keyspace, Epoch: math.MaxUint64, At: timestamp.Ref{Generation: math.MaxUint64,
		RollbackID: math.MaxUint64, Number: math.MaxUint64}} // its token is not longer than this one's
	if len(s.seen)+len(s.owed) < scanport.MaxSeen && s.size+tokenSize(&bound) <= scanport.MaxSession {
		return nil
	}
	return fmt.Errorf("%w, what was seen of %d buckets: scan %s in another Session", ErrSessionFull, len(s.seen),
		keyspace)
}

// The consistencies that a session looks at.
const (
	consistencySession = "session"
	consistencyAtPlus  = "at_plus"
)

// onto adds tokens to a scan vector.
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

// pending copies the writes to a bucket that no answer has shown yet.
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

// ended takes over the token of an answer's end. What it had to show of its bucket is in what was seen now; told: it
// says what of the session is lost.
func (s *Session) ended(token string, sent map[string]writes, told bool) {
	if s == nil {
		return
	}
	all, err := scanport.ParseSession(token)
	if err != nil {
		return // of a server that knows no sessions
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range all {
		seen := &all[i]
		s.note(seen)
		s.forget(seen.Bucket, sent[seen.Bucket])
		if now := s.seen[seen.Bucket]; told && !mayLose(&now, seen) {
			s.settle(seen.Bucket)
		}
	}
}

// cut takes over what was seen of an answer that was not read to its end, where it would say what is lost.
func (s *Session) cut(seen *scanport.Seen) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, ok := s.seen[seen.Bucket]
	if _, owes := s.owed[seen.Bucket]; ok && !owes && mayLose(&old, seen) {
		if len(s.seen)+len(s.owed) >= scanport.MaxSeen || s.size+tokenSize(&old) > scanport.MaxSession {
			return // then the next answer is asked for what was seen before alone, and says what of it is lost
		}
		if s.owed == nil {
			s.owed = map[string]scanport.Seen{}
		}
		s.owed[seen.Bucket] = old
		s.size += tokenSize(&old)
	}
	s.note(seen)
}

// settle lets go of what is owed of a bucket. The lock is held.
func (s *Session) settle(bucket string) {
	if owed, ok := s.owed[bucket]; ok {
		delete(s.owed, bucket)
		s.size -= tokenSize(&owed)
	}
}

// mayLose reports whether between two states of a bucket something may have been lost: by a rollback, or as bucket or
// cluster began anew.
func mayLose(a, b *scanport.Seen) bool {
	return a.Cluster != b.Cluster || a.Epoch != b.Epoch || a.At.Generation != b.At.Generation ||
		a.At.RollbackID != b.At.RollbackID
}

// note takes over what was seen. Answers may come in another order than they were made in. The lock is held.
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

// drop lets go of what was seen of a bucket. The lock is held.
func (s *Session) drop(bucket string) {
	if old, ok := s.seen[bucket]; ok {
		delete(s.seen, bucket)
		s.size -= tokenSize(&old)
	}
}

func tokenSize(seen *scanport.Seen) int { return len(seen.Token()) + 1 }

// forget lets go of writes, unless newer ones have taken their place. The lock is held.
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

// failed lets go of the writes that an error names, since they were lost, or are to vbuckets that the bucket does not
// have any more: the caller is told, once. The others still have to be shown.
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
