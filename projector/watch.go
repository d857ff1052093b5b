package projector

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"tidemark/kv/mcbp"
	"tidemark/projector/core"
	"tidemark/projector/feed"
	"tidemark/wire"
)

// Intervals and counts of the watch's looks at the KV node.
const (
	lookInterval = 500 * time.Millisecond
	// lookTime is how long the KV node may take to answer a look before it counts as silent. It doubles, up to
	// kvTimeout, while looks fail, and halves when they succeed, so that a node is not taken for silent when everything
	// is slow.
	lookTime = time.Second
	// silentEvery is how many looks pass between two that query streams without events.
	silentEvery = 6
	// The map is read at every look while the node's vbuckets change and for mapAfter looks afterwards, then at every
	// mapEvery-th.
	mapAfter, mapEvery = 20, 10
	// lookSpacing is the time between the news of another map and the look.
	lookSpacing = 50 * time.Millisecond
)

// sight is the watch's state. Other goroutines see only bucket.hosted.
type sight struct {
	looks, changed int // number of looks, and the newest one that saw a change
	timeout        time.Duration
	silence        turns // for the log
}

// markGone marks in each side stream of a bucket those of its vbuckets that the KV node did not host at a look that
// began at began.
func (p *Projector) markGone(bucket string, began time.Time, active map[uint16]uint64) {
	for _, s := range p.sides.all(func(key core.SideKey) bool { return key.Bucket == bucket }) {
		if since := s.runs.Load(); since == nil || !began.After(*since) {
			continue // it may have queried KV after KV answered this look
		}
		var gone []uint16
		for _, vb := range s.want.Restart.VBuckets {
			if _, hosted := active[vb]; !hosted {
				gone = append(gone, vb)
			}
		}
		s.gone.put(gone)
	}
}

// watch polls the KV node regularly, for three things that no event announces. Some engines send nothing on the stream
// when another node has taken a vbucket over; the stream would stay silent forever. A vbucket that moves to this node
// may still be streamed from another node, which hangs: the coordinator needs to know which vbuckets the node has, and
// under which map. And when the node does not answer, only the watch continues its queries, and other callers fail at
// once until it answers again.
func (b *bucket) watch() {
	tick := time.NewTicker(cmp.Or(b.p.cfg.lookEvery, lookInterval))
	defer tick.Stop()
	source, release := b.p.holdMaps(b.name)
	defer release()
	if source != nil {
		var stream sync.WaitGroup
		stream.Go(func() { source.Run(b.ctx) })
		defer stream.Wait()
	}
	for {
		var changed <-chan struct{}
		if source != nil {
			changed = source.Changed()
		}
		if b.sight.looks == 0 { // what the manager showed before the watch began is no news
			changed = nil
		}
		select {
		case <-b.ctx.Done():
			return
		case <-tick.C:
		case <-changed:
			b.sight.changed = b.sight.looks // so that the map is read
			b.rest(lookSpacing)             // maps may follow each other quickly
		}
		b.sight.looks++
		b.look(b.sight.looks%silentEvery == 0)
	}
}

// rest waits, unless the bucket is closed.
func (b *bucket) rest(d time.Duration) {
	select {
	case <-time.After(d):
	case <-b.ctx.Done():
	}
}

// looksAtOnce bounds the silent streams that KV is queried about in one look.
const looksAtOnce = 64

// look ends the streams of vbuckets that KV does not host any more, and those that KV has dropped. A vbucket may have
// left and come back since the last look: then KV hosts it, but the earlier stream is gone. So if a stream has
// delivered nothing since the last look although KV's high seqno is different, KV is queried whether it still has the
// stream. It usually does: the stream may wait for an indexer, or for its data to be read from disk.
func (b *bucket) look(silentToo bool) {
	b.mu.Lock()
	c := b.conn
	b.mu.Unlock()
	var streams []*stream
	if c != nil {
		streams = c.all() // before KV is queried: the answer does not cover streams that begin later
	}
	stood := make([]uint64, len(streams)) // read before KV is queried: KV's seqno on this branch is not lower
	for i, s := range streams {
		stood[i] = s.seqno.Load()
	}
	b.sight.timeout = max(b.sight.timeout, lookTime)
	began := time.Now()
	ctx, cancel := context.WithTimeout(b.ctx, b.sight.timeout)
	defer cancel()
	highs, err := b.sees(ctx)
	b.judge(ctx, err)
	if err != nil {
		return // the connection with the streams detects failures by itself
	}
	active := make(map[uint16]uint64, len(highs))
	for _, h := range highs {
		active[h.VBucket] = h.Seqno
	}
	b.p.markGone(b.name, began, active)
	left, looks := 0, 0
	for i, s := range streams {
		high, hosted := active[s.VBucket()]
		if silentToo {
			silent := s.looked == stood[i]+1 && high != stood[i]
			s.looked = stood[i] + 1
			if hosted && silent && looks < looksAtOnce {
				looks++
				hosted = c.has(ctx, s)
			}
		}
		if !hosted && !s.revoked.Swap(true) {
			left++
		}
	}
	if left > 0 {
		b.p.log.Warn("vbuckets have left the KV node, or were away for a time; ending their streams", "bucket", b.name,
			"vbuckets", left)
		c.kick()
	}
}

// judge records whether the KV node answers.
func (b *bucket) judge(ctx context.Context, err error) {
	if b.ctx.Err() == nil {
		b.p.queried(b.name, err)
	}
	if b.ctx.Err() != nil {
		return
	}
	silent, waited := err != nil && ctx.Err() != nil, b.sight.timeout
	b.control.silent.Store(silent)
	if silent {
		b.sight.timeout = min(2*b.sight.timeout, kvTimeout)
	} else {
		b.sight.timeout = max(b.sight.timeout/2, lookTime)
	}
	switch n, news := b.sight.silence.note(silent, time.Now()); {
	case !news:
	case silent:
		b.p.log.Warn("KV node does not answer; requests fail at once until it does", "bucket", b.name, "kv", b.p.cfg.KV,
			"waited", waited, "turns", n)
	default:
		b.p.log.Info("KV node answers again", "bucket", b.name, "kv", b.p.cfg.KV, "error", err, "turns", n)
	}
}

// sees queries the KV node for its vbuckets and high seqnos, and records news for the coordinator.
func (b *bucket) sees(ctx context.Context) ([]mcbp.VBucketSeqno, error) {
	conn, err := b.control.open(ctx)
	if err != nil {
		return nil, err
	}
	// The map is read before the seqnos, so that a vbucket is never reported under a newer map than the one that brought
	// it here.
	now, ours, err := b.mapAt(ctx, conn)
	if err != nil {
		return nil, err
	}
	highs, err := conn.HighSeqnos(ctx)
	if err != nil {
		return nil, err
	}
	for _, h := range highs {
		if b.p.cfg.Share.Has(h.VBucket) && ours(h.VBucket) {
			now.VBuckets = append(now.VBuckets, h.VBucket)
		}
	}
	slices.Sort(now.VBuckets)
	before := b.hosted.Load()
	moved := before == nil || !slices.Equal(before.VBuckets, now.VBuckets)
	if moved {
		b.sight.changed = b.sight.looks
	}
	if moved || before.Revision != now.Revision || before.Node != now.Node {
		b.hosted.Store(now)
		b.p.notify()
	}
	return highs, nil
}

// mapAt returns the node's map revision; while nothing changes, the last one read. A map that the node's manager
// provided instead may be ahead of the node: then ours limits the vbuckets to those that this map assigns to the
// node.
func (b *bucket) mapAt(ctx context.Context, conn feed.Feed) (now *wire.Hosted, ours func(vb uint16) bool, err error) {
	all := func(uint16) bool { return true }
	if was := b.hosted.Load(); was != nil && b.sight.looks-b.sight.changed > mapAfter && b.sight.looks%mapEvery != 0 &&
		!b.p.maps.instead.Load() {
		return &wire.Hosted{Node: was.Node, Revision: was.Revision}, all, nil
	}
	config, err := conn.ClusterConfig(ctx)
	if err != nil {
		return nil, nil, err
	}
	b.p.saw(config, conn.Addr())
	ours = all
	if this := config.ThisNode(); b.p.maps.instead.Load() && this >= 0 {
		ours = func(vb uint16) bool { return config.Owner(vb) == this }
	}
	return &wire.Hosted{Node: nodeOf(config, conn.Addr()), Revision: revisionOf(config)}, ours, nil
}

// nodeOf returns a name for the KV node on which two projectors at one node agree, whatever address each dials: its
// address in the map, or else the dialled address. A node that does not know its own name, such as one that is alone
// in its cluster, is named by its port alone.
func nodeOf(config *mcbp.ClusterConfig, dialled string) string {
	if n := config.ThisNode(); n >= 0 {
		if addr, err := config.KVAddr(n, "", false); err == nil {
			return addr
		}
	}
	return dialled
}

// has reports whether KV still has a stream. If KV cannot be queried, it returns true.
func (c *connection) has(ctx context.Context, s *stream) bool {
	gate := c.b.gates[s.VBucket()]
	select {
	case gate <- struct{}{}:
		defer gate.unlock()
	default:
		return true // it is being opened or closed
	}
	c.mu.Lock()
	newest := c.newest[s.VBucket()]
	c.mu.Unlock()
	if newest != s || !s.atKV.Load() {
		return true // already being replaced or closed
	}
	there, err := c.feed.HasStream(ctx, s.VBucket())
	return there || err != nil
}
