package projector

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/kv/mcbp"
	"tidemark/projector/feed"
	"tidemark/wire"
)

// Bounds of a sample of documents.
const (
	fieldsTime      = time.Second
	fieldsDocuments = 100              // documents sampled
	fieldsEvents    = 10_000           // events read to find them, including deletions and documents of other collections
	fieldsBytes     = 4 << 20          // bytes of all events
	fieldsStreams   = 8                // vbuckets read
	fieldsLongest   = 64 << 10         // bytes of a document; longer ones are skipped
	fieldsAge       = 10 * time.Second // for how long a result is cached
	fieldsKept      = 16               // keyspaces with a cached result
)

// fields samples documents of a keyspace through streams that end early. Only one sample is taken at a time, so that
// many requests cost KV little.
func (p *Projector) fields(ctx context.Context, req *wire.FieldsRequest) (*wire.FieldsReply, error) {
	if req.Bucket == "" {
		return nil, rpc.Refuse(errcode.BadRequest, "no bucket is given")
	}
	if b := p.bucket(req.Bucket); b != nil && b.control.silent.Load() {
		return nil, kvProblem(req.Bucket, errKVSilent)
	}
	if !p.looks.busy.TryLock() {
		return nil, rpc.Refuse(errcode.Busy, "another request is sampling documents")
	}
	defer p.looks.busy.Unlock()
	if known := p.looks.newest[*req]; known.reply != nil && time.Since(known.at) < fieldsAge {
		return known.reply, nil
	}
	ctx, cancel := context.WithTimeout(ctx, p.looks.timeout)
	defer cancel()
	conf, err := p.feedConfig(req.Bucket, "fields", feed.MinBufferBytes, false)
	if err != nil {
		return nil, kvProblem(req.Bucket, err)
	}
	conn, err := p.dialNode(ctx, conf)
	if err != nil {
		return nil, kvProblem(req.Bucket, err)
	}
	defer func() { _ = conn.Close() }()
	seen := &fieldCounts{all: map[string]*wire.FieldCount{}}
	err = look(ctx, conn, req, seen)
	if err != nil && seen.documents == 0 {
		return nil, kvProblem(req.Bucket, err)
	}
	r := seen.reply()
	if err == nil {
		p.looks.keep(*req, r)
	}
	return r, nil
}

// looks guards samples of documents: one at a time. Results are cached for fieldsAge, so that a hundred indexes cost
// KV no more than one.
type looks struct {
	timeout time.Duration // fieldsTime except in tests
	busy    sync.Mutex    // guards newest
	newest  map[wire.FieldsRequest]lookedAt
}

type lookedAt struct {
	at    time.Time
	reply *wire.FieldsReply
}

// keep caches a sample, unless the keyspace was empty: documents may be about to arrive there.
func (l *looks) keep(of wire.FieldsRequest, r *wire.FieldsReply) {
	if r.Documents == 0 && r.Whole {
		return
	}
	if len(l.newest) >= fieldsKept || l.newest == nil {
		l.newest = map[wire.FieldsRequest]lookedAt{}
	}
	l.newest[of] = lookedAt{at: time.Now(), reply: r}
}

// look reads documents until there are enough, none are left, or ctx ends.
func look(ctx context.Context, conn feed.Feed, req *wire.FieldsRequest, seen *fieldCounts) error {
	collection, err := collectionID(ctx, conn, req)
	if err != nil {
		return err
	}
	seqnos, err := conn.HighSeqnos(ctx)
	if err != nil {
		return err
	}
	slices.SortFunc(seqnos, func(a, b mcbp.VBucketSeqno) int {
		return cmp.Or(cmp.Compare(b.Seqno, a.Seqno), cmp.Compare(a.VBucket, b.VBucket))
	})
	var reqs []feed.StreamRequest
	seen.whole = len(seqnos) <= fieldsStreams || seqnos[fieldsStreams].Seqno == 0
	for _, v := range seqnos[:min(len(seqnos), fieldsStreams)] {
		if v.Seqno > 0 {
			reqs = append(reqs, feed.StreamRequest{VBucket: v.VBucket, ID: conn.NewStreamID(), End: v.Seqno})
		}
	}
	open := len(reqs)
	for _, a := range conn.OpenStreams(ctx, reqs) {
		if a.Err != nil {
			open--
			err, seen.whole = a.Err, false
		}
	}
	events, bytes := 0, 0
	for open > 0 && seen.documents < fieldsDocuments && events < fieldsEvents && bytes < fieldsBytes {
		block, err := conn.Next(ctx)
		if err != nil {
			seen.whole = false
			return err
		}
		for i := range block.Events {
			open -= seen.take(&block.Events[i], collection)
		}
		events, bytes = events+len(block.Events), bytes+block.Bytes()
		block.Release()
	}
	seen.whole = seen.whole && open == 0
	return err
}

// collectionID returns a collection's id by its names.
func collectionID(ctx context.Context, conn feed.Feed, req *wire.FieldsRequest) (uint32, error) {
	if req.Scope == "" && req.Collection == "" {
		return 0, nil
	}
	m, err := conn.Manifest(ctx)
	if err != nil {
		return 0, err
	}
	for _, x := range collectionsOf(m).All {
		if x.Scope == req.Scope && x.Name == req.Collection {
			return x.ID, nil
		}
	}
	return 0, fmt.Errorf("there is no collection %s.%s", req.Scope, req.Collection)
}

// fieldCounts counts the documents that have each field.
type fieldCounts struct {
	documents int
	whole     bool // all documents were counted
	all       map[string]*wire.FieldCount
}

// take processes an event, and returns how many streams it ends: 0 or 1.
func (c *fieldCounts) take(e *feed.Event, collection uint32) (ended int) {
	switch {
	case e.Kind == feed.StreamEnd:
		c.whole = c.whole && e.EndReason == mcbp.EndOK
		return 1
	case e.Kind != feed.Mutation || e.Collection != collection:
	case e.Undecodable || len(e.Value) > fieldsLongest || c.documents == fieldsDocuments:
		c.whole = false
	default:
		c.look(e.Value)
	}
	return 0
}

// look counts the fields of a document. Anything but a JSON object is skipped.
func (c *fieldCounts) look(doc []byte) {
	var members map[string]any
	if json.Unmarshal(doc, &members) != nil || members == nil {
		return
	}
	c.documents++
	c.within(nil, members)
}

func (c *fieldCounts) within(path []string, members map[string]any) {
	for _, name := range slices.Sorted(maps.Keys(members)) {
		at := append(slices.Clip(path), name)
		key := fmt.Sprintf("%q", at)
		f := c.all[key]
		if f == nil {
			if len(c.all) >= wire.MaxFieldPaths {
				return
			}
			f = &wire.FieldCount{Path: at}
			c.all[key] = f
		}
		f.Documents++
		if inner, is := members[name].(map[string]any); is && len(at) < wire.MaxFieldDepth {
			c.within(at, inner)
		}
	}
}

func (c *fieldCounts) reply() *wire.FieldsReply {
	r := &wire.FieldsReply{Documents: c.documents, Whole: c.whole, Fields: []wire.FieldCount{}}
	for _, f := range c.all {
		r.Fields = append(r.Fields, *f)
	}
	slices.SortFunc(r.Fields, func(a, b wire.FieldCount) int { return slices.Compare(a.Path, b.Path) })
	return r
}
