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

// trimHeap gives freed memory back to the system that the C library keeps in between: the store's cache lies there.
func trimHeap() { C.trim_heap() }
