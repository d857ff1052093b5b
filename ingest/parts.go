package ingest

import "tidemark/keyversion"

// parts holds the parts of an event that have arrived before its last one. They are not queued, so that no batch has
// only some of them, and their seqno does not count as received. The end of the stream drops them: the router sends
// all of them again.
type parts struct {
	seqno   uint64
	entries []Entry
}

// judge decides about a data event: it is complete, or one more part (held), or does not follow its predecessors
// (broken: something was lost, which a router never lets happen).
func (p *parts) judge(e *keyversion.Event) (held, broken bool) {
	if n := len(p.entries); int(e.Part) != n || n > 0 && e.Seqno != p.seqno {
		return false, true
	}
	return e.More, false
}

// hold stores a part.
func (p *parts) hold(e *keyversion.Event, en Entry) {
	p.seqno, p.entries = e.Seqno, append(p.entries, en)
}

// take returns the held parts followed by the last one, all with the given epoch.
func (p *parts) take(last Entry, epoch uint32) []Entry {
	all := append(p.entries, last)
	for i := range all {
		all[i].epoch = epoch
	}
	*p = parts{}
	return all
}

// PartBytes returns the memory of parts that wait for the rest of their event. QueueBytes does not include it: a
// receiver that stopped reading because of it would never get the rest.
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
