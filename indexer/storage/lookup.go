package storage

import (
	"bytes"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
)

// lookup finds the back entries of one batch's documents, first in recent, which covers the memtables, then in the
// tables. A single iterator reads the tables: the keys come in order, so the tables and blocks that it has open for
// one document often contain the next one, too.
type lookup struct {
	e  *pebbleEngine
	it *pebble.Iterator // opened for the first document that recent does not have
}

// lookup starts a lookup. The caller must close it.
func (e *pebbleEngine) lookup() lookup {
	e.reap()
	e.forgetWritten() // before the iterator is opened, which then sees the tables that these were written to
	return lookup{e: e}
}

// forgetWritten records which entries of recent are in tables by now, and evicts what exceeds the memory for them.
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

// charge reserves the memory of recent's written entries in the block cache, which shrinks by it.
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

// rotations returns the rotation number that a batch committed now belongs to.
func (e *pebbleEngine) rotations() uint64 {
	e.mem.Lock()
	defer e.mem.Unlock()
	return e.mem.rotations
}

// find returns the value of a back entry, valid until the next call.
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
	found = l.it.SeekPrefixGE(key) // uses the tables' filters: the prefix is the whole key
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

// backFilter is a Bloom filter over back entries and other records that are looked up by their whole key. It omits
// forward rows, which are two of three keys and are read by ranges.
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
