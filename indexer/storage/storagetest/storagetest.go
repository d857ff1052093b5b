// Package storagetest opens copies for tests, and damages the files of a copy on purpose, so that tests can check
// that the damage is found.
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

// Rows changes the records of a copy whose indexer is not running; see records.go of package storage for the records.
type Rows struct{ db *pebble.DB }

// Edit opens the data of a copy in an indexer's folder of copies, lets f change it, and makes the change durable.
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
	o.Experimental.EnableColumnarBlocks = func() bool { return false } // the store opens only tables of row blocks
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

// Add adds a row to the forward index without changing the back index.
func (r *Rows) Add(key []byte, docID string) error {
	return r.db.Set(row(key, docID), binary.AppendUvarint(nil, uint64(len(docID))), pebble.NoSync)
}

// Remove removes a row from the forward index.
func (r *Rows) Remove(key []byte, docID string) error {
	return r.db.Delete(row(key, docID), pebble.NoSync)
}

// SetEntry writes a document's entry in the back index.
func (r *Rows) SetEntry(vb uint16, docID string, seqno uint64, keys ...[]byte) error {
	v := binary.AppendUvarint(binary.AppendUvarint(nil, seqno), uint64(len(keys)))
	for _, k := range keys {
		v = append(binary.AppendUvarint(v, uint64(len(k))), k...)
	}
	return r.db.Set(entry(vb, docID), v, pebble.NoSync)
}

// RemoveEntry removes a document's entry from the back index.
func (r *Rows) RemoveEntry(vb uint16, docID string) error {
	return r.db.Delete(entry(vb, docID), pebble.NoSync)
}

// Key returns the key of the first row of a document, or nil.
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

// quiet is a logger that drops everything but fatal errors.
type quiet struct{}

func (quiet) Infof(string, ...any)         {}
func (quiet) Errorf(string, ...any)        {} // also returned as an error
func (quiet) Fatalf(f string, args ...any) { panic(fmt.Sprintf(f, args...)) }
