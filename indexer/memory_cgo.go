//go:build cgo

package indexer

// storageOutside reports whether the store's cache and memtables are allocated outside the Go heap.
const storageOutside = true
