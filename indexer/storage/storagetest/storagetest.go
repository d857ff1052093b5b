// Package storagetest opens copies for tests, and damages the files of a copy on purpose, so that tests see whether it
// is found.
package storagetest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cockroachdb/pebble/v2"

	"tidemark/index"
)

// Rows changes the records of a copy whose indexer does not run; see records.go of package storage for what they are.
type Rows struct{ db *pebble.DB }

// Edit opens the data of a copy below an indexer's folder of copies, lets f change it, and makes that durable.
func Edit(copies string, id index.CopyID, f func(*Rows) error) (err error) {
	found, err := filepath.Glob(filepath.Join(copies, id.String(), "db-*"))
	if err != nil || len(found) == 0 {
		return errors.Join(fmt.Errorf("copy %s has no data below %s", id, copies), err)
	}
	number := func(dir string) int {
		n, _ := strconv.Atoi(dir[strings.LastIndexByte(dir, '-')+1:])
		return n
	}
	newest := slices.MaxFunc(found, func(a, b string) int { return number(a) - number(b) })
	o := &pebble.Options{DisableWAL: true, ErrorIfNotExists: true, FormatMajorVersion: pebble.FormatValueSeparation,
		Logger: quiet{}}
	o.Experimental.EnableColumnarBlocks = func() bool { return false } // the store opens tables of no other kind
	db, err := pebble.Open(newest, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := f(&Rows{db}); err != nil {
		return err
	}
	return db.Flush()
}

// Add puts a row into the forward index, and nothing into the back index.
func (r *Rows) Add(key []byte, docID string) error {
	return r.db.Set(row(key, docID), binary.AppendUvarint(nil, uint64(len(docID))), pebble.NoSync)
}

// Remove takes a row out of the forward index.
func (r *Rows) Remove(key []byte, docID string) error {
	return r.db.Delete(row(key, docID), pebble.NoSync)
}

// SetEntry writes what the back index says of a document.
func (r *Rows) SetEntry(vb uint16, docID string, seqno uint64, keys ...[]byte) error {
	v := binary.AppendUvarint(binary.AppendUvarint(nil, seqno), uint64(len(keys)))
	for _, k := range keys {
		v = append(binary.AppendUvarint(v, uint64(len(k))), k...)
	}
	return r.db.Set(entry(vb, docID), v, pebble.NoSync)
}

// RemoveEntry lets the back index forget a document.
func (r *Rows) RemoveEntry(vb uint16, docID string) error {
	return r.db.Delete(entry(vb, docID), pebble.NoSync)
}

// Key returns the key of the first row of a document; nil when it has none.
func (r *Rows) Key(docID string) (key []byte, err error) {
	it, err := r.db.NewIter(&pebble.IterOptions{LowerBound: []byte{'f'}, UpperBound: []byte{'g'}})
	if err != nil {
		return nil, err
	}
	for ok := it.First(); ok && key == nil; ok = it.Next() {
		size, _ := binary.Uvarint(it.Value())
		k := it.Key()
		if cut := len(k) - int(size); cut > 0 && string(k[cut:]) == docID {
			key = slices.Clone(k[1:cut])
		}
	}
	return key, it.Close()
}

func row(key []byte, docID string) []byte { return append(append([]byte{'f'}, key...), docID...) }

func entry(vb uint16, docID string) []byte {
	return append([]byte{'b', byte(vb >> 8), byte(vb)}, docID...)
}

// quiet says nothing but what is wrong.
type quiet struct{}

func (quiet) Infof(string, ...any)         {}
func (quiet) Errorf(string, ...any)        {} // comes as an error, too
func (quiet) Fatalf(f string, args ...any) { panic(fmt.Sprintf(f, args...)) }
