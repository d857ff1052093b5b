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

// Times and numbers of looks at what the KV node has.
const (
	lookInterval = 500 * time.Millisecond
	// lookPatience is how long the KV node may take to answer a look before it counts as silent; it doubles, up to
	// kvTimeout, while looks fail, and halves when they succeed: where everything is slow, the node is heard all the same.
	lookPatience = time.Second
	// silentEvery is how many looks pass between two at which streams that bring nothing are asked for.
	silentEvery = 6
	// The map is read while what the node has changes, for mapAfter looks beyond, and else at every mapEvery-th.
	mapAfter, mapEvery = 20, 10
	// lookSpacing is between the news of another map and the look.
	lookSpacing = 50 * time.Millisecond
)

// sight is what the looks at the KV node have shown. It belongs to the watch, but for what it hands over in
// bucket.hosted.
type sight struct {
	looks, changed int // how many, and the newest one that saw a change
	patience       time.Duration
	silence        turns // of the log
}

// tellSides tells the side streams of a bucket which of their vbuckets the KV node does not have, at a look that began
// then.
func (p *Projector) tellSides(bucket string, began time.Time, active map[uint16]uint64) {
	for _, s := range p.sides.all(func(key core.SideKey) bool { return key.Bucket == bucket }) {
		if since := s.runs.Load(); since == nil || !began.After(*since) {
			continue // it may have asked KV after KV had answered here
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

// watch looks at the KV node, for three things that nobody says. Engines are known to say nothing on the stream when a
// vbucket was taken over by another node; it would just bring nothing more, for ever. A vbucket that comes to this node
// may still be streamed from another one that hangs: the coordinator is told what the node has, and under which map.
// And a node that does not answer is not waited for by anybody who has a question: it is asked here alone, until it
// answers again.
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
		if b.sight.looks == 0 { // what the manager has said before the watch began is no news
			changed = nil
		}
		select {
		case <-b.ctx.Done():
			return
		case <-tick.C:
		case <-changed:
			b.sight.changed = b.sight.looks // the map is read
			b.rest(lookSpacing)             // several come one after the other
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

// looksAtOnce is how many silent streams KV is asked about at a time.
const looksAtOnce = 64

// look ends the streams of vbuckets that KV does not host any more, and those that KV does not have any more. A
// vbucket may have left and come back since the last look: then KV hosts it, and has nothing for the stream of before.
// So a stream that has brought nothing since the last look, though KV is at another seqno, is asked for. It may as well
// wait for an indexer, or for its turn to be read from disk.
func (b *bucket) look(silentToo bool) {
	b.mu.Lock()
	c := b.conn
	b.mu.Unlock()
	var streams []*stream
	if c != nil {
		streams = c.all() // before KV is asked: one that begins meanwhile is none of the answer's business
	}
	stood := make([]uint64, len(streams)) // before KV is asked, too: it is never behind that on the stream's branch
	for i, s := range streams {
		stood[i] = s.seqno.Load()
	}
	b.sight.patience = max(b.sight.patience, lookPatience)
	began := time.Now()
	ctx, cancel := context.WithTimeout(b.ctx, b.sight.patience)
	defer cancel()
	highs, err := b.sees(ctx)
	b.judge(ctx, err)
	if err != nil {
		return // the connection with the streams has its own way to notice
	}
	active := make(map[uint16]uint64, len(highs))
	for _, h := range highs {
		active[h.VBucket] = h.Seqno
	}
	b.p.tellSides(b.name, began, active)
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
		b.p.log.Warn("vbuckets have left the KV node, or were away for a time; their streams are ended", "bucket", b.name,
			"vbuckets", left)
		c.kick()
	}
}

// judge notes whether the KV node answers.
func (b *bucket) judge(ctx context.Context, err error) {
	if b.ctx.Err() == nil {
		b.p.asked(b.name, err)
	}
	if b.ctx.Err() != nil {
		return
	}
	silent, waited := err != nil && ctx.Err() != nil, b.sight.patience
	b.control.silent.Store(silent)
	if silent {
		b.sight.patience = min(2*b.sight.patience, kvTimeout)
	} else {
		b.sight.patience = max(b.sight.patience/2, lookPatience)
	}
	switch n, say := b.sight.silence.note(silent, time.Now()); {
	case !say:
	case silent:
		b.p.log.Warn("the KV node does not answer; nobody waits for it until it does", "bucket", b.name, "kv", b.p.cfg.KV,
			"waited", waited, "turns", n)
	default:
		b.p.log.Info("the KV node answers again", "bucket", b.name, "kv", b.p.cfg.KV, "error", err, "turns", n)
	}
}

// sees asks the KV node what it has, and notes what is news for the coordinator.
func (b *bucket) sees(ctx context.Context) ([]mcbp.VBucketSeqno, error) {
	conn, err := b.control.open(ctx)
	if err != nil {
		return nil, err
	}
	// The map before what it says: a vbucket counts under a map no newer than the one that brought it here.
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

// mapAt returns which map the node has; where nothing moves, as it was. A map that the node's manager has shown in its
// place may be ahead of the node: then only those vbuckets are ours that it gives the node, too.
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

// nodeOf names the KV node in a way that two projectors at one node agree on, by whatever address each dials: by its
// place in the map, or else by the address that was dialled. A node that does not know its own name, as one that is
// alone in its cluster, is named by its port alone.
func nodeOf(config *mcbp.ClusterConfig, dialled string) string {
	if n := config.ThisNode(); n >= 0 {
		if addr, err := config.KVAddr(n, "", false); err == nil {
			return addr
		}
	}
	return dialled
}

// has reports whether KV still has a stream. It does as long as it cannot be asked.
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
		return true // on its way out
	}
	there, err := c.feed.HasStream(ctx, s.VBucket())
	return there || err != nil
}
