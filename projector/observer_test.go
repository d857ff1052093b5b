package projector

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"

	"tidemark/collate"
	"tidemark/index"
	"tidemark/indexer/transport"
	"tidemark/keyversion"
	"tidemark/timestamp"
)

// The observer takes the place of an indexer: its endpoint receives the maintenance streams of every projector, and
// it keeps everything, by stream. It shares no code with the indexer: its requirements on a stream are written here
// independently.

// observer collects what has arrived. Errors are collected, because connections deliver in their own goroutines.
type observer struct {
	mu       sync.Mutex
	streams  map[streamKey]*observed // the newest of each projector and vbucket
	all      [][]*observed           // by vbucket, in the order of their BEGIN
	accepted []*observed             // by vbucket: the stream of the highest incarnation; nil: none yet
	at       []holding               // by vbucket
	rows     []map[string]row        // by vbucket: the replica
	wrong    []string
	events   int
}

type streamKey struct {
	projector index.ProjectorID
	vb        uint16
}

// observed is one stream of a vbucket: a BEGIN and what followed it.
type observed struct {
	projector index.ProjectorID
	inc       index.Incarnation
	begin     keyversion.Begin
	vbuuid    uint64
	data      []seen
	last      uint64 // events at or below this seqno are errors
	complete  uint64 // highest SYNC
	ended     bool
	endedAt   uint64
}

// seen is one version of a document as received.
type seen struct {
	key     string
	seqno   uint64
	window  timestamp.Window
	value   string // of the index's key; "" for none
	deleted bool
}

// row is the newest version that the replica has of a document.
type row struct {
	seqno uint64
	value string
}

// holding is where the replica stands in a vbucket.
type holding struct {
	hw, reach uint64
	log       timestamp.FailoverLog
	revision  timestamp.MapRevision
}

func newObserver(vbs int) *observer {
	o := &observer{streams: map[streamKey]*observed{}, all: make([][]*observed, vbs), accepted: make([]*observed, vbs),
		at:   make([]holding, vbs),
		rows: make([]map[string]row, vbs)}
	for v := range o.rows {
		o.rows[v] = map[string]row{}
	}
	return o
}

// accept is the data port's: a sink for each connection.
func (o *observer) accept(_ context.Context, h keyversion.Hello) (transport.Sink, error) {
	return observerSink{o, h.Projector}, nil
}

type observerSink struct {
	o *observer
	p index.ProjectorID
}

// Receive implements transport.Sink.
func (s observerSink) Receive(_ context.Context, b *keyversion.Batch, release func()) error {
	defer release()
	s.o.mu.Lock()
	defer s.o.mu.Unlock()
	for i := range b.Events {
		ev := b.Events[i]
		ev.Statements, ev.Rest = ev.Explicit(nil), nil
		s.o.take(s.p, &ev)
	}
	return nil
}

// Closed implements transport.Sink.
func (observerSink) Closed(error) {}

func (o *observer) fail(format string, args ...any) {
	if len(o.wrong) < 20 {
		o.wrong = append(o.wrong, fmt.Sprintf(format, args...))
	}
}

// take checks an event against its stream.
func (o *observer) take(p index.ProjectorID, ev *keyversion.Event) {
	o.events++
	key := streamKey{p, ev.VBucket}
	s := o.streams[key]
	name := fmt.Sprintf("%s, vbucket %d, %v: %s@%d", p, ev.VBucket, ev.Incarnation, ev.Kind, ev.Seqno)
	if ev.Kind == keyversion.StreamBegin {
		o.begin(key, s, ev, name)
		return
	}
	switch {
	case s == nil:
		o.fail("%s without a BEGIN", name)
		return
	case ev.Incarnation != s.inc:
		o.fail("%s belongs to another incarnation than the newest BEGIN, %v", name, s.inc)
		return
	case s.ended:
		o.fail("%s after the END", name)
		return
	}
	switch {
	case ev.Kind.Data():
		o.data(s, ev, name)
	case ev.Kind == keyversion.Sync:
		if ev.VBUUID != s.vbuuid {
			o.fail("%s on branch %d, the stream is on %d", name, ev.VBUUID, s.vbuuid)
		}
		s.complete, s.last = max(s.complete, ev.Seqno), max(s.last, ev.Seqno)
		o.hold(s, ev.VBucket, s.last, 0)
	case ev.Kind == keyversion.StreamEnd:
		if ev.Seqno < s.last {
			o.fail("%s, but the stream stood at %d", name, s.last)
		}
		s.ended, s.endedAt = true, ev.Seqno
	case ev.Kind == keyversion.DropData:
		o.fail("%s: nothing may be dropped for an endpoint that takes everything", name)
	}
}

func (o *observer) begin(key streamKey, old *observed, ev *keyversion.Event, name string) {
	if old != nil {
		switch order := ev.Incarnation.Compare(old.inc); {
		case order < 0:
			o.fail("%s after a BEGIN of %v", name, old.inc)
			return
		case order == 0: // repeated after a reconnection: the stream continues from there
			if ev.Begin.Start > old.last {
				o.fail("%s leaves a gap, the stream stood at %d", name, old.last)
			}
			i := slices.IndexFunc(old.data, func(d seen) bool { return d.seqno > ev.Begin.Start })
			if i >= 0 {
				old.data = old.data[:i]
			}
			old.last = ev.Begin.Start
			return
		}
	}
	s := &observed{projector: key.projector, inc: ev.Incarnation, begin: *ev.Begin, vbuuid: ev.VBUUID,
		last: ev.Begin.Start, complete: ev.Begin.Start}
	s.begin.Log, s.begin.Copies = ev.Begin.Log.Clone(), nil
	if s.vbuuid != s.begin.Log.Newest() {
		o.fail("%s on branch %d, its log says %d", name, s.vbuuid, s.begin.Log.Newest())
	}
	o.streams[key] = s
	o.all[key.vb] = append(o.all[key.vb], s)
	now := o.accepted[key.vb]
	if now != nil && now.inc == s.inc {
		o.fail("%s: projector %s has begun this incarnation too", name, now.projector)
	}
	if now != nil && s.inc.Compare(now.inc) <= 0 {
		return // an indexer would refuse it
	}
	h := &o.at[key.vb]
	if s.begin.Start > h.hw {
		o.fail("%s starts above what is held, %d", name, h.hw)
	}
	if h.log != nil && max(h.hw, h.reach) > h.log.Common(s.begin.Log) {
		o.fail("%s is on another branch than what is held: %d, %d of %v; its log is %v", name, h.hw, h.reach, h.log,
			s.begin.Log)
	}
	h.log, h.revision = s.begin.Log, s.begin.Revision
	o.accepted[key.vb] = s
}

func (o *observer) data(s *observed, ev *keyversion.Event, name string) {
	d := seen{key: string(ev.DocID), seqno: ev.Seqno, window: ev.Window, deleted: ev.Kind == keyversion.Delete}
	if ev.Seqno <= s.last {
		o.fail("%s, but the stream stood at %d", name, s.last)
	}
	if ev.Seqno > ev.Window.End || ev.Window.Start > s.last {
		o.fail("%s lies outside its window %v, the stream stood at %d", name, ev.Window, s.last)
	}
	if ev.VBUUID != s.vbuuid {
		o.fail("%s on branch %d, the stream is on %d", name, ev.VBUUID, s.vbuuid)
	}
	if len(ev.Statements) != 1 || len(ev.Statements[0].Keys) > 1 {
		o.fail("%s has %d statements, want one with at most a key", name, len(ev.Statements))
		return
	}
	for _, k := range ev.Statements[0].Keys {
		text, err := collate.DecodeComposite(nil, bytes.Clone(k), []bool{false})
		if err != nil {
			o.fail("%s: %v", name, err)
		}
		d.value = string(text)
	}
	s.data = append(s.data, d)
	s.last = ev.Seqno
	if o.hold(s, ev.VBucket, ev.Seqno, ev.Window.End) {
		if rows := o.rows[ev.VBucket]; rows[d.key].seqno < d.seqno {
			rows[d.key] = row{d.seqno, d.value}
		}
	}
}

// hold moves the replica's position if the stream is the accepted one.
func (o *observer) hold(s *observed, vb uint16, seqno, reach uint64) bool {
	if o.accepted[vb] != s {
		return false
	}
	h := &o.at[vb]
	h.hw, h.reach = max(h.hw, seqno), max(h.reach, reach)
	return true
}

// rollBack resets a vbucket whose position is not on KV's branch.
func (o *observer) rollBack(vb uint16) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.at[vb] = holding{}
	o.rows[vb] = map[string]row{}
}

// written is an acknowledged write.
type written struct {
	vb     uint16
	vbuuid uint64
	seqno  uint64
	key    string
	value  string // as the index sees it; "" for a deletion
}

// check compares every stream with the acknowledged writes: each write on the stream's branch, after its start and at
// or below its complete seqno, must have arrived as written, or a later version of the document that may have
// replaced it by de-duplication. An event with a write's seqno must be that write.
func (o *observer) check(t *testing.T, history []written) {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	byVB := make([][]written, len(o.all))
	for _, w := range history {
		byVB[w.vb] = append(byVB[w.vb], w)
	}
	streams, checked, hidden := 0, 0, 0
	for vb, list := range o.all {
		for _, s := range list {
			streams++
			c, h := o.checkStream(uint16(vb), s, byVB[vb])
			checked, hidden = checked+c, hidden+h
		}
	}
	t.Logf("%d streams, %d events; %d writes checked, of which %d were de-duplicated away", streams, o.events, checked,
		hidden)
	for _, w := range o.wrong {
		t.Error(w)
	}
	if checked == 0 {
		t.Error("no write was checked")
	}
}

func (o *observer) checkStream(vb uint16, s *observed, writes []written) (checked, hidden int) {
	came := make(map[uint64]int, len(s.data))
	byKey := map[string][]int{} // ascending
	for i, d := range s.data {
		came[d.seqno] = i
		byKey[d.key] = append(byKey[d.key], i)
	}
	for _, w := range writes {
		if w.seqno > s.begin.Log.ValidUpTo(w.vbuuid) {
			continue // of another branch
		}
		name := fmt.Sprintf("%s, vbucket %d, %v (from %d, complete up to %d, ended %v at %d): %s@%d", s.projector, vb, s.inc,
			s.begin.Start, s.complete, s.ended, s.endedAt, w.key, w.seqno)
		if i, ok := came[w.seqno]; ok {
			if d := s.data[i]; d.key != w.key || d.value != w.value || d.deleted != (w.value == "") {
				o.fail("%s was written as %q and came as %+v", name, w.value, d)
			}
			checked++
			continue
		}
		if w.seqno <= s.begin.Start || w.seqno > s.complete {
			continue
		}
		checked++
		i := slices.IndexFunc(byKey[w.key], func(i int) bool { return s.data[i].seqno > w.seqno })
		if i < 0 {
			o.fail("%s is missing", name)
			continue
		}
		hidden++
		if d := s.data[byKey[w.key][i]]; d.window.Start >= w.seqno || d.seqno > s.complete && w.seqno <= s.complete {
			o.fail("%s is missing; the next version of it, %d, is of a later window %v", name, d.seqno, d.window)
		}
	}
	return checked, hidden
}

// compare compares the replica with what a plain reader finds in KV.
func (o *observer) compare(vb uint16, kv map[string]row) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	mine := o.rows[vb]
	for _, key := range slices.Sorted(maps.Keys(kv)) {
		if mine[key] != kv[key] {
			return fmt.Sprintf("vbucket %d: %s is %+v in KV, %+v here", vb, key, kv[key], mine[key])
		}
	}
	for key, r := range mine {
		if _, ok := kv[key]; !ok {
			return fmt.Sprintf("vbucket %d: %s is %+v here and not in KV's history", vb, key, r)
		}
	}
	return ""
}
