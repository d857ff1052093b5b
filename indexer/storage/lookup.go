package storage

import (
	"bytes"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
)

// lookup finds the back entries of one batch's documents: first among those that stand in memtables, then in the
// tables. One iterator goes over these, as the keys come in order: the tables and blocks that it has open for one
// document often have the next one, too.
type lookup struct {
	e  *pebbleEngine
	it *pebble.Iterator // opened by the first document that is not found without
}

// lookup begins one; close it.
func (e *pebbleEngine) lookup() lookup {
	e.reap()
	e.forgetWritten() // before the iterator is opened, which then sees the tables that these went to
	return lookup{e: e}
}

// forgetWritten notes what is in tables by now, and lets go of it what there is no room for.
func (e *pebbleEngine) forgetWritten() {
	e.mem.Lock()
	written := e.mem.written
	e.mem.Unlock()
	e.recent.written(written)
	e.charge()
	for e.res.memory.tooMuch(e.charged) && e.recent.evict() {
		e.charge()
	}
}

// charge counts what the engine keeps of written batches: the cache of blocks has so much less.
func (e *pebbleEngine) charge() {
	size := e.recent.size()
	if size == e.charged {
		return
	}
	e.res.memory.keep(size - e.charged)
	if e.charged = size; e.uncharge != nil {
		e.uncharge()
	}
	e.uncharge = e.res.cache.Reserve(int(size))
}

// rotations is the number under which a batch that is committed now is noted.
func (e *pebbleEngine) rotations() uint64 {
	e.mem.Lock()
	defer e.mem.Unlock()
	return e.mem.rotations
}

// find returns a back entry's value, valid until the next call.
func (l *lookup) find(key []byte) (value []byte, found bool, err error) {
	if value, found = l.e.recent.find(key); found {
		return value, value != nil, nil
	}
	if l.it == nil {
		l.it, err = l.e.db.NewIter(&pebble.IterOptions{
			LowerBound: []byte{tagBack}, UpperBound: []byte{tagBack + 1}, OnlyReadGuaranteedDurable: l.e.recent.sure(),
		})
		if err != nil {
			return nil, false, err
		}
	}
	found = l.it.SeekPrefixGE(key) // by the tables' filters: a prefix is a whole key here
	if err := l.it.Error(); err != nil {
		return nil, false, err
	}
	if !found || !bytes.Equal(l.it.Key(), key) {
		return nil, false, nil
	}
	value, err = l.it.ValueAndErr()
	return value, err == nil, err
}

func (l *lookup) close() error {
	if l.it == nil {
		return nil
	}
	return l.it.Close()
}

// backFilter is a Bloom filter of the back entries and of what else is looked up by its whole key, but the forward
// rows, which are two of three keys and are met by ranges.
type backFilter struct{ bloom.FilterPolicy }

// Name implements pebble.FilterPolicy.
func (f backFilter) Name() string { return "tidemark.back" }

// MayContain implements pebble.FilterPolicy.
func (f backFilter) MayContain(t pebble.FilterType, filter, key []byte) bool {
	return len(key) > 0 && key[0] == tagFwd || f.FilterPolicy.MayContain(t, filter, key)
}

// NewWriter implements pebble.FilterPolicy.
func (f backFilter) NewWriter(t pebble.FilterType) pebble.FilterWriter {
	return backFilterWriter{f.FilterPolicy.NewWriter(t)}
}

type backFilterWriter struct{ pebble.FilterWriter }

// AddKey implements pebble.FilterWriter.
func (w backFilterWriter) AddKey(key []byte) {
	if len(key) == 0 || key[0] != tagFwd {
		w.FilterWriter.AddKey(key)
	}
}
