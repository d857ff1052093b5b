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
	active := make(map[uint16]bool, len(highs))
	for _, h := range highs {
		active[h.VBucket] = true
	}
	revoked := 0
	for _, s := range streams {
		if !active[s.vb] && !s.revoked.Swap(true) {
			revoked++
		}
	}
	if revoked > 0 {
		b.p.log.Warn("vbuckets have left the KV node; their streams are ended", "bucket", b.name, "vbuckets", revoked)
		c.kick()
	}
}
