//go:build !cgo

package indexer

// storageOutside reports whether the store's cache and memtables lie outside of the Go heap.
const storageOutside = false
