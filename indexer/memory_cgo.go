//go:build cgo

package indexer

// storageOutside tells whether the store's cache and memtables lie outside of the Go heap.
const storageOutside = true
