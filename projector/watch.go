package projector

import (
	"context"
	"time"
)

// watch ends streams whose vbucket is no longer active at this KV node. Engines are known to say nothing on the stream
// when a vbucket was taken over by another node; it would just bring nothing more, for ever.
func (b *bucket) watch() {
	tick := time.NewTicker(ownershipInterval)
	defer tick.Stop()
	for {
		select {
		case <-b.ctx.Done():
			return
		case <-tick.C:
		}
		b.checkOwnership()
	}
}

// looksAtOnce is how many silent streams KV is asked about at a time.
const looksAtOnce = 64

// checkOwnership ends the streams of vbuckets that KV does not host any more, and those that KV does not have any more. A
// vbucket may have left and come back since the last look: then KV hosts it, and has nothing for the stream of before. So a
// stream that has brought nothing since the last look, though KV is at another seqno, is asked for. It may as well wait for
// an indexer, or for its turn to be read from disk.
func (b *bucket) checkOwnership() {
	b.mu.Lock()
	c := b.conn
	b.mu.Unlock()
	if c == nil {
		return
	}
	streams := c.all() // before KV is asked: one that begins meanwhile is none of the answer's business
	if len(streams) == 0 {
		return
	}
	stood := make([]uint64, len(streams)) // before KV is asked, too: it is never behind that on the stream's branch
	for i, s := range streams {
		stood[i] = s.seqno.Load()
	}
	ctx, cancel := context.WithTimeout(b.ctx, kvTimeout)
	defer cancel()
	conn, err := b.control.get(ctx)
	if err != nil {
		return // the connection with the streams has its own way to notice
	}
	highs, err := conn.HighSeqnos(ctx)
	if err != nil {
		return
	}
	active := make(map[uint16]uint64, len(highs))
	for _, h := range highs {
		active[h.VBucket] = h.Seqno
	}
	left, looks := 0, 0
	for i, s := range streams {
		high, hosted := active[s.vb]
		silent := s.looked == stood[i]+1 && high != stood[i]
		s.looked = stood[i] + 1
		if hosted && silent && looks < looksAtOnce {
			looks++
			hosted = c.has(ctx, s)
		}
		if !hosted && !s.revoked.Swap(true) {
			left++
		}
	}
	if left > 0 {
		b.p.log.Warn("vbuckets have left the KV node, or were away for a time; their streams are ended", "bucket", b.name, "vbuckets", left)
		c.kick()
	}
}

// has tells whether KV still has a stream. It does as long as it cannot be asked.
func (c *connection) has(ctx context.Context, s *stream) bool {
	gate := c.b.gates[s.vb]
	select {
	case gate <- struct{}{}:
		defer gate.unlock()
	default:
		return true // it is being opened or closed
	}
	c.mu.Lock()
	newest := c.newest[s.vb]
	c.mu.Unlock()
	if newest != s || !s.atKV.Load() {
		return true // on its way out
	}
	there, err := c.feed.HasStream(ctx, s.vb)
	return there || err != nil
}
