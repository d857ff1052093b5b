package fsm

import "container/heap"

// waiter waits until an index is applied.
type waiter struct {
	index uint64
	done  chan error // receives once
	at    int        // position in the heap, -1 if it is not in it
}

// waiterHeap is a min-heap by index.
type waiterHeap []*waiter

func (h *waiterHeap) push(w *waiter) { heap.Push((*waiterOrder)(h), w) }

func (h *waiterHeap) pop() *waiter { return heap.Pop((*waiterOrder)(h)).(*waiter) }

// remove removes a waiter that gave up, if it is still in the heap.
func (h *waiterHeap) remove(w *waiter) {
	if w.at >= 0 && w.at < len(*h) && (*h)[w.at] == w {
		heap.Remove((*waiterOrder)(h), w.at)
	}
}

// waiterOrder implements heap.Interface.
type waiterOrder []*waiter

func (h waiterOrder) Len() int           { return len(h) }
func (h waiterOrder) Less(i, j int) bool { return h[i].index < h[j].index }

func (h waiterOrder) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i, j
}

func (h *waiterOrder) Push(x any) {
	w := x.(*waiter)
	w.at = len(*h)
	*h = append(*h, w)
}

func (h *waiterOrder) Pop() any {
	last := len(*h) - 1
	w := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	w.at = -1
	return w
}
