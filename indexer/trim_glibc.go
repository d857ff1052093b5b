//go:build cgo && linux

package indexer

/*
#include <stddef.h>

// Weak: other C libraries than glibc have none.
extern int malloc_trim(size_t pad) __attribute__((weak));

static void trim_heap(void) {
	if (malloc_trim) {
		malloc_trim(0);
	}
}
*/
import "C"

// trimHeap makes the C library return freed memory to the system. The store's cache is allocated there.
func trimHeap() { C.trim_heap() }
