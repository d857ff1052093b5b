//go:build !cgo || !linux

package indexer

// trimHeap does nothing: the store's cache is in the Go heap, or the C library returns memory by itself.
func trimHeap() {}
