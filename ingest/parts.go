package ingest

import "tidemark/keyversion"

// parts are those of an event that have arrived, while the last one has not. They are in no queue, so that no batch has
// some of them, and the stream has not come to their seqno. What ends the stream drops them: the router sends all
// again.
type parts struct {
	seqno   uint64
	entries []Entry
}

// partial tells what to do with a data event: it is whole, or one more part (held), or does not follow the ones before
// (broken: something was lost, which a router never lets happen).
func (p *parts) judge(e *keyversion.Event) (held, broken bool) {
	if n := len(p.entries); int(e.Part) != n || n > 0 && e.Seqno != p.seqno {
		return false, true
	}
	return e.More, false
}

// hold keeps a part.
func (p *parts) hold(e *keyversion.Event, en Entry) {
	p.seqno, p.entries = e.Seqno, append(p.entries, en)
}

// take returns the parts that are held, the last one behind them, as of an epoch.
func (p *parts) take(last Entry, epoch uint32) []Entry {
	all := append(p.entries, last)
	for i := range all {
		all[i].epoch = epoch
	}
	*p = parts{}
	return all
}

// PartBytes is the memory of parts that wait for the rest of their event. It does not count in QueueBytes: who stopped
// taking data because of it would never have the rest.
func (b *Bucket) PartBytes() (n int) {
	for vb := range b.vbs {
		v := &b.vbs[vb]
		n += v.parts.size()
		if v.side != nil {
			n += v.side.parts.size()
		}
	}
	return n
}

func (p *parts) size() (n int) {
	for i := range p.entries {
		n += p.entries[i].size()
	}
	return n
}
